//! A suite of exported cases: a directory with one file per case, a manifest, and what a framework left beside them.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Name of the manifest in the directory.
pub const MANIFEST: &str = "suite.json";
/// Name of the file in which a framework says who it is.
const MADE_BY: &str = "made-by.json";
/// Version of the manifest's layout; raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// The manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suite {
    schema: u32,
    /// The tier that the cases were taken from.
    pub tier: String,
    /// The arm whose rounding the bounds allow.
    pub bound_of: String,
    /// The cases that have a file.
    pub cases: Vec<SuiteCase>,
    /// Stores and cases that must be refused: they have no output within a bound, so they have no file.
    pub without_output: usize,
    /// Lines of the cases whose file would be too large.
    pub too_large: Vec<String>,
}

/// A case that has a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuiteCase {
    /// Short stable name; the file is `ID.safetensors`.
    pub id: String,
    /// The case line.
    pub case: String,
    /// Catalogue group.
    pub group: String,
    /// What it is for.
    pub comment: String,
}

/// Who computed the outputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MadeBy {
    /// What computed them, such as `pytorch-sdpa-flash`.
    pub by: String,
    /// On what, such as `NVIDIA H200`.
    pub on: String,
    /// Versions of everything that took part.
    pub versions: String,
}

impl Default for MadeBy {
    fn default() -> Self {
        Self { by: "output".to_owned(), on: "files".to_owned(), versions: String::new() }
    }
}

/// What lies beside a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `ID.out.safetensors`: an output to judge.
    Output(PathBuf),
    /// `ID.skip.txt`: the case cannot be expressed, and why.
    Skipped(String),
    /// `ID.crash.txt`: whoever computed it died, and its last words.
    Crashed(String),
    /// Nothing.
    Missing,
}

/// A directory that is no suite.
#[derive(Debug, thiserror::Error)]
pub enum SuiteError {
    /// A file that should be there cannot be read.
    #[error("{path} cannot be read: {error}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// A file that cannot be written.
    #[error("{path} cannot be written: {error}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        error: io::Error,
    },
    /// Not what it should be.
    #[error("{path} is {what}; accepted: what `attest export --tier` writes")]
    Content {
        /// The file.
        path: String,
        /// What it is.
        what: String,
    },
}

impl Suite {
    /// An empty suite.
    #[must_use]
    pub fn new(tier: &str, bound_of: &str) -> Self {
        Self {
            schema: SCHEMA,
            tier: tier.to_owned(),
            bound_of: bound_of.to_owned(),
            cases: Vec::new(),
            without_output: 0,
            too_large: Vec::new(),
        }
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(), SuiteError> {
        let path = directory.join(MANIFEST);
        let text = serde_json::to_string_pretty(self).expect("names and numbers are always JSON") + "\n";
        std::fs::write(&path, text)
            .map_err(|error| SuiteError::Write { path: path.display().to_string(), error })
    }

    /// Reads the manifest.
    ///
    /// # Errors
    /// When there is none, or it is of another version.
    pub fn read(directory: &Path) -> Result<Self, SuiteError> {
        let path = directory.join(MANIFEST);
        let content = |what: String| SuiteError::Content { path: path.display().to_string(), what };
        let suite: Self = serde_json::from_str(&read(&path)?).map_err(|error| content(error.to_string()))?;
        if suite.schema != SCHEMA {
            return Err(content(format!("of schema {}", suite.schema)));
        }
        if let Some(case) = suite.cases.iter().find(|case| Path::new(&case.id).components().count() != 1) {
            return Err(content(format!("naming a case `{}`", case.id)));
        }
        Ok(suite)
    }
}

impl SuiteCase {
    /// The exported file.
    #[must_use]
    pub fn file(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.safetensors", self.id))
    }

    /// What lies beside it. An output counts before a skip, a crash before both: a driver that dies may have left one.
    ///
    /// # Errors
    /// When a file is there and cannot be read.
    pub fn answer(&self, directory: &Path) -> Result<Answer, SuiteError> {
        let beside = |ending: &str| directory.join(format!("{}.{ending}", self.id));
        let (crash, output, skip) = (beside("crash.txt"), beside("out.safetensors"), beside("skip.txt"));
        let words = |path: &Path| Ok(read(path)?.trim().to_owned());
        Ok(if crash.exists() {
            Answer::Crashed(words(&crash)?)
        } else if output.exists() {
            Answer::Output(output)
        } else if skip.exists() {
            Answer::Skipped(words(&skip)?)
        } else {
            Answer::Missing
        })
    }
}

impl MadeBy {
    /// Reads who computed the outputs of a suite; nobody in particular where nothing says so.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn read(directory: &Path) -> Result<Self, SuiteError> {
        let path = directory.join(MADE_BY);
        if !path.exists() {
            return Ok(Self::default());
        }
        serde_json::from_str(&read(&path)?).map_err(|error| SuiteError::Content {
            path: path.display().to_string(),
            what: error.to_string(),
        })
    }
}

fn read(path: &Path) -> Result<String, SuiteError> {
    std::fs::read_to_string(path)
        .map_err(|error| SuiteError::Read { path: path.display().to_string(), error })
}
