//! Impostors: kernels that are wrong in one known way, to find out whether the cases would notice.
//!
//! Each is a pure function of the bytes that a kernel gets. It runs through [`run_case`](crate::run::run_case) like a
//! kernel on a device, so the comparison under trial is the real one. An impostor that no case kills is a kind of bug
//! that the suite would let through; a case that kills none proves nothing.

mod call;
mod catalogue;
mod executor;
pub mod matrix;
mod recipe;
pub mod report;
mod storing;

use std::fmt;

pub use catalogue::all;
pub use executor::ImpostorExecutor;

use crate::case::Case;
use crate::executor::{Job, Reply};
use recipe::Recipe;
use storing::StoreRecipe;

/// Which kind of real bug an impostor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Ignores an argument or answers with something simple: what every suite must reject.
    Basic,
    /// Integer overflow or truncation of an offset.
    Overflow,
    /// Block table and out-of-bounds access.
    Table,
    /// Garbage in slots that nobody owns.
    Garbage,
    /// Fully masked rows, empty requests, extreme logits.
    Masked,
    /// Splits over the keys, lse and their merge.
    Splits,
    /// Sliding window and causal alignment.
    Window,
    /// Mapping of query heads to KV heads.
    Heads,
    /// Head size and page size.
    Sizes,
    /// Softcap, ALiBi, sinks.
    Options,
    /// fp8: scales, codes, formats.
    Fp8,
    /// Strides, layout, base offsets.
    Strides,
    /// Slot mapping and writes of padding.
    Slots,
    /// Metadata that is only an upper bound, work left undone.
    Launch,
    /// Several rows per request in a decode.
    Speculative,
    /// Calls that must be refused.
    Refusal,
}

impl Kind {
    /// Every kind, in the order of reports.
    pub const ALL: [Self; 16] = [
        Self::Basic,
        Self::Overflow,
        Self::Table,
        Self::Garbage,
        Self::Masked,
        Self::Splits,
        Self::Window,
        Self::Heads,
        Self::Sizes,
        Self::Options,
        Self::Fp8,
        Self::Strides,
        Self::Slots,
        Self::Launch,
        Self::Speculative,
        Self::Refusal,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Basic => "basic",
            Self::Overflow => "overflow",
            Self::Table => "table",
            Self::Garbage => "garbage",
            Self::Masked => "masked",
            Self::Splits => "splits",
            Self::Window => "window",
            Self::Heads => "heads",
            Self::Sizes => "sizes",
            Self::Options => "options",
            Self::Fp8 => "fp8",
            Self::Strides => "strides",
            Self::Slots => "slots",
            Self::Launch => "launch",
            Self::Speculative => "speculative",
            Self::Refusal => "refusal",
        })
    }
}

/// What an impostor does.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Attention with a wrong decision.
    Attention(Recipe),
    /// A store with a wrong decision.
    Store(StoreRecipe),
    /// The right answer, spoilt.
    Reply(fn(&Job, &mut Reply)),
}

/// A kernel that is wrong in one known way.
#[derive(Clone, Copy)]
pub struct Impostor {
    /// Its name in reports.
    pub name: &'static str,
    /// Which kind of bug it stands for.
    pub kind: Kind,
    /// What it does wrong, in one line.
    pub wrong: &'static str,
    /// Wrong wherever there is anything to be wrong about: killing it says nothing about a case.
    pub blunt: bool,
    /// Whether it can differ from a right kernel in a case. Where this is false, both give the same.
    pub applies: fn(&Case) -> bool,
    behaviour: Behaviour,
}

impl fmt::Debug for Impostor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Impostor").field("name", &self.name).field("kind", &self.kind).finish()
    }
}
