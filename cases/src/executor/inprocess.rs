//! Runs jobs in this process: for tests, and for looking at a kernel in a debugger.

use std::time::Duration;

use super::device_side::Devices;
use super::{Executor, Job, Outcome};

/// Runs jobs in this process. Time limits are not enforced and a crash is a crash of the caller.
#[derive(Default)]
pub struct InProcess {
    devices: Devices,
}

impl Executor for InProcess {
    fn run(&mut self, job: &Job, _limit: Duration) -> Outcome {
        Outcome::Replied(self.devices.run(job))
    }
}
