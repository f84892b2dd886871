//! Comparison with an earlier run.

use super::BenchReport;

/// An arm whose time changed by more than the threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Problem and arm.
    pub what: String,
    /// Milliseconds then and now.
    pub ms: (f64, f64),
}

impl Change {
    /// Time now over time then.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.ms.1 / self.ms.0
    }
}

/// Arms of both runs that are slower, and those that are faster, by more than `threshold` (0.05 for 5%).
///
/// An arm that had a time and has none now counts as infinitely slower.
#[must_use]
pub fn changes(then: &BenchReport, now: &BenchReport, threshold: f64) -> (Vec<Change>, Vec<Change>) {
    let times = |report: &BenchReport| -> Vec<(String, Option<f64>)> {
        let arms = report
            .problems
            .iter()
            .flat_map(|p| p.arms.iter().map(move |a| (format!("{}: {}", p.problem, a.arm), a.ms)));
        arms.collect()
    };
    let now = times(now);
    let both = times(then).into_iter().filter_map(|(what, before)| {
        let (_, after) = now.iter().find(|(name, _)| *name == what)?;
        Some(Change { what, ms: (before?, after.unwrap_or(f64::INFINITY)) })
    });
    let changed = both.filter(|c| c.ratio() > 1.0 + threshold || c.ratio() < 1.0 / (1.0 + threshold));
    changed.partition(|c| c.ratio() > 1.0)
}

#[cfg(test)]
mod tests {
    use super::super::{ArmTiming, Ceilings, ProblemReport};
    use super::*;
    use kernels::device::{DeviceInfo, DeviceKind};

    fn report(times: &[(&str, Option<f64>)]) -> BenchReport {
        let arms = times
            .iter()
            .map(|(name, ms)| ArmTiming { ms: *ms, ..ArmTiming::named((*name).to_owned()) })
            .collect();
        let device = DeviceInfo {
            kind: DeviceKind::Cuda,
            name: "card".into(),
            capability: (9, 0),
            multiprocessors: 132,
            max_shared_bytes: 1,
            versions: String::new(),
        };
        BenchReport {
            device,
            ceilings: Ceilings { copy_tb_s: 4.0, mma_tflop_s: 600.0 },
            problems: vec![ProblemReport { problem: "p".into(), kv_len: 1, arms }],
            prefill: vec![],
        }
    }

    #[test]
    fn slower_faster_and_lost_times_are_told_apart() {
        let then = report(&[
            ("same", Some(1.0)),
            ("slow", Some(1.0)),
            ("fast", Some(1.0)),
            ("lost", Some(1.0)),
            ("gone", Some(1.0)),
        ]);
        let now = report(&[("same", Some(1.04)), ("slow", Some(1.2)), ("fast", Some(0.5)), ("lost", None)]);
        let (slower, faster) = changes(&then, &now, 0.05);
        let names = |c: &[Change]| c.iter().map(|c| c.what.clone()).collect::<Vec<_>>();
        assert_eq!(names(&slower), ["p: slow", "p: lost"]);
        assert_eq!(names(&faster), ["p: fast"]);
    }
}
