//! Verdicts: what the judgement of one case on one arm and device can be.

mod map;

pub use map::{ErrorMap, Grid, Level, RowBin, RowKind, RowPlace};

use kernels::device::Finding;
use serde::{Deserialize, Serialize};

/// The judgement of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything that was checked holds.
    Pass {
        /// Largest share of its bound that any element used; at most 1.
        worst_share: f64,
    },
    /// The kernel ran and what it left behind is wrong.
    Mismatch {
        /// Every check that failed, in the order in which they were made.
        failures: Vec<Failure>,
    },
    /// A valid case was refused.
    Rejected {
        /// The argument that the error names.
        argument: String,
        /// The error.
        message: String,
    },
    /// The arm or the device does not serve this case.
    Unsupported {
        /// What it lacks and what it serves.
        what: String,
        /// Whether its support manifest says so; if not, the skip itself is a failure.
        declared: bool,
    },
    /// Whoever computed the outputs says that the case cannot be expressed there.
    Skipped {
        /// Why.
        reason: String,
    },
    /// The ledger of known failures says that the case fails here, and it did (or was not launched, because it crashes).
    KnownFailure {
        /// The word of the verdict that it would have been.
        was: String,
        /// Why it fails.
        reason: String,
        /// Where the fault is tracked.
        issue: String,
    },
    /// The ledger of known failures says that the case fails here, and it passes.
    KnownFailurePasses {
        /// Why it was expected to fail.
        reason: String,
        /// Where the fault was tracked.
        issue: String,
    },
    /// A checked run found faults of the kernel, the driver reported an error, or the kernel does not compile.
    DeviceError {
        /// Findings of a checked run, each with the source lines involved.
        findings: Vec<Finding>,
        /// An error that is not a finding.
        error: Option<String>,
    },
    /// The process that ran the kernel died.
    Crashed {
        /// The signal's name, or the exit code.
        signal: String,
        /// Last lines that the process wrote.
        detail: String,
    },
    /// The kernel did not end in time.
    TimedOut {
        /// The limit in milliseconds.
        limit_ms: u64,
    },
    /// No verdict: the surroundings failed (no compiler, cache not writable, device lost).
    Environment {
        /// What failed.
        message: String,
    },
}

/// How a verdict counts towards the summary and the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Counts as passed.
    Passed,
    /// Counts as failed: a verdict against something under test.
    Failed,
    /// Counts as skipped, as the support manifest says.
    Skipped,
    /// Counts as skipped although the support manifest does not say so.
    UndeclaredSkip,
    /// Counts as failed, but says nothing about the kernel.
    NoVerdict,
}

impl Verdict {
    /// How it counts.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Pass { .. } => Class::Passed,
            Self::Unsupported { declared: true, .. } | Self::Skipped { .. } | Self::KnownFailure { .. } => {
                Class::Skipped
            }
            Self::Unsupported { declared: false, .. } => Class::UndeclaredSkip,
            Self::Environment { .. } => Class::NoVerdict,
            Self::Mismatch { .. }
            | Self::KnownFailurePasses { .. }
            | Self::Rejected { .. }
            | Self::DeviceError { .. }
            | Self::Crashed { .. }
            | Self::TimedOut { .. } => Class::Failed,
        }
    }

    /// The word that starts a failure on the terminal.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass { .. } => "PASS",
            Self::Mismatch { .. } => "MISMATCH",
            Self::Rejected { .. } => "REJECTED",
            Self::Unsupported { .. } => "UNSUPPORTED",
            Self::Skipped { .. } => "SKIPPED",
            Self::KnownFailure { .. } => "KNOWN FAILURE",
            Self::KnownFailurePasses { .. } => "PASSES",
            Self::DeviceError { findings, .. } if findings.iter().any(is_misconduct) => "MISCONDUCT",
            Self::DeviceError { .. } => "DEVICE ERROR",
            Self::Crashed { .. } => "CRASHED",
            Self::TimedOut { .. } => "TIMED OUT",
            Self::Environment { .. } => "NO VERDICT",
        }
    }
}

/// Whether a finding is about how a foreign kernel behaves towards its caller.
fn is_misconduct(finding: &Finding) -> bool {
    use kernels::device::FindingKind as Kind;
    matches!(
        finding.kind,
        Kind::Interface | Kind::InputWritten | Kind::WorkAfterReturn | Kind::Leak | Kind::LingeringError
    )
}

/// An element of the batch's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Request.
    pub request: usize,
    /// Query row of the request.
    pub row: usize,
    /// Query head.
    pub head: usize,
    /// Dim of the output row; `None` for lse.
    pub dim: Option<usize>,
}

/// An element outside its bound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrongElement {
    /// Where.
    pub place: Place,
    /// What the kernel gave. Text, because JSON has no NaN.
    pub got: String,
    /// The reference.
    pub want: String,
    /// |got − want|.
    pub error: String,
    /// The bound.
    pub allowed: String,
    /// Share of the bound.
    pub share: String,
}

/// One check that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "check", rename_all = "kebab-case")]
pub enum Failure {
    /// Elements of `out` or `lse` outside their bound.
    Elements {
        /// `out` or `lse`.
        output: String,
        /// How many are outside.
        wrong: usize,
        /// How many were compared.
        of: usize,
        /// The one with the greatest share of its bound.
        worst: WrongElement,
        /// The first in the order request, row, head, dim.
        first: Place,
        /// What they have in common, in words.
        pattern: Option<String>,
        /// What a probe's data says about the cause.
        explanation: Option<String>,
        /// Where the errors are. Pictures only: a report in data has the pattern in words.
        #[serde(skip)]
        map: Option<Box<ErrorMap>>,
    },
    /// Elements that still hold the pattern which stood there before the launch.
    Unwritten {
        /// `out` or `lse`.
        output: String,
        /// How many.
        elements: usize,
        /// How many there are.
        of: usize,
        /// The first of them.
        first: Place,
    },
    /// The output changes with bytes that no request owns, or with metadata that must not matter.
    Depends {
        /// On what, in words.
        on: String,
        /// `out` or `lse`.
        output: String,
        /// How many elements differ.
        elements: usize,
        /// How many there are.
        of: usize,
        /// The first of them.
        first: Place,
        /// Where they are.
        #[serde(skip)]
        map: Option<Box<ErrorMap>>,
    },
    /// The output is that of an earlier call at the same addresses, although their contents have changed since.
    Remembered {
        /// `out` or `lse`.
        output: String,
        /// How many elements.
        elements: usize,
        /// How many there are.
        of: usize,
    },
    /// A probe whose answer is exact gives another one.
    Probe {
        /// What is wrong, in the probe's terms.
        message: String,
        /// How many elements are wrong.
        wrong: usize,
        /// How many were looked at.
        of: usize,
    },
    /// Bytes that the kernel must not write have changed.
    Modified {
        /// The buffer.
        buffer: String,
        /// How many bytes.
        bytes: usize,
        /// Offset of the first.
        first: usize,
    },
    /// Elements of the cache are not what a correct store leaves.
    Cache {
        /// `k` or `v`; `unowned` for elements that belong to no slot.
        tensor: String,
        /// How many elements.
        wrong: usize,
        /// How many there are.
        of: usize,
        /// The first, in words: page, slot, head, dim, code found and code expected.
        first: String,
        /// Where they are.
        #[serde(skip)]
        map: Option<Box<ErrorMap>>,
    },
    /// A case that must be refused was accepted.
    NotRefused {
        /// The argument that should have been named.
        argument: String,
    },
    /// The refusal names another argument.
    WrongRefusal {
        /// The argument that should have been named.
        expected: String,
        /// The error.
        message: String,
    },
    /// A refused call has launched kernels all the same.
    LaunchedThoughRefused {
        /// How many.
        launches: u64,
    },
}
