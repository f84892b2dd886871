//! Failures that are known: cases that fail on an arm for a reason that somebody is working on.
//!
//! An entry is a promise that the case fails. A case that passes all the same fails the run, so that entries do not outlive
//! the fault; an entry that crashes is never launched.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::case::Case;
use crate::filter::Filter;
use crate::verdict::{Class, Verdict};

const COMMITTED: &str = include_str!("../ledger/known-failures.toml");

/// One known failure.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownFailure {
    /// Which cases: a filter as `attest verify` takes it.
    pub pattern: String,
    /// The arm on which they fail.
    pub arm: String,
    /// The device on which they fail, `simt` or `cuda`; `None` for both.
    pub device: Option<String>,
    /// Why they fail.
    pub reason: String,
    /// Where the fault is tracked.
    pub issue: String,
    /// Whether running them kills the process or the device: then they are not run.
    #[serde(default)]
    pub crashes: bool,
}

/// A ledger that cannot be used: which entry, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// Not the TOML that is expected.
    #[error("the ledger of known failures does not parse: {0}")]
    Syntax(String),
    /// A field that says nothing.
    #[error("known failure {index}: {field} is {value:?}; accepted: {accepted}")]
    Field {
        /// Number of the entry, from 1.
        index: usize,
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would be accepted.
        accepted: &'static str,
    },
}

/// All known failures. The default knows none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    #[serde(default)]
    failure: Vec<KnownFailure>,
}

static LEDGER: LazyLock<Ledger> =
    LazyLock::new(|| Ledger::parse(COMMITTED).expect("the embedded ledger parses: a test reads it"));

impl Ledger {
    /// The committed ledger.
    #[must_use]
    pub fn committed() -> &'static Self {
        &LEDGER
    }

    /// A ledger that knows nothing.
    #[must_use]
    pub const fn none() -> &'static Self {
        const { &Self { failure: Vec::new() } }
    }

    /// Reads a ledger.
    ///
    /// # Errors
    /// When it is not TOML of this shape, or an entry has no pattern, no arm, no reason or no link to its issue.
    pub fn parse(text: &str) -> Result<Self, LedgerError> {
        let ledger: Self = toml::from_str(text).map_err(|error| LedgerError::Syntax(error.to_string()))?;
        for (index, entry) in ledger.failure.iter().enumerate() {
            entry.check(index + 1)?;
        }
        Ok(ledger)
    }

    /// The entries.
    #[must_use]
    pub fn entries(&self) -> &[KnownFailure] {
        &self.failure
    }

    /// Judges a case in the light of what is known. `run` is not called for an entry that crashes.
    pub fn judge(
        &self,
        case: &Case,
        (group, arm, device): (&str, &str, &str),
        run: impl FnOnce() -> Verdict,
    ) -> Verdict {
        let Some(entry) = self.failure.iter().find(|entry| entry.covers(case, group, arm, device)) else {
            return run();
        };
        let known = |was: &str| Verdict::KnownFailure {
            was: was.to_owned(),
            reason: entry.reason.clone(),
            issue: entry.issue.clone(),
        };
        if entry.crashes {
            return known("NOT RUN");
        }
        let verdict = run();
        match verdict.class() {
            Class::Failed => known(verdict.word()),
            Class::Passed => {
                Verdict::KnownFailurePasses { reason: entry.reason.clone(), issue: entry.issue.clone() }
            }
            _ => verdict,
        }
    }
}

impl KnownFailure {
    fn covers(&self, case: &Case, group: &str, arm: &str, device: &str) -> bool {
        self.arm == arm
            && self.device.as_ref().is_none_or(|known| known == device)
            && Filter::new(&self.pattern).matches(case, group)
    }

    fn check(&self, index: usize) -> Result<(), LedgerError> {
        let field = |field, value: &str, accepted| {
            Err(LedgerError::Field { index, field, value: value.to_owned(), accepted })
        };
        if self.pattern.trim().is_empty() {
            return field("pattern", &self.pattern, "a filter that chooses some cases");
        }
        if !crate::support::manifests().iter().any(|arm| arm.name == self.arm) {
            return field("arm", &self.arm, "an arm with a support manifest");
        }
        if let Some(device) = self.device.as_deref().filter(|name| !["simt", "cuda"].contains(name)) {
            return field("device", device, "simt, cuda, or none for both");
        }
        if self.reason.split_whitespace().count() < 3 {
            return field("reason", &self.reason, "a sentence that says what goes wrong");
        }
        if !self.issue.starts_with("https://") || self.issue.len() < "https://a.b/c".len() {
            return field("issue", &self.issue, "a link to where the fault is tracked");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"
        [[failure]]
        pattern = "kv=e4m3 d64"
        arm = "mma"
        device = "cuda"
        reason = "the last tile is read twice"
        issue = "https://example.org/issues/12"
    "#;

    fn judge(ledger: &str, line: &str, place: (&str, &str), verdict: Verdict) -> (Verdict, bool) {
        let ledger = Ledger::parse(ledger).expect("a ledger");
        let case: Case = line.parse().expect("a case");
        let mut ran = false;
        let run = || {
            ran = true;
            verdict
        };
        (ledger.judge(&case, ("formats", place.0, place.1), run), ran)
    }

    const LINE: &str = "decode bf16 kv=e4m3 h4/2 d64 page16 NHD q=[1] kv=[9] seed=1";
    const HERE: (&str, &str) = ("mma", "cuda");

    #[test]
    fn a_known_failure_is_skipped_with_its_reason() {
        let wrong = Verdict::TimedOut { limit_ms: 5 };
        let (verdict, ran) = judge(ENTRY, LINE, HERE, wrong);
        assert!(ran);
        assert_eq!(verdict.class(), Class::Skipped);
        let Verdict::KnownFailure { was, reason, issue } = verdict else { panic!("{verdict:?}") };
        assert_eq!((was.as_str(), reason.as_str()), ("TIMED OUT", "the last tile is read twice"));
        assert!(issue.ends_with("/12"));
    }

    #[test]
    fn a_known_failure_that_passes_fails_the_run() {
        let (verdict, _) = judge(ENTRY, LINE, HERE, Verdict::Pass { worst_share: 0.5 });
        assert_eq!(verdict.class(), Class::Failed);
        assert!(matches!(verdict, Verdict::KnownFailurePasses { .. }), "{verdict:?}");
    }

    #[test]
    fn a_crasher_is_never_launched() {
        let crasher = format!("{ENTRY}\ncrashes = true");
        let (verdict, ran) = judge(&crasher, LINE, HERE, Verdict::Pass { worst_share: 0.5 });
        assert!(!ran);
        assert!(matches!(&verdict, Verdict::KnownFailure { was, .. } if was == "NOT RUN"), "{verdict:?}");
    }

    #[test]
    fn other_cases_arms_and_devices_are_judged_as_ever() {
        let wrong = Verdict::TimedOut { limit_ms: 5 };
        let other_case = LINE.replace("d64", "d128");
        for (line, place) in [(LINE, ("scalar", "cuda")), (LINE, ("mma", "simt")), (&other_case, HERE)] {
            let (verdict, ran) = judge(ENTRY, line, place, wrong.clone());
            assert!(ran);
            assert_eq!(verdict, wrong, "{line} {place:?}");
        }
    }

    #[test]
    fn surroundings_that_fail_are_no_known_failure() {
        let lost = Verdict::Environment { message: "no compiler".to_owned() };
        assert_eq!(judge(ENTRY, LINE, HERE, lost.clone()).0, lost);
    }

    #[test]
    fn entries_that_say_nothing_are_refused() {
        for (from, to, field) in [
            ("kv=e4m3 d64", " ", "pattern"),
            ("\"mma\"", "\"tensor\"", "arm"),
            ("\"cuda\"", "\"gpu\"", "device"),
            ("the last tile is read twice", "flaky", "reason"),
            ("https://example.org/issues/12", "ask around", "issue"),
        ] {
            let error = Ledger::parse(&ENTRY.replace(from, to)).expect_err(field);
            assert!(
                matches!(&error, LedgerError::Field { index: 1, field: f, .. } if *f == field),
                "{error}"
            );
        }
        assert!(matches!(Ledger::parse("[[failure]]\npattern = \"x\""), Err(LedgerError::Syntax(_))));
        assert!(matches!(Ledger::parse(&format!("{ENTRY}\nflaky = true")), Err(LedgerError::Syntax(_))));
    }

    #[test]
    fn the_committed_entries_match_cases_of_the_catalogue() {
        let entries = crate::catalogue::entries().expect("the catalogue");
        for known in Ledger::committed().entries() {
            let filter = Filter::new(&known.pattern);
            let hits = entries.iter().filter(|entry| filter.matches(&entry.case, entry.group)).count();
            assert!(hits > 0, "no case matches {known:?}: delete the entry");
        }
    }
}
