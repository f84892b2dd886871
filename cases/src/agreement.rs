//! Two devices, one kernel source: are their outputs the same bit for bit?
//!
//! Every instruction that the kernels use is reproduced on the CPU, so a card that differs from `simt` in one bit is a
//! finding about one of the two. NaN agrees with NaN: their payloads carry no meaning.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kernels::device::DeviceKind;
use serde::{Deserialize, Serialize};

use crate::case::{Case, Expectation};
use crate::executor::protocol::Status;
use crate::executor::{DeviceSpec, Executor, Outcome};
use crate::inputs::{Inputs, Poison, StoreInputs};
use crate::job::{Variant, attention_job, store_job};
use crate::problem::Op;
use crate::session::Item;
use crate::support;
use oracle::Format;

/// How far an arm's outputs agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Cases compared.
    pub cases: usize,
    /// Cases that are the same in every bit.
    pub identical_cases: usize,
    /// Elements of out and lse compared (bytes, for the store kernel).
    pub elements: u64,
    /// Elements that are the same.
    pub identical_elements: u64,
}

/// A case whose outputs differ, or that only one device could run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The arm.
    pub arm: String,
    /// The case line.
    pub line: String,
    /// What differs.
    pub what: String,
}

/// What two devices made of a list of cases.
#[derive(Clone, Debug, Default)]
pub struct AgreementReport {
    /// By arm.
    pub arms: BTreeMap<String, Agreement>,
    /// Every difference, in the order of the cases.
    pub differences: Vec<Difference>,
}

/// Runs every valid case that its arm serves on both devices and compares.
pub fn compare_devices(
    items: &[Item],
    devices: [DeviceKind; 2],
    executor: &(dyn Fn() -> Box<dyn Executor> + Sync),
    jobs: usize,
    limit: Duration,
) -> AgreementReport {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                let mut executors = [executor(), executor()];
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    if let Some(result) = compare_item(item, devices, &mut executors, limit) {
                        let mut results = results.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        results.push((index, item, result));
                    }
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, ..)| *index);
    let mut report = AgreementReport::default();
    for (_, item, result) in results {
        report.add(item, result);
    }
    report
}

impl AgreementReport {
    fn add(&mut self, item: &Item, result: Result<Compared, String>) {
        let arm = self.arms.entry(item.arm.clone()).or_default();
        arm.cases += 1;
        let what = match result {
            Ok(compared) => {
                arm.elements += compared.elements;
                arm.identical_elements += compared.identical;
                if compared.elements == compared.identical {
                    arm.identical_cases += 1;
                    return;
                }
                compared.describe()
            }
            Err(what) => what,
        };
        self.differences.push(Difference { arm: item.arm.clone(), line: item.case.to_string(), what });
    }
}

struct Compared {
    elements: u64,
    identical: u64,
    first: Option<(String, usize, u32, u32)>,
}

impl Compared {
    fn describe(&self) -> String {
        let differing = self.elements - self.identical;
        let first = self.first.as_ref().map_or_else(String::new, |(buffer, element, a, b)| {
            format!("; first in {buffer} at element {element}: {a:#x} and {b:#x}")
        });
        format!("{differing} of {} elements differ{first}", self.elements)
    }

    fn add(&mut self, buffer: &str, format: Format, [a, b]: [&[u8]; 2]) {
        let size = format.size_bytes();
        for (element, (x, y)) in a.chunks_exact(size).zip(b.chunks_exact(size)).enumerate() {
            let bits =
                |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
            let (x, y) = (bits(x), bits(y));
            self.elements += 1;
            if x == y || (format.decode(x).is_nan() && format.decode(y).is_nan()) {
                self.identical += 1;
            } else if self.first.is_none() {
                self.first = Some((buffer.to_owned(), element, x, y));
            }
        }
    }
}

/// `None` for a case that has no output to compare: an invalid one, or one that the arm does not serve.
fn compare_item(
    item: &Item,
    devices: [DeviceKind; 2],
    executors: &mut [Box<dyn Executor>; 2],
    limit: Duration,
) -> Option<Result<Compared, String>> {
    let case = &item.case;
    if matches!(case.expectation, Expectation::Reject { .. }) || support::gap(case, &item.arm).is_some() {
        return None;
    }
    let outputs = devices.map(|kind| DeviceSpec { kind, checked: false, schedule: None });
    let mut sides = Vec::new();
    for (spec, executor) in outputs.into_iter().zip(executors) {
        match run_side(case, &item.arm, &spec, executor.as_mut(), limit) {
            Ok(side) => sides.push(side),
            Err(what) => return Some(Err(format!("on {:?}: {what}", spec.kind))),
        }
    }
    let mut compared = Compared { elements: 0, identical: 0, first: None };
    for (a, b) in sides[0].iter().zip(&sides[1]) {
        compared.add(a.name, a.format, [&a.bytes, &b.bytes]);
    }
    Some(Ok(compared))
}

struct Output {
    name: &'static str,
    format: Format,
    bytes: Vec<u8>,
}

fn run_side(
    case: &Case,
    arm: &str,
    device: &DeviceSpec,
    executor: &mut dyn Executor,
    limit: Duration,
) -> Result<Vec<Output>, String> {
    let run = |executor: &mut dyn Executor, job: &crate::executor::Job| match executor.run(job, limit) {
        Outcome::Replied(reply) if matches!(reply.status, Status::Completed) => Ok(reply.buffers),
        Outcome::Replied(reply) => Err(format!("{:?}", reply.status)),
        other => Err(format!("{other:?}")),
    };
    if case.problem.op == Op::Store {
        let inputs = StoreInputs::generate(case).map_err(|error| error.to_string())?;
        let job = store_job(case, &inputs, device);
        let buffers = run(executor, &job)?;
        let cache = case.problem.cache_format;
        return Ok(buffers.into_iter().map(|bytes| Output { name: "cache", format: cache, bytes }).collect());
    }
    let inputs = Inputs::generate(case).map_err(|error| error.to_string())?;
    let variant = Variant::plain(Poison::Nan);
    let job = attention_job(case, &inputs, arm, device, variant);
    let buffers = run(executor, &job.job)?;
    let returned = |index: usize| job.job.buffers[..index].iter().filter(|buffer| buffer.returned).count();
    let mut outputs = vec![Output {
        name: "out",
        format: case.problem.query_format,
        bytes: buffers[returned(job.out)].clone(),
    }];
    if let Some(lse) = job.lse {
        outputs.push(Output { name: "lse", format: Format::F32, bytes: buffers[returned(lse)].clone() });
    }
    Ok(outputs)
}
