//! Running one check in a worker process, on the original or on a mutant.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kernels::device::DeviceKind;

use super::checks::Check;
use super::marks::MARKS_VARIABLE;
use super::serve::Setup;
use crate::executor::{Executor, Job, Outcome, Worker};
use crate::run::{Checking, Settings, run_case};
use crate::verdict::{Class, Failure, Verdict};

/// What one check says.
#[derive(Clone, Debug, PartialEq)]
pub enum Trial {
    /// It passes.
    Passed,
    /// It fails: its verdict in a few words.
    Failed(String),
    /// It does not end in time.
    TimedOut,
    /// The surroundings failed, or the run was interrupted.
    Broken(String),
}

/// Starts workers: this program again.
#[derive(Clone)]
pub struct Workers {
    /// The program.
    pub binary: PathBuf,
    /// Set when the run is to end.
    pub interrupted: Arc<AtomicBool>,
}

/// A worker for one setup. It is reused while it is healthy.
pub struct Bench {
    executor: AlwaysChecked,
}

impl Bench {
    /// A worker that will run jobs on `setup`. Nothing is started before the first check.
    #[must_use]
    pub fn new(workers: &Workers, setup: &Setup) -> Self {
        let worker = Worker::new(workers.binary.clone(), workers.interrupted.clone());
        Self { executor: AlwaysChecked(worker.with_arguments(setup.arguments())) }
    }

    /// The same, on kernels that mark in `file` which of their blocks are entered.
    #[must_use]
    pub fn marking(workers: &Workers, setup: &Setup, file: &Path) -> Self {
        let AlwaysChecked(worker) = Self::new(workers, setup).executor;
        Self { executor: AlwaysChecked(worker.with_variable(MARKS_VARIABLE, file.into())) }
    }

    /// Judges one check; each of its launches may take `limit`.
    pub fn run(&mut self, check: &Check, limit: Duration) -> Trial {
        let settings =
            Settings { device: DeviceKind::Simt, checking: Checking::Always, schedule: None, limit };
        let verdict = run_case(&check.item.case, &check.item.arm, &mut self.executor, &settings);
        match (verdict.class(), &verdict) {
            (Class::Passed, _) => Trial::Passed,
            (_, Verdict::TimedOut { .. }) => Trial::TimedOut,
            (Class::NoVerdict, _) => Trial::Broken(in_words(&verdict)),
            _ => Trial::Failed(in_words(&verdict)),
        }
    }
}

/// Runs every launch of a case in checked mode, those that only compare bits too: one compiled instance then serves all.
struct AlwaysChecked(Worker);

impl Executor for AlwaysChecked {
    fn run(&mut self, job: &Job, limit: Duration) -> Outcome {
        if job.device.checked {
            return self.0.run(job, limit);
        }
        let mut job = job.clone();
        job.device.checked = true;
        self.0.run(&job, limit)
    }
}

/// A verdict on one line.
fn in_words(verdict: &Verdict) -> String {
    let detail = match verdict {
        Verdict::Mismatch { failures } => failures.first().map(failure_in_words).unwrap_or_default(),
        Verdict::DeviceError { findings, error } => match (findings.first(), error) {
            (Some(finding), _) => {
                let site = finding.site.as_ref().map(|site| format!(" at {site}")).unwrap_or_default();
                format!("{:?}: {}{site}", finding.kind, first_line(&finding.message))
            }
            (None, Some(error)) => first_line(error).to_owned(),
            (None, None) => String::new(),
        },
        Verdict::Rejected { message, .. } | Verdict::Environment { message } => {
            first_line(message).to_owned()
        }
        Verdict::Unsupported { what, .. } | Verdict::Skipped { reason: what } => what.clone(),
        Verdict::Crashed { signal, .. } => signal.clone(),
        Verdict::TimedOut { limit_ms } => format!("after {limit_ms} ms"),
        Verdict::KnownFailure { reason, .. } | Verdict::KnownFailurePasses { reason, .. } => reason.clone(),
        Verdict::Pass { .. } => String::new(),
    };
    format!("{} {detail}", verdict.word()).trim_end().to_owned()
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("")
}

fn failure_in_words(failure: &Failure) -> String {
    match failure {
        Failure::Elements { output, wrong, of, pattern, .. } => {
            let pattern = pattern.as_ref().map(|p| format!(", {p}")).unwrap_or_default();
            format!("{wrong} of {of} elements of {output}{pattern}")
        }
        Failure::Unwritten { output, elements, of, .. } => {
            format!("{elements} of {of} elements of {output} not written")
        }
        Failure::Depends { on, output, elements, .. } => {
            format!("{elements} elements of {output} depend on {on}")
        }
        Failure::Probe { message, .. } => format!("probe: {message}"),
        Failure::Modified { buffer, bytes, .. } => format!("{bytes} bytes of {buffer} modified"),
        Failure::Cache { tensor, wrong, of, .. } => format!("{wrong} of {of} elements of the {tensor} cache"),
        other => format!("{other:?}"),
    }
}
