//! Launch of `peak.cu`: the rate of matrix instructions on registers alone.

use crate::device::{DevicePtr, DeviceRef, DeviceResult, LaunchConfig, StreamId};
use crate::params::KernelParams;
use crate::source::KernelSpec;

const THREADS: u32 = 128;

/// `PeakParams` of `peak.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct PeakParams {
    out: u64,
    repetitions: i32,
    reserved: i32,
}

const _: () = assert!(size_of::<PeakParams>() == 16);
// SAFETY: `repr(C)`, numbers only, and the size above leaves no padding.
unsafe impl KernelParams for PeakParams {}

/// Bytes that `blocks` thread blocks write.
#[must_use]
pub fn out_bytes(blocks: u32) -> u64 {
    u64::from(blocks) * u64::from(THREADS) * 4
}

/// Queues `blocks` blocks of four warps, each of which multiplies 8 `repetitions` pairs of 16x16 and 16x8 tiles, and
/// returns the floating-point operations that they do. `out` holds [`out_bytes`].
///
/// # Errors
/// What the device reports.
pub fn mma_peak(
    device: &DeviceRef,
    stream: StreamId,
    out: DevicePtr,
    blocks: u32,
    repetitions: u32,
) -> DeviceResult<f64> {
    let kernel = device.load_kernel(&KernelSpec { file: "peak.cu", entry: "mma_peak", defines: vec![] })?;
    let params = PeakParams { out: out.0, repetitions: repetitions.cast_signed(), reserved: 0 };
    let config = LaunchConfig { grid: [blocks, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
    device.launch(kernel, config, params.bytes(), stream)?;
    let per_product = 2.0 * 16.0 * 8.0 * 16.0;
    Ok(f64::from(blocks) * f64::from(THREADS / 32) * 8.0 * f64::from(repetitions) * per_product)
}
