//! A whole run: checks, baseline, canary, mutants, reports.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernels::device::{Device, DeviceError};
use kernels::simt::{SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::baseline::{Baseline, RedCheck, in_parallel};
use super::canary::{self, CanaryError};
use super::change::{self, Change};
use super::checks::{Check, candidates, choose};
use super::discover::DiscoverError;
use super::engine::{Engine, EngineError, Learnt};
use super::outcome::{Counts, Record};
use super::progress::Progress;
use super::report::{Directory, JournalError, elements, matrix, unused_checks};
use super::select::Selection;
use super::serve::Setup;
use super::trial::Workers;
use crate::catalogue::{CatalogueError, Tier};

/// What to try and how.
pub struct Campaign {
    /// Which mutants.
    pub selection: Selection,
    /// Committed cases up to this tier serve as checks.
    pub tier: Tier,
    /// The arms whose cases serve as checks.
    pub arms: Vec<String>,
    /// All small cases instead of the choice: slower, and the last word on a survivor.
    pub thorough: bool,
    /// Go on after the first failing check, for a complete kill matrix.
    pub all_checks: bool,
    /// Mutants tried at once.
    pub jobs: usize,
    /// No new mutant is started after this time.
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
    /// Checks that fail on the unchanged kernels: then nothing was tried.
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
        let small = candidates(self.tier, &self.arms, &info)?;
        let checks = if self.thorough { small } else { choose(&small) };
        let changes = self.selection.apply(change::all(sources, &checks)?);
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
        progress.say(&format!(
            "{} mutants, {} checks; first the unchanged kernels",
            changes.len(),
            checks.len()
        ));
        let names: Vec<String> = checks.iter().map(Check::name).collect();
        let step = |done, of| progress.baseline(done, of);
        let (baseline, red) = Baseline::measure(checks, &sources, &setup, &workers, self.jobs, &step)?;
        if !red.is_empty() {
            progress.end();
            return Ok(Finished { red, checks: names.len(), changes, ..Finished::default() });
        }
        progress.say(&format!(
            "baseline: {} checks on {} compiled instances pass in {:.1} s of work",
            baseline.checks.len(),
            baseline.instances(),
            baseline.total_time().as_secs_f64()
        ));
        let (directory, known) = match self.resume {
            true => Directory::resume(&self.output, &run)?,
            false => (Directory::create(&self.output, &run)?, Vec::new()),
        };
        let engine = Engine {
            sources: &sources,
            kernels: &kernels,
            baseline: &baseline,
            workers,
            all_checks: self.all_checks,
            learnt: Learnt::default(),
        };
        self.prove(&engine, &stage, &progress)?;
        let mut finished = Finished { changes, checks: names.len(), ..Finished::default() };
        self.judge_all(&engine, &stage, directory, known, &progress, &mut finished, &names)?;
        progress.end();
        Ok(finished)
    }

    fn prove(&self, engine: &Engine<'_>, stage: &TempDir, progress: &Progress) -> Result<(), CampaignError> {
        let file = engine.baseline.checks.first().and_then(|timed| timed.check.kernels.last());
        if let Some(kernel) = file {
            let check = canary::prove(engine, kernel.file, stage.path())?;
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
                    if self.is_over(start, broken) {
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

    fn is_over(&self, start: Instant, broken: &Mutex<Option<EngineError>>) -> bool {
        self.interrupted.load(Ordering::Relaxed)
            || self.budget.is_some_and(|budget| start.elapsed() >= budget)
            || broken.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
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
