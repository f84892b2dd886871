//! What became of a run in which calls were made to fail.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ledger::{Handle, LiveAllocation, Misuse};

/// One thing that a run showed. A run that dealt with its faults has `Contained` and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Outcome {
    /// The first error was reported, everything was given back, and a clean run afterwards gave the same bits.
    Contained,
    /// The operation claimed success and no stream reported the fault.
    Swallowed,
    /// Another error was reported in place of the first one.
    Masked {
        /// What was reported, with its causes.
        reported: String,
    },
    /// The operation panicked.
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// Memory was not given back.
    LeakedBytes {
        /// Bytes of the pool in use before the call.
        baseline: u64,
        /// Bytes in use after it.
        held: u64,
        /// What is still allocated.
        allocations: Vec<LiveAllocation>,
    },
    /// Streams, events, graphs, captures or modules were left behind.
    LeakedHandles {
        /// Which, and where they were made.
        handles: Vec<Handle>,
    },
    /// The operation did not make the same calls as in its first clean run.
    Nondeterministic {
        /// What differed.
        detail: String,
    },
    /// The device was left in another state: a clean run afterwards failed or gave other bits, or memory that the
    /// operation did not own is gone.
    DirtyAfter {
        /// What was seen.
        detail: String,
    },
    /// Rules of stream-ordered memory were broken.
    Misused {
        /// Which, and where.
        misuses: Vec<Misuse>,
    },
}

impl Outcome {
    /// Its name in reports.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Contained => "Contained",
            Self::Swallowed => "Swallowed",
            Self::Masked { .. } => "Masked",
            Self::Panicked { .. } => "Panicked",
            Self::LeakedBytes { .. } => "LeakedBytes",
            Self::LeakedHandles { .. } => "LeakedHandles",
            Self::Nondeterministic { .. } => "Nondeterministic",
            Self::DirtyAfter { .. } => "DirtyAfter",
            Self::Misused { .. } => "Misused",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Contained => Ok(()),
            Self::Swallowed => f.write_str(": success was reported"),
            Self::Masked { reported } => write!(f, ": reported instead: {reported}"),
            Self::Panicked { message } => write!(f, ": {message}"),
            Self::LeakedBytes { baseline, held, allocations } => {
                write!(f, ": {held} bytes held, baseline {baseline}")?;
                lines(f, allocations)
            }
            Self::LeakedHandles { handles } => lines(f, handles),
            Self::Nondeterministic { detail } | Self::DirtyAfter { detail } => write!(f, ": {detail}"),
            Self::Misused { misuses } => lines(f, misuses),
        }
    }
}

fn lines<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T]) -> fmt::Result {
    items.iter().try_for_each(|item| write!(f, "\n  {item}"))
}
