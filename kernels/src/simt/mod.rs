//! The `simt` device: CUDA source on a CPU.
//!
//! Kernel sources are compiled with the host's C++ compiler and loaded into the process. Every lane of a thread block
//! is a fiber; blocks run one after another on the calling thread, so a launch is deterministic, and parallelism comes
//! from running several processes. [`Mode::Checked`] judges every access (bounds, alignment, initialisation, races
//! between lanes and between blocks); [`Mode::Fast`] runs uninstrumented code, in which an access outside memory
//! stops the process.
//!
//! # What a pass means
//!
//! Nothing about speed, about instruction-level faults of a GPU's compiler, or about memory ordering weaker than this
//! model: each access happens at once and in program order, except that a cp.async lands at the wait that covers it.
//! The model is stricter than a card in places. Shuffles, votes and matrix instructions order no memory; only
//! `__syncwarp` and `__syncthreads` do. Blocks of one launch are never ordered, not even by a fence and an atomic, so a
//! kernel whose last block combines what the others wrote is accused. What other streams have not been made to do
//! has not happened.
//!
//! # Modules
//!
//! | module | what it knows |
//! | --- | --- |
//! | `compile`, `module` | from source text to a loaded entry point, and back from code addresses to lines |
//! | `fiber`, `block`, `warp`, `schedule` | how lanes run and meet |
//! | `asynccopy`, `mma`, `atomics`, `ex2` | what single instructions do |
//! | `memory`, `pattern`, `pages` | where device memory lives |
//! | `check`, `shared_shadow`, `sync_order`, `global_shadow`, `findings` | what is remembered about accesses and what is reported |
//! | `stream`, `launch`, `device` | the order of work, and the device interface |

mod abi;
mod asynccopy;
mod atomics;
mod block;
mod check;
mod compile;
mod device;
mod ex2;
mod executor;
mod fiber;
mod findings;
mod global_shadow;
mod hooks;
mod launch;
mod memory;
mod mma;
mod module;
mod options;
mod pages;
mod pattern;
mod schedule;
mod shared_shadow;
mod stream;
mod stuck;
mod sync_order;
mod warp;

pub use device::SimtDevice;
pub use ex2::ex2_approx_ftz;
pub use options::{Mode, SimtOptions};
pub use pattern::Fill;
pub use schedule::Schedule;
