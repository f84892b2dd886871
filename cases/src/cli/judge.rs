//! `attest judge`.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use kernels::device::DeviceKind;

use super::Failure;
use super::options::{OutputOptions, interrupt_flag, nothing_judged, parse_time};
use super::verify::processors;
use crate::case::Case;
use crate::catalogue::{self, Tier};
use crate::devices;
use crate::events::{Consumer, Event, Finished, Judged, Started};
use crate::executor::Executor;
use crate::filter::Filter;
use crate::foreign::{
    ForeignExecutor, ForeignKernel, Timing, Undescribed, describe_here, describe_in_child, in_words, items,
    serve, timings,
};
use crate::ledger::Ledger;
use crate::problem::Op;
use crate::reference::FOREIGN_ARM;
use crate::report::Fanout;
use crate::run::{Checking, STORE_ARM, Settings};
use crate::session::{Demand, Item, Session, Subject};
use crate::verdict::Verdict;

pub(super) const EXAMPLES: &str = "\
Examples:
  attest judge ./libkernel.so                        every case of the standard tier that the kernel declares to serve
  attest judge ./libkernel.so --tier smoke           an answer in seconds
  attest judge ./libkernel.so kv=e4m3 flag=window    cases with these terms
  attest judge ./libkernel.so --bench                and how fast it is, if it is right
  attest new-kernel --lang c mine                    a small kernel to start from
  attest header > attest_kernel.h                    the interface";

/// Judge a kernel from a shared library that exports the functions of `attest_kernel.h`.
///
/// The kernel says what it serves; every case inside that is judged as `attest verify` judges this project's kernels, calls
/// outside of it must be refused, and how the kernel behaves towards its caller is watched. docs/JUDGE.md explains the
/// interface and every finding.
#[derive(Debug, Args)]
pub(super) struct Judge {
    /// The shared library.
    kernel: PathBuf,
    /// Run only cases that match, as for `attest verify`; several filters must all match.
    filter: Vec<String>,
    /// How much to run.
    #[arg(long, value_name = "TIER", default_value = "standard")]
    tier: Tier,
    /// Change the seed of every case by this much: other random inputs, other page orders.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Cases tried at once. Default: the number of processors; one for a kernel that runs on a card.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Stop after this time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    budget: Option<Duration>,
    /// Time limit of one case's call; a kernel that takes longer is killed.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    timeout: Duration,
    /// Time the kernel after it has passed.
    #[arg(long)]
    bench: bool,
    #[command(flatten)]
    output: OutputOptions,
    /// Serve jobs on the kernel: how this command runs it apart from the judgement.
    #[arg(long, hide = true)]
    serve: bool,
    /// Load the kernel and print what it says of itself.
    #[arg(long, hide = true, conflicts_with = "serve")]
    describe: bool,
}

impl Judge {
    pub fn run(self) -> Result<u8, Failure> {
        if self.serve || self.describe {
            crate::executor::live_with_parent();
            let path = found(&self.kernel)?;
            if self.describe {
                describe_here(&path)?;
            } else {
                serve(&path, std::io::stdin().lock())
                    .map_err(|error| Failure::surroundings(error.to_string()))?;
            }
            return Ok(0);
        }
        let path = found(&self.kernel)?;
        let mut consumers = self.output.consumers()?;
        let kernel = match ask(&path, self.timeout, &mut consumers)? {
            Ok(kernel) => kernel,
            Err(code) => return Ok(code),
        };
        if !self.output.is_quiet() {
            anstream::eprintln!("{}", in_words(&kernel.info));
        }
        let items = self.items(&kernel)?;
        if items.is_empty() {
            anstream::eprintln!("error: no case matches");
            nothing_judged(0, "no case matches")?;
            return Ok(4);
        }
        let interrupted = interrupt_flag()?;
        let session = session(&kernel, self.timeout, interrupted, |session| Session {
            tier: Some(self.tier),
            jobs: self.jobs(&kernel),
            budget: self.budget,
            ..session
        });
        let finished = judge(&session, &kernel, &items, &mut consumers)?;
        if self.bench && finished.exit_code == 0 {
            let executor = executors(&kernel.path, &session.interrupted)?;
            report_times(timings(&kernel.info, executor().as_mut(), &session.settings), &finished)?;
        }
        Ok(finished.exit_code)
    }

    fn jobs(&self, kernel: &ForeignKernel) -> usize {
        let one_card = kernel.device() == DeviceKind::Cuda;
        self.jobs.map_or_else(|| if one_card { 1 } else { processors() }, NonZeroUsize::get)
    }

    fn items(&self, kernel: &ForeignKernel) -> Result<Vec<Item>, Failure> {
        let entries = catalogue::entries().map_err(|error| Failure::surroundings(error.to_string()))?;
        let entries: Vec<_> = entries.into_iter().filter(|entry| entry.tier <= self.tier).collect();
        let filters: Vec<Filter> = self.filter.iter().map(|text| Filter::new(text)).collect();
        // Cases are chosen after they have been moved to what the kernel serves: what a filter names is what is run.
        let mut items = items(&entries, &kernel.info);
        items.retain(|item| filters.iter().all(|filter| filter.matches(&item.case, &item.group)));
        for item in &mut items {
            item.case.seed = item.case.seed.wrapping_add(self.seed);
        }
        Ok(items)
    }
}

/// The library's own path: the loader looks for a bare name elsewhere.
fn found(path: &Path) -> Result<PathBuf, Failure> {
    let missing = |error: std::io::Error| {
        Failure::usage(format!("KERNEL is {}: {error}; accepted: a shared library", path.display()))
    };
    std::fs::metadata(path).map_err(missing)?;
    std::path::absolute(path).map_err(missing)
}

/// Asks the kernel what it is. A kernel that cannot say so has its verdict; that is the inner error, with the exit code.
fn ask(path: &Path, limit: Duration, consumer: &mut Fanout) -> Result<Result<ForeignKernel, u8>, Failure> {
    let binary = own_binary()?;
    match describe_in_child(&binary, path, limit) {
        Ok(info) => {
            let kernel = ForeignKernel { path: path.to_owned(), info };
            needs_a_card(&kernel)?;
            Ok(Ok(kernel))
        }
        Err(Undescribed::Surroundings(message)) => {
            nothing_judged(0, &message)?;
            Err(Failure::surroundings(message))
        }
        Err(Undescribed::Verdict(verdict)) => {
            unusable(path, *verdict, consumer)?;
            Ok(Err(1))
        }
    }
}

/// A kernel for a card needs one.
fn needs_a_card(kernel: &ForeignKernel) -> Result<(), Failure> {
    if kernel.device() != DeviceKind::Cuda {
        return Ok(());
    }
    devices::cuda_info().map(drop).or_else(|error| {
        let message = format!("kernel `{}` needs a card: {error}", kernel.info.name);
        nothing_judged(0, &message)?;
        Err(Failure::surroundings(message))
    })
}

/// Reports the verdict on a library that is no kernel.
fn unusable(path: &Path, verdict: Verdict, consumer: &mut Fanout) -> Result<(), Failure> {
    consumer.take(&Event::Started(Started {
        version: env!("CARGO_PKG_VERSION"),
        device: "host".to_owned(),
        device_detail: path.display().to_string(),
        arms: vec![FOREIGN_ARM.to_owned()],
        tier: None,
        planned: 1,
        jobs: 1,
    }))?;
    consumer.take(&Event::Judged(Box::new(Judged {
        id: "interface".to_owned(),
        line: "attest_info".to_owned(),
        group: "interface".to_owned(),
        flags: Vec::new(),
        comment: String::new(),
        arm: FOREIGN_ARM.to_owned(),
        device: "host".to_owned(),
        checked: false,
        class: verdict.class(),
        verdict,
        seconds: 0.0,
        replay: format!("attest judge {}", path.display()),
    })))?;
    consumer.take(&Event::Finished(Finished { failed: 1, exit_code: 1, ..Finished::default() }))?;
    Ok(())
}

fn own_binary() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::surroundings(format!("cannot find this program's own file: {error}")))
}

/// Makes workers that have loaded the kernel.
fn executors(
    kernel: &Path,
    interrupted: &Arc<AtomicBool>,
) -> Result<impl Fn() -> Box<dyn Executor> + Sync + use<>, Failure> {
    let (binary, kernel, interrupted) = (own_binary()?, kernel.to_owned(), interrupted.clone());
    Ok(move || {
        Box::new(ForeignExecutor::new(binary.clone(), &kernel, interrupted.clone())) as Box<dyn Executor>
    })
}

fn session(
    kernel: &ForeignKernel,
    limit: Duration,
    interrupted: Arc<AtomicBool>,
    change: impl FnOnce(Session) -> Session,
) -> Session {
    change(Session {
        settings: Settings { device: kernel.device(), checking: Checking::WhereSmall, schedule: None, limit },
        device_detail: kernel.info.name.clone(),
        tier: None,
        arms: vec![FOREIGN_ARM.to_owned()],
        jobs: 1,
        budget: None,
        demand: Demand::default(),
        known_failures: Ledger::none(),
        interrupted,
    })
}

fn judge(
    session: &Session,
    kernel: &ForeignKernel,
    items: &[Item],
    consumer: &mut Fanout,
) -> Result<Finished, Failure> {
    let executor = executors(&kernel.path, &session.interrupted)?;
    Ok(session.run_on(Subject::Foreign(kernel), items, &executor, consumer)?)
}

/// `attest replay --kernel`: one case.
pub(super) fn replay(
    path: &Path,
    case: Case,
    limit: Duration,
    output: &OutputOptions,
) -> Result<u8, Failure> {
    let path = found(path)?;
    let mut consumers = output.consumers()?;
    let kernel = match ask(&path, limit, &mut consumers)? {
        Ok(kernel) => kernel,
        Err(code) => return Ok(code),
    };
    let arm = if case.problem.op == Op::Store { STORE_ARM } else { FOREIGN_ARM };
    let item = Item { case, arm: arm.to_owned(), group: String::new(), comment: String::new() };
    let session = session(&kernel, limit, interrupt_flag()?, |session| session);
    Ok(judge(&session, &kernel, &[item], &mut consumers)?.exit_code)
}

fn report_times(timings: Result<Vec<Timing>, Verdict>, finished: &Finished) -> Result<(), Failure> {
    let timings = timings.map_err(|verdict| {
        Failure::surroundings(format!("the kernel passed, and could not be timed: {}", verdict.word()))
    })?;
    let mut out = anstream::stdout().lock();
    for Timing { name, line, median, fastest, cache_bytes_per_second } in timings {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let (median, fastest, gigabytes) = (micros(median), micros(fastest), cache_bytes_per_second / 1e9);
        writeln!(
            out,
            "{name:20} {median:10.1} us median {fastest:10.1} us fastest {gigabytes:8.2} GB/s of cache"
        )?;
        writeln!(out, "{:20} {line}", "")?;
    }
    // The summary stays the last line.
    let Finished { passed, failed, skipped, .. } = finished;
    writeln!(out, "{passed} passed, {failed} failed, {skipped} skipped")?;
    Ok(())
}
