//! `attest shrink`.

use std::io::{self, Write};

use clap::Args;

use super::Failure;
use super::options::{
    DeviceOptions, arm_names, interrupt_flag, nothing_judged, parse_arm, parse_case, workers,
};
use crate::case::Case;
use crate::events::{Consumer, Event, Finished, Judged};
use crate::executor::Executor;
use crate::ledger::Ledger;
use crate::report::write_judged;
use crate::session::{Demand, Item, Session, arms_of};
use crate::shrink::{same_fault, shrink};
use crate::verdict::Class;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest shrink --arm mma 'prefill bf16 kv=bf16 h32/8 d128 page16 NHD causal q=[70,1] kv=[300,44] seed=7'
  attest replay \"$(attest shrink 'decode f32 kv=f32 h8/2 d64 page16 NHD q=[1] kv=[400] seed=7' | head -1)\"";

/// Find the smallest case that still fails.
///
/// Requests, lengths, heads, dims, options, layout and formats are reduced one after another; a step is kept if the same
/// kind of verdict comes out. Steps go to standard error. Standard output has the smallest case line, its verdict and the
/// summary.
#[derive(Debug, Args)]
pub(super) struct Shrink {
    /// The case line, as a failure prints it.
    line: String,
    #[command(flatten)]
    device: DeviceOptions,
    /// Shrink what fails on this arm; may be repeated. Default: the first arm that fails.
    #[arg(long, value_name = "ARM", value_parser = parse_arm)]
    arm: Vec<String>,
    /// Run lanes and blocks in the order drawn from this seed (simt).
    #[arg(long, value_name = "SEED")]
    schedule: Option<u64>,
    /// Judge at most this many cases on the way.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    steps: usize,
}

impl Shrink {
    pub fn run(self) -> Result<u8, Failure> {
        let case = parse_case(&self.line)?;
        let names = if self.arm.is_empty() { arm_names() } else { self.arm.clone() };
        let arms: Vec<String> = arms_of(&case, &names).cloned().collect();
        if arms.is_empty() {
            let message =
                format!("none of the arms {} runs a {} case", names.join(", "), case.problem.op.name());
            return Err(Failure::usage(message));
        }
        let interrupted = interrupt_flag()?;
        let executor = workers(&interrupted)?;
        let chosen = self.device.choose().inspect_err(|failure| {
            // The failure itself is reported; the summary line is for whoever reads standard output.
            let _ = nothing_judged(arms.len(), failure.reason());
        })?;
        let session = Session {
            settings: self.device.settings(chosen.kind, self.schedule),
            device_detail: chosen.detail,
            tier: None,
            arms: arms.clone(),
            jobs: 1,
            budget: None,
            demand: Demand::default(),
            known_failures: Ledger::none(),
            interrupted,
        };
        let judge = |case: &Case, arm: &str| judge(&session, &executor, case, arm);
        let mut unfailing = Counts::default();
        for arm in &arms {
            let judged = judge(&case, arm)?;
            if judged.class == Class::Failed {
                return self.shrink(&case, judged, judge);
            }
            unfailing.add(&judged);
        }
        unfailing.finish()
    }

    fn shrink(
        &self,
        case: &Case,
        failing: Judged,
        judge: impl Fn(&Case, &str) -> Result<Judged, Failure>,
    ) -> Result<u8, Failure> {
        let arm = failing.arm.clone();
        anstream::eprintln!("{} on {arm}: {}", failing.verdict.word(), failing.line);
        let mut smallest = failing.clone();
        let still_fails = |candidate: &Case| -> Result<bool, Failure> {
            let judged = judge(candidate, &arm)?;
            let fails = judged.class == Class::Failed && same_fault(&judged.verdict, &failing.verdict);
            if fails {
                smallest = judged;
            }
            Ok(fails)
        };
        let shrunk = shrink(case, self.steps, still_fails, |step| anstream::eprintln!("  {step}"))?;
        let end = if shrunk.minimal { "nothing simpler fails" } else { "stopped by --steps" };
        anstream::eprintln!("{} cases judged; {end}", shrunk.judged);
        let mut out = anstream::stdout().lock();
        writeln!(out, "{}", shrunk.case)?;
        write_judged(&mut out, &smallest)?;
        writeln!(out, "0 passed, 1 failed, 0 skipped")?;
        Ok(1)
    }
}

/// Verdicts of a case that does not fail, by what they count as.
#[derive(Default)]
struct Counts {
    passed: usize,
    skips: Vec<String>,
    no_verdict: bool,
}

impl Counts {
    fn add(&mut self, judged: &Judged) {
        match judged.class {
            Class::Passed => self.passed += 1,
            class => {
                self.no_verdict |= class == Class::NoVerdict;
                let why = crate::report::describe::describe(&judged.verdict).headline;
                self.skips.push(format!("1 ({}: {why})", judged.arm));
            }
        }
    }

    fn finish(self) -> Result<u8, Failure> {
        anstream::eprintln!("no arm fails: there is nothing to shrink");
        let mut out = anstream::stdout().lock();
        if !self.skips.is_empty() {
            writeln!(out, "skipped: {}", self.skips.join("; "))?;
        }
        writeln!(out, "{} passed, 0 failed, {} skipped", self.passed, self.skips.len())?;
        Ok(match (self.no_verdict, self.passed) {
            (true, _) => super::NO_VERDICT,
            (_, 0) => 4,
            _ => 0,
        })
    }
}

/// Keeps the one verdict of a session with one case.
#[derive(Default)]
struct Keep {
    judged: Option<Judged>,
    aborted: Option<String>,
}

impl Consumer for Keep {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Judged(judged) => self.judged = Some((**judged).clone()),
            Event::Aborted { message } => self.aborted = Some(message.clone()),
            _ => {}
        }
        Ok(())
    }
}

/// Judges one case as `attest replay` does.
fn judge(
    session: &Session,
    executor: &(dyn Fn() -> Box<dyn Executor> + Sync),
    case: &Case,
    arm: &str,
) -> Result<Judged, Failure> {
    let item = Item { case: case.clone(), arm: arm.to_owned(), group: String::new(), comment: String::new() };
    let mut keep = Keep::default();
    let Finished { skips, .. } = session.run(&[item], executor, &mut keep)?;
    let reason = || skips.first().map_or_else(|| "no verdict".to_owned(), |skip| skip.reason.clone());
    keep.judged.ok_or_else(|| Failure::surroundings(keep.aborted.unwrap_or_else(reason)))
}
