//! What a run says about the kernels: claims that hold or do not.

use super::generate::Generation;
use super::tokenizer::Tokenizer;

/// Something that should be so, and whether it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// The claim, in words.
    pub what: String,
    /// Whether it holds.
    pub standing: Standing,
}

/// Whether a claim holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Standing {
    /// It does.
    Holds,
    /// It does not, for this reason.
    Fails(String),
    /// It was not tried, for this reason.
    Skipped(String),
}

impl Claim {
    /// A claim that fails for a reason, or holds where there is none.
    #[must_use]
    pub fn unless(what: impl Into<String>, against: Option<String>) -> Self {
        Self { what: what.into(), standing: against.map_or(Standing::Holds, Standing::Fails) }
    }

    /// A claim that was not tried.
    #[must_use]
    pub fn skipped(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), standing: Standing::Skipped(why.into()) }
    }
}

/// How many claims stand how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Claims that hold.
    pub passed: usize,
    /// Claims that do not.
    pub failed: usize,
    /// Claims that were not tried.
    pub skipped: usize,
}

impl Tally {
    /// Counts claims.
    #[must_use]
    pub fn of(claims: &[Claim]) -> Self {
        let mut tally = Self::default();
        for claim in claims {
            match claim.standing {
                Standing::Holds => tally.passed += 1,
                Standing::Fails(_) => tally.failed += 1,
                Standing::Skipped(_) => tally.skipped += 1,
            }
        }
        tally
    }
}

/// Where two answers to one prompt part, in words; `None` if they are the same.
#[must_use]
pub fn divergence(
    (name, generation): (&str, &Generation),
    (other_name, other): (&str, &Generation),
    tokenizer: &Tokenizer,
) -> Option<String> {
    let (a, b) = (generation.tokens(), other.tokens());
    if a == b {
        return None;
    }
    let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) else {
        return Some(format!("{} tokens from {name}, {} from {other_name}", a.len(), b.len()));
    };
    let quoted = |token: u32| format!("{:?}", tokenizer.decode(&[token]).unwrap_or_default());
    let gap = |generation: &Generation, other: u32| match generation.choices[at].gap_to(other) {
        Some(gap) => format!("by {gap:.4}"),
        None => "by more than the remembered candidates span".to_owned(),
    };
    Some(format!(
        "first divergence at token {}: {name} has {} (ahead of the other {}), {other_name} has {} (ahead {})",
        at + 1,
        quoted(a[at]),
        gap(generation, b[at]),
        quoted(b[at]),
        gap(other, a[at]),
    ))
}
