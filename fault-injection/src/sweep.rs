//! Failing every call of an operation in turn.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kernels::device::{Device, DeviceRef};
use serde::{Deserialize, Serialize};

use crate::call::{Call, CallKind, KindSet};
use crate::faulty::FaultyDevice;
use crate::outcome::Outcome;
use crate::plan::{At, FaultPlan, Repeat};
use crate::trial::{Attempt, Baseline, BoxError, Operation, SweepError};

/// How thorough a sweep is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepOptions {
    /// Kinds of calls to fail.
    pub kinds: KindSet,
    /// Once, persistently, or both.
    pub repeats: Vec<Repeat>,
    /// At the call, at the next wait, or both.
    pub at: Vec<At>,
    /// Whether frees and destroys fail, too. The first error must still be the one reported; memory whose free was
    /// made to fail every time does not count as leaked.
    pub fail_frees: bool,
}

impl Default for SweepOptions {
    /// Every kind, both ways of repeating, both moments, frees spared.
    fn default() -> Self {
        Self {
            kinds: KindSet::ALL,
            repeats: vec![Repeat::Once, Repeat::Persistent],
            at: vec![At::Call, At::NextSynchronize],
            fail_frees: false,
        }
    }
}

impl SweepOptions {
    fn plans(&self) -> impl Iterator<Item = FaultPlan> {
        let of = |at: &At, repeat: &Repeat| FaultPlan {
            kinds: self.kinds,
            nth: 1,
            repeat: *repeat,
            at: *at,
            fail_frees: self.fail_frees,
        };
        self.at.iter().flat_map(move |at| self.repeats.iter().map(move |repeat| of(at, repeat)))
    }
}

/// One run with faults, and what it showed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The first call that was made to fail.
    pub call: Call,
    /// Its number among the calls that could fail, from 1.
    pub number: u64,
    /// Once or persistently.
    pub repeat: Repeat,
    /// At the call or at the next wait.
    pub at: At,
    /// Whether frees and destroys could fail.
    pub fail_frees: bool,
    /// What the run showed; `Contained` alone if all was well.
    pub outcomes: Vec<Outcome>,
}

impl Step {
    /// Whether the fault was dealt with.
    #[must_use]
    pub fn contained(&self) -> bool {
        self.outcomes == [Outcome::Contained]
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (call {}, {}, {})", self.call, self.number, self.repeat.name(), self.at.name())?;
        self.outcomes
            .iter()
            .try_for_each(|outcome| write!(f, "\n  {}", outcome.to_string().replace('\n', "\n  ")))
    }
}

/// What a sweep found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepReport {
    /// Calls of a clean run, by kind.
    pub calls: BTreeMap<CallKind, u64>,
    /// What was wrong with clean runs; `Contained` alone if nothing was.
    pub clean: Vec<Outcome>,
    /// Every run in which a fault fired.
    pub steps: Vec<Step>,
    /// Deferred failures of work that nothing ran or waited for, such as a graph that is recorded and not launched.
    pub unsurfaced: u64,
}

impl SweepReport {
    /// Device calls of a clean run.
    #[must_use]
    pub fn total_calls(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Runs in which a fault fired.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.steps.len() as u64
    }

    /// Runs whose fault was dealt with.
    #[must_use]
    pub fn contained(&self) -> u64 {
        self.steps.iter().filter(|step| step.contained()).count() as u64
    }

    /// Runs whose fault was not.
    pub fn escaped(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| !step.contained())
    }

    /// Whether clean runs were in order, faults fired, and all of them were dealt with.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.clean == [Outcome::Contained] && self.fired() > 0 && self.contained() == self.fired()
    }
}

impl fmt::Display for SweepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} calls, {} faults fired, {} contained",
            self.total_calls(),
            self.fired(),
            self.contained()
        )?;
        for outcome in self.clean.iter().filter(|outcome| **outcome != Outcome::Contained) {
            write!(f, "\nwithout faults: {outcome}")?;
        }
        self.escaped().try_for_each(|step| write!(f, "\n{step}"))
    }
}

/// Calls beyond those of the clean run that are still failed in turn before a growing count is taken as endless.
const MAX_EXTRA_CALLS: u64 = 16;

/// Counts the calls of `operation` without faults, then fails each of them in turn until no fault fires, for every
/// combination that `options` asks for.
///
/// The operation must give back what it takes; what is live when the sweep begins is its baseline. Its result as bytes
/// must be the same in every clean run. A panic is caught and reported as an outcome (the panic's message still goes to
/// the standard error, unless a panic hook keeps it back).
///
/// # Errors
/// When the operation does not even work without faults, or the pool cannot be read. An escaped fault is no error but part
/// of the report.
pub fn sweep<D, E>(
    device: &Arc<FaultyDevice<D>>,
    options: &SweepOptions,
    mut operation: impl FnMut(&DeviceRef) -> Result<Vec<u8>, E>,
) -> Result<SweepReport, SweepError>
where
    D: Device + ?Sized + 'static,
    E: Into<BoxError>,
{
    let operation: &mut Operation<'_> = &mut |device| operation(device).map_err(Into::into);
    let baseline = Baseline::establish(device, operation)?;
    let mut calls = BTreeMap::new();
    for call in &baseline.sequence {
        *calls.entry(call.kind()).or_default() += 1;
    }
    let mut report =
        SweepReport { calls, clean: baseline.outcomes.clone(), steps: Vec::new(), unsurfaced: 0 };
    for plan in options.plans() {
        sweep_plan(device, &baseline, plan, operation, &mut report)?;
    }
    Ok(report)
}

/// Fails one call, as planned, and judges the run as [`sweep`] does. `None` if no fault fired.
///
/// # Errors
/// As [`sweep`].
pub fn inject<D, E>(
    device: &Arc<FaultyDevice<D>>,
    plan: FaultPlan,
    mut operation: impl FnMut(&DeviceRef) -> Result<Vec<u8>, E>,
) -> Result<Option<Step>, SweepError>
where
    D: Device + ?Sized + 'static,
    E: Into<BoxError>,
{
    let operation: &mut Operation<'_> = &mut |device| operation(device).map_err(Into::into);
    let baseline = Baseline::establish(device, operation)?;
    Ok(match baseline.attempt(device, plan, operation)? {
        Attempt::Quiet { .. } => None,
        Attempt::Fired { first, outcomes } => Some(step(plan, first.call, first.number, outcomes)),
    })
}

fn step(plan: FaultPlan, call: Call, number: u64, outcomes: Vec<Outcome>) -> Step {
    let FaultPlan { repeat, at, fail_frees, .. } = plan;
    Step { call, number, repeat, at, fail_frees, outcomes }
}

fn sweep_plan<D: Device + ?Sized + 'static>(
    device: &Arc<FaultyDevice<D>>,
    baseline: &Baseline,
    plan: FaultPlan,
    operation: &mut Operation<'_>,
    report: &mut SweepReport,
) -> Result<(), SweepError> {
    let countable: Vec<Call> = baseline.sequence.iter().copied().filter(|call| plan.counts(*call)).collect();
    let expected = countable.len() as u64;
    for nth in 1..=expected + MAX_EXTRA_CALLS {
        let plan = FaultPlan { nth, ..plan };
        match baseline.attempt(device, plan, operation)? {
            Attempt::Quiet { counted } if nth <= expected && counted < nth => {
                let detail = format!("{counted} calls could fail, in the first clean run {expected}");
                let call = countable[(nth - 1) as usize];
                report.steps.push(step(plan, call, nth, vec![Outcome::Nondeterministic { detail }]));
            }
            Attempt::Quiet { .. } if nth <= expected => report.unsurfaced += 1,
            Attempt::Quiet { .. } => break,
            // That there are more calls than in the first clean run is one of the outcomes.
            Attempt::Fired { first, outcomes } => {
                report.steps.push(step(plan, first.call, first.number, outcomes));
            }
        }
    }
    Ok(())
}
