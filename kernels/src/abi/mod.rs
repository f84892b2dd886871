//! The C interface of kernels that nobody here wrote: the header, its structs in Rust, and loading a library.
//!
//! `attest_kernel.h` is the contract. [`Library`] loads a shared library and asks it what it serves; it is used in a worker
//! process only, because a foreign library may do anything.

mod guarded;
mod info;
pub mod layout;
mod library;
pub mod types;
mod watch;

pub use guarded::{BufferSpec, Damage, GuardedMemory, Placed, Placement};
pub use info::{ForeignDevice, ForeignInfo, InfoError, dtype_of_tag, tag_of_dtype};
pub use library::{Library, LibraryError};
pub use watch::{FAULT_MARK, State, watch_faults};

/// The text of `attest_kernel.h`.
pub const HEADER: &str = include_str!("../../abi/attest_kernel.h");
/// The structs in Rust, as a file that needs nothing else.
pub const RUST_TYPES: &str = include_str!("types.rs");
