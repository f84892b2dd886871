//! A long prompt as a serving engine meets it: chunk by chunk, layer by layer, through a growing cache.

use kernels::arm::Arm;
use kernels::device::{DeviceRef, StreamId};
use kernels::launch::paged_attention_with;
use kernels::workspace::Workspace;
use serde::{Deserialize, Serialize};

use super::data::Data;
use super::timing::{Stopwatch, knobs};
use super::{ArmRun, BenchError, BenchProblem};

const TOKENS: u64 = 32768;
const CHUNK: u64 = 2048;
const LAYERS: u64 = 16;

/// One arm over the whole prompt. Attention only: the model's other work is the same for all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillRun {
    /// The arm and its cache.
    pub arm: String,
    /// Seconds for all chunks and layers.
    pub seconds: f64,
    /// Prompt tokens over those seconds.
    pub tokens_per_s: f64,
    /// Cache of all layers plus scratch, in GiB.
    pub peak_gib: f64,
}

/// Times 32k tokens in chunks of 2048 over 16 layers at 24/4 d256. Layers cost the same, so each chunk is timed on one
/// layer and counted 16 times; the per-read arm, which takes minutes otherwise, is timed once per chunk.
///
/// # Errors
/// What the device or a launch reports.
pub fn prefill_32k(device: &DeviceRef) -> Result<Vec<PrefillRun>, BenchError> {
    let whole = BenchProblem {
        num_q_heads: 24,
        num_kv_heads: 4,
        head_dim: 256,
        page_size: 32,
        batch: 1,
        q_len: CHUNK,
        kv_len: TOKENS,
    };
    let runs = [(Arm::Mma, false, 5), (Arm::Fp8Dense, true, 5), (Arm::Scalar, true, 1)];
    let mut all: Vec<(PrefillRun, u64)> = runs
        .iter()
        .map(|&(arm, fp8, _)| {
            (
                PrefillRun {
                    arm: ArmRun { arm, fp8 }.label(),
                    seconds: 0.0,
                    tokens_per_s: 0.0,
                    peak_gib: 0.0,
                },
                0,
            )
        })
        .collect();
    let watch = Stopwatch::new(device)?;
    for chunk in 1..=TOKENS / CHUNK {
        let data = Data::new(device, &BenchProblem { kv_len: chunk * CHUNK, ..whole.clone() })?;
        for (&(arm, fp8, rounds), (run, scratch)) in runs.iter().zip(&mut all) {
            let mut workspace = Workspace::new(device, StreamId::DEFAULT);
            let mut call = |copy: usize| -> Result<(), BenchError> {
                let args = data.args(ArmRun { arm, fp8 }, copy);
                paged_attention_with(
                    device,
                    StreamId::DEFAULT,
                    Some(arm),
                    &args,
                    &knobs(&data),
                    Some(&mut workspace),
                )?;
                Ok(())
            };
            if rounds > 1 {
                call(0)?;
            }
            let mut ms =
                (0..rounds).map(|round| watch.time(|| call(round))).collect::<Result<Vec<_>, _>>()?;
            ms.sort_by(f32::total_cmp);
            run.seconds += f64::from(ms[ms.len() / 2]) * LAYERS as f64 / 1e3;
            *scratch = (*scratch).max(workspace.pieces().iter().map(|(_, bytes)| bytes).sum());
            workspace.release()?;
        }
    }
    let finish = |(run, scratch): (PrefillRun, u64), fp8| {
        let bytes = whole.cache_bytes(fp8) * LAYERS as f64 + scratch as f64;
        PrefillRun { tokens_per_s: TOKENS as f64 / run.seconds, peak_gib: bytes / f64::from(1 << 30), ..run }
    };
    Ok(all.into_iter().zip(runs).map(|(done, (_, fp8, _))| finish(done, fp8)).collect())
}
