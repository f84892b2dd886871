//! `attest mutants`.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kernels::source::SourceSet;

use super::Failure;
use super::options::{arm_names, interrupt_flag, parse_arm, parse_time};
use crate::catalogue::Tier;
use crate::executor::live_with_parent;
use crate::mutants::campaign::{Campaign, CampaignError, Finished};
use crate::mutants::change::Change;
use crate::mutants::launch::LaunchMutant;
use crate::mutants::operators::Operator;
use crate::mutants::outcome::{Outcome, per_hour};
use crate::mutants::select::{Selection, changed_lines};
use crate::mutants::serve::{Setup, serve};
use crate::shard::Shard;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest mutants                                    every mutant of every kernel
  attest mutants --file store.cu                    after an edit to store.cu
  attest mutants --operator drop-barrier            one kind of mistake, everywhere
  attest mutants --sample 20 --seed 7               a quick impression
  git diff main | attest mutants --in-diff -        mutants of the changed lines
  attest mutants --list --file combine.cu           what would be tried";

/// Change kernels and launches, one small mistake at a time, and show which mistakes no case notices.
#[derive(Debug, Args)]
pub(super) struct Mutants {
    /// Only mutants of this file (`scalar.cu`, `formats.cuh`, or `launch` for launches); may be repeated.
    #[arg(long, value_name = "FILE")]
    file: Vec<String>,
    /// Only mutants of this kind; may be repeated. `--list` shows the kinds.
    #[arg(long, value_name = "OPERATOR")]
    operator: Vec<String>,
    /// Only this mutant, by the name that reports give it; may be repeated.
    #[arg(long, value_name = "ID")]
    mutant: Vec<String>,
    /// Only mutants of lines that a unified diff changes; `-` reads it from standard input.
    #[arg(long, value_name = "DIFF")]
    in_diff: Option<PathBuf>,
    /// At most so many, drawn at random.
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Seed of what is drawn at random.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// At least so many: what the selection lacks is drawn from all the others, and `--budget` waits for them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    at_least: usize,
    /// Try the K-th of N parts.
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Use cases up to this tier as checks.
    #[arg(long, value_name = "TIER", default_value = "standard")]
    tier: Tier,
    /// Use only cases on this arm as checks; may be repeated. Default: every arm.
    #[arg(long, value_name = "ARM", value_parser = parse_arm)]
    arm: Vec<String>,
    /// Go on after the first check that fails, so that the kill matrix is complete.
    #[arg(long)]
    all_checks: bool,
    /// Go on where an interrupted run stopped.
    #[arg(long)]
    resume: bool,
    /// Start no new mutant after this time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    budget: Option<Duration>,
    /// Mutants tried at once. Default: the number of processors.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Where reports go.
    #[arg(long, value_name = "DIR", default_value = "mutants.out")]
    output: PathBuf,
    /// Show the mutants and do nothing.
    #[arg(long)]
    list: bool,
    /// Say nothing but survivors and the summary.
    #[arg(short, long)]
    quiet: bool,
    /// Serve jobs on kernels of a directory: how workers run.
    #[arg(long, hide = true, value_name = "DIR")]
    serve: Option<PathBuf>,
    /// A changed file for `--serve`: its name and where its text lies.
    #[arg(long, hide = true, num_args = 2, requires = "serve")]
    serve_overlay: Vec<String>,
    /// A launch mutant for `--serve`.
    #[arg(long, hide = true, requires = "serve")]
    serve_launch: Option<LaunchMutant>,
}

impl Mutants {
    pub fn run(self) -> Result<u8, Failure> {
        if let Some(kernels) = self.serve.clone() {
            return self.serve(kernels);
        }
        let campaign = self.campaign()?;
        if self.list {
            return list(&campaign);
        }
        let finished = campaign.run().map_err(failure)?;
        if !finished.red.is_empty() {
            return red(&finished);
        }
        report(&campaign, &finished)
    }

    fn serve(self, kernels: PathBuf) -> Result<u8, Failure> {
        live_with_parent();
        let overlay = match self.serve_overlay.as_slice() {
            [name, path] => Some((name.clone(), PathBuf::from(path))),
            _ => None,
        };
        let setup = Setup { kernels, overlay, launch: self.serve_launch };
        serve(&setup, std::io::stdin().lock(), std::io::stdout().lock())?;
        Ok(0)
    }

    fn campaign(&self) -> Result<Campaign, Failure> {
        let binary = std::env::current_exe().map_err(|error| {
            Failure::surroundings(format!("cannot find this program's own file: {error}"))
        })?;
        Ok(Campaign {
            selection: self.selection()?,
            tier: self.tier,
            arms: if self.arm.is_empty() { arm_names() } else { self.arm.clone() },
            all_checks: self.all_checks,
            jobs: self.jobs.map_or_else(super::verify::processors, NonZeroUsize::get),
            budget: self.budget,
            resume: self.resume,
            output: self.output.clone(),
            binary,
            quiet: self.quiet,
            interrupted: interrupt_flag()?,
        })
    }

    fn selection(&self) -> Result<Selection, Failure> {
        let lines = match &self.in_diff {
            None => None,
            Some(path) => Some(changed_lines(&read(path)?)),
        };
        Ok(Selection {
            files: self.file.clone(),
            operators: self.operator.clone(),
            ids: self.mutant.clone(),
            lines,
            sample: self.sample,
            at_least: self.at_least,
            seed: self.seed,
            shard: self.shard,
        })
    }
}

fn read(path: &PathBuf) -> Result<String, Failure> {
    let text = match path.as_os_str() == "-" {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(path),
    };
    text.map_err(|error| Failure::usage(format!("--in-diff {} cannot be read: {error}", path.display())))
}

fn failure(error: CampaignError) -> Failure {
    match error {
        CampaignError::Journal(_) => Failure::usage(error.to_string()),
        other => Failure::surroundings(other.to_string()),
    }
}

fn list(campaign: &Campaign) -> Result<u8, Failure> {
    let sources = SourceSet::load()
        .map_err(|e| Failure::surroundings(format!("the kernel sources cannot be read: {e}")))?;
    let (changes, checks) = campaign.plan(&sources).map_err(failure)?;
    let mut out = anstream::stdout().lock();
    for change in &changes {
        writeln!(out, "{}", change.describe())?;
    }
    writeln!(out)?;
    for operator in Operator::ALL {
        let count = changes.iter().filter(|change| change.operator() == operator.name()).count();
        writeln!(out, "{count:5} {:15} {}", operator.name(), operator.summary())?;
    }
    let launches = changes.iter().filter(|change| matches!(change, Change::Launch(_))).count();
    writeln!(
        out,
        "{launches:5} {:15} changes of grids, blocks, shared memory, streams and scratch",
        "launch"
    )?;
    writeln!(out, "{} mutants, {} checks", changes.len(), checks.len())?;
    Ok(0)
}

/// The unchanged kernels fail: a verdict on them, not on the suite.
fn red(finished: &Finished) -> Result<u8, Failure> {
    let mut out = anstream::stdout().lock();
    for check in &finished.red {
        writeln!(out, "RED  {}\n  {}\n  replay: {}", check.check, check.verdict, check.replay)?;
    }
    let untried = finished.changes.len() - finished.counts.total();
    writeln!(
        out,
        "the unchanged kernels fail a check: nothing that mutants do says anything until it passes"
    )?;
    writeln!(out, "skipped: {untried} not tried")?;
    writeln!(out, "0 passed, {} failed, {untried} skipped", finished.red.len())?;
    Ok(1)
}

fn report(campaign: &Campaign, finished: &Finished) -> Result<u8, Failure> {
    let mut out = anstream::stdout().lock();
    let changes: std::collections::BTreeMap<String, &Change> =
        finished.changes.iter().map(|change| (change.id(), change)).collect();
    for record in finished.records.iter().filter(|record| record.outcome.is_escape()) {
        let described = changes.get(&record.id).map_or_else(|| record.id.clone(), |change| change.describe());
        let word = if record.outcome == Outcome::Missed { "SURVIVED" } else { "UNCOVERED" };
        writeln!(out, "{word}  {described}\n  again: attest mutants --mutant '{}'", record.id)?;
    }
    let counts = &finished.counts;
    let failed = counts.missed + counts.uncovered;
    let untried = finished.changes.len() - counts.total();
    writeln!(
        out,
        "{} of {} mutants tried: {}; {:.1}% of those that can be noticed",
        counts.total(),
        finished.changes.len(),
        counts.in_words(),
        100.0 * counts.score()
    )?;
    if finished.tried > 0 {
        let rate = per_hour(finished.tried, finished.elapsed);
        let seconds = finished.elapsed.as_secs_f64();
        writeln!(
            out,
            "{} mutants in {seconds:.0} s: {rate:.0} an hour, {} at once",
            finished.tried, campaign.jobs
        )?;
    }
    writeln!(out, "reports: {}", campaign.output.display())?;
    let skipped = counts.equivalent + counts.duplicate + counts.unviable + counts.reviewed + untried;
    writeln!(
        out,
        "skipped: {} equivalent, {} duplicate, {} unviable, {} reviewed, {untried} not tried",
        counts.equivalent, counts.duplicate, counts.unviable, counts.reviewed
    )?;
    writeln!(out, "{} passed, {failed} failed, {skipped} skipped", counts.caught + counts.timeout)?;
    Ok(match (failed, counts.total()) {
        (0, 0) => 4,
        (0, _) => 0,
        _ => 1,
    })
}
