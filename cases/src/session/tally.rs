//! Counting verdicts, and the exit code that follows.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Demand;
use crate::events::{Finished, Judged, Skipped};
use crate::verdict::{Class, Verdict};

/// Counts of a run.
pub(super) struct Tally {
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
        }
    }

    pub fn add(&mut self, judged: &Judged) {
        match judged.class {
            Class::Passed => self.passed += 1,
            Class::Failed => self.failed += 1,
            Class::Skipped => self.skip(judged, ""),
            Class::UndeclaredSkip => {
                self.undeclared += 1;
                self.skip(judged, " (not in the support manifest)");
            }
            Class::NoVerdict => {
                self.no_verdict += 1;
                self.skip(judged, "");
            }
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
            Verdict::Unsupported { declared: true, .. } => format!("outside the support manifest of {}", judged.arm),
            Verdict::Unsupported { what, .. } => what.clone(),
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
        Finished {
            passed: self.passed,
            failed: self.failed,
            skipped: self.skips.values().sum(),
            exit_code: self.exit_code(&shortfalls),
            skips: self.skips.into_iter().map(|(reason, cases)| Skipped { reason, cases }).collect(),
            shortfalls,
            worst_share: self.worst_share,
            seconds: elapsed.as_secs_f64(),
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
            shortfalls.push(format!("{} skips are not in the support manifest", self.undeclared));
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
