//! The kill matrix: which case and which check catches which impostor.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kernels::arm::Arm;
use kernels::device::{DeviceError, DeviceInfo, DeviceKind};
use rayon::prelude::*;

use super::{Impostor, ImpostorExecutor};
use crate::case::{Case, Expectation};
use crate::catalogue::Entry;
use crate::devices;
use crate::executor::DeviceSpec;
use crate::inputs::Inputs;
use crate::problem::Op;
use crate::reference::{p_format, references};
use crate::run::{Checking, Prepared, STORE_ARM, Settings, run_prepared};
use crate::support;
use crate::verdict::{Failure, Verdict};

/// Query-key pairs times head_dim above which a case's trial ends with the first kill that says something.
const LARGE_WORK: usize = 3_000_000;
/// The same above which a case is not tried: impostors compute every row, in f64.
const HUGE_WORK: usize = 120_000_000;

/// A check that caught an impostor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// An output element outside its bound.
    Out,
    /// An lse outside its bound.
    Lse,
    /// The exact answer of a probe.
    Probe,
    /// Elements that were not written.
    Unwritten,
    /// A result that changes with what must not matter.
    Depends,
    /// Bytes of the cache after a store.
    Cache,
    /// Inputs that were changed.
    Modified,
    /// A refusal that is missing, late, for the wrong reason, or of a valid call.
    Refusal,
    /// Memory that was not given back.
    Leak,
}

impl Check {
    /// Every check, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Out,
        Self::Lse,
        Self::Probe,
        Self::Unwritten,
        Self::Depends,
        Self::Cache,
        Self::Modified,
        Self::Refusal,
        Self::Leak,
    ];
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Out => "out",
            Self::Lse => "lse",
            Self::Probe => "probe",
            Self::Unwritten => "unwritten",
            Self::Depends => "depends",
            Self::Cache => "cache",
            Self::Modified => "modified",
            Self::Refusal => "refusal",
            Self::Leak => "leak",
        })
    }
}

/// An impostor that a case caught.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kill {
    /// Index of the impostor.
    pub impostor: usize,
    /// The checks that noticed, each once.
    pub checks: Vec<Check>,
}

/// What became of the impostors in one case.
#[derive(Clone, Debug, Default)]
pub struct CaseTrial {
    /// Impostors that the case caught.
    pub kills: Vec<Kill>,
    /// Indices of those that take part and passed.
    pub alive: Vec<usize>,
    /// Why the right answer was rejected, if it was.
    pub false_alarm: Option<String>,
}

/// Why a case was not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Untried {
    /// Computing it in f64 for every impostor takes too long.
    TooLarge,
    /// No arm serves it.
    Unserved,
}

/// Impostors against cases.
pub struct Matrix {
    /// The impostors.
    pub impostors: Vec<Impostor>,
    /// The cases, with their trials.
    pub cases: Vec<(Entry, Result<CaseTrial, Untried>)>,
}

/// Tries impostors on cases.
pub struct Trial {
    info: DeviceInfo,
}

impl Trial {
    /// Gets ready.
    ///
    /// # Errors
    /// If the `simt` device, which stands for the card in what launch code validates, cannot be opened.
    pub fn new() -> Result<Self, DeviceError> {
        let spec = DeviceSpec { kind: DeviceKind::Simt, checked: false, schedule: None };
        Ok(Self { info: devices::open(&spec)?.info() })
    }

    /// Tries every impostor that takes part in the case.
    ///
    /// # Errors
    /// If the case cannot be tried.
    pub fn case(&self, case: &Case, impostors: &[Impostor]) -> Result<CaseTrial, Untried> {
        let work = case.problem.pairs() * (case.problem.head_dim + case.problem.head_dim_v) / 2;
        if work > HUGE_WORK {
            return Err(Untried::TooLarge);
        }
        let arm = lenient_arm(case).ok_or(Untried::Unserved)?;
        let prepared = prepare(case, arm);
        let judge = |executor: &mut ImpostorExecutor<'_>| {
            run_prepared(case, arm, executor, &settings(), prepared.as_ref())
        };
        let validates = case.must_reject();
        let mut trial = CaseTrial::default();
        let honest = judge(&mut ImpostorExecutor::honest(self.info.clone(), validates));
        if !matches!(honest, Verdict::Pass { .. }) {
            trial.false_alarm = Some(crate::report::describe::describe(&honest).headline);
        }
        for (index, impostor) in impostors.iter().enumerate().filter(|(_, i)| i.takes_part(case)) {
            let verdict = judge(&mut ImpostorExecutor::new(impostor, self.info.clone(), validates));
            match checks(&verdict) {
                checks if checks.is_empty() => trial.alive.push(index),
                checks => trial.kills.push(Kill { impostor: index, checks }),
            }
            if work > LARGE_WORK && trial.proves_something(impostors) {
                break;
            }
        }
        Ok(trial)
    }

    /// Tries all impostors on all cases, on all processors.
    #[must_use]
    pub fn matrix(&self, entries: Vec<Entry>, impostors: Vec<Impostor>) -> Matrix {
        // Cases differ in cost by orders of magnitude, so they are handed out one by one.
        let trials: Vec<_> =
            entries.par_iter().with_max_len(1).map(|entry| self.case(&entry.case, &impostors)).collect();
        Matrix { impostors, cases: entries.into_iter().zip(trials).collect() }
    }
}

/// Inputs and references of a case that has any, so that every impostor is spared making them.
fn prepare(case: &Case, arm: &str) -> Option<Prepared> {
    if case.problem.op == Op::Store || case.expectation != Expectation::Valid {
        return None;
    }
    let inputs = Inputs::generate(case).ok()?;
    let references = references(case, &inputs, arm).ok()?;
    Some(Prepared { inputs, references })
}

fn settings() -> Settings {
    Settings {
        device: DeviceKind::Simt,
        checking: Checking::Never,
        schedule: None,
        limit: Duration::from_secs(3600),
    }
}

/// The arm that serves the case and whose bound is the widest: what dies there dies on every arm.
fn lenient_arm(case: &Case) -> Option<&'static str> {
    if case.problem.op == Op::Store {
        return Some(STORE_ARM);
    }
    let serving = Arm::ALL.iter().map(|arm| arm.name()).filter(|arm| support::gap(case, arm).is_none());
    let roundoff = |arm: &&str| match p_format(arm, &case.problem) {
        oracle::Format::F32 => 0.0,
        format => format.unit_roundoff(),
    };
    serving.max_by(|a, b| roundoff(a).total_cmp(&roundoff(b)))
}

/// The checks that made a verdict something else than a pass.
fn checks(verdict: &Verdict) -> Vec<Check> {
    let mut checks: Vec<Check> = match verdict {
        Verdict::Mismatch { failures } => failures.iter().map(check).collect(),
        Verdict::Rejected { .. } => vec![Check::Refusal],
        Verdict::DeviceError { .. } => vec![Check::Leak],
        _ => Vec::new(),
    };
    checks.sort_unstable();
    checks.dedup();
    checks
}

fn check(failure: &Failure) -> Check {
    match failure {
        Failure::Elements { output, .. } if output == "lse" => Check::Lse,
        Failure::Elements { .. } => Check::Out,
        Failure::Unwritten { .. } => Check::Unwritten,
        Failure::Depends { .. } | Failure::Remembered { .. } => Check::Depends,
        Failure::Probe { .. } => Check::Probe,
        Failure::Modified { .. } => Check::Modified,
        Failure::Cache { .. } => Check::Cache,
        Failure::NotRefused { .. } | Failure::WrongRefusal { .. } | Failure::LaunchedThoughRefused { .. } => {
            Check::Refusal
        }
    }
}

impl CaseTrial {
    /// Whether the case caught an impostor that is not wrong everywhere.
    #[must_use]
    pub fn proves_something(&self, impostors: &[Impostor]) -> bool {
        self.kills.iter().any(|kill| !impostors[kill.impostor].blunt)
    }
}

/// How often one impostor took part and was caught.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Score {
    /// Cases in which it took part, by group.
    pub tried: BTreeMap<String, usize>,
    /// Cases that caught it, by group.
    pub killed: BTreeMap<String, usize>,
    /// Cases whose check noticed it, by check.
    pub checks: BTreeMap<Check, usize>,
}

impl Matrix {
    /// Scores of all impostors, in order.
    #[must_use]
    pub fn scores(&self) -> Vec<Score> {
        let mut scores = vec![Score::default(); self.impostors.len()];
        for (entry, trial) in self.tried() {
            for kill in &trial.kills {
                let score = &mut scores[kill.impostor];
                *score.tried.entry(entry.group.to_owned()).or_default() += 1;
                *score.killed.entry(entry.group.to_owned()).or_default() += 1;
                for check in &kill.checks {
                    *score.checks.entry(*check).or_default() += 1;
                }
            }
            for index in &trial.alive {
                *scores[*index].tried.entry(entry.group.to_owned()).or_default() += 1;
            }
        }
        scores
    }

    /// Impostors that no case caught.
    #[must_use]
    pub fn survivors(&self) -> Vec<&Impostor> {
        let scores = self.scores();
        let alive = self.impostors.iter().zip(&scores).filter(|(_, score)| score.killed.is_empty());
        alive.map(|(impostor, _)| impostor).collect()
    }

    /// Cases that caught no impostor that is not wrong everywhere, although they have something to judge.
    #[must_use]
    pub fn vacuous(&self) -> Vec<&Entry> {
        let proves_nothing = |(entry, trial): &(&Entry, &CaseTrial)| {
            has_output(&entry.case) && !trial.proves_something(&self.impostors)
        };
        self.tried().filter(proves_nothing).map(|(entry, _)| entry).collect()
    }

    /// Cases in which even the right answer was rejected, and why.
    #[must_use]
    pub fn false_alarms(&self) -> Vec<(&Entry, &str)> {
        self.tried().filter_map(|(entry, trial)| Some((entry, trial.false_alarm.as_deref()?))).collect()
    }

    /// Cases that were not tried, by reason.
    #[must_use]
    pub fn untried(&self) -> BTreeMap<Untried, usize> {
        let mut counts = BTreeMap::new();
        for reason in self.cases.iter().filter_map(|(_, trial)| trial.as_ref().err()) {
            *counts.entry(*reason).or_default() += 1;
        }
        counts
    }

    fn tried(&self) -> impl Iterator<Item = (&Entry, &CaseTrial)> {
        self.cases.iter().filter_map(|(entry, trial)| Some((entry, trial.as_ref().ok()?)))
    }
}

/// Whether a right kernel leaves anything that could be wrong: an output element, or a row of a store.
fn has_output(case: &Case) -> bool {
    case.must_reject() || case.problem.total_query_rows() > 0
}
