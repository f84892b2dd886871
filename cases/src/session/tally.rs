//! Counting verdicts, and the exit code that follows.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Demand;
use crate::events::{Capability, Finished, Judged, Skipped};
use crate::foreign::{capabilities_of, rank};
use crate::verdict::{Class, Verdict};

/// Counts of a run.
pub(crate) struct Tally {
    planned: usize,
    passed: usize,
    failed: usize,
    skips: BTreeMap<String, usize>,
    undeclared: usize,
    no_verdict: usize,
    judged_per_arm: BTreeMap<String, usize>,
    worst_share: f64,
    stopped: Option<String>,
    aborted: bool,
    /// By name, in the order of their first case; only for a foreign kernel.
    capabilities: Option<Vec<Capability>>,
}

impl Tally {
    pub fn new(planned: usize) -> Self {
        Self {
            planned,
            passed: 0,
            failed: 0,
            skips: BTreeMap::new(),
            undeclared: 0,
            no_verdict: 0,
            judged_per_arm: BTreeMap::new(),
            worst_share: 0.0,
            stopped: None,
            aborted: false,
            capabilities: None,
        }
    }

    /// Counts by capability, too: for a foreign kernel.
    pub fn by_capability(self) -> Self {
        Self { capabilities: Some(Vec::new()), ..self }
    }

    pub fn add(&mut self, judged: &Judged) {
        match judged.class {
            Class::Passed => self.passed += 1,
            Class::Failed => self.failed += 1,
            Class::Skipped => self.skip(judged, ""),
            Class::UndeclaredSkip => {
                self.undeclared += 1;
                self.skip(judged, " (no manifest says so)");
            }
            Class::NoVerdict => {
                self.no_verdict += 1;
                self.skip(judged, "");
            }
        }
        if let Some(capabilities) = &mut self.capabilities {
            note_capabilities(capabilities, judged);
        }
        if matches!(judged.class, Class::Passed | Class::Failed) {
            *self.judged_per_arm.entry(judged.arm.clone()).or_default() += 1;
        }
        if let Verdict::Pass { worst_share } = judged.verdict {
            self.worst_share = self.worst_share.max(worst_share);
        }
    }

    fn skip(&mut self, judged: &Judged, suffix: &str) {
        let reason = match &judged.verdict {
            Verdict::Unsupported { declared: true, .. } => {
                format!("outside the support manifest of {}", judged.arm)
            }
            Verdict::Unsupported { what, .. } => what.clone(),
            Verdict::Skipped { reason } => reason.clone(),
            Verdict::KnownFailure { issue, .. } => format!("known failures of {}, {issue}", judged.arm),
            Verdict::Environment { message } => message.clone(),
            other => other.word().to_owned(),
        };
        *self.skips.entry(format!("{reason}{suffix}")).or_default() += 1;
    }

    /// The surroundings failed before anything could be judged.
    pub fn abort(&mut self, message: &str) {
        self.aborted = true;
        self.stop(message.lines().next().unwrap_or(message));
    }

    /// The run ends early; what has not been judged is skipped for this reason. The first reason counts.
    pub fn stop(&mut self, reason: &str) {
        self.stopped.get_or_insert_with(|| reason.to_owned());
    }

    pub fn finish(mut self, demand: &Demand, elapsed: Duration) -> Finished {
        let seen = self.passed + self.failed + self.skips.values().sum::<usize>();
        let unseen = self.planned.saturating_sub(seen);
        if unseen > 0 {
            let reason = self.stopped.take().unwrap_or_else(|| "not run".to_owned());
            *self.skips.entry(reason).or_default() += unseen;
        }
        let shortfalls = self.shortfalls(demand);
        let mut capabilities = self.capabilities.take().unwrap_or_default();
        capabilities.sort_by_cached_key(|capability| (rank(&capability.name), capability.name.clone()));
        Finished {
            passed: self.passed,
            failed: self.failed,
            skipped: self.skips.values().sum(),
            exit_code: self.exit_code(&shortfalls),
            skips: self.skips.into_iter().map(|(reason, cases)| Skipped { reason, cases }).collect(),
            shortfalls,
            worst_share: self.worst_share,
            seconds: elapsed.as_secs_f64(),
            capabilities,
        }
    }

    fn shortfalls(&self, demand: &Demand) -> Vec<String> {
        let mut shortfalls = Vec::new();
        if self.passed + self.failed == 0 {
            shortfalls.push("no case was judged".to_owned());
        }
        for (arm, minimum) in &demand.minimum {
            let judged = self.judged_per_arm.get(arm).copied().unwrap_or(0);
            if judged < *minimum {
                shortfalls.push(format!(
                    "{judged} cases were judged on {arm}; {} demands {minimum}",
                    demand.source
                ));
            }
        }
        if self.undeclared > 0 {
            shortfalls.push(format!("{} skips are not declared", self.undeclared));
        }
        shortfalls
    }

    fn exit_code(&self, shortfalls: &[String]) -> u8 {
        if self.failed > 0 {
            1
        } else if self.aborted || self.no_verdict > 0 {
            3
        } else if !shortfalls.is_empty() {
            4
        } else {
            0
        }
    }
}

/// Adds a verdict to every capability that its case exercises.
fn note_capabilities(capabilities: &mut Vec<Capability>, judged: &Judged) {
    if !matches!(judged.class, Class::Passed | Class::Failed) {
        return;
    }
    for name in capabilities_of(judged) {
        let found = capabilities.iter().position(|capability| capability.name == name);
        let index = found.unwrap_or_else(|| {
            capabilities.push(Capability { name, ..Capability::default() });
            capabilities.len() - 1
        });
        let capability = &mut capabilities[index];
        capability.judged += 1;
        if judged.class == Class::Failed {
            capability.failed += 1;
            capability.first_failure.get_or_insert_with(|| judged.line.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn judged(arm: &str, verdict: Verdict) -> Judged {
        Judged {
            id: String::new(),
            line: String::new(),
            group: String::new(),
            flags: Vec::new(),
            comment: String::new(),
            arm: arm.to_owned(),
            device: "simt".to_owned(),
            checked: false,
            class: verdict.class(),
            verdict,
            seconds: 0.0,
            replay: String::new(),
        }
    }

    fn pass() -> Verdict {
        Verdict::Pass { worst_share: 0.5 }
    }

    fn fail() -> Verdict {
        Verdict::TimedOut { limit_ms: 1 }
    }

    fn skip(declared: bool) -> Verdict {
        Verdict::Unsupported { what: "it".to_owned(), declared }
    }

    fn no_verdict() -> Verdict {
        Verdict::Environment { message: "device lost".to_owned() }
    }

    #[rstest]
    #[case::all_pass(vec![pass(), pass()], 0)]
    #[case::declared_skip(vec![pass(), skip(true)], 0)]
    #[case::undeclared_skip(vec![pass(), skip(false)], 4)]
    #[case::only_skips(vec![skip(true)], 4)]
    #[case::nothing(vec![], 4)]
    #[case::no_verdict_wins_over_skip(vec![pass(), skip(false), no_verdict()], 3)]
    #[case::failure_wins_over_all(vec![fail(), skip(false), no_verdict()], 1)]
    fn the_gravest_kind_decides_the_exit_code(#[case] verdicts: Vec<Verdict>, #[case] code: u8) {
        let mut tally = Tally::new(verdicts.len());
        let planned = verdicts.len();
        verdicts.into_iter().for_each(|verdict| tally.add(&judged("scalar", verdict)));
        let finished = tally.finish(&Demand::default(), Duration::ZERO);
        assert_eq!(finished.exit_code, code);
        assert_eq!(finished.passed + finished.failed + finished.skipped, planned);
    }

    #[test]
    fn fewer_cases_than_the_minimum_of_any_arm_are_not_enough() {
        let finish = |mma: usize| {
            let mut tally = Tally::new(3 + mma);
            (0..3).for_each(|_| tally.add(&judged("scalar", pass())));
            (0..mma).for_each(|_| tally.add(&judged("mma", pass())));
            let minimum = vec![("scalar".to_owned(), 3), ("mma".to_owned(), 2)];
            tally.finish(&Demand { minimum, source: "the test".to_owned() }, Duration::ZERO)
        };
        assert_eq!(finish(2).exit_code, 0);
        let short = finish(1);
        assert_eq!(short.exit_code, 4);
        assert_eq!(short.shortfalls, ["1 cases were judged on mma; the test demands 2"]);
    }

    #[test]
    fn what_was_not_reached_is_skipped_for_the_first_reason() {
        let mut tally = Tally::new(10);
        tally.add(&judged("scalar", pass()));
        tally.stop("interrupted");
        tally.stop("the time budget was spent");
        let finished = tally.finish(&Demand::default(), Duration::ZERO);
        assert_eq!((finished.passed, finished.skipped), (1, 9));
        assert_eq!(finished.skips, [Skipped { reason: "interrupted".to_owned(), cases: 9 }]);
    }

    #[test]
    fn failing_surroundings_are_no_verdict() {
        let mut tally = Tally::new(5);
        tally.abort("no compiler\nlong log");
        let finished = tally.finish(&Demand::default(), Duration::ZERO);
        assert_eq!((finished.exit_code, finished.skipped), (3, 5));
        assert_eq!(finished.skips[0].reason, "no compiler");
    }
}
