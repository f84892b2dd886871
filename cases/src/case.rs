//! A case: a problem, how its inputs are made, and what is expected. It prints to one line and parses back.

mod data;
mod defect;
mod flags;
mod line;
mod parse;
mod relation;
#[cfg(test)]
mod tests;

pub use data::{Data, NeedleAt, REAL_LAYERS};
pub use defect::Defect;
pub use flags::Flag;
pub use parse::ParseError;
pub use relation::Relation;

use crate::problem::Problem;

/// How logical pages are placed in the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Paging {
    /// A seeded permutation that never is the identity, with unused pages in between; page 0 belongs to nobody.
    #[default]
    Shuffled,
    /// Page `i` of the batch is physical page `i`.
    Identity,
    /// The batch's pages are the last ones of the pool, in descending order.
    Descending,
}

impl Paging {
    const ALL: [Self; 3] = [Self::Shuffled, Self::Identity, Self::Descending];

    /// The word in a case line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shuffled => "shuffled",
            Self::Identity => "identity",
            Self::Descending => "descending",
        }
    }
}

/// What a case expects of the code under test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expectation {
    /// The output lies within the bound.
    #[default]
    Valid,
    /// The launch is refused with a typed error that names this argument; nothing runs and nothing is written.
    Reject {
        /// The argument the error must name.
        argument: String,
    },
}

/// One case. Its text form is [`std::fmt::Display`], its inverse [`std::str::FromStr`].
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What is asked for.
    pub problem: Problem,
    /// Which generator makes q, K and V.
    pub data: Data,
    /// Factor on q.
    pub magnitude: f32,
    /// Constant added to every logit through a reserved dimension; only with [`Data::Grid`].
    pub logit_shift: f32,
    /// Placement of pages.
    pub paging: Paging,
    /// Seed of every random choice.
    pub seed: u64,
    /// An argument that is corrupted after valid inputs were made.
    pub defect: Option<Defect>,
    /// What is expected.
    pub expectation: Expectation,
    /// A relation between runs that must hold besides.
    pub relation: Option<Relation>,
    /// A published limit of the absolute error of `out`, where it is to hold besides the bound; positive.
    pub within: Option<f32>,
}

impl Case {
    /// A short stable name: the operation and a hash of the line.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{:08x}", self.problem.op.name(), fold32(fnv1a64(self.to_string().as_bytes())))
    }

    /// What the case exercises, derived from its content.
    #[must_use]
    pub fn flags(&self) -> Vec<Flag> {
        flags::flags_of(self)
    }

    /// Whether the launch must be refused.
    #[must_use]
    pub fn must_reject(&self) -> bool {
        matches!(self.expectation, Expectation::Reject { .. })
    }
}

fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn fold32(hash: u64) -> u32 {
    (hash ^ (hash >> 32)) as u32
}
