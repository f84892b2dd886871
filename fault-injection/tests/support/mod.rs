//! What the tests of sweeps share: a device, launchers, and what a report says. Each test file uses a part of it.
#![allow(dead_code)]

use std::sync::Arc;

use fault_injection::{BoxError, FaultyDevice, HostDevice, Outcome, SweepOptions, SweepReport, sweep};
use kernels::device::{DeviceRef, DeviceResult, StreamId};
use kernels::scratch::Scratch;

/// The stream of every launcher.
pub const STREAM: StreamId = StreamId::DEFAULT;

/// A wrapped device of host memory.
pub fn device() -> Arc<FaultyDevice<HostDevice>> {
    FaultyDevice::new(Arc::new(HostDevice::new(None)))
}

/// Sweeps a launcher in every way.
pub fn judge<E: Into<BoxError>>(launcher: impl FnMut(&DeviceRef) -> Result<Vec<u8>, E>) -> SweepReport {
    sweep(&device(), &SweepOptions::default(), launcher).expect("it works without faults")
}

/// Names of what escaped, each once, in order of appearance.
pub fn names(report: &SweepReport) -> Vec<&'static str> {
    let mut names = Vec::new();
    for outcome in report.steps.iter().flat_map(|step| &step.outcomes).filter(|o| **o != Outcome::Contained) {
        if !names.contains(&outcome.name()) {
            names.push(outcome.name());
        }
    }
    names
}

/// Names of what clean runs showed.
pub fn clean_names(report: &SweepReport) -> Vec<&'static str> {
    report.clean.iter().map(Outcome::name).collect()
}

/// The first bytes of some memory.
pub fn read(device: &DeviceRef, scratch: &Scratch) -> DeviceResult<Vec<u8>> {
    let mut bytes = vec![0; 4];
    device.copy_to_host(&mut bytes, scratch.ptr(), STREAM)?;
    Ok(bytes)
}

/// A launcher that does everything right, with four calls that can fail.
pub fn good(device: &DeviceRef) -> DeviceResult<Vec<u8>> {
    let scratch = Scratch::new(device, 64, STREAM)?;
    device.memset(scratch.ptr(), 3, 64, STREAM)?;
    let bytes = read(device, &scratch)?;
    scratch.release()?;
    Ok(bytes)
}
