//! The card's ceilings: copy bandwidth and the rate of matrix instructions.

use kernels::device::{DeviceRef, StreamId};
use kernels::peak::{mma_peak, out_bytes};
use kernels::scratch::Scratch;

use super::BenchError;
use super::report::Ceilings;
use super::timing::Stopwatch;

const COPY_BYTES: u64 = 1 << 30;
const BLOCKS_PER_MULTIPROCESSOR: u32 = 4;
const REPETITIONS: u32 = 4096;
const ROUNDS: usize = 9;

pub(super) fn measure(device: &DeviceRef) -> Result<Ceilings, BenchError> {
    let watch = Stopwatch::new(device)?;
    let info = device.info();
    let from = Scratch::new(device, COPY_BYTES, StreamId::DEFAULT)?;
    let to = Scratch::new(device, COPY_BYTES, StreamId::DEFAULT)?;
    device.memset(from.ptr(), 0x5a, COPY_BYTES, StreamId::DEFAULT)?;
    let copy_ms = median(ROUNDS, || {
        watch.time(|| Ok(device.copy_on_device(to.ptr(), from.ptr(), COPY_BYTES, StreamId::DEFAULT)?))
    })?;
    from.release()?;
    to.release()?;
    let blocks = info.multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    let out = Scratch::new(device, out_bytes(blocks), StreamId::DEFAULT)?;
    let mut flop = 0.0;
    let mma_ms = median(ROUNDS, || {
        watch.time(|| {
            flop = mma_peak(device, StreamId::DEFAULT, out.ptr(), blocks, REPETITIONS)?;
            Ok(())
        })
    })?;
    out.release()?;
    Ok(Ceilings { copy_tb_s: 2.0 * COPY_BYTES as f64 / copy_ms / 1e9, mma_tflop_s: flop / mma_ms / 1e9 })
}

/// The median of several times in milliseconds, the first of which is dropped as a warm-up.
pub(super) fn median(
    rounds: usize,
    mut time: impl FnMut() -> Result<f32, BenchError>,
) -> Result<f64, BenchError> {
    time()?;
    let mut all = (0..rounds).map(|_| time()).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(f32::total_cmp);
    Ok(f64::from(all[all.len() / 2]))
}
