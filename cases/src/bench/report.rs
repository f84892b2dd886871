//! What a bench found: as a table for people, as JSON for comparison.

use std::fmt::Write as _;

use kernels::device::DeviceInfo;
use serde::{Deserialize, Serialize};

use super::phases::Phase;
use super::prefill::PrefillRun;
use super::timing::Times;
use super::{ArmRun, BenchProblem, ParityError};

/// What the card can do at best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Device-to-device copy of 1 GiB, bytes read and written.
    pub copy_tb_s: f64,
    /// `mma.sync` m16n8k16 bf16 on registers alone.
    pub mma_tflop_s: f64,
}

/// One arm on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmTiming {
    /// The arm and its cache.
    pub arm: String,
    /// Why it has no time.
    pub mismatch: Option<String>,
    /// Median milliseconds of one call, scratch in place.
    pub ms: Option<f64>,
    /// Fastest and slowest round.
    pub spread_ms: Option<(f64, f64)>,
    /// Arithmetic rate; for prefill.
    pub tflop_s: Option<f64>,
    /// Bytes of the cache over time; for decode and store.
    pub tb_s: Option<f64>,
    /// Worst share of the error bound before and after.
    pub share: Option<f64>,
    /// Scratch bytes that the arm holds.
    pub scratch_bytes: u64,
    /// Where the time of a call with its own scratch goes.
    pub phases: Vec<Phase>,
}

impl ArmTiming {
    pub(super) fn mismatch(run: ArmRun, error: &ParityError) -> Self {
        Self { mismatch: Some(error.to_string()), ..Self::named(run.label()) }
    }

    pub(super) fn named(arm: String) -> Self {
        Self {
            arm,
            mismatch: None,
            ms: None,
            spread_ms: None,
            tflop_s: None,
            tb_s: None,
            share: None,
            scratch_bytes: 0,
            phases: Vec::new(),
        }
    }

    pub(super) fn new(
        problem: &BenchProblem,
        run: ArmRun,
        share: f64,
        times: &Times,
        phases: Vec<Phase>,
    ) -> Self {
        let mut timing = Self {
            share: Some(share),
            scratch_bytes: times.scratch_bytes,
            phases,
            ..Self::named(run.label())
        };
        let ms = timing.set_times(&times.ms);
        if problem.is_decode() {
            timing.tb_s = Some(problem.cache_bytes(run.fp8) / ms / 1e9);
        } else {
            timing.tflop_s = Some(problem.flop() / ms / 1e9);
        }
        timing
    }

    /// Fills in median and spread, and returns the median.
    pub(super) fn set_times(&mut self, ms: &[f32]) -> f64 {
        let mut sorted: Vec<f64> = ms.iter().map(|&x| f64::from(x)).collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        self.ms = Some(median);
        self.spread_ms = sorted.first().copied().zip(sorted.last().copied());
        median
    }
}

/// Every arm on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProblemReport {
    /// The problem as its size line.
    pub problem: String,
    /// Keys of a request: the x axis of a plot.
    pub kv_len: u64,
    /// The arms.
    pub arms: Vec<ArmTiming>,
}

impl ProblemReport {
    pub(super) fn new(problem: &BenchProblem) -> Self {
        Self { problem: problem.to_string(), kv_len: problem.kv_len, arms: Vec::new() }
    }
}

/// A whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// The card.
    pub device: DeviceInfo,
    /// Its ceilings in the same run.
    pub ceilings: Ceilings,
    /// What was timed.
    pub problems: Vec<ProblemReport>,
    /// The chunked prefill, if it was run.
    pub prefill: Vec<PrefillRun>,
}

impl BenchReport {
    /// Whether some arm was wrong.
    #[must_use]
    pub fn has_mismatch(&self) -> bool {
        self.problems.iter().flat_map(|p| &p.arms).any(|arm| arm.mismatch.is_some())
            || self.prefill.iter().any(|run| run.mismatch.is_some())
    }

    /// The report as a Markdown table, which is also what the terminal shows.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        let d = &self.device;
        let _ = writeln!(text, "{}, {}", d.name, d.versions);
        let _ = writeln!(
            text,
            "ceilings in this run: copy {:.2} TB/s, mma.sync {:.0} TFLOP/s",
            self.ceilings.copy_tb_s, self.ceilings.mma_tflop_s
        );
        for problem in &self.problems {
            self.problem_table(&mut text, problem);
        }
        if !self.prefill.is_empty() {
            let _ = writeln!(
                text,
                "\n| 32k prefill | total s | tok/s | cache and scratch GiB |\n| --- | --- | --- | --- |"
            );
            for run in &self.prefill {
                if let Some(why) = &run.mismatch {
                    let _ = writeln!(text, "| {} | MISMATCH: {why} | | |", run.arm);
                    continue;
                }
                let _ = writeln!(
                    text,
                    "| {} | {:.3} | {:.0} | {:.2} |",
                    run.arm, run.seconds, run.tokens_per_s, run.peak_gib
                );
            }
        }
        text
    }

    fn problem_table(&self, text: &mut String, problem: &ProblemReport) {
        let _ = writeln!(text, "\n{}\n", problem.problem);
        let _ = writeln!(
            text,
            "| arm | ms | spread | rate | of ceiling | worst share | scratch MiB | phases ms |"
        );
        let _ = writeln!(text, "| --- | --- | --- | --- | --- | --- | --- | --- |");
        for arm in &problem.arms {
            if let Some(why) = &arm.mismatch {
                let _ = writeln!(text, "| {} | MISMATCH: {why} | | | | | | |", arm.arm);
                continue;
            }
            let (ms, (low, high)) =
                (arm.ms.unwrap_or(f64::NAN), arm.spread_ms.unwrap_or((f64::NAN, f64::NAN)));
            let (rate, share) = match (arm.tflop_s, arm.tb_s) {
                (Some(rate), _) => (format!("{rate:.0} TFLOP/s"), rate / self.ceilings.mma_tflop_s),
                (_, Some(rate)) => (format!("{rate:.2} TB/s"), rate / self.ceilings.copy_tb_s),
                _ => (String::new(), f64::NAN),
            };
            let phases: Vec<String> = arm.phases.iter().map(|p| format!("{} {:.3}", p.name, p.ms)).collect();
            let worst = arm.share.map_or_else(String::new, |s| format!("{s:.2}"));
            let _ = writeln!(
                text,
                "| {} | {ms:.4} | {low:.4} to {high:.4} | {rate} | {:.0}% | {worst} | {:.1} | {} |",
                arm.arm,
                100.0 * share,
                arm.scratch_bytes as f64 / f64::from(1 << 20),
                phases.join(", ")
            );
        }
    }
}
