//! Running the device side of a case: in this process, or in a worker process that may die.

pub mod device_side;
mod inprocess;
pub mod protocol;
mod worker;

use std::time::Duration;

pub use inprocess::InProcess;
pub use protocol::{Buffer, DeviceSpec, Job, Operation, PoolUse, Reply, TensorSpec};
pub(crate) use worker::signal_name;
pub use worker::{Worker, live_with_parent, serve};

/// What became of a job.
#[derive(Debug)]
pub enum Outcome {
    /// The device side answered.
    Replied(Reply),
    /// The process died.
    Crashed {
        /// The signal's name, or the exit code.
        signal: String,
        /// Last lines that the process wrote to its standard error.
        detail: String,
    },
    /// No answer in time; the process was killed.
    TimedOut {
        /// The limit.
        limit: Duration,
    },
    /// No worker could be started.
    Unavailable {
        /// Why.
        message: String,
    },
}

/// Something that runs jobs, one at a time.
pub trait Executor {
    /// Runs one job. Never fails as such: whatever happens is an [`Outcome`].
    fn run(&mut self, job: &Job, limit: Duration) -> Outcome;
}
