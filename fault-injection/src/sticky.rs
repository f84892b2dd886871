//! A sticky error: a kernel traps, and from then on every call of its context fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use kernels::device::{DeviceError, DeviceRef, LaunchConfig, StreamId};
use kernels::error::LaunchError;
use kernels::scratch::Scratch;
use kernels::source::{KernelSpec, SourceSet};
use serde::{Deserialize, Serialize};

use crate::operations::Operation;

/// `base` with the kernel that traps.
#[must_use]
pub fn sources(base: SourceSet) -> SourceSet {
    base.with_file("trap.cu", include_str!("sticky/trap.cu"))
}

/// What became of a context.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sticky {
    /// What the wait for the trapping kernel reported.
    pub reported: String,
    /// What the next operation reported.
    pub later: String,
}

/// Traps on a device whose sources hold the trapping kernel, and uses it once more. The device is lost afterwards: do this in
/// a process of its own.
///
/// # Errors
/// What was not as it must be: the trap went unnoticed, was not reported as sticky, did not last, or a guard panicked.
pub fn provoke(device: &DeviceRef, operation: &Operation) -> Result<Sticky, String> {
    let run = operation.prepare(device).map_err(|error| format!("inputs cannot be uploaded: {error}"))?;
    let scratch = Scratch::new(device, 4096, StreamId::DEFAULT).map_err(|error| error.to_string())?;
    let reported = match trap(device) {
        Ok(()) => return Err("the trap was not noticed".to_owned()),
        Err(DeviceError::Driver { sticky: true, code, call, .. }) => format!("{call}: {code}"),
        Err(other) => return Err(format!("the trap was not reported as sticky: {other}")),
    };
    // Everything that is dropped from here on is dropped in a lost context.
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        let mut run = run;
        let result = run(device);
        drop(scratch);
        drop(run);
        result
    }));
    match outcome {
        Err(_) => Err("the next operation panicked".to_owned()),
        Ok(Ok(_)) => Err("the next operation succeeded in a lost context".to_owned()),
        Ok(Err(LaunchError::Device(DeviceError::Driver { sticky: true, code, call, .. }))) => {
            Ok(Sticky { reported, later: format!("{call}: {code}") })
        }
        Ok(Err(other)) => Err(format!("the next operation did not report the lost context: {other}")),
    }
}

fn trap(device: &DeviceRef) -> Result<(), DeviceError> {
    let kernel = device.load_kernel(&KernelSpec { file: "trap.cu", entry: "trap", defines: vec![] })?;
    let config = LaunchConfig { grid: [1; 3], block: [1; 3], shared_bytes: 0 };
    device.launch(kernel, config, &0_u64.to_ne_bytes(), StreamId::DEFAULT)?;
    device.synchronize(StreamId::DEFAULT)
}
