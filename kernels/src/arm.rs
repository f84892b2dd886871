//! The arms: ways to serve one attention call, and what each supports.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{ArgumentError, Unsupported};
use crate::scalar;
use crate::validate::AttentionShape;

/// A way to serve an attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Arm {
    /// Flash attention on CUDA cores; codes are decoded at each read.
    Scalar,
}

impl Arm {
    /// Every arm.
    pub const ALL: &[Self] = &[Self::Scalar];

    /// Name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
        }
    }

    /// What the arm does, in one line.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::Scalar => "flash attention on CUDA cores, per-read decoding of any cache format",
        }
    }

    /// The arm's support manifest: whether it serves a valid call of this shape.
    ///
    /// # Errors
    /// What it lacks, and what it serves instead.
    pub fn supports(self, shape: &AttentionShape) -> Result<(), Unsupported> {
        match self {
            Self::Scalar => scalar::supports(shape),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Arm {
    type Err = ArgumentError;

    fn from_str(name: &str) -> Result<Self, ArgumentError> {
        Self::ALL.iter().copied().find(|arm| arm.name() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|arm| arm.name()).collect();
            ArgumentError::new("arm", name, names.join(", "))
        })
    }
}
