//! Names of the input generators.

use std::fmt;

/// Which generator makes q, K and V.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Data {
    /// Normal q, K and V; V is sign-symmetric and independent of q and K.
    #[default]
    Random,
    /// Small integers in q and K, so that products and sums are exact.
    Grid,
    /// q is zero and V holds integers: every visible key counts the same, so one lost key shows.
    UniformQ0,
    /// V is constant per KV head and equals the head's index.
    HeadId,
    /// One key is far above the rest and V encodes page, slot and head, so the output says what was read.
    Needle(NeedleAt),
    /// Random, with a few K channels fifteen times larger, as in real models.
    Outlier,
    /// Random, with one huge dim of q where K is zero: the other dims decide, and must survive beside it in whatever format
    /// q is brought to.
    Lopsided,
    /// Random, with NaN in the first key of every request: in one dim of V of the first KV head, and in K of the last
    /// one if there are several. Every row that has keys must see it.
    NanKey,
    /// Random q and K; V holds subnormal codes only.
    Subnormal,
    /// New rows of a store at the edges of the format: ties, the largest value and beyond, subnormals, NaN, infinity.
    Edges,
    /// q, K and V recorded from a real model's layer.
    Real {
        /// Index of the layer among the recorded ones.
        layer: u32,
    },
}

/// Which key of every request is the needle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NeedleAt {
    /// The first key.
    First,
    /// The last key.
    #[default]
    Last,
    /// The last slot of the first page (or the last key, if there is only one page).
    PageEnd,
    /// The key at this position (or the last key, if there are fewer).
    Key(u32),
}

/// Layers for which recorded activations exist.
pub const REAL_LAYERS: [u32; 3] = [0, 12, 29];

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Grid => f.write_str("grid"),
            Self::UniformQ0 => f.write_str("uniform-q0"),
            Self::HeadId => f.write_str("head-id"),
            Self::Needle(NeedleAt::First) => f.write_str("needle:first"),
            Self::Needle(NeedleAt::Last) => f.write_str("needle"),
            Self::Needle(NeedleAt::PageEnd) => f.write_str("needle:page-end"),
            Self::Needle(NeedleAt::Key(key)) => write!(f, "needle:{key}"),
            Self::Outlier => f.write_str("outlier"),
            Self::Lopsided => f.write_str("lopsided"),
            Self::NanKey => f.write_str("nan-key"),
            Self::Subnormal => f.write_str("subnormal"),
            Self::Edges => f.write_str("edges"),
            Self::Real { layer } => write!(f, "real:layer{layer}"),
        }
    }
}

impl Data {
    /// Accepted spellings, for messages.
    pub const ACCEPTED: &str = "random, grid, uniform-q0, head-id, needle, needle:first, needle:page-end, needle:KEY, \
                                outlier, lopsided, nan-key, subnormal, edges, real:layer0, real:layer12, real:layer29";

    /// Parses a generator's name; `None` when there is no such generator.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "random" => Self::Random,
            "grid" => Self::Grid,
            "uniform-q0" => Self::UniformQ0,
            "head-id" => Self::HeadId,
            "outlier" => Self::Outlier,
            "lopsided" => Self::Lopsided,
            "nan-key" => Self::NanKey,
            "subnormal" => Self::Subnormal,
            "edges" => Self::Edges,
            "needle" => Self::Needle(NeedleAt::Last),
            "needle:first" => Self::Needle(NeedleAt::First),
            "needle:page-end" => Self::Needle(NeedleAt::PageEnd),
            other => return Self::from_parameter(other),
        })
    }

    fn from_parameter(name: &str) -> Option<Self> {
        if let Some(key) = name.strip_prefix("needle:") {
            return key.parse().ok().map(|key| Self::Needle(NeedleAt::Key(key)));
        }
        let layer = name.strip_prefix("real:layer")?.parse().ok()?;
        REAL_LAYERS.contains(&layer).then_some(Self::Real { layer })
    }
}
