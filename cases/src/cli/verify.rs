//! `attest verify`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::generated::GeneratedOptions;
use super::options::{
    DeviceOptions, OutputOptions, arm_names, interrupt_flag, nothing_judged, parse_arm, parse_time, workers,
};
use super::shares::ShareOptions;
use super::{Failure, agreement, generated, impostors};
use crate::catalogue::{self, Entry, Tier};
use crate::events::Consumer;
use crate::filter::Filter;
use crate::ledger::Ledger;
use crate::session::{Demand, Item, Session, arms_of};
use crate::shard::Shard;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest verify                                   the standard tier on the card, or on the CPU if there is none
  attest verify --arm scalar --tier smoke         after an edit to scalar.cu
  attest verify 'kv=e4m3 d256' --device simt      all cases with these terms
  attest verify flag=window group=probes          windowed cases among the probes
  attest verify --shard 1/2 --report junit=1.xml  the first half, with a report
  attest verify --impostors                       would the cases notice kernels that are wrong?
  attest verify group=metamorphic                 relations between several runs of one kernel
  attest verify --generated 1000 --fast           new small cases drawn from seeds
  attest verify --shares golden/worst-share.toml  how much of its bound each arm uses, against the record";

/// Judge kernels with the committed cases.
#[derive(Debug, Args)]
pub(super) struct Verify {
    /// Run only cases that match: a substring of the case line, or terms that must all occur in it (`kv=e4m3 d256`).
    /// `flag=NAME`, `group=NAME` and `id=ID` match what `attest list cases` shows. Several filters must all match.
    filter: Vec<String>,
    #[command(flatten)]
    pub(super) device: DeviceOptions,
    /// Judge only this arm; may be repeated. Default: every arm.
    #[arg(long, value_name = "ARM", value_parser = parse_arm)]
    arm: Vec<String>,
    /// How much to run.
    #[arg(long, value_name = "TIER", default_value = "standard")]
    tier: Tier,
    /// Change the seed of every case by this much: other random inputs, other page orders.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Cases tried at once. Default: the number of processors.
    #[arg(long, value_name = "N")]
    pub(super) jobs: Option<NonZeroUsize>,
    /// Run the K-th of N parts.
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Stop after this time. The smoke tier comes first, and its minimum must be reached.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(super) budget: Option<Duration>,
    /// Judge the cases instead of the kernels: run kernels that are wrong in a known way, and show which check of which
    /// case catches each. One that no case catches is a failure.
    #[arg(long, conflicts_with_all = ["arm", "shard", "budget"])]
    impostors: bool,
    /// Write the kill matrix to this file, as Markdown.
    #[arg(long, value_name = "FILE", requires = "impostors")]
    matrix: Option<PathBuf>,
    /// Run every case on the card and on this device, and compare the outputs bit for bit instead of judging them.
    #[arg(long, value_name = "DEVICE", value_parser = ["simt"], conflicts_with = "impostors")]
    against: Option<String>,
    /// Write what each arm did on the card; with --against, add how far its bits agree to an existing record.
    #[arg(long, value_name = "FILE", conflicts_with = "impostors")]
    record: Option<PathBuf>,
    #[command(flatten)]
    pub(super) generated: GeneratedOptions,
    #[command(flatten)]
    shares: ShareOptions,
    #[command(flatten)]
    pub(super) output: OutputOptions,
}

impl Verify {
    pub fn run(self) -> Result<u8, Failure> {
        if self.impostors {
            return impostors::run(self.entries()?, self.filter.is_empty(), self.matrix.as_deref());
        }
        if self.generated.is_chosen() {
            return generated::run(self);
        }
        let items = self.items()?;
        if items.is_empty() {
            anstream::eprintln!("error: no case matches{}", self.filters_in_words());
            nothing_judged(0, "no case matches")?;
            return Ok(4);
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
        if self.against.is_some() {
            let jobs = self.jobs.map_or_else(processors, NonZeroUsize::get);
            let limit = self.device.settings(chosen.kind, None).limit;
            return agreement::run(&items, chosen.kind, &executor, (jobs, limit), self.record.as_deref());
        }
        if let Some(path) = &self.record {
            consumers.consumers.push(agreement::recorder(path, chosen.kind)?);
        }
        let meter = self.shares.meter();
        consumers.consumers.extend(meter.clone().map(|meter| Box::new(meter) as Box<dyn Consumer>));
        let run = format!("{}-{}", generated::name(chosen.kind), self.tier.name());
        let session = Session {
            settings: self.device.settings(chosen.kind, None),
            device_detail: chosen.detail,
            tier: Some(self.tier),
            arms: self.arms(),
            jobs: self.jobs.map_or_else(processors, NonZeroUsize::get),
            budget: self.budget,
            demand: self.demand(),
            known_failures: Ledger::committed(),
            interrupted,
        };
        let code = session.run(&items, &executor, &mut consumers)?.exit_code;
        self.shares.settle(meter.as_ref(), &run, code)
    }

    fn arms(&self) -> Vec<String> {
        if self.arm.is_empty() { arm_names() } else { self.arm.clone() }
    }

    fn filters_in_words(&self) -> String {
        self.filter.iter().map(|filter| format!(" `{filter}`")).collect()
    }

    /// The chosen cases of the catalogue.
    fn entries(&self) -> Result<Vec<Entry>, Failure> {
        let entries = catalogue::entries().map_err(|error| Failure::surroundings(error.to_string()))?;
        let filters: Vec<Filter> = self.filter.iter().map(|text| Filter::new(text)).collect();
        let chosen = |entry: &Entry| {
            entry.tier <= self.tier && filters.iter().all(|filter| filter.matches(&entry.case, entry.group))
        };
        Ok(entries.into_iter().filter(chosen).collect())
    }

    fn items(&self) -> Result<Vec<Item>, Failure> {
        let arms = self.arms();
        let mut items = Vec::new();
        for entry in self.entries()? {
            for arm in arms_of(&entry.case, &arms) {
                let mut case = entry.case.clone();
                case.seed = case.seed.wrapping_add(self.seed);
                items.push(Item {
                    case,
                    arm: arm.clone(),
                    group: entry.group.to_owned(),
                    comment: entry.comment.clone(),
                });
            }
        }
        if let Some(shard) = self.shard {
            items = shard.of(items);
        }
        Ok(items)
    }

    /// What a whole run must reach. Filters choose a part on purpose, so they demand only that something ran.
    fn demand(&self) -> Demand {
        if !self.filter.is_empty() {
            return Demand::default();
        }
        let tier = if self.budget.is_some() { Tier::Smoke } else { self.tier };
        let arms = self.arms();
        let parts = self.shard.map_or(1, |shard| shard.count);
        let minimum = catalogue::minimum(tier).into_iter().filter(|(arm, _)| arms.contains(arm));
        Demand {
            // A shard takes every N-th case whatever its arm, so its part of one arm's cases varies a little.
            minimum: minimum.map(|(arm, n)| (arm, if parts == 1 { n } else { n / parts / 2 })).collect(),
            source: format!("the committed minimum of tier {}", tier.name()),
        }
    }
}

pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}
