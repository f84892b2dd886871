//! Which checks execute what a mutant changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kernels::source::SourceSet;

use super::checks::Check;
use super::engine::EngineError;
use super::marks::Marked;
use super::mutant::Mutant;
use super::serve::Setup;
use super::trial::{Bench, Trial, Workers};

/// Includes the compilation of the marked kernels.
const LIMIT: Duration = Duration::from_secs(300);

/// The blocks that each check enters on the unchanged kernels. A check is asked when it is first of interest.
pub struct Coverage {
    marked: Marked,
    setup: Setup,
    workers: Workers,
    stage: PathBuf,
    entered: Vec<Mutex<Entered>>,
    idle: Mutex<Vec<Marking>>,
}

/// Marks that a check sets.
#[derive(Default)]
enum Entered {
    #[default]
    Unknown,
    Blocks(BTreeSet<usize>),
    /// It does not pass on marked kernels, so what it sets says nothing.
    Anything,
}

impl Coverage {
    /// For so many checks; `stage` is a directory for the marked text.
    ///
    /// # Errors
    /// When the sources cannot be parsed or written.
    pub fn new(
        sources: &SourceSet,
        checks: usize,
        workers: &Workers,
        stage: &Path,
    ) -> Result<Self, EngineError> {
        let marked = Marked::new(sources).map_err(|error| EngineError::Marks(error.to_string()))?;
        Ok(Self {
            setup: Setup { kernels: write(&marked.sources, stage)?, overlay: None, launch: None },
            marked,
            workers: workers.clone(),
            stage: stage.to_owned(),
            entered: (0..checks).map(|_| Mutex::default()).collect(),
            idle: Mutex::default(),
        })
    }

    /// Whether a check, the `index`-th, may execute what a mutant changes.
    ///
    /// # Errors
    /// When the surroundings fail.
    pub fn covers(&self, index: usize, check: &Check, mutant: &Mutant) -> Result<bool, EngineError> {
        let Some(mark) = self.marked.around(&mutant.file, mutant.from, mutant.to) else { return Ok(true) };
        let mut entered = self.entered[index].lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*entered, Entered::Unknown) {
            *entered = self.measure(check)?;
        }
        Ok(match &*entered {
            Entered::Blocks(blocks) => blocks.contains(&mark),
            Entered::Unknown | Entered::Anything => true,
        })
    }

    fn measure(&self, check: &Check) -> Result<Entered, EngineError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut marking = match idle {
            Some(marking) => marking,
            None => Marking::new(&self.workers, &self.setup, &self.stage, self.marked.len())?,
        };
        let entered = marking.run(check)?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(marking);
        Ok(entered)
    }
}

fn write(sources: &SourceSet, stage: &Path) -> Result<PathBuf, EngineError> {
    let directory = stage.join("marked");
    let put = |path: PathBuf, text: &str| {
        std::fs::write(&path, text).map_err(|source| EngineError::File { path, source })
    };
    std::fs::create_dir_all(&directory)
        .map_err(|source| EngineError::File { path: directory.clone(), source })?;
    for (name, text) in sources.iter() {
        put(directory.join(name), text)?;
    }
    Ok(directory)
}

/// A worker on marked kernels with the file that they mark.
struct Marking {
    bench: Bench,
    file: tempfile::NamedTempFile,
    len: usize,
}

impl Marking {
    fn new(workers: &Workers, setup: &Setup, stage: &Path, len: usize) -> Result<Self, EngineError> {
        let file = tempfile::NamedTempFile::new_in(stage);
        let file = file.map_err(|source| EngineError::File { path: stage.to_owned(), source })?;
        Ok(Self { bench: Bench::marking(workers, setup, file.path()), file, len })
    }

    fn run(&mut self, check: &Check) -> Result<Entered, EngineError> {
        let path = self.file.path().to_owned();
        let failed = |source| EngineError::File { path: path.clone(), source };
        // In place: the worker's mapping is of this very file.
        std::os::unix::fs::FileExt::write_all_at(self.file.as_file(), &vec![0; self.len], 0)
            .map_err(failed)?;
        match self.bench.run(check, LIMIT) {
            Trial::Passed => {}
            Trial::Broken(message) => return Err(EngineError::broken(&check.name(), message)),
            Trial::Failed(_) | Trial::TimedOut => return Ok(Entered::Anything),
        }
        let bytes = std::fs::read(&path).map_err(failed)?;
        let set = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        Ok(Entered::Blocks(set.map(|(mark, _)| mark).collect()))
    }
}
