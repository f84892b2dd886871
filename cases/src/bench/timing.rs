//! Timing: interleaved rounds of captured launches, each round on the next copy of the inputs.

use kernels::device::{DeviceRef, EventId, GraphId, StreamId};
use kernels::launch::paged_attention_with;
use kernels::route::Knobs;
use kernels::workspace::Workspace;

use super::data::Data;
use super::{ArmRun, BenchError};

/// Rounds that are counted, at most and at least.
const ROUNDS: (usize, usize) = (30, 5);
/// Time after which no further round of an arm is started, once it has the fewest, in milliseconds.
const BUDGET_MS: f32 = 1500.0;
/// Rounds that suffice once an arm has taken twice the budget: calls that long hardly vary.
const ROUNDS_OF_LONG_CALLS: usize = 2;
/// Time that one captured batch of calls should take at least, so that a launch's own cost disappears, in milliseconds.
const BATCH_MS: f32 = 1.0;
const MAX_CALLS: usize = 64;

/// Times of one arm: milliseconds of one call in each round, and pool bytes.
pub(super) struct Times {
    pub ms: Vec<f32>,
    /// Scratch that the arm keeps between calls.
    pub scratch_bytes: u64,
}

/// One arm ready to run: its calls as a graph, and the scratch that the graph uses.
struct Prepared {
    graph: GraphId,
    calls: usize,
    workspace: Workspace,
    ms: Vec<f32>,
    spent_ms: f32,
}

impl Prepared {
    fn has_enough(&self, rounds: usize) -> bool {
        (rounds >= ROUNDS.1 && self.spent_ms > BUDGET_MS)
            || (rounds >= ROUNDS_OF_LONG_CALLS && self.spent_ms > 2.0 * BUDGET_MS)
    }
}

/// Two events that are destroyed when they go out of scope.
pub(super) struct Stopwatch<'a> {
    device: &'a DeviceRef,
    start: EventId,
    end: EventId,
}

impl<'a> Stopwatch<'a> {
    pub(super) fn new(device: &'a DeviceRef) -> Result<Self, BenchError> {
        let start = device.create_event()?;
        let end = match device.create_event() {
            Ok(end) => end,
            Err(error) => {
                let _ = device.destroy_event(start);
                return Err(error.into());
            }
        };
        Ok(Self { device, start, end })
    }

    /// Milliseconds that the work put on the stream takes.
    pub(super) fn time(&self, work: impl FnOnce() -> Result<(), BenchError>) -> Result<f32, BenchError> {
        self.device.record_event(self.start, StreamId::DEFAULT)?;
        work()?;
        self.device.record_event(self.end, StreamId::DEFAULT)?;
        self.device.synchronize(StreamId::DEFAULT)?;
        Ok(self.device.elapsed_ms(self.start, self.end)?)
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        let _ = self.device.destroy_event(self.start);
        let _ = self.device.destroy_event(self.end);
    }
}

/// Knobs of a problem: its batch is announced as uniform, as a serving engine would.
pub(super) fn knobs(data: &Data) -> Knobs {
    Knobs { uniform_query_len: Some(data.problem.q_len), scratch_budget_bytes: 64 << 30, ..Knobs::default() }
}

pub(super) fn time_arms(device: &DeviceRef, data: &Data, runs: &[ArmRun]) -> Result<Vec<Times>, BenchError> {
    let watch = Stopwatch::new(device)?;
    let mut prepared = Vec::new();
    for &run in runs {
        prepared.push(prepare(device, data, run, &watch)?);
    }
    for round in 0..ROUNDS.0 {
        for arm in &mut prepared {
            if arm.has_enough(round) {
                continue;
            }
            let ms = watch.time(|| Ok(device.launch_graph(arm.graph, StreamId::DEFAULT)?))?;
            arm.spent_ms += ms;
            arm.ms.push(ms / arm.calls as f32);
        }
    }
    let mut times = Vec::new();
    for arm in prepared {
        device.destroy_graph(arm.graph)?;
        let scratch_bytes = arm.workspace.pieces().iter().map(|(_, bytes)| bytes).sum();
        arm.workspace.release()?;
        times.push(Times { ms: arm.ms, scratch_bytes });
    }
    Ok(times)
}

/// Warms an arm up, sees how long a call takes, and captures as many calls as fill a batch.
fn prepare(
    device: &DeviceRef,
    data: &Data,
    run: ArmRun,
    watch: &Stopwatch<'_>,
) -> Result<Prepared, BenchError> {
    let knobs = knobs(data);
    let mut workspace = Workspace::new(device, StreamId::DEFAULT);
    let mut call = |copy: usize| -> Result<(), BenchError> {
        let args = data.args(run, copy);
        paged_attention_with(device, StreamId::DEFAULT, Some(run.arm), &args, &knobs, Some(&mut workspace))?;
        Ok(())
    };
    call(0)?;
    let one = watch.time(|| call(1))?.max(1e-3);
    let calls =
        ((BATCH_MS / one) as usize).clamp(1, MAX_CALLS).max(if one < 20.0 { data.copies() } else { 1 });
    device.begin_capture(StreamId::DEFAULT)?;
    let recorded = (0..calls).try_for_each(&mut call);
    // The capture ends whatever came of the calls, or the stream would be of no use to anybody.
    let graph = device.end_capture(StreamId::DEFAULT);
    recorded?;
    let graph = graph?;
    watch.time(|| Ok(device.launch_graph(graph, StreamId::DEFAULT)?))?;
    Ok(Prepared { graph, calls, workspace, ms: Vec::new(), spent_ms: 0.0 })
}
