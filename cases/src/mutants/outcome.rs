//! What became of a mutant.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The end of one mutant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// A check failed: the suite noticed.
    Caught {
        /// The check.
        check: String,
        /// Its verdict in a few words.
        verdict: String,
        /// How to run the check alone.
        replay: String,
    },
    /// A check took longer than its limit. Counted apart: noticed, but for a reason that says little.
    Timeout {
        /// The check.
        check: String,
        /// The limit in seconds.
        limit_s: f64,
        /// How to run the check alone.
        replay: String,
    },
    /// Every check passed.
    Missed,
    /// Every check passed, and the reviewed file says why none could fail.
    Reviewed {
        /// The reason.
        why: String,
    },
    /// The change never reaches the machine code.
    Equivalent {
        /// How this was seen.
        how: String,
    },
    /// Another mutant gives the same machine code.
    Duplicate {
        /// The other mutant.
        of: String,
    },
    /// It does not compile.
    Unviable {
        /// First line of the compiler's complaint.
        message: String,
    },
    /// No check uses what it changes.
    Uncovered,
}

impl Outcome {
    /// The word of text reports.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Caught { .. } => "caught",
            Self::Timeout { .. } => "timeout",
            Self::Missed => "missed",
            Self::Reviewed { .. } => "reviewed",
            Self::Equivalent { .. } => "equivalent",
            Self::Duplicate { .. } => "duplicate",
            Self::Unviable { .. } => "unviable",
            Self::Uncovered => "uncovered",
        }
    }

    /// Whether the run fails because of it.
    #[must_use]
    pub const fn is_escape(&self) -> bool {
        matches!(self, Self::Missed | Self::Uncovered)
    }
}

/// A mutant's whole record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The mutant.
    pub id: String,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Seconds from the first compilation to the end.
    pub seconds: f64,
    /// Instances that were compiled.
    pub compiled: usize,
    /// Checks that were run, in order, with whether each failed.
    pub checks: Vec<(String, bool)>,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Noticed by a failing check.
    pub caught: usize,
    /// Noticed by a time limit.
    pub timeout: usize,
    /// Not noticed, and not explained.
    pub missed: usize,
    /// Not noticed, and explained in the reviewed file.
    pub reviewed: usize,
    /// Same machine code as the original.
    pub equivalent: usize,
    /// Same machine code as another mutant.
    pub duplicate: usize,
    /// Does not compile.
    pub unviable: usize,
    /// Used by no check.
    pub uncovered: usize,
}

impl Counts {
    /// Counts one more.
    pub fn add(&mut self, outcome: &Outcome) {
        let count = match outcome {
            Outcome::Caught { .. } => &mut self.caught,
            Outcome::Timeout { .. } => &mut self.timeout,
            Outcome::Missed => &mut self.missed,
            Outcome::Reviewed { .. } => &mut self.reviewed,
            Outcome::Equivalent { .. } => &mut self.equivalent,
            Outcome::Duplicate { .. } => &mut self.duplicate,
            Outcome::Unviable { .. } => &mut self.unviable,
            Outcome::Uncovered => &mut self.uncovered,
        };
        *count += 1;
    }

    /// Mutants that a suite could notice: all but equivalents, duplicates, and what does not compile.
    #[must_use]
    pub fn noticeable(&self) -> usize {
        self.caught + self.timeout + self.missed + self.uncovered + self.reviewed
    }

    /// Noticed mutants as a share of those that are neither equivalent nor explained.
    #[must_use]
    pub fn score(&self) -> f64 {
        let of = self.caught + self.timeout + self.missed + self.uncovered;
        if of == 0 { 1.0 } else { (self.caught + self.timeout) as f64 / of as f64 }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> usize {
        self.noticeable() + self.equivalent + self.duplicate + self.unviable
    }

    /// `12 caught, 1 missed, …`; zero counts are left out but for the first two.
    #[must_use]
    pub fn in_words(&self) -> String {
        let mut parts = vec![format!("{} caught", self.caught), format!("{} missed", self.missed)];
        let others = [
            (self.timeout, "timed out"),
            (self.uncovered, "uncovered"),
            (self.reviewed, "reviewed"),
            (self.equivalent, "equivalent"),
            (self.duplicate, "duplicate"),
            (self.unviable, "unviable"),
        ];
        parts.extend(others.iter().filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")));
        parts.join(", ")
    }
}

/// Time per mutant, as a rate.
#[must_use]
pub fn per_hour(mutants: usize, elapsed: Duration) -> f64 {
    mutants as f64 * 3600.0 / elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_noticed_counts() {
        let mut counts = Counts::default();
        let named = |text: &str| text.to_owned();
        let caught = Outcome::Caught { check: named("c"), verdict: named("v"), replay: named("r") };
        let outcomes = [
            (caught, 19),
            (Outcome::Missed, 1),
            (Outcome::Reviewed { why: named("w") }, 3),
            (Outcome::Equivalent { how: named("h") }, 5),
            (Outcome::Duplicate { of: named("o") }, 2),
            (Outcome::Unviable { message: named("m") }, 4),
        ];
        for (outcome, times) in &outcomes {
            (0..*times).for_each(|_| counts.add(outcome));
        }
        assert_eq!((counts.total(), counts.noticeable()), (34, 23));
        assert!((counts.score() - 0.95).abs() < 1e-12, "{}", counts.score());
        assert_eq!(
            counts.in_words(),
            "19 caught, 1 missed, 3 reviewed, 5 equivalent, 2 duplicate, 4 unviable"
        );
    }

    #[test]
    fn a_record_survives_the_journal() {
        let record = Record {
            id: "scalar.cu:1:2 arithmetic".to_owned(),
            outcome: Outcome::Timeout {
                check: "scalar: x".to_owned(),
                limit_s: 10.0,
                replay: "attest".to_owned(),
            },
            seconds: 1.5,
            compiled: 2,
            checks: vec![("scalar: x".to_owned(), true)],
        };
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), record);
    }
}
