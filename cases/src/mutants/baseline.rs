//! The unchanged kernels: no check judges a mutant before it has passed on them. That also gives the time that a check
//! takes; and their code is what changed code is compared with.
//!
//! Everything is found out when it is first needed: a run of a dozen mutants then uses a dozen checks, not all.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernels::simt::Mode;
use kernels::source::{KernelSpec, SourceSet};

use super::checks::Check;
use super::compiled::{Builder, Fingerprint};
use super::engine::EngineError;
use super::serve::Setup;
use super::trial::{Bench, Trial, Workers};

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
pub struct Baseline<'a> {
    /// All checks.
    pub checks: Vec<Check>,
    sources: &'a SourceSet,
    setup: Setup,
    workers: Workers,
    /// Instances that checks use.
    instances: BTreeSet<KernelSpec>,
    /// For every `.cu` file, the files it is compiled from.
    closures: BTreeMap<String, BTreeSet<String>>,
    /// Time of each check that has passed.
    times: Vec<Mutex<Option<Duration>>>,
    codes: Mutex<HashMap<(KernelSpec, bool), Fingerprint>>,
    idle: Mutex<Vec<Bench>>,
}

/// No check takes this long: they are small cases.
const BASELINE_LIMIT: Duration = Duration::from_secs(120);

/// What a check takes before its work begins, and how much work is done in a second: a guess for the order of checks, until
/// they have been timed.
const SETUP_S: f64 = 0.1;
const WORK_PER_S: f64 = 3.0e6;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Baseline<'a> {
    /// Of `sources`, which lie in the directory of `setup`. Runs nothing yet.
    #[must_use]
    pub fn new(checks: Vec<Check>, sources: &'a SourceSet, setup: Setup, workers: Workers) -> Self {
        Self {
            sources,
            setup,
            workers,
            instances: checks.iter().flat_map(|check| &check.kernels).cloned().collect(),
            closures: closures(sources),
            times: checks.iter().map(|_| Mutex::default()).collect(),
            codes: Mutex::default(),
            idle: Mutex::default(),
            checks,
        }
    }

    /// The time that a check takes on the unchanged kernels, worker included, compilation not.
    ///
    /// # Errors
    /// [`EngineError::Red`] when it fails on them; otherwise when the surroundings fail.
    pub fn time(&self, check: usize) -> Result<Duration, EngineError> {
        let mut known = lock(&self.times[check]);
        if let Some(time) = *known {
            return Ok(time);
        }
        let time = self.time_now(check, BASELINE_LIMIT)?;
        *known = Some(time);
        Ok(time)
    }

    /// The same at this moment, on a machine that may have become slower.
    ///
    /// # Errors
    /// As for [`Baseline::time`].
    pub fn time_now(&self, index: usize, limit: Duration) -> Result<Duration, EngineError> {
        let check = &self.checks[index];
        for kernel in &check.kernels {
            self.code(kernel, Mode::Checked)?;
        }
        let idle = lock(&self.idle).pop();
        let mut bench = idle.unwrap_or_else(|| Bench::new(&self.workers, &self.setup));
        let start = Instant::now();
        let trial = bench.run(check, limit);
        let time = start.elapsed();
        lock(&self.idle).push(bench);
        let red = |verdict: String| {
            EngineError::Red(Box::new(RedCheck { check: check.name(), verdict, replay: check.replay() }))
        };
        match trial {
            Trial::Passed => Ok(time),
            Trial::Failed(verdict) => Err(red(verdict)),
            Trial::TimedOut => Err(red(format!("TIMED OUT after {} s", limit.as_secs()))),
            Trial::Broken(message) => Err(EngineError::broken(&check.name(), message)),
        }
    }

    /// The time of a check in seconds if it is known, else a guess.
    #[must_use]
    pub fn estimate(&self, check: usize) -> f64 {
        let known = self.times[check].try_lock().ok().and_then(|time| *time);
        let guess = || SETUP_S + self.checks[check].work() as f64 / WORK_PER_S;
        known.map_or_else(guess, |time| time.as_secs_f64())
    }

    /// Code of an unchanged instance.
    ///
    /// # Errors
    /// When it does not compile.
    pub fn code(&self, instance: &KernelSpec, mode: Mode) -> Result<Fingerprint, EngineError> {
        let key = (instance.clone(), mode == Mode::Checked);
        if let Some(code) = lock(&self.codes).get(&key) {
            return Ok(*code);
        }
        let (_, code) = Builder::new(self.sources.clone(), mode)?.compile(instance)?;
        lock(&self.codes).insert(key, code);
        Ok(code)
    }

    /// Instances that are compiled from a file, itself or as a header.
    #[must_use]
    pub fn instances_with(&self, file: &str) -> Vec<&KernelSpec> {
        self.instances.iter().filter(|spec| self.uses(spec, file)).collect()
    }

    /// Indices of the checks that launch an instance compiled from a file.
    #[must_use]
    pub fn checks_with_file(&self, file: &str) -> Vec<usize> {
        self.indices(|check| check.kernels.iter().any(|kernel| self.uses(kernel, file)))
    }

    /// The kernels of a check that are compiled from a file.
    #[must_use]
    pub fn kernels_of(&self, check: usize, file: &str) -> Vec<&KernelSpec> {
        self.checks[check].kernels.iter().filter(|kernel| self.uses(kernel, file)).collect()
    }

    /// Indices of the checks that launch an entry.
    #[must_use]
    pub fn checks_with_entry(&self, entry: &str) -> Vec<usize> {
        self.indices(|check| check.kernels.iter().any(|kernel| kernel.entry == entry))
    }

    fn uses(&self, kernel: &KernelSpec, file: &str) -> bool {
        self.closures.get(kernel.file).is_some_and(|files| files.contains(file))
    }

    fn indices(&self, chosen: impl Fn(&Check) -> bool) -> Vec<usize> {
        let all = self.checks.iter().enumerate();
        all.filter(|(_, check)| chosen(check)).map(|(index, _)| index).collect()
    }
}

fn closures(sources: &SourceSet) -> BTreeMap<String, BTreeSet<String>> {
    let units = sources.iter().map(|(name, _)| name).filter(|name| name.ends_with(".cu"));
    units
        .map(|unit| {
            let files = sources.closure(unit).unwrap_or_default();
            (unit.to_owned(), files.into_iter().map(|(name, _)| name.to_owned()).collect())
        })
        .collect()
}
