//! A whole run: checks, baseline, canary, mutants, reports.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernels::device::{Device, DeviceError};
use kernels::simt::{SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::baseline::{Baseline, RedCheck};
use super::canary::{self, CanaryError};
use super::change::{self, Change};
use super::checks::{Check, candidates, choose};
use super::coverage::Coverage;
use super::discover::DiscoverError;
use super::engine::{Engine, EngineError, Learnt};
use super::outcome::{Counts, Record};
use super::progress::Progress;
use super::report::{Directory, JournalError, elements, matrix, unused_checks};
use super::reviewed;
use super::select::Selection;
use super::serve::Setup;
use super::trial::Workers;
use crate::catalogue::{CatalogueError, Tier};

/// Kernel mutants from which on it pays to find out first what each check executes.
const FEWEST_FOR_COVERAGE: usize = 60;

/// What to try and how.
pub struct Campaign {
    /// Which mutants.
    pub selection: Selection,
    /// Committed cases up to this tier serve as checks.
    pub tier: Tier,
    /// The arms whose cases serve as checks.
    pub arms: Vec<String>,
    /// Go on after the first failing check, for a complete kill matrix.
    pub all_checks: bool,
    /// Mutants tried at once.
    pub jobs: usize,
    /// No new mutant is started after this time, but for as many as the selection asks for at least.
    pub budget: Option<Duration>,
    /// Go on where an earlier run of the same kernels and checks was interrupted.
    pub resume: bool,
    /// Where reports go.
    pub output: PathBuf,
    /// This program, which is its own worker.
    pub binary: PathBuf,
    /// No progress on standard error.
    pub quiet: bool,
    /// Set from outside to end early and report what is known.
    pub interrupted: Arc<AtomicBool>,
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct Finished {
    /// Mutants that were chosen.
    pub changes: Vec<Change>,
    /// Their ends, as far as known.
    pub records: Vec<Record>,
    /// The same, counted.
    pub counts: Counts,
    /// A check that fails on the unchanged kernels: then nothing more was tried.
    pub red: Vec<RedCheck>,
    /// Number of checks.
    pub checks: usize,
    /// Time of the mutants alone.
    pub elapsed: Duration,
    /// Mutants tried in this run, those of a resumed one not among them.
    pub tried: usize,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    /// A kernel file cannot be parsed.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The committed cases cannot be read.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Compiler or workers failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The detectors do not work.
    #[error(transparent)]
    Canary(#[from] CanaryError),
    /// Nothing to take up.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file cannot be written.
    #[error("cannot write: {0}")]
    Io(#[from] io::Error),
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl Campaign {
    /// Every mutant there is, chosen by the selection, and the checks for them. Runs nothing.
    ///
    /// # Errors
    /// When kernels or cases cannot be read.
    pub fn plan(&self, sources: &SourceSet) -> Result<(Vec<Change>, Vec<Check>), CampaignError> {
        let info = SimtDevice::new(SimtOptions::new(sources.clone()))?.info();
        let mut checks = candidates(self.tier, &self.arms, &info)?;
        choose(&mut checks);
        let changes = self.selection.apply(change::all(sources, &checks)?, &|change| match change {
            Change::Kernel(mutant) => {
                reviewed::reason(mutant, sources.get(&mutant.file).unwrap_or_default()).is_some()
            }
            Change::Launch(_) => false,
        });
        let files: BTreeSet<&str> = changes.iter().map(Change::file).collect();
        let needed = checks.into_iter().filter(|check| is_needed(check, sources, &files)).collect();
        Ok((changes, needed))
    }

    /// Runs everything.
    ///
    /// # Errors
    /// When the surroundings fail or the detectors do not work; what is known by then is in the output directory.
    pub fn run(&self) -> Result<Finished, CampaignError> {
        let sources = SourceSet::load()?;
        let progress = Progress::new(self.quiet);
        let (changes, checks) = self.plan(&sources)?;
        if changes.is_empty() {
            return Ok(Finished::default());
        }
        let stage = tempfile::Builder::new().prefix("attest-mutants-").tempdir()?;
        let kernels = snapshot(&sources, &stage)?;
        let workers = Workers { binary: self.binary.clone(), interrupted: self.interrupted.clone() };
        let setup = Setup { kernels: kernels.clone(), overlay: None, launch: None };
        let run = run_key(&sources, &checks);
        let chosen = checks.iter().filter(|check| check.chosen).count();
        let others = checks.len() - chosen;
        progress.say(&format!("{} mutants, {chosen} checks, and {others} for what they miss", changes.len()));
        let names: Vec<String> = checks.iter().map(Check::name).collect();
        let coverage = self.coverage(&sources, &checks, &workers, &changes, stage.path())?;
        let baseline = Baseline::new(checks, &sources, setup, workers.clone());
        let (directory, known) = match self.resume {
            true => Directory::resume(&self.output, &run)?,
            false => (Directory::create(&self.output, &run)?, Vec::new()),
        };
        let engine = Engine {
            sources: &sources,
            kernels: &kernels,
            baseline: &baseline,
            coverage: coverage.as_ref(),
            workers,
            all_checks: self.all_checks,
            learnt: Learnt::default(),
        };
        let mut finished = Finished { changes, checks: names.len(), ..Finished::default() };
        let judged = self.prove(&engine, &stage, &progress).and_then(|()| {
            self.judge_all(&engine, &stage, directory, known, &progress, &mut finished, &names)
        });
        progress.end();
        match judged {
            Err(CampaignError::Engine(EngineError::Red(check))) => finished.red.push(*check),
            other => other?,
        }
        Ok(finished)
    }

    /// Worth its time where many mutants are to come.
    fn coverage(
        &self,
        sources: &SourceSet,
        checks: &[Check],
        workers: &Workers,
        changes: &[Change],
        stage: &Path,
    ) -> Result<Option<Coverage>, CampaignError> {
        let of_kernels = changes.iter().filter(|change| matches!(change, Change::Kernel(_))).count();
        if of_kernels < FEWEST_FOR_COVERAGE {
            return Ok(None);
        }
        Ok(Some(Coverage::new(sources, checks.len(), workers, stage)?))
    }

    fn prove(&self, engine: &Engine<'_>, stage: &TempDir, progress: &Progress) -> Result<(), CampaignError> {
        let all = engine.baseline.checks.iter().flat_map(|check| &check.kernels);
        // The control is compiled for every instance of its file.
        let cheapest = all.min_by_key(|kernel| engine.baseline.instances_with(kernel.file).len());
        if let Some(kernel) = cheapest {
            let proved = canary::prove(engine, kernel.file, stage.path());
            let check = proved.map_err(|error| match error {
                CanaryError::Engine(error) => CampaignError::Engine(error),
                other => other.into(),
            })?;
            progress.say(&format!("canary in {} killed by {check}; control found equivalent", kernel.file));
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the one place where everything meets")]
    fn judge_all(
        &self,
        engine: &Engine<'_>,
        stage: &TempDir,
        mut directory: Directory,
        known: Vec<Record>,
        progress: &Progress,
        finished: &mut Finished,
        check_names: &[String],
    ) -> Result<(), CampaignError> {
        let start = Instant::now();
        for record in &known {
            finished.counts.add(&record.outcome);
        }
        let done: HashSet<&str> = known.iter().map(|record| record.id.as_str()).collect();
        let waiting: Vec<&Change> =
            finished.changes.iter().filter(|change| !done.contains(change.id().as_str())).collect();
        let total = finished.changes.len();
        let broken: Mutex<Option<EngineError>> = Mutex::new(None);
        let (sender, results) = channel();
        let mut records = known.clone();
        let written: io::Result<()> = std::thread::scope(|scope| {
            let (waiting, broken) = (&waiting, &broken);
            scope.spawn(move || {
                in_parallel(waiting.len(), self.jobs, &|index| {
                    let must = index < self.selection.at_least;
                    if self.is_over((!must).then_some(start), broken) {
                        return;
                    }
                    match judge_in(engine, waiting[index], stage.path()) {
                        Ok(record) => drop(sender.send((waiting[index], record))),
                        Err(error) => {
                            broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        }
                    }
                });
            });
            for (change, record) in results {
                finished.counts.add(&record.outcome);
                finished.tried += 1;
                directory.record(change, engine.sources.get(change.file()), &record)?;
                if record.outcome.is_escape() {
                    progress.say(&format!("{}: {}", record.outcome.word(), change.describe()));
                }
                records.push(record);
                progress.mutants(&finished.counts, records.len(), total);
            }
            Ok(())
        });
        written?;
        finished.elapsed = start.elapsed();
        finished.records = records;
        write_reports(&directory, engine.sources, finished, check_names)?;
        match broken.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None | Some(EngineError::Interrupted) => Ok(()),
            Some(error) => Err(error.into()),
        }
    }

    /// Whether no further mutant is tried; the budget counts from `start`.
    fn is_over(&self, start: Option<Instant>, broken: &Mutex<Option<EngineError>>) -> bool {
        let spent = self.budget.zip(start).is_some_and(|(budget, start)| start.elapsed() >= budget);
        spent
            || self.interrupted.load(Ordering::Relaxed)
            || broken.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Calls `work` with 0, 1, … on `jobs` threads.
fn in_parallel(count: usize, jobs: usize, work: &(dyn Fn(usize) + Sync)) {
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

/// Judges one mutant in a directory of its own.
fn judge_in(engine: &Engine<'_>, change: &Change, stage: &Path) -> Result<Record, EngineError> {
    let directory = tempfile::Builder::new().prefix("mutant-").tempdir_in(stage);
    let directory = directory.map_err(|source| EngineError::File { path: stage.to_owned(), source })?;
    engine.judge(change, directory.path())
}

fn write_reports(
    directory: &Directory,
    sources: &SourceSet,
    finished: &Finished,
    check_names: &[String],
) -> io::Result<()> {
    let Finished { changes, records, counts, .. } = finished;
    directory.finish(changes, records, counts)?;
    directory.json("mutation-report.json", &elements(sources, changes, records))?;
    directory.text("mutation-report.html", HTML)?;
    directory.text("kill-matrix.csv", &matrix(records))?;
    let unused = unused_checks(records, check_names);
    directory.text("unused-checks.txt", &unused.iter().map(|name| format!("{name}\n")).collect::<String>())
}

/// A page for the component of mutation-testing-elements, which a copy of the package beside it provides.
const HTML: &str = include_str!("../../mutants/mutation-report.html");

/// Whether a check uses one of the files, as a translation unit or a header; launch mutants need all.
fn is_needed(check: &Check, sources: &SourceSet, files: &BTreeSet<&str>) -> bool {
    if files.contains(change::LAUNCH_FILE) {
        return true;
    }
    let uses =
        |unit: &str| sources.closure(unit).unwrap_or_default().iter().any(|(name, _)| files.contains(name));
    check.kernels.iter().any(|kernel| uses(kernel.file))
}

/// The kernel sources as files, so that an edit during the run changes nothing.
fn snapshot(sources: &SourceSet, stage: &TempDir) -> io::Result<PathBuf> {
    let directory = stage.path().join("kernels");
    std::fs::create_dir(&directory)?;
    for (name, text) in sources.iter() {
        std::fs::write(directory.join(name), text)?;
    }
    Ok(directory)
}

/// Names kernel sources, checks and this build.
fn run_key(sources: &SourceSet, checks: &[Check]) -> String {
    let mut hash = Sha256::new();
    for (name, text) in sources.iter() {
        hash.update(format!("{name} {}\n{text}", text.len()));
    }
    for check in checks {
        hash.update(check.name());
    }
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
