//! Judging mutants: compile the changed translation unit, run the checks that use it, stop at the first that fails.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernels::device::DeviceError;
use kernels::simt::Mode;
use kernels::source::{KernelSpec, SourceSet};

use super::baseline::Baseline;
use super::change::Change;
use super::compiled::{Builder, Fingerprint};
use super::mutant::Mutant;
use super::outcome::{Outcome, Record};
use super::reviewed;
use super::serve::Setup;
use super::trial::{Bench, Trial, Workers};

/// Why a run cannot go on. None of it says anything about the suite.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The compiler or its cache failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// A file cannot be written or read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A check gave no verdict.
    #[error("no verdict of check {check}: {message}")]
    NoVerdict {
        /// The check.
        check: String,
        /// Why.
        message: String,
    },
    /// The run was interrupted.
    #[error("interrupted")]
    Interrupted,
}

/// What every mutant of a run needs.
pub struct Engine<'a> {
    /// Kernel sources as the run found them.
    pub sources: &'a SourceSet,
    /// The same as a directory.
    pub kernels: &'a Path,
    /// Checks with their times, and the code of the unchanged kernels.
    pub baseline: &'a Baseline,
    /// Starts workers.
    pub workers: Workers,
    /// Go on after the first failing check, so that the kill matrix is complete.
    pub all_checks: bool,
    /// What is learnt on the way.
    pub learnt: Learnt,
}

/// What earlier mutants teach about later ones.
#[derive(Default)]
pub struct Learnt {
    /// Times that a check failed first, by the function that was changed and over all.
    kills: Mutex<HashMap<(String, usize), u32>>,
    /// Caught mutants by their code in the instance that showed it.
    codes: Mutex<HashMap<(KernelSpec, Fingerprint), String>>,
    /// Code of unchanged kernels in fast mode, as far as it was needed.
    fast: Mutex<HashMap<KernelSpec, Fingerprint>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A limit leaves room for a loaded machine; a hang takes no longer than this.
const SHORTEST_LIMIT: Duration = Duration::from_secs(10);
const LIMIT_FACTOR: u32 = 20;

/// Time that one launch of a check may take, from the time that the whole check took on the unchanged kernels.
#[must_use]
pub fn limit(baseline: Duration) -> Duration {
    (baseline * LIMIT_FACTOR).max(SHORTEST_LIMIT)
}

/// How a mutant ended, instances compiled, and checks run with whether each failed.
type Ended = (Outcome, usize, Vec<(String, bool)>);

/// The mutant that is being judged.
struct Judging<'a> {
    engine: &'a Engine<'a>,
    function: String,
    bench: Bench,
    compiled: usize,
    ran: Vec<(String, bool)>,
    tried: HashSet<usize>,
}

impl Engine<'_> {
    /// Judges one mutant. `stage` is a directory of the calling thread.
    ///
    /// # Errors
    /// When the surroundings fail; the mutant then has no outcome.
    pub fn judge(&self, change: &Change, stage: &Path) -> Result<Record, EngineError> {
        let start = Instant::now();
        let (outcome, compiled, checks) = match change {
            Change::Kernel(mutant) => self.judge_kernel(mutant, stage)?,
            Change::Launch(launch) => {
                let setup = self.setup(None, Some(launch.clone()));
                let mut judging = self.judging(launch.entry.clone(), &setup);
                let using = self.baseline.checks_with_entry(&launch.entry);
                let outcome = if using.is_empty() {
                    Outcome::Uncovered
                } else {
                    judging.run(&using)?.unwrap_or(Outcome::Missed)
                };
                (outcome, 0, judging.ran)
            }
        };
        Ok(Record { id: change.id(), outcome, seconds: start.elapsed().as_secs_f64(), compiled, checks })
    }

    fn setup(
        &self,
        overlay: Option<(String, PathBuf)>,
        launch: Option<super::launch::LaunchMutant>,
    ) -> Setup {
        Setup { kernels: self.kernels.to_owned(), overlay, launch }
    }

    fn judging(&self, function: String, setup: &Setup) -> Judging<'_> {
        Judging {
            engine: self,
            function,
            bench: Bench::new(&self.workers, setup),
            compiled: 0,
            ran: Vec::new(),
            tried: HashSet::new(),
        }
    }

    fn judge_kernel(&self, mutant: &Mutant, stage: &Path) -> Result<Ended, EngineError> {
        let text = self.sources.get(&mutant.file).unwrap_or_default();
        let changed = mutant.apply(text);
        let overlay = stage.join(&mutant.file);
        std::fs::write(&overlay, &changed)
            .map_err(|source| EngineError::File { path: overlay.clone(), source })?;
        let setup = self.setup(Some((mutant.file.clone(), overlay)), None);
        let sources = self.sources.clone().with_file(&mutant.file, &changed);
        let mut libraries = Libraries::default();
        let mut judging = self.judging(format!("{}:{}", mutant.file, mutant.function), &setup);
        let outcome = judging.kernel(mutant, &sources, &mut libraries);
        libraries.remove(self.baseline);
        let outcome = match outcome? {
            Outcome::Missed => match reviewed::reason(mutant, text) {
                Some(why) => Outcome::Reviewed { why: why.to_owned() },
                None => Outcome::Missed,
            },
            other => other,
        };
        Ok((outcome, judging.compiled, judging.ran))
    }
}

/// Files that the compiler made for one mutant.
#[derive(Default)]
struct Libraries(Vec<PathBuf>);

impl Libraries {
    fn remove(&self, baseline: &Baseline) {
        for path in self.0.iter().filter(|path| !baseline.owns(path)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Judging<'_> {
    /// Tries the instances one after the other until a check fails.
    fn kernel(
        &mut self,
        mutant: &Mutant,
        sources: &SourceSet,
        libraries: &mut Libraries,
    ) -> Result<Outcome, EngineError> {
        let builder = Builder::new(sources.clone(), Mode::Checked)?;
        let instances = self.order(mutant, self.engine.baseline.instances_with(&mutant.file));
        let mut caught: Option<Outcome> = None;
        let mut changed = Vec::new();
        for instance in &instances {
            let (path, code) = match builder.compile(instance) {
                Ok(built) => built,
                Err(DeviceError::Compile { log, .. }) => return Ok(unviable(&log)),
                Err(error) => return Err(error.into()),
            };
            self.compiled += 1;
            libraries.0.push(path);
            if self.engine.baseline.code(instance) == Some(code) {
                continue;
            }
            changed.push(*instance);
            let key = ((*instance).clone(), code);
            if let Some(of) = lock(&self.engine.learnt.codes).get(&key).filter(|of| **of != mutant.id) {
                return Ok(caught.unwrap_or(Outcome::Duplicate { of: of.clone() }));
            }
            if let Some(outcome) = self.instance(instance, &builder, libraries)? {
                lock(&self.engine.learnt.codes).entry(key).or_insert_with(|| mutant.id.clone());
                if !self.engine.all_checks {
                    return Ok(outcome);
                }
                caught.get_or_insert(outcome);
            }
        }
        if let Some(caught) = caught {
            return Ok(caught);
        }
        if instances.is_empty() {
            return Ok(Outcome::Uncovered);
        }
        if changed.is_empty() {
            return Ok(Outcome::Equivalent {
                how: format!("identical machine code in {} instances", instances.len()),
            });
        }
        self.survivor(sources, &changed, libraries)
    }

    /// A survivor whose optimised code is that of the original is equivalent, too.
    fn survivor(
        &mut self,
        sources: &SourceSet,
        changed: &[&KernelSpec],
        libraries: &mut Libraries,
    ) -> Result<Outcome, EngineError> {
        let builder = Builder::new(sources.clone(), Mode::Fast)?;
        for instance in changed {
            let (path, code) = builder.compile(instance)?;
            self.compiled += 1;
            libraries.0.push(path);
            if self.engine.fast_code(instance)? != code {
                return Ok(Outcome::Missed);
            }
        }
        Ok(Outcome::Equivalent {
            how: format!("identical optimised machine code in {} instances", changed.len()),
        })
    }

    /// Runs the checks of one instance.
    fn instance(
        &mut self,
        instance: &KernelSpec,
        builder: &Builder,
        libraries: &mut Libraries,
    ) -> Result<Option<Outcome>, EngineError> {
        let checks = self.engine.baseline.checks_with_instance(instance);
        let fresh: Vec<usize> = checks.into_iter().filter(|check| !self.tried.contains(check)).collect();
        // Kernels that run beside it may contain the change, too; their compilation is nobody's time limit.
        let beside: HashSet<&KernelSpec> =
            fresh.iter().flat_map(|check| &self.engine.baseline.checks[*check].check.kernels).collect();
        for kernel in beside.into_iter().filter(|kernel| *kernel != instance) {
            match builder.compile(kernel) {
                Ok((path, _)) => libraries.0.push(path),
                Err(DeviceError::Compile { log, .. }) => return Ok(Some(unviable(&log))),
                Err(error) => return Err(error.into()),
            }
            self.compiled += 1;
        }
        self.run(&fresh)
    }

    /// Runs checks in the order of their worth; the first failure is the outcome.
    fn run(&mut self, checks: &[usize]) -> Result<Option<Outcome>, EngineError> {
        let mut outcome = None;
        for index in self.sorted(checks) {
            if self.engine.workers.interrupted.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(EngineError::Interrupted);
            }
            let timed = &self.engine.baseline.checks[index];
            let limit = limit(timed.baseline);
            self.tried.insert(index);
            let trial = self.bench.run(&timed.check, limit);
            let name = timed.check.name();
            self.ran.push((name.clone(), trial != Trial::Passed));
            let replay = timed.check.replay();
            let failed = match trial {
                Trial::Passed => continue,
                Trial::Failed(verdict) => Outcome::Caught { check: name, verdict, replay },
                Trial::TimedOut => Outcome::Timeout { check: name, limit_s: limit.as_secs_f64(), replay },
                Trial::Broken(message) if message.contains("interrupted") => {
                    return Err(EngineError::Interrupted);
                }
                Trial::Broken(message) => return Err(EngineError::NoVerdict { check: name, message }),
            };
            self.engine.learn(&self.function, index);
            if !self.engine.all_checks {
                return Ok(Some(failed));
            }
            outcome.get_or_insert(failed);
        }
        Ok(outcome)
    }

    /// Cheapest first, and sooner the more often a check was the first to fail.
    fn sorted(&self, checks: &[usize]) -> Vec<usize> {
        let kills = lock(&self.engine.learnt.kills);
        let worth = |check: usize| {
            let of = |place: &str| f64::from(kills.get(&(place.to_owned(), check)).copied().unwrap_or(0));
            1.0 + of("") + 4.0 * of(&self.function)
        };
        let cost = |check: usize| self.engine.baseline.checks[check].baseline.as_secs_f64() / worth(check);
        let mut sorted: Vec<(f64, usize)> = checks.iter().map(|check| (cost(*check), *check)).collect();
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        sorted.into_iter().map(|(_, check)| check).collect()
    }

    /// Instances in the order in which they are likely to show the change.
    fn order<'s>(&self, mutant: &Mutant, instances: Vec<&'s KernelSpec>) -> Vec<&'s KernelSpec> {
        let kills = lock(&self.engine.learnt.kills);
        let structure = mutant.function.split("::").next().filter(|_| mutant.function.contains("::"));
        let mut scored: Vec<((bool, u32, usize), &KernelSpec)> = instances
            .into_iter()
            .map(|instance| {
                let named =
                    structure.is_some_and(|name| instance.defines.iter().any(|(_, value)| value == name));
                let checks = self.engine.baseline.checks_with_instance(instance);
                let of =
                    |place: &str, check: &usize| kills.get(&(place.to_owned(), *check)).copied().unwrap_or(0);
                let killed = checks.iter().map(|check| 4 * of(&self.function, check) + of("", check)).sum();
                ((named, killed, checks.len()), instance)
            })
            .collect();
        scored.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        scored.into_iter().map(|(_, instance)| instance).collect()
    }
}

impl Engine<'_> {
    fn learn(&self, function: &str, check: usize) {
        let mut kills = lock(&self.learnt.kills);
        for place in ["", function] {
            *kills.entry((place.to_owned(), check)).or_default() += 1;
        }
    }

    fn fast_code(&self, instance: &KernelSpec) -> Result<Fingerprint, EngineError> {
        if let Some(code) = lock(&self.learnt.fast).get(instance) {
            return Ok(*code);
        }
        let (_, code) = Builder::new(self.sources.clone(), Mode::Fast)?.compile(instance)?;
        lock(&self.learnt.fast).insert(instance.clone(), code);
        Ok(code)
    }
}

fn unviable(log: &str) -> Outcome {
    let line = log.lines().find(|line| line.contains("error")).or_else(|| log.lines().next());
    Outcome::Unviable { message: line.unwrap_or("").trim().to_owned() }
}

/// How often each check was the first to fail.
#[must_use]
pub fn kills_by_check(records: &[Record]) -> BTreeMap<&str, usize> {
    let mut kills = BTreeMap::new();
    for (name, failed) in records.iter().flat_map(|record| &record.checks) {
        *kills.entry(name.as_str()).or_default() += usize::from(*failed);
    }
    kills
}
