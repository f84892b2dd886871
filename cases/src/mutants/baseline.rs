//! The unchanged kernels: every check must pass on them, and tells how long it takes; their code is what changed code
//! is compared with.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernels::device::DeviceError;
use kernels::simt::Mode;
use kernels::source::{KernelSpec, SourceSet};

use super::checks::Check;
use super::compiled::{Builder, Fingerprint};
use super::engine::EngineError;
use super::serve::Setup;
use super::trial::{Bench, Trial, Workers};

/// A check with the time it takes on the unchanged kernels.
#[derive(Clone, Debug)]
pub struct TimedCheck {
    /// The check.
    pub check: Check,
    /// Time of the whole check, worker included.
    pub baseline: Duration,
}

/// A check that fails on the unchanged kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedCheck {
    /// Its name.
    pub check: String,
    /// What it says.
    pub verdict: String,
    /// How to run it alone.
    pub replay: String,
}

/// What the unchanged kernels do.
#[derive(Debug, Default)]
pub struct Baseline {
    /// All checks.
    pub checks: Vec<TimedCheck>,
    codes: HashMap<KernelSpec, (PathBuf, Fingerprint)>,
    /// For every `.cu` file, the files it is compiled from.
    closures: BTreeMap<String, BTreeSet<String>>,
}

impl Baseline {
    /// Compiles every instance and runs every check, `jobs` at a time. The second list is empty if all is well.
    ///
    /// # Errors
    /// When the surroundings fail, or a kernel does not compile.
    pub fn measure(
        checks: Vec<Check>,
        sources: &SourceSet,
        setup: &Setup,
        workers: &Workers,
        jobs: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<(Self, Vec<RedCheck>), EngineError> {
        let codes = compile_all(&checks, sources, jobs)?;
        let trials = run_all(&checks, setup, workers, jobs, progress);
        let mut baseline = Self { checks: Vec::new(), codes, closures: closures(sources) };
        let mut red = Vec::new();
        for (check, trial) in checks.into_iter().zip(trials) {
            match trial {
                Some((Trial::Passed, time)) => baseline.checks.push(TimedCheck { check, baseline: time }),
                Some((Trial::Failed(verdict), _)) => {
                    red.push(RedCheck { check: check.name(), verdict, replay: check.replay() });
                }
                Some((Trial::TimedOut, _)) => {
                    let verdict = format!("TIMED OUT after {} s", BASELINE_LIMIT.as_secs());
                    red.push(RedCheck { check: check.name(), verdict, replay: check.replay() });
                }
                Some((Trial::Broken(message), _)) if !message.contains("interrupted") => {
                    return Err(EngineError::NoVerdict { check: check.name(), message });
                }
                Some((Trial::Broken(_), _)) | None => return Err(EngineError::Interrupted),
            }
        }
        Ok((baseline, red))
    }

    /// Whether a compiled library belongs to the unchanged kernels.
    #[must_use]
    pub fn owns(&self, path: &Path) -> bool {
        self.codes.values().any(|(own, _)| own == path)
    }

    /// Code of an unchanged instance.
    #[must_use]
    pub fn code(&self, instance: &KernelSpec) -> Option<Fingerprint> {
        self.codes.get(instance).map(|(_, code)| *code)
    }

    /// Instances that are compiled from a file, itself or as a header.
    #[must_use]
    pub fn instances_with(&self, file: &str) -> Vec<&KernelSpec> {
        let uses = |spec: &KernelSpec| self.closures.get(spec.file).is_some_and(|files| files.contains(file));
        let mut instances: Vec<&KernelSpec> = self.codes.keys().filter(|spec| uses(spec)).collect();
        instances.sort();
        instances
    }

    /// Indices of the checks that launch an instance.
    #[must_use]
    pub fn checks_with_instance(&self, instance: &KernelSpec) -> Vec<usize> {
        self.indices(|check| check.kernels.contains(instance))
    }

    /// Indices of the checks that launch an entry.
    #[must_use]
    pub fn checks_with_entry(&self, entry: &str) -> Vec<usize> {
        self.indices(|check| check.kernels.iter().any(|kernel| kernel.entry == entry))
    }

    fn indices(&self, chosen: impl Fn(&Check) -> bool) -> Vec<usize> {
        let all = self.checks.iter().enumerate();
        all.filter(|(_, timed)| chosen(&timed.check)).map(|(index, _)| index).collect()
    }

    /// Number of compiled instances.
    #[must_use]
    pub fn instances(&self) -> usize {
        self.codes.len()
    }

    /// Time of all checks one after the other.
    #[must_use]
    pub fn total_time(&self) -> Duration {
        self.checks.iter().map(|timed| timed.baseline).sum()
    }
}

/// No check takes this long: they are small cases.
const BASELINE_LIMIT: Duration = Duration::from_secs(60);

fn closures(sources: &SourceSet) -> BTreeMap<String, BTreeSet<String>> {
    let units = sources.iter().map(|(name, _)| name).filter(|name| name.ends_with(".cu"));
    units
        .map(|unit| {
            let files = sources.closure(unit).unwrap_or_default();
            (unit.to_owned(), files.into_iter().map(|(name, _)| name.to_owned()).collect())
        })
        .collect()
}

type Codes = HashMap<KernelSpec, (PathBuf, Fingerprint)>;

fn compile_all(checks: &[Check], sources: &SourceSet, jobs: usize) -> Result<Codes, EngineError> {
    let specs: BTreeSet<&KernelSpec> = checks.iter().flat_map(|check| &check.kernels).collect();
    let specs: Vec<&KernelSpec> = specs.into_iter().collect();
    let builder = Builder::new(sources.clone(), Mode::Checked)?;
    type Built = (KernelSpec, Result<(PathBuf, Fingerprint), DeviceError>);
    let built: Mutex<Vec<Built>> = Mutex::default();
    in_parallel(specs.len(), jobs, &|index| {
        let result = builder.compile(specs[index]);
        built.lock().unwrap_or_else(PoisonError::into_inner).push((specs[index].clone(), result));
    });
    let built = built.into_inner().unwrap_or_else(PoisonError::into_inner);
    built.into_iter().map(|(spec, result)| Ok((spec, result?))).collect()
}

fn run_all(
    checks: &[Check],
    setup: &Setup,
    workers: &Workers,
    jobs: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Vec<Option<(Trial, Duration)>> {
    let trials: Vec<Mutex<Option<(Trial, Duration)>>> = checks.iter().map(|_| Mutex::new(None)).collect();
    let benches: Mutex<Vec<Bench>> = Mutex::default();
    let done = AtomicUsize::new(0);
    in_parallel(checks.len(), jobs, &|index| {
        if workers.interrupted.load(Ordering::Relaxed) {
            return;
        }
        let reused = benches.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut bench = reused.unwrap_or_else(|| Bench::new(workers, setup));
        let start = Instant::now();
        let trial = bench.run(&checks[index], BASELINE_LIMIT);
        *trials[index].lock().unwrap_or_else(PoisonError::into_inner) = Some((trial, start.elapsed()));
        benches.lock().unwrap_or_else(PoisonError::into_inner).push(bench);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, checks.len());
    });
    trials.into_iter().map(|trial| trial.into_inner().unwrap_or_else(PoisonError::into_inner)).collect()
}

/// Calls `work` with 0, 1, … on `jobs` threads.
pub(super) fn in_parallel(count: usize, jobs: usize, work: &(dyn Fn(usize) + Sync)) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, count.max(1)) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    work(index);
                }
            });
        }
    });
}
