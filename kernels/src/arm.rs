//! The arms: ways to serve one attention call, and what each supports.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::dense;
use crate::error::{ArgumentError, Unsupported};
use crate::mma;
use crate::scalar;
use crate::validate::AttentionShape;

/// A way to serve an attention call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Arm {
    /// Flash attention on CUDA cores; codes are decoded at each read.
    Scalar,
    /// Flash attention on tensor cores over a 16-bit cache.
    Mma,
    /// One dequantisation into dense scratch, then tensor cores (or CUDA cores where those do not serve).
    Fp8Dense,
    /// fp8 cast by software while tiles are staged.
    Fp8StagedSoft,
    /// fp8 cast by the conversion instruction while tiles are staged.
    Fp8StagedHw,
    /// A 16-bit cache copied to the dense layout first: the control for the layout alone.
    Bf16Dense,
}

impl Arm {
    /// Every arm.
    pub const ALL: &[Self] =
        &[Self::Scalar, Self::Mma, Self::Fp8Dense, Self::Fp8StagedSoft, Self::Fp8StagedHw, Self::Bf16Dense];

    /// Name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Mma => "mma",
            Self::Fp8Dense => "fp8-dense",
            Self::Fp8StagedSoft => "fp8-staged-soft",
            Self::Fp8StagedHw => "fp8-staged-hw",
            Self::Bf16Dense => "bf16-dense",
        }
    }

    /// What the arm does, in one line.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::Scalar => "flash attention on CUDA cores, per-read decoding of any cache format",
            Self::Mma => "flash attention on tensor cores, 16-bit cache of the query's type",
            Self::Fp8Dense => "fp8 cache dequantised once into dense 16-bit scratch, then an ordinary kernel",
            Self::Fp8StagedSoft => "tensor cores, fp8 cast by software while tiles are staged",
            Self::Fp8StagedHw => {
                "tensor cores, fp8 cast by the conversion instruction while tiles are staged"
            }
            Self::Bf16Dense => {
                "16-bit cache copied to the dense layout, then tensor cores: the layout control"
            }
        }
    }

    /// Whether the arm fills dense scratch first.
    #[must_use]
    pub fn is_dense(self) -> bool {
        matches!(self, Self::Fp8Dense | Self::Bf16Dense)
    }

    /// The arm's support manifest: whether it serves a valid call of this shape.
    ///
    /// # Errors
    /// What it lacks, and what it serves instead.
    pub fn supports(self, shape: &AttentionShape) -> Result<(), Unsupported> {
        match self {
            Self::Scalar => scalar::supports(shape),
            Self::Mma => mma::supports(shape),
            Self::Fp8Dense | Self::Bf16Dense => dense::supports(self, shape),
            Self::Fp8StagedSoft | Self::Fp8StagedHw => mma::supports_staged(self, shape),
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
