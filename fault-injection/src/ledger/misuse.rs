//! Ways of breaking the rules of stream-ordered memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What rule was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MisuseKind {
    /// Freed on another stream than it was allocated on, with no order between the two.
    WrongStreamFree,
    /// Freed again.
    DoubleFree,
    /// Freed, but never allocated.
    UnknownFree,
    /// Work that touches memory was queued after its free.
    UseAfterFree,
    /// Freed on a stream that is not ordered after the last work to touch the memory.
    FreeBeforeLastUse,
    /// Touched by a stream that is not ordered after the allocation.
    UseBeforeAllocation,
}

impl MisuseKind {
    /// Name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::WrongStreamFree => "wrong-stream free",
            Self::DoubleFree => "double free",
            Self::UnknownFree => "free of an unknown address",
            Self::UseAfterFree => "use after free",
            Self::FreeBeforeLastUse => "free before last use",
            Self::UseBeforeAllocation => "use before allocation",
        }
    }
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Misuse {
    /// The rule.
    pub kind: MisuseKind,
    /// The call, the memory and the streams, in one line.
    pub message: String,
    /// `file:line` of the call that broke it.
    pub site: String,
    /// `file:line` of the allocation, or of the first free.
    pub other_site: Option<String>,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n  at {}", self.kind.name(), self.message, self.site)?;
        if let Some(site) = &self.other_site {
            write!(f, "\n  and {site}")?;
        }
        Ok(())
    }
}
