//! The one stream of events that every report is made from.

use serde::Serialize;

use crate::verdict::{Class, Verdict};

/// Something that happened in a run.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The run is about to start.
    Started(Started),
    /// Kernels have been compiled.
    Prepared {
        /// Instances that were needed.
        kernels: usize,
        /// Seconds it took.
        seconds: f64,
    },
    /// A kernel does not compile.
    CompileFailed {
        /// File, entry and definitions.
        kernel: String,
        /// Compiler and log.
        message: String,
    },
    /// Nothing can be judged any more: the surroundings failed.
    Aborted {
        /// Why.
        message: String,
    },
    /// One case has its verdict.
    Judged(Box<Judged>),
    /// The run is over.
    Finished(Finished),
}

/// What a run is going to do.
#[derive(Clone, Debug, Serialize)]
pub struct Started {
    /// Version of attest.
    pub version: &'static str,
    /// `simt` or `cuda`.
    pub device: String,
    /// Name, versions and how it was chosen.
    pub device_detail: String,
    /// The arms.
    pub arms: Vec<String>,
    /// The tier; `None` for single cases.
    pub tier: Option<String>,
    /// Cases times arms.
    pub planned: usize,
    /// Cases tried at once.
    pub jobs: usize,
}

/// A case with its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Short stable name.
    pub id: String,
    /// The case line.
    pub line: String,
    /// Catalogue group.
    pub group: String,
    /// What it exercises.
    pub flags: Vec<String>,
    /// What it is for.
    pub comment: String,
    /// The arm.
    pub arm: String,
    /// The device.
    pub device: String,
    /// Whether every access of the main run was checked.
    pub checked: bool,
    /// How the verdict counts.
    pub class: Class,
    /// The verdict.
    pub verdict: Verdict,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Command that judges this one case again.
    pub replay: String,
}

/// Cases that were not judged, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Skipped {
    /// Why.
    pub reason: String,
    /// How many.
    pub cases: usize,
}

/// What a foreign kernel declares to serve, and whether it is right there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// In words: `attention bf16 kv=e4m3 d64`, `softcap`.
    pub name: String,
    /// Cases that exercise it and have a verdict.
    pub judged: usize,
    /// Those of them that failed.
    pub failed: usize,
    /// The line of the first that failed.
    pub first_failure: Option<String>,
}

/// The end of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Finished {
    /// Cases that passed.
    pub passed: usize,
    /// Cases with a verdict against something under test.
    pub failed: usize,
    /// Cases without a verdict.
    pub skipped: usize,
    /// The skipped ones by reason.
    pub skips: Vec<Skipped>,
    /// Why the run as a whole is not acceptable although no case failed.
    pub shortfalls: Vec<String>,
    /// Largest share of its bound that any element used.
    pub worst_share: f64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Exit code.
    pub exit_code: u8,
    /// What a foreign kernel serves; empty for this project's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<Capability>,
}

/// A consumer of events: a terminal, a report file.
pub trait Consumer {
    /// Takes one event.
    ///
    /// # Errors
    /// When it cannot be written.
    fn take(&mut self, event: &Event) -> std::io::Result<()>;
}
