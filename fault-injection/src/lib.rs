//! Makes every device call fail in turn and checks that nothing is left behind.
//!
//! A healthy device never fails an allocation on demand, so the code that handles failure is the least tested.
//! [`FaultyDevice`] wraps any device and fails chosen calls; [`sweep`] runs an operation once without faults, then once for
//! every call it makes with that call failing, and gives each run an [`Outcome`]. A run is [`Outcome::Contained`] when the
//! first error is the one reported, every byte and handle has been given back, no rule of stream-ordered memory was
//! broken, and a clean run afterwards gives the same bits as before.
//!
//! ```
//! use std::sync::Arc;
//!
//! use fault_injection::{FaultyDevice, HostDevice, SweepOptions, sweep};
//! use kernels::device::{DeviceRef, DeviceResult, StreamId};
//! use kernels::scratch::Scratch;
//!
//! // A launcher with two buffers. Guards give them back, whichever call fails.
//! fn launcher(device: &DeviceRef) -> DeviceResult<Vec<u8>> {
//!     let stream = StreamId::DEFAULT;
//!     let scratch = Scratch::new(device, 1024, stream)?;
//!     let out = Scratch::new(device, 16, stream)?;
//!     device.memset(scratch.ptr(), 7, 1024, stream)?;
//!     device.copy_on_device(out.ptr(), scratch.ptr(), 16, stream)?;
//!     let mut result = vec![0; 16];
//!     device.copy_to_host(&mut result, out.ptr(), stream)?;
//!     out.release()?;
//!     scratch.release()?;
//!     Ok(result)
//! }
//!
//! // Any device will do: this one needs neither a GPU nor a compiler.
//! let device = FaultyDevice::new(Arc::new(HostDevice::new(None)));
//! let report = sweep(&device, &SweepOptions::default(), launcher)?;
//! assert!(report.passed(), "{report}");
//! assert_eq!(report.fired(), 14); // five calls at once and two later ones, each once and persistently
//! # Ok::<(), fault_injection::SweepError>(())
//! ```

mod call;
pub mod campaign;
mod child;
pub mod drops;
pub mod exhaustion;
mod faulty;
mod host_device;
mod injected;
mod ledger;
pub mod operations;
mod outcome;
mod plan;
mod site;
pub mod sticky;
mod sweep;
mod trial;
mod without_frees;

pub use call::{Call, CallKind, KindSet, UnknownKind};
pub use child::{Child, UnknownChild};
pub use faulty::FaultyDevice;
pub use host_device::{HostDevice, HostMemory};
pub use injected::{InjectedFault, Token};
pub use ledger::{Handle, HandleKind, LiveAllocation, Misuse, MisuseKind, Snapshot};
pub use outcome::Outcome;
pub use plan::{At, FaultPlan, Repeat};
pub use site::Site;
pub use sweep::{Step, SweepOptions, SweepReport, inject, sweep};
pub use trial::{BoxError, SweepError};
pub use without_frees::WithoutFrees;
