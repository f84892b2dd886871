//! Judging mutants: compile the changed translation unit, run the checks that use it, stop at the first that fails.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernels::device::DeviceError;
use kernels::simt::Mode;
use kernels::source::{KernelSpec, SourceSet};

use super::baseline::{Baseline, RedCheck};
use super::change::Change;
use super::compiled::{Builder, Fingerprint};
use super::coverage::Coverage;
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
    /// No marks can be put into the kernels.
    #[error("{0}")]
    Marks(String),
    /// The unchanged kernels fail a check.
    #[error("the unchanged kernels fail check {}: {}", .0.check, .0.verdict)]
    Red(Box<RedCheck>),
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

impl EngineError {
    /// Of a check whose worker gave no verdict.
    pub(super) fn broken(check: &str, message: String) -> Self {
        if message.contains("interrupted") {
            return Self::Interrupted;
        }
        Self::NoVerdict { check: check.to_owned(), message }
    }
}

/// What every mutant of a run needs.
pub struct Engine<'a> {
    /// Kernel sources as the run found them.
    pub sources: &'a SourceSet,
    /// The same as a directory.
    pub kernels: &'a Path,
    /// Checks with their times, and the code of the unchanged kernels.
    pub baseline: &'a Baseline<'a>,
    /// What checks execute; without it, every check on an instance of a changed file is tried.
    pub coverage: Option<&'a Coverage>,
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
}

/// Instances that were compiled from a mutant, with their code where it differs from the original's.
type Built<'a> = HashMap<&'a KernelSpec, Option<Fingerprint>>;

/// Where a check stands among those that wait: chosen ones first, then by what it costs for its worth, then in order.
type Rank = (bool, f64, usize);

fn by_rank(a: &Rank, b: &Rank) -> Ordering {
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2))
}

/// About what compiling one instance costs, against the time of a check.
const COMPILE_S: f64 = 2.0;

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
        libraries.remove();
        let outcome = match outcome? {
            escaped @ (Outcome::Missed | Outcome::Uncovered) => match reviewed::reason(mutant, text) {
                Some(why) => Outcome::Reviewed { why: why.to_owned() },
                None => escaped,
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
    fn remove(&self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl<'a> Judging<'a> {
    /// Runs the checks that execute the change until one fails, the chosen ones first, and compiles what they need on the way.
    fn kernel(
        &mut self,
        mutant: &Mutant,
        sources: &SourceSet,
        libraries: &mut Libraries,
    ) -> Result<Outcome, EngineError> {
        let baseline = self.engine.baseline;
        let builder = Builder::new(sources.clone(), Mode::Checked)?;
        let mut waiting = baseline.checks_with_file(&mutant.file);
        let mut built: Built<'a> = HashMap::new();
        let mut caught: Option<Outcome> = None;
        while let Some(check) = self.take_next(&mut waiting, mutant, &built) {
            if caught.is_some() && !baseline.checks[check].chosen {
                break;
            }
            let kernels = baseline.kernels_of(check, &mutant.file);
            let unchanged = kernels.iter().all(|kernel| built.get(kernel) == Some(&None));
            if unchanged || !self.may_show(check, mutant)? {
                continue;
            }
            if let Some(end) = self.build(&kernels, mutant, &builder, &mut built, libraries)? {
                return Ok(caught.unwrap_or(end));
            }
            let changed: Vec<&KernelSpec> = kernels.into_iter().filter(|k| built[k].is_some()).collect();
            if changed.is_empty() {
                continue;
            }
            if let Some(outcome) = self.run(&[check])? {
                // Which of several changed kernels made it fail is not known, so none is said to be a duplicate of this.
                if let [kernel] = changed[..] {
                    let code = built[kernel].expect("it has changed");
                    let id = mutant.id.clone();
                    lock(&self.engine.learnt.codes).entry((kernel.clone(), code)).or_insert(id);
                }
                if !self.engine.all_checks {
                    return Ok(outcome);
                }
                caught.get_or_insert(outcome);
            }
        }
        if let Some(caught) = caught {
            return Ok(caught);
        }
        // Text that no check executes is no equivalent, unless the compiler has dropped it.
        let instances = baseline.instances_with(&mutant.file);
        if self.ran.is_empty()
            && let Some(end) = self.build(&instances, mutant, &builder, &mut built, libraries)?
        {
            return Ok(end);
        }
        let changed: Vec<&KernelSpec> =
            built.iter().filter_map(|(kernel, code)| code.map(|_| *kernel)).collect();
        if changed.is_empty() && !built.is_empty() {
            return Ok(Outcome::Equivalent {
                how: format!("identical machine code in {} instances", built.len()),
            });
        }
        if self.ran.is_empty() {
            return Ok(Outcome::Uncovered);
        }
        self.survivor(sources, &changed, libraries)
    }

    fn may_show(&self, check: usize, mutant: &Mutant) -> Result<bool, EngineError> {
        match self.engine.coverage {
            Some(coverage) => coverage.covers(check, &self.engine.baseline.checks[check], mutant),
            None => Ok(true),
        }
    }

    /// Compiles what is not compiled yet. Some end if the text does not compile, or is that of an earlier mutant.
    fn build(
        &mut self,
        kernels: &[&'a KernelSpec],
        mutant: &Mutant,
        builder: &Builder,
        built: &mut Built<'a>,
        libraries: &mut Libraries,
    ) -> Result<Option<Outcome>, EngineError> {
        for kernel in kernels {
            if built.contains_key(kernel) {
                continue;
            }
            let (path, code) = match builder.compile(kernel) {
                Ok(compiled) => compiled,
                Err(DeviceError::Compile { log, .. }) => return Ok(Some(unviable(&log))),
                Err(error) => return Err(error.into()),
            };
            self.compiled += 1;
            libraries.0.push(path);
            let changed = self.engine.baseline.code(kernel, Mode::Checked)? != code;
            built.insert(kernel, changed.then_some(code));
            let key = ((*kernel).clone(), code);
            let earlier = lock(&self.engine.learnt.codes).get(&key).filter(|of| **of != mutant.id).cloned();
            if let Some(of) = earlier.filter(|_| changed) {
                return Ok(Some(Outcome::Duplicate { of }));
            }
        }
        Ok(None)
    }

    /// Takes the check that promises most for the time it costs, compilation included. Checks whose kernels have not
    /// changed cannot fail and come when they cost nothing.
    fn take_next(&self, waiting: &mut Vec<usize>, mutant: &Mutant, built: &Built<'a>) -> Option<usize> {
        let baseline = self.engine.baseline;
        let structure = mutant.function.split("::").next().filter(|_| mutant.function.contains("::"));
        let cost = |check: usize| {
            let kernels = baseline.kernels_of(check, &mutant.file);
            let unbuilt = kernels.iter().filter(|kernel| !built.contains_key(**kernel)).count();
            // A format's own functions matter to the instances that are made for it.
            let is_named = |kernel: &&KernelSpec| {
                structure.is_some_and(|name| kernel.defines.iter().any(|(_, value)| value == name))
            };
            let named = if kernels.iter().any(is_named) { 4.0 } else { 0.0 };
            (baseline.estimate(check) + COMPILE_S * unbuilt as f64) / (self.worth(check) + named)
        };
        let ranks = waiting.iter().map(|check| self.rank(*check, cost(*check)));
        let (.., first) = ranks.min_by(by_rank)?;
        waiting.retain(|check| *check != first);
        Some(first)
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
            if self.engine.baseline.code(instance, Mode::Fast)? != code {
                return Ok(Outcome::Missed);
            }
        }
        Ok(Outcome::Equivalent {
            how: format!("identical optimised machine code in {} instances", changed.len()),
        })
    }

    /// Runs checks in the order of their worth; the first failure is the outcome.
    fn run(&mut self, checks: &[usize]) -> Result<Option<Outcome>, EngineError> {
        let mut outcome = None;
        for index in self.sorted(checks) {
            if self.engine.workers.interrupted.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(EngineError::Interrupted);
            }
            let check = &self.engine.baseline.checks[index];
            let mut limit = limit(self.engine.baseline.time(index)?);
            let mut trial = self.bench.run(check, limit);
            if trial == Trial::TimedOut {
                // Perhaps it is the machine that has become slower since the check was timed.
                let slower = self::limit(self.engine.baseline.time_now(index, limit * LIMIT_FACTOR)?);
                if slower > limit {
                    limit = slower;
                    trial = self.bench.run(check, limit);
                }
            }
            let name = check.name();
            self.ran.push((name.clone(), trial != Trial::Passed));
            let replay = check.replay();
            let failed = match trial {
                Trial::Passed => continue,
                Trial::Failed(verdict) => Outcome::Caught { check: name, verdict, replay },
                Trial::TimedOut => Outcome::Timeout { check: name, limit_s: limit.as_secs_f64(), replay },
                Trial::Broken(message) => return Err(EngineError::broken(&name, message)),
            };
            self.engine.learn(&self.function, index);
            if !self.engine.all_checks {
                return Ok(Some(failed));
            }
            outcome.get_or_insert(failed);
        }
        Ok(outcome)
    }

    /// The chosen ones first; among them the cheapest, and sooner the more often a check was the first to fail.
    fn sorted(&self, checks: &[usize]) -> Vec<usize> {
        let cost = |check: usize| self.engine.baseline.estimate(check) / self.worth(check);
        let mut sorted: Vec<Rank> = checks.iter().map(|check| self.rank(*check, cost(*check))).collect();
        sorted.sort_by(by_rank);
        sorted.into_iter().map(|(.., check)| check).collect()
    }

    /// More, the more often a check was the first to fail, above all for this function.
    fn worth(&self, check: usize) -> f64 {
        let kills = lock(&self.engine.learnt.kills);
        let of = |place: &str| f64::from(kills.get(&(place.to_owned(), check)).copied().unwrap_or(0));
        1.0 + of("") + 4.0 * of(&self.function)
    }

    fn rank(&self, check: usize, cost: f64) -> Rank {
        (!self.engine.baseline.checks[check].chosen, cost, check)
    }
}

impl Engine<'_> {
    fn learn(&self, function: &str, check: usize) {
        let mut kills = lock(&self.learnt.kills);
        for place in ["", function] {
            *kills.entry((place.to_owned(), check)).or_default() += 1;
        }
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
