//! A run over many cases: compile first, then judge with several workers, and count.

mod prepare;
pub(crate) mod recorder;
pub(crate) mod tally;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::catalogue::Tier;
use crate::events::{Consumer, Event, Finished, Judged, Started};
use crate::executor::Executor;
use crate::foreign::ForeignKernel;
use crate::ledger::Ledger;
use crate::problem::Op;
use crate::run::{STORE_ARM, Settings, run_case};
use crate::verdict::Verdict;
use prepare::{Prepared, prepare};
use tally::Tally;

/// One case to judge on one arm.
#[derive(Clone, Debug)]
pub struct Item {
    /// The case.
    pub case: Case,
    /// The arm.
    pub arm: String,
    /// Catalogue group, or empty.
    pub group: String,
    /// What the case is for, or empty.
    pub comment: String,
}

/// The arms among `arms` on which a case runs: store cases on the store kernel, all others on the attention arms.
pub fn arms_of<'a>(case: &Case, arms: &'a [String]) -> impl Iterator<Item = &'a String> {
    let is_store = case.problem.op == Op::Store;
    arms.iter().filter(move |arm| (arm.as_str() == STORE_ARM) == is_store)
}

/// What a run judges.
#[derive(Clone, Copy)]
pub enum Subject<'a> {
    /// This project's own kernels, by arm.
    Arms,
    /// A kernel from a shared library.
    Foreign(&'a ForeignKernel),
}

/// Calls of a foreign kernel that may run into the time limit before the run ends: one that hangs hangs every time.
const FOREIGN_TIME_OUTS: usize = 3;

/// What a run must reach to be acceptable.
#[derive(Clone, Debug, Default)]
pub struct Demand {
    /// Fewest judged cases per arm.
    pub minimum: Vec<(String, usize)>,
    /// Where the minimum is written down.
    pub source: String,
}

/// Everything about a run but its cases.
pub struct Session {
    /// How cases are run.
    pub settings: Settings,
    /// Name, versions and choice of the device.
    pub device_detail: String,
    /// Tier, for the record.
    pub tier: Option<Tier>,
    /// Arms, for the record.
    pub arms: Vec<String>,
    /// Cases tried at once.
    pub jobs: usize,
    /// Stop after this much time.
    pub budget: Option<Duration>,
    /// What must be reached.
    pub demand: Demand,
    /// Cases that are known to fail.
    pub known_failures: &'static Ledger,
    /// Set from outside to stop early and report what is known.
    pub interrupted: Arc<AtomicBool>,
}

impl Session {
    /// Judges all items. `executor` makes one executor per job. Returns the end of the run, after the consumers saw it.
    ///
    /// # Errors
    /// When a consumer cannot write.
    pub fn run(
        &self,
        items: &[Item],
        executor: &(dyn Fn() -> Box<dyn Executor> + Sync),
        consumer: &mut dyn Consumer,
    ) -> io::Result<Finished> {
        self.run_on(Subject::Arms, items, executor, consumer)
    }

    /// The same for any subject.
    ///
    /// # Errors
    /// When a consumer cannot write.
    pub fn run_on(
        &self,
        subject: Subject<'_>,
        items: &[Item],
        executor: &(dyn Fn() -> Box<dyn Executor> + Sync),
        consumer: &mut dyn Consumer,
    ) -> io::Result<Finished> {
        let start = Instant::now();
        consumer.take(&Event::Started(self.started(items.len())))?;
        let mut tally = Tally::new(items.len());
        if matches!(subject, Subject::Foreign(_)) {
            tally = tally.by_capability();
        }
        match prepare(items, &self.settings, self.jobs) {
            Err(message) => {
                tally.abort(&message);
                consumer.take(&Event::Aborted { message })?;
            }
            Ok(prepared) => {
                if matches!(subject, Subject::Arms) {
                    prepared.announce(consumer)?;
                }
                self.judge_all((subject, items), &prepared, executor, consumer, &mut tally, start)?;
            }
        }
        let finished = tally.finish(&self.demand, start.elapsed());
        consumer.take(&Event::Finished(finished.clone()))?;
        Ok(finished)
    }

    fn started(&self, planned: usize) -> Started {
        Started {
            version: env!("CARGO_PKG_VERSION"),
            device: device_name(&self.settings).to_owned(),
            device_detail: self.device_detail.clone(),
            arms: self.arms.clone(),
            tier: self.tier.map(|tier| tier.name().to_owned()),
            planned,
            jobs: self.jobs,
        }
    }

    /// Hands items to workers and takes verdicts until all are in, the budget is spent or someone interrupts.
    fn judge_all(
        &self,
        work: (Subject<'_>, &[Item]),
        prepared: &Prepared,
        executor: &(dyn Fn() -> Box<dyn Executor> + Sync),
        consumer: &mut dyn Consumer,
        tally: &mut Tally,
        start: Instant,
    ) -> io::Result<()> {
        let mut time_outs = 0;
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let (sender, verdicts) = channel();
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, work.1.len().max(1)) {
                let sender = sender.clone();
                let (next, stop) = (&next, &stop);
                scope.spawn(move || self.work(work, prepared, executor, next, stop, &sender));
            }
            drop(sender);
            loop {
                let event = verdicts.recv_timeout(Duration::from_millis(50));
                let interrupted = self.interrupted.load(Ordering::Relaxed);
                let spent = self.budget.is_some_and(|budget| start.elapsed() >= budget);
                if interrupted {
                    tally.stop("interrupted");
                    stop.store(true, Ordering::Relaxed);
                    // Cases in flight are abandoned: whoever interrupts does not want to wait for them.
                } else if spent {
                    tally.stop("the time budget was spent");
                    stop.store(true, Ordering::Relaxed);
                }
                match event {
                    Ok(judged) => {
                        let judged: Box<Judged> = judged;
                        tally.add(&judged);
                        time_outs += usize::from(matches!(judged.verdict, Verdict::TimedOut { .. }));
                        if matches!(work.0, Subject::Foreign(_)) && time_outs == FOREIGN_TIME_OUTS {
                            tally.stop(&format!("{time_outs} calls did not end in time"));
                            stop.store(true, Ordering::Relaxed);
                        }
                        consumer.take(&Event::Judged(judged))?;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
            }
        })
    }

    fn work(
        &self,
        (subject, items): (Subject<'_>, &[Item]),
        prepared: &Prepared,
        executor: &(dyn Fn() -> Box<dyn Executor> + Sync),
        next: &AtomicUsize,
        stop: &AtomicBool,
        verdicts: &Sender<Box<Judged>>,
    ) {
        let mut executor = executor();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return };
            let start = Instant::now();
            let verdict = match prepared.compile_error(index) {
                Some(message) => {
                    Verdict::DeviceError { findings: Vec::new(), error: Some(message.to_owned()) }
                }
                None => match subject {
                    Subject::Foreign(kernel) => kernel.judge(item, executor.as_mut(), &self.settings),
                    Subject::Arms => {
                        let place = (item.group.as_str(), item.arm.as_str(), device_name(&self.settings));
                        self.known_failures.judge(&item.case, place, || {
                            run_case(&item.case, &item.arm, executor.as_mut(), &self.settings)
                        })
                    }
                },
            };
            // What was in flight when someone interrupted has no verdict.
            if self.interrupted.load(Ordering::Relaxed) {
                return;
            }
            let judged = self.judged(subject, item, verdict, start.elapsed());
            if verdicts.send(Box::new(judged)).is_err() {
                return;
            }
        }
    }

    fn judged(&self, subject: Subject<'_>, item: &Item, verdict: Verdict, elapsed: Duration) -> Judged {
        let line = item.case.to_string();
        Judged {
            id: item.case.id(),
            group: item.group.clone(),
            flags: item.case.flags().iter().map(ToString::to_string).collect(),
            comment: item.comment.clone(),
            arm: item.arm.clone(),
            device: device_name(&self.settings).to_owned(),
            checked: self.settings.main_device(&item.case).checked,
            class: verdict.class(),
            verdict,
            seconds: elapsed.as_secs_f64(),
            replay: match subject {
                Subject::Arms => self.replay(&item.arm, &line),
                Subject::Foreign(kernel) => kernel.replay(&line),
            },
            line,
        }
    }

    fn replay(&self, arm: &str, line: &str) -> String {
        let mut words = format!("attest replay --device {}", device_name(&self.settings));
        if arm != STORE_ARM {
            words.push_str(&format!(" --arm {arm}"));
        }
        words.push_str(match self.settings.checking {
            crate::run::Checking::WhereSmall => "",
            crate::run::Checking::Always => " --checked",
            crate::run::Checking::Never => " --fast",
        });
        if let Some(seed) = self.settings.schedule {
            words.push_str(&format!(" --schedule {seed}"));
        }
        format!("{words} '{line}'")
    }
}

fn device_name(settings: &Settings) -> &'static str {
    settings.device.name()
}

/// Compile errors by item.
type CompileErrors = HashMap<usize, String>;
