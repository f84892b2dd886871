//! `attest explain`.

use std::collections::BTreeMap;
use std::io::Write;

use clap::Args;

use super::Failure;
use super::options::{arm_names, parse_arm, parse_case};
use crate::case::Case;
use crate::explain::{Section, explain};
use crate::impostors::all;
use crate::impostors::matrix::{Trial, Untried};
use crate::session::arms_of;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest explain 'mixed bf16 kv=e4m3 h8/2 d64 page16 NHD causal win=20,- q=[3,1] kv=[90,44] kscale=0.5 seed=7'
  attest explain --arm mma --no-impostors 'decode f16 kv=f16 h8/2 d64 page16 NHD q=[1] kv=[400] seed=7'";

/// Say what a case exercises.
///
/// Shows the call in words, which keys the rows see, who serves it, the error bound with its parts at the element where it is
/// loosest, and which impostors (kernels that are wrong in one known way) the case catches. Judges nothing.
#[derive(Debug, Args)]
pub(super) struct Explain {
    /// The case line.
    line: String,
    /// Explain the bound for this arm; may be repeated. Default: every arm that serves the case.
    #[arg(long, value_name = "ARM", value_parser = parse_arm)]
    arm: Vec<String>,
    /// Leave out the impostors, which takes a second or two.
    #[arg(long)]
    no_impostors: bool,
}

impl Explain {
    pub fn run(self) -> Result<u8, Failure> {
        let case = parse_case(&self.line)?;
        let names = if self.arm.is_empty() { arm_names() } else { self.arm };
        let arms: Vec<String> = arms_of(&case, &names).cloned().collect();
        let mut sections = explain(&case, &arms)
            .map_err(|error| Failure::usage(format!("the case has no reference: {error}")))?;
        if !self.no_impostors {
            sections.push(impostors(&case)?);
        }
        let mut out = anstream::stdout().lock();
        writeln!(out, "{case}")?;
        for section in sections {
            write!(out, "{section}")?;
        }
        Ok(0)
    }
}

/// Which impostors the case catches, and which it lets through.
fn impostors(case: &Case) -> Result<Section, Failure> {
    let impostors = all();
    let trial = Trial::new().map_err(|error| Failure::surroundings(error.to_string()))?;
    let lines = match trial.case(case, &impostors) {
        Err(Untried::TooLarge) => vec!["too large to try them".to_owned()],
        Err(Untried::Unserved) => vec!["no arm serves the case, so nothing is tried".to_owned()],
        Ok(trial) => {
            let mut by_checks: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for kill in &trial.kills {
                let checks: Vec<String> = kill.checks.iter().map(ToString::to_string).collect();
                by_checks.entry(checks.join(", ")).or_default().push(impostors[kill.impostor].name);
            }
            let caught = by_checks.into_iter();
            let mut lines: Vec<String> =
                caught.map(|(checks, names)| format!("caught by {checks}: {}", names.join(", "))).collect();
            let alive: Vec<String> = trial
                .alive
                .iter()
                .map(|index| format!("{} ({})", impostors[*index].name, impostors[*index].wrong))
                .collect();
            if !alive.is_empty() {
                lines.push(format!("let through: {}", alive.join(", ")));
            }
            lines
        }
    };
    Ok(Section { title: "impostors".to_owned(), lines })
}
