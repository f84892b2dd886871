//! A long prompt as a serving engine meets it: chunk by chunk, layer by layer, through a growing cache.

use kernels::ahead::DenseAhead;
use kernels::arm::Arm;
use kernels::device::{DeviceRef, StreamId};
use kernels::launch::paged_attention_with;
use kernels::workspace::Workspace;
use serde::{Deserialize, Serialize};

use super::data::Data;
use super::parity::{Parity, ParityError};
use super::timing::{Stopwatch, knobs};
use super::{ArmRun, BenchError, BenchProblem};

const TOKENS: u64 = 32768;
const CHUNK: u64 = 2048;
const LAYERS: u64 = 16;
/// Times that each chunk is timed; the median counts.
const ROUNDS: usize = 5;

/// One way over the whole prompt. Attention only: the model's other work is the same for all.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PrefillRun {
    /// The cache and the way.
    pub arm: String,
    /// Seconds for all chunks and layers.
    pub seconds: f64,
    /// Prompt tokens over those seconds.
    pub tokens_per_s: f64,
    /// Cache of all layers plus scratch, in GiB.
    pub peak_gib: f64,
    /// What is wrong with its output; its time means nothing then.
    #[serde(default)]
    pub mismatch: Option<String>,
}

/// How the layers of a chunk are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A bf16 cache, read in place.
    Bf16,
    /// An fp8 cache, dequantised by each call.
    Dense,
    /// An fp8 cache, each layer dequantised while the one before attends.
    Ahead,
    /// An fp8 cache, decoded at each read.
    PerRead,
}

impl Way {
    const ALL: [Self; 4] = [Self::Bf16, Self::Dense, Self::Ahead, Self::PerRead];

    fn run(self) -> ArmRun {
        match self {
            Self::Bf16 => ArmRun { arm: Arm::Mma, fp8: false },
            Self::Dense | Self::Ahead => ArmRun { arm: Arm::Fp8Dense, fp8: true },
            Self::PerRead => ArmRun { arm: Arm::Scalar, fp8: true },
        }
    }

    fn label(self) -> String {
        match self {
            Self::Bf16 => "bf16, mma".to_owned(),
            Self::Dense => "e4m3, fp8-dense".to_owned(),
            Self::Ahead => "e4m3, fp8-dense ahead".to_owned(),
            Self::PerRead => "e4m3, scalar".to_owned(),
        }
    }

    /// Layers that are run for a time. Per-read decoding takes minutes for all, so one is timed, once.
    fn timed_layers(self) -> u64 {
        if self == Self::PerRead { 1 } else { LAYERS }
    }

    /// Whether the output has the bits of the bf16 cache's: the same values through the same kernel.
    fn has_bits_of_bf16(self) -> bool {
        self != Self::PerRead
    }
}

/// Serves the layers of one chunk. Scratch is kept between layers, as an engine would.
struct Server<'a> {
    device: &'a DeviceRef,
    data: &'a Data,
    way: Way,
    workspace: Workspace,
    ahead: DenseAhead,
}

impl<'a> Server<'a> {
    fn new(device: &'a DeviceRef, data: &'a Data, way: Way) -> Result<Self, BenchError> {
        let stream = StreamId::DEFAULT;
        let (workspace, ahead) = (Workspace::new(device, stream), DenseAhead::new(device, stream)?);
        Ok(Self { device, data, way, workspace, ahead })
    }

    /// All layers in turn; copies of the inputs stand for their caches. The first layer of a chunk is never announced.
    fn layers(&mut self) -> Result<(), BenchError> {
        let (run, knobs) = (self.way.run(), knobs(self.data));
        for layer in 0..self.way.timed_layers() as usize {
            let args = self.data.args(run, layer);
            if self.way == Way::Ahead {
                let next = (layer + 1 < LAYERS as usize).then(|| self.data.args(run, layer + 1));
                self.ahead.attend(&args, &knobs, next.as_ref())?;
            } else {
                let workspace = Some(&mut self.workspace);
                paged_attention_with(
                    self.device,
                    StreamId::DEFAULT,
                    Some(run.arm),
                    &args,
                    &knobs,
                    workspace,
                )?;
            }
        }
        Ok(())
    }

    /// The output that the last layer leaves in memory that was full of NaN.
    fn output(&mut self) -> Result<Vec<u8>, BenchError> {
        let mut bytes = vec![0; self.data.out_bytes()];
        self.device.memset(self.data.out(), 0xff, bytes.len() as u64, StreamId::DEFAULT)?;
        self.layers()?;
        self.device.copy_to_host(&mut bytes, self.data.out(), StreamId::DEFAULT)?;
        Ok(bytes)
    }

    fn scratch_bytes(&self) -> u64 {
        self.ahead.bytes() + self.workspace.pieces().iter().map(|(_, bytes)| bytes).sum::<u64>()
    }

    fn release(self) -> Result<(), BenchError> {
        self.workspace.release()?;
        Ok(self.ahead.release()?)
    }
}

/// What is known of one way so far.
#[derive(Default)]
struct Sum {
    ms: f64,
    scratch: u64,
    mismatch: Option<String>,
}

/// Times 32k tokens in chunks of 2048 over 16 layers at 24/4 d256, every way in the same rounds. Before and after, outputs are
/// compared: all ways but per-read with each other, bit for bit, and each arm with the oracle on sampled rows of the last chunk.
///
/// # Errors
/// What the device, a launch or the oracle reports.
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
    let mut sums: [Sum; 4] = Default::default();
    for chunk in 1..=TOKENS / CHUNK {
        let data = Data::new(device, &BenchProblem { kv_len: chunk * CHUNK, ..whole.clone() })?;
        time_chunk(device, &data, &mut sums)?;
        if chunk == TOKENS / CHUNK {
            judge(device, &data, &mut sums)?;
        }
    }
    let finish = |(way, sum): (Way, Sum)| {
        let bytes = whole.cache_bytes(way.run().fp8) * LAYERS as f64 + sum.scratch as f64;
        let seconds = sum.ms / 1e3;
        PrefillRun {
            arm: way.label(),
            seconds,
            tokens_per_s: TOKENS as f64 / seconds,
            peak_gib: bytes / f64::from(1 << 30),
            mismatch: sum.mismatch,
        }
    };
    Ok(Way::ALL.into_iter().zip(sums).map(finish).collect())
}

fn time_chunk(device: &DeviceRef, data: &Data, sums: &mut [Sum; 4]) -> Result<(), BenchError> {
    let watch = Stopwatch::new(device)?;
    let mut servers =
        Way::ALL.into_iter().map(|way| Server::new(device, data, way)).collect::<Result<Vec<_>, _>>()?;
    compare_bits(&mut servers, sums)?;
    let mut ms = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        for (server, ms) in servers.iter_mut().zip(&mut ms) {
            if server.way != Way::PerRead || round == 0 {
                ms.push(watch.time(|| server.layers())?);
            }
        }
    }
    compare_bits(&mut servers, sums)?;
    for ((server, ms), sum) in servers.into_iter().zip(&mut ms).zip(sums) {
        ms.sort_by(f32::total_cmp);
        sum.ms += f64::from(ms[ms.len() / 2]) * (LAYERS / server.way.timed_layers()) as f64;
        sum.scratch = sum.scratch.max(server.scratch_bytes());
        server.release()?;
    }
    Ok(())
}

/// Runs every way once, which also warms it up, and compares the bits of those that owe the bf16 cache's.
fn compare_bits(servers: &mut [Server<'_>], sums: &mut [Sum; 4]) -> Result<(), BenchError> {
    let want = servers[0].output()?;
    for (server, sum) in servers.iter_mut().zip(sums) {
        let got = server.output()?;
        let differs = want.iter().zip(&got).position(|(a, b)| a != b);
        if let Some(byte) = differs.filter(|_| server.way.has_bits_of_bf16()) {
            let kv_len = server.data.problem.kv_len;
            sum.mismatch = Some(format!("differs from the bf16 cache at byte {byte}, {kv_len} keys"));
        }
    }
    Ok(())
}

/// Compares the arms with the oracle and with each other.
fn judge(device: &DeviceRef, data: &Data, sums: &mut [Sum; 4]) -> Result<(), BenchError> {
    let mut parity = Parity::new(data)?;
    for (way, sum) in Way::ALL.into_iter().zip(sums) {
        let verdict: Result<f64, ParityError> = parity.check(device, data, way.run())?;
        if let Err(error) = verdict {
            sum.mismatch = Some(error.to_string());
        }
    }
    Ok(())
}
