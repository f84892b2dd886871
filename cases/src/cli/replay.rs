//! `attest replay`.

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::options::{
    DeviceOptions, OutputOptions, arm_names, interrupt_flag, nothing_judged, parse_arm, parse_case, workers,
};
use crate::ledger::Ledger;
use crate::session::{Demand, Item, Session, arms_of};

pub(super) const EXAMPLES: &str = "\
Examples:
  attest replay 'decode bf16 kv=e4m3 h8/2 d64 page16 NHD q=[1] kv=[40] kscale=0.25 seed=7'
  attest replay --device simt --arm scalar --schedule 3 'prefill f32 kv=f32 h4/2 d8 page4 NHD causal q=[7] kv=[7] seed=1'
  attest replay --kernel ./libkernel.so 'decode bf16 kv=bf16 h8/2 d64 page16 NHD q=[1] kv=[40] seed=7'";

/// Judge one case, given as a line.
#[derive(Debug, Args)]
pub(super) struct Replay {
    /// The case line, as a failure prints it.
    line: String,
    #[command(flatten)]
    device: DeviceOptions,
    /// Judge only this arm; may be repeated. Default: every arm.
    #[arg(long, value_name = "ARM", value_parser = parse_arm)]
    arm: Vec<String>,
    /// Judge a kernel from this shared library, as `attest judge` does.
    #[arg(long, value_name = "LIBRARY", conflicts_with_all = ["arm", "schedule"])]
    kernel: Option<PathBuf>,
    /// Run lanes and blocks in the order drawn from this seed (simt).
    #[arg(long, value_name = "SEED")]
    schedule: Option<u64>,
    #[command(flatten)]
    output: OutputOptions,
}

impl Replay {
    pub fn run(self) -> Result<u8, Failure> {
        let case = parse_case(&self.line)?;
        if let Some(kernel) = &self.kernel {
            return super::judge::replay(kernel, case, self.device.limit(), &self.output);
        }
        let arms = if self.arm.is_empty() { arm_names() } else { self.arm.clone() };
        let item = |arm: &String| Item {
            case: case.clone(),
            arm: arm.clone(),
            group: String::new(),
            comment: String::new(),
        };
        let items: Vec<Item> = arms_of(&case, &arms).map(item).collect();
        if items.is_empty() {
            return Err(Failure::usage(format!(
                "none of the arms {} runs a {} case",
                arms.join(", "),
                case.problem.op.name()
            )));
        }
        let interrupted = interrupt_flag()?;
        let executor = workers(&interrupted)?;
        let mut consumers = self.output.consumers()?;
        let chosen = match self.device.choose() {
            Ok(chosen) => chosen,
            Err(failure) => {
                nothing_judged(items.len(), failure.reason())?;
                return Err(failure);
            }
        };
        let session = Session {
            settings: self.device.settings(chosen.kind, self.schedule),
            device_detail: chosen.detail,
            tier: None,
            arms: items.iter().map(|item| item.arm.clone()).collect(),
            jobs: 1,
            budget: None,
            demand: Demand::default(),
            // Whoever names one case wants to see it fail.
            known_failures: Ledger::none(),
            interrupted,
        };
        Ok(session.run(&items, &executor, &mut consumers)?.exit_code)
    }
}
