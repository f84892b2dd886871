//! `attest verify --generated`: cases drawn from seeds, and the ledger that says which have been judged.

use std::cell::RefCell;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::str::FromStr;

use clap::Args;
use kernels::device::DeviceKind;

use super::Failure;
use super::options::{Chosen, interrupt_flag, workers};
use super::verify::{Verify, processors};
use crate::events::{Consumer, Event, Finished};
use crate::generate::{self, Generated, generate};
use crate::ledger::Ledger;
use crate::seeds::{self, LedgerError, SeedLedger, SeedRun};
use crate::session::{Demand, Item, Session};
use crate::verdict::Class;

/// Cases drawn from seeds instead of the committed ones.
#[derive(Debug, Args)]
pub(super) struct GeneratedOptions {
    /// Judge N small cases drawn from seeds instead of the committed ones, each on an arm that serves it. Starts after the
    /// last seed that the ledger has for the device.
    #[arg(long, value_name = "N", conflicts_with_all = ["filter", "arm", "shard", "impostors", "against", "record"])]
    generated: Option<u64>,
    /// Take the seeds from A to B−1, as many as --generated says.
    #[arg(long, value_name = "A..B", requires = "generated")]
    seed_range: Option<SeedRange>,
    /// Add the seeds to the ledger in `cases/regressions`, and cases that fail to the committed ones there.
    #[arg(long, requires = "generated", conflicts_with = "budget")]
    record_seeds: bool,
    /// Folder of the ledger.
    #[arg(long, value_name = "DIR", default_value = seeds::FOLDER, requires = "generated")]
    regressions: PathBuf,
}

/// Seeds from `A` to `B` − 1.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeedRange(Range<u64>);

impl FromStr for SeedRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once("..").and_then(|(a, b)| Some(a.parse().ok()?..b.parse().ok()?));
        range
            .filter(|range: &Range<u64>| !range.is_empty())
            .map(Self)
            .ok_or_else(|| "accepted: A..B with A < B".into())
    }
}

impl From<LedgerError> for Failure {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Repeated { .. } => Self::usage(error.to_string()),
            _ => Self::surroundings(error.to_string()),
        }
    }
}

impl GeneratedOptions {
    pub fn is_chosen(&self) -> bool {
        self.generated.is_some()
    }

    fn seeds(&self, ledger: &SeedLedger, device: &str) -> Range<u64> {
        let count = self.generated.unwrap_or(0);
        match &self.seed_range {
            Some(SeedRange(range)) => range.start..range.end.min(range.start.saturating_add(count)),
            None => {
                let first = ledger.next(device);
                first..first.saturating_add(count)
            }
        }
    }
}

/// Judges generated cases and records them.
pub(super) fn run(verify: Verify) -> Result<u8, Failure> {
    let options = &verify.generated;
    let chosen = verify.device.choose()?;
    let device = name(chosen.kind);
    let mut ledger = SeedLedger::load(&options.regressions)?;
    let seeds = options.seeds(&ledger, device);
    let mut run = SeedRun {
        device: device.to_owned(),
        detail: detail(&chosen),
        generator: generate::VERSION,
        first: seeds.start,
        end: seeds.end,
        judged: 0,
        failed: 0,
    };
    if options.record_seeds {
        // Said before the work, not after it.
        ledger.clone().add(run.clone())?;
    }
    let (finished, failed) = judge(&verify, chosen, seeds)?;
    (run.judged, run.failed) = ((finished.passed + finished.failed) as u64, finished.failed as u64);
    if options.record_seeds && finished.skipped == 0 {
        ledger.add(run)?;
        ledger.save(&options.regressions)?;
        seeds::append_failed(&options.regressions, &failed)?;
    } else if options.record_seeds {
        anstream::eprintln!("the seeds are not recorded: {} cases have no verdict", finished.skipped);
    }
    Ok(finished.exit_code)
}

fn judge(verify: &Verify, chosen: Chosen, seeds: Range<u64>) -> Result<(Finished, Vec<String>), Failure> {
    let items: Vec<Item> = seeds.map(item).collect();
    let interrupted = interrupt_flag()?;
    let executor = workers(&interrupted)?;
    let failed = Rc::new(RefCell::new(Vec::new()));
    let mut consumers = verify.output.consumers()?;
    consumers.consumers.push(Box::new(FailedLines(failed.clone())));
    let session = Session {
        settings: verify.device.settings(chosen.kind, None),
        device_detail: chosen.detail,
        tier: None,
        arms: super::options::arm_names(),
        jobs: verify.jobs.map_or_else(processors, NonZeroUsize::get),
        budget: verify.budget,
        demand: Demand::default(),
        known_failures: Ledger::committed(),
        interrupted,
    };
    let finished = session.run(&items, &executor, &mut consumers)?;
    let lines = failed.borrow().clone();
    Ok((finished, lines))
}

fn item(seed: u64) -> Item {
    let Generated { case, arm } = generate(seed);
    Item { case, arm, group: "generated".to_owned(), comment: format!("generator {}", generate::VERSION) }
}

pub(super) fn name(kind: DeviceKind) -> &'static str {
    kind.name()
}

/// The card's name; `simt` is one device only.
fn detail(chosen: &Chosen) -> String {
    match chosen.kind {
        DeviceKind::Simt | DeviceKind::Host => String::new(),
        DeviceKind::Cuda => chosen.detail.split(',').next().unwrap_or_default().to_owned(),
    }
}

/// Collects cases that fail as lines of the catalogue.
struct FailedLines(Rc<RefCell<Vec<String>>>);

impl Consumer for FailedLines {
    fn take(&mut self, event: &Event) -> io::Result<()> {
        if let Event::Judged(judged) = event
            && judged.class == Class::Failed
        {
            let (line, arm, device) = (&judged.line, &judged.arm, &judged.device);
            let generator = generate::VERSION;
            let line = format!("standard {line} # drawn by generator {generator}; failed on {arm}, {device}");
            self.0.borrow_mut().push(line);
        }
        Ok(())
    }
}
