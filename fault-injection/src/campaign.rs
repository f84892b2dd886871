//! Everything that can be asked of one device: sweeps of all operations, the founding cases and the proof that they would
//! notice, guards dropped in odd places, exhaustion, and what takes a process of its own.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use kernels::arm::Arm;
use kernels::device::{Device, DeviceError, DeviceKind, DeviceRef, DeviceResult};
use kernels::error::LaunchError;
use kernels::source::SourceSet;
use serde::{Deserialize, Serialize};

use crate::child::Child;
use crate::drops::DropPlace;
use crate::exhaustion::just_below;
use crate::faulty::FaultyDevice;
use crate::operations::Operation;
use crate::operations::founding::Founding;
use crate::outcome::Outcome;
use crate::plan::Repeat;
use crate::sweep::{Step, SweepOptions, SweepReport, sweep};
use crate::trial::SweepError;

/// How devices and processes are had.
pub struct Surroundings<'a> {
    /// Opens the device with these sources and, if one is given, this ceiling of its pool in bytes.
    pub open: &'a dyn Fn(SourceSet, Option<u64>) -> DeviceResult<DeviceRef>,
    /// Runs a task in a fresh process and returns what it said, or how it ended.
    pub spawn: &'a dyn Fn(Child) -> Result<String, String>,
    /// Kernel sources.
    pub sources: SourceSet,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Selection {
    /// These arms only (`store` is one of them), or all, and then also what belongs to none.
    pub arms: Vec<String>,
    /// Once, persistently, or both.
    pub repeats: Vec<Repeat>,
}

impl Default for Selection {
    fn default() -> Self {
        Self { arms: Vec::new(), repeats: vec![Repeat::Once, Repeat::Persistent] }
    }
}

impl Selection {
    fn names(&self, arm: Option<&str>) -> bool {
        self.arms.is_empty() || arm.is_some_and(|arm| self.arms.iter().any(|name| name == arm))
    }
}

/// How one line ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Every fault was contained.
    Passed,
    /// At least one escaped.
    Failed {
        /// What escaped, a paragraph for each.
        details: Vec<String>,
    },
    /// The device or the arm does not serve this.
    Skipped {
        /// Why.
        reason: String,
    },
    /// The surroundings failed.
    NoVerdict {
        /// Why.
        reason: String,
    },
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What was done.
    pub name: String,
    /// The arm that it exercises; `None` if it belongs to none.
    pub arm: Option<String>,
    /// Device calls of a clean run.
    pub calls: u64,
    /// Runs in which a fault fired.
    pub fired: u64,
    /// Runs whose fault was contained.
    pub contained: u64,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// A remark worth reading in any case: byte counts, an error's text.
    pub remark: Option<String>,
    /// Wall-clock time in seconds.
    pub seconds: f64,
    /// Every run of a sweep.
    pub steps: Vec<Step>,
}

type Shared = Arc<FaultyDevice<dyn Device>>;

struct Campaign<'a> {
    surroundings: &'a Surroundings<'a>,
    selection: &'a Selection,
    device: Shared,
}

/// What one line found, before it is written down.
#[derive(Default)]
struct Finding {
    calls: u64,
    fired: u64,
    contained: u64,
    details: Vec<String>,
    remark: Option<String>,
    steps: Vec<Step>,
}

enum Obstacle {
    Skipped(String),
    NoVerdict(String),
}

impl From<SweepError> for Obstacle {
    fn from(error: SweepError) -> Self {
        if let SweepError::Baseline { source } = &error
            && let Some(LaunchError::Unsupported(unsupported)) = source.downcast_ref()
        {
            return Self::Skipped(unsupported.to_string());
        }
        Self::NoVerdict(error.to_string())
    }
}

/// Ceiling of the pool in the exhaustion lines: far above what the operations need, and a whole number of a GPU pool's chunks.
fn ceiling(kind: DeviceKind) -> u64 {
    match kind {
        DeviceKind::Simt | DeviceKind::Host => 1 << 20,
        DeviceKind::Cuda => 64 << 20,
    }
}

/// Operations that are run into a full pool: one with scratch and table, one with partial sums.
const EXHAUSTED: [&str; 2] = ["fp8-dense prefill", "split-KV decode"];

/// Runs all that the selection names and hands over each line as it is known, until `on_line` breaks off.
///
/// # Errors
/// When the device cannot be opened.
pub fn run(
    surroundings: &Surroundings<'_>,
    selection: &Selection,
    mut on_line: impl FnMut(&Line) -> ControlFlow<()>,
) -> Result<Vec<Line>, DeviceError> {
    let inner = (surroundings.open)(surroundings.sources.clone(), None)?;
    let kind = inner.info().kind;
    let campaign = Campaign { surroundings, selection, device: FaultyDevice::new(inner) };
    let mut lines = Vec::new();
    for task in tasks().into_iter().filter(|task| selection.names(task.arm())) {
        let line = campaign.line(task, kind);
        let flow = on_line(&line);
        lines.push(line);
        if flow.is_break() {
            break;
        }
    }
    Ok(lines)
}

/// Number of lines that a selection has.
#[must_use]
pub fn planned(selection: &Selection) -> usize {
    tasks().iter().filter(|task| selection.names(task.arm())).count()
}

/// One line's work.
#[derive(Clone, Copy)]
enum Task {
    Sweep { operation: &'static Operation, fail_frees: bool },
    Founding(Founding),
    Canary(Founding),
    Exhaustion(&'static Operation),
    Drop(DropPlace),
    ProcessExit,
    Sticky,
}

fn tasks() -> Vec<Task> {
    let sweeps = Operation::ALL
        .iter()
        .flat_map(|operation| [false, true].map(|fail_frees| Task::Sweep { operation, fail_frees }));
    let founding = Founding::ALL.into_iter().flat_map(|case| [Task::Founding(case), Task::Canary(case)]);
    let exhausted = Operation::ALL.iter().filter(|operation| EXHAUSTED.contains(&operation.name));
    sweeps
        .chain(founding)
        .chain(exhausted.map(Task::Exhaustion))
        .chain(DropPlace::ALL.map(Task::Drop))
        .chain([Task::ProcessExit, Task::Sticky])
        .collect()
}

impl Task {
    fn name(self) -> String {
        match self {
            Self::Sweep { operation, fail_frees: false } => operation.name.to_owned(),
            Self::Sweep { operation, fail_frees: true } => format!("{}, frees failing too", operation.name),
            Self::Founding(case) => case.name().to_owned(),
            Self::Canary(case) => format!("{}, frees disabled: noticed", case.name()),
            Self::Exhaustion(operation) => format!("{} in a full pool", operation.name),
            Self::Drop(place) => place.name().to_owned(),
            Self::ProcessExit => "guards left to process exit".to_owned(),
            Self::Sticky => "a trapping kernel, then a fresh process".to_owned(),
        }
    }

    fn arm(self) -> Option<&'static str> {
        match self {
            Self::Sweep { operation, .. } | Self::Exhaustion(operation) => Some(operation.arm_name()),
            Self::Founding(_) | Self::Canary(_) => Some(Arm::Fp8Dense.name()),
            Self::Drop(_) | Self::ProcessExit | Self::Sticky => None,
        }
    }
}

impl Campaign<'_> {
    fn line(&self, task: Task, kind: DeviceKind) -> Line {
        let start = Instant::now();
        let (finding, verdict) = match self.perform(task, kind) {
            Ok(finding) if finding.details.is_empty() => (finding, Verdict::Passed),
            Ok(mut finding) => {
                let details = std::mem::take(&mut finding.details);
                (finding, Verdict::Failed { details })
            }
            Err(Obstacle::Skipped(reason)) => (Finding::default(), Verdict::Skipped { reason }),
            Err(Obstacle::NoVerdict(reason)) => (Finding::default(), Verdict::NoVerdict { reason }),
        };
        let Finding { calls, fired, contained, remark, steps, .. } = finding;
        let seconds = start.elapsed().as_secs_f64();
        let (name, arm) = (task.name(), task.arm().map(str::to_owned));
        Line { name, arm, calls, fired, contained, verdict, remark, seconds, steps }
    }

    fn perform(&self, task: Task, kind: DeviceKind) -> Result<Finding, Obstacle> {
        match task {
            Task::Sweep { operation, fail_frees } => self.sweep(operation, fail_frees),
            Task::Founding(case) => self.founding(case),
            Task::Canary(case) => self.canary(case),
            Task::Exhaustion(operation) => self.exhaustion(operation, ceiling(kind)),
            Task::Drop(place) => self.drops(place),
            Task::ProcessExit => self.process_exit(),
            Task::Sticky => self.sticky(kind),
        }
    }

    fn sweep(&self, operation: &Operation, fail_frees: bool) -> Result<Finding, Obstacle> {
        let device = &self.device;
        let mut run = prepare(operation, device)?;
        let options =
            SweepOptions { repeats: self.selection.repeats.clone(), fail_frees, ..SweepOptions::default() };
        Ok(Finding::of(sweep(device, &options, |device: &DeviceRef| run(device))?))
    }

    fn founding(&self, case: Founding) -> Result<Finding, Obstacle> {
        Finding::of_step(case.check(&self.device)?)
    }

    /// Passes if the check fails: with frees disabled it must name the bytes.
    fn canary(&self, case: Founding) -> Result<Finding, Obstacle> {
        Finding::of_canary(case.check_without_frees(&self.device)?)
    }

    fn exhaustion(&self, operation: &Operation, limit: u64) -> Result<Finding, Obstacle> {
        let inner = (self.surroundings.open)(self.surroundings.sources.clone(), Some(limit));
        let inner = inner.map_err(|error| Obstacle::NoVerdict(error.to_string()))?;
        let found = just_below(&FaultyDevice::new(inner), limit, operation)?;
        let remark = format!(
            "fits beside {} bytes of a {limit}-byte pool; with one more: {}",
            found.fits_beside, found.reported
        );
        Ok(Finding { remark: Some(remark), ..Finding::of_outcomes(&found.outcomes) })
    }

    fn drops(&self, place: DropPlace) -> Result<Finding, Obstacle> {
        Ok(Finding::of_outcomes(&place.check(&self.device)?))
    }

    fn process_exit(&self) -> Result<Finding, Obstacle> {
        Ok(match (self.surroundings.spawn)(Child::Exit) {
            Ok(_) => Finding { fired: 1, contained: 1, ..Finding::default() },
            Err(ending) => Finding { fired: 1, details: vec![ending], ..Finding::default() },
        })
    }

    /// The next case must come out as before the trap, in a process of its own and in this one.
    fn sticky(&self, kind: DeviceKind) -> Result<Finding, Obstacle> {
        if kind != DeviceKind::Cuda {
            return Err(Obstacle::Skipped("only a GPU has a context to lose".to_owned()));
        }
        let spawn = self.surroundings.spawn;
        let before = spawn(Child::Plain).map_err(Obstacle::NoVerdict)?;
        let trapped = spawn(Child::Sticky);
        let after = spawn(Child::Plain);
        let mut details = Vec::new();
        if let Err(problem) = &trapped {
            details.push(problem.clone());
        }
        if after.as_ref() != Ok(&before) {
            details.push(format!("the next case gives {after:?}, before the trap {before}"));
        }
        details.extend(self.sweep(&Child::OPERATION, false)?.details);
        let contained = u64::from(details.is_empty());
        Ok(Finding { fired: 1, contained, details, remark: trapped.ok(), ..Finding::default() })
    }
}

fn prepare(operation: &Operation, device: &Shared) -> Result<crate::operations::Run, Obstacle> {
    operation.prepare(&device.handle()).map_err(|error| SweepError::Baseline { source: error.into() }.into())
}

fn not_fired() -> Obstacle {
    Obstacle::NoVerdict("the fault did not fire".to_owned())
}

impl Finding {
    fn of(report: SweepReport) -> Self {
        let mut details: Vec<String> = Vec::new();
        let unclean = report.clean.iter().filter(|outcome| **outcome != Outcome::Contained);
        details.extend(unclean.map(|outcome| format!("without faults: {outcome}")));
        details.extend(report.escaped().map(ToString::to_string));
        if report.fired() == 0 {
            details.push("no fault fired".to_owned());
        }
        Self {
            calls: report.total_calls(),
            fired: report.fired(),
            contained: report.contained(),
            details,
            remark: None,
            steps: report.steps,
        }
    }

    fn of_step(step: Option<Step>) -> Result<Self, Obstacle> {
        let step = step.ok_or_else(not_fired)?;
        let details = if step.contained() { vec![] } else { vec![step.to_string()] };
        let contained = u64::from(step.contained());
        Ok(Self { fired: 1, contained, details, steps: vec![step], ..Self::default() })
    }

    fn of_canary(step: Option<Step>) -> Result<Self, Obstacle> {
        let step = step.ok_or_else(not_fired)?;
        let leak = step.outcomes.iter().find(|outcome| matches!(outcome, Outcome::LeakedBytes { .. }));
        let remark = leak.map(ToString::to_string);
        let details = if leak.is_some() { vec![] } else { vec![format!("the leak was not noticed: {step}")] };
        let noticed = u64::from(leak.is_some());
        Ok(Self { fired: 1, contained: noticed, details, remark, ..Self::default() })
    }

    fn of_outcomes(outcomes: &[Outcome]) -> Self {
        let escaped = outcomes.iter().filter(|outcome| **outcome != Outcome::Contained);
        let details: Vec<_> = escaped.map(ToString::to_string).collect();
        Self { fired: 1, contained: u64::from(details.is_empty()), details, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Call;
    use crate::plan::At;

    #[test]
    fn every_line_has_a_name_of_its_own() {
        let names: Vec<_> = tasks().into_iter().map(Task::name).collect();
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert!(names.iter().all(|name| name.len() > 4), "{names:?}");
    }

    fn step(outcome: Outcome) -> Option<Step> {
        Some(Step {
            call: Call::Alloc,
            number: 2,
            repeat: Repeat::Once,
            at: At::Call,
            fail_frees: false,
            outcomes: vec![outcome],
        })
    }

    /// With frees disabled a run that looks clean is the failure.
    #[test]
    fn a_canary_that_is_not_noticed_fails() {
        let leak = Outcome::LeakedBytes { baseline: 8, held: 24, allocations: vec![] };
        let noticed = Finding::of_canary(step(leak)).ok().expect("a verdict");
        assert_eq!((noticed.fired, noticed.contained, noticed.details.len()), (1, 1, 0));
        assert!(noticed.remark.expect("a remark").contains("24 bytes held, baseline 8"));
        let unnoticed = Finding::of_canary(step(Outcome::Contained)).ok().expect("a verdict");
        assert_eq!((unnoticed.fired, unnoticed.contained, unnoticed.details.len()), (1, 0, 1));
        assert!(matches!(Finding::of_canary(None), Err(Obstacle::NoVerdict(_))));
        assert!(matches!(Finding::of_step(None), Err(Obstacle::NoVerdict(_))));
    }

    #[test]
    fn a_sweep_in_which_nothing_fired_says_so() {
        let report = SweepReport {
            calls: std::collections::BTreeMap::new(),
            clean: vec![Outcome::Contained],
            steps: vec![],
            unsurfaced: 0,
        };
        assert_eq!(Finding::of(report).details, ["no fault fired"]);
    }
}
