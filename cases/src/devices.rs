//! Opening devices by kind.

use std::sync::Arc;

use kernels::cuda::{CudaDevice, CudaOptions};
use kernels::device::{DeviceError, DeviceInfo, DeviceKind, DeviceRef, DeviceResult};
use kernels::simt::{Mode, Schedule, SimtDevice, SimtOptions};
use kernels::source::SourceSet;

use crate::executor::DeviceSpec;

/// Opens a device.
///
/// # Errors
/// [`DeviceError::Environment`] when there is no such device here, no compiler, or the kernel sources cannot be read.
pub fn open(spec: &DeviceSpec) -> DeviceResult<DeviceRef> {
    open_with(spec, sources()?)
}

/// Opens a device with sources other than those of this run.
///
/// # Errors
/// As [`open`].
pub fn open_with(spec: &DeviceSpec, sources: SourceSet) -> DeviceResult<DeviceRef> {
    match spec.kind {
        DeviceKind::Simt => Ok(simt_with(spec, sources)?),
        DeviceKind::Cuda => Ok(CudaDevice::new(CudaOptions {
            ordinal: 0,
            sources,
            cache_dir: cuda_cache_dir(),
            memory_limit: None,
        })?),
        DeviceKind::Host => Err(DeviceError::Environment("host memory is no device".to_owned())),
    }
}

/// Opens a `simt` device.
///
/// # Errors
/// As [`open`].
pub fn open_simt(spec: &DeviceSpec) -> DeviceResult<Arc<SimtDevice>> {
    simt_with(spec, sources()?)
}

fn simt_with(spec: &DeviceSpec, sources: SourceSet) -> DeviceResult<Arc<SimtDevice>> {
    let mut options = SimtOptions::new(sources);
    options.mode = if spec.checked { Mode::Checked } else { Mode::Fast };
    options.schedule = spec.schedule.map_or(Schedule::Forward, Schedule::Random);
    SimtDevice::new(options)
}

fn sources() -> DeviceResult<SourceSet> {
    SourceSet::load()
        .map_err(|error| DeviceError::Environment(format!("the kernel sources cannot be read: {error}")))
}

/// The card's facts, or why there is none to use.
///
/// # Errors
/// [`DeviceError::Environment`] that says what is missing.
pub fn cuda_info() -> DeviceResult<DeviceInfo> {
    let spec = DeviceSpec { kind: DeviceKind::Cuda, checked: false, schedule: None };
    open(&spec).map(|device| device.info())
}

fn cuda_cache_dir() -> Option<std::path::PathBuf> {
    std::env::var_os("ATTEST_CACHE_DIR").map(|dir| std::path::PathBuf::from(dir).join("cuda"))
}
