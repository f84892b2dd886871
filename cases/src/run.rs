//! `run_case`: the one path from a case to its verdict.
//!
//! Case → inputs → reference → job → executor → comparison → verdict. Everything it calls is pure or is an executor.

use std::time::Duration;

use kernels::arm::Arm;
use kernels::device::DeviceKind;
use oracle::Reference;

use crate::case::{Case, Expectation, Relation};
use crate::executor::{DeviceSpec, Executor, Job, Outcome, PoolUse, Reply, protocol::Status};
use crate::inputs::{Inputs, Poison, StoreInputs};
use crate::job::{AttentionJob, Rows, Variant, attention_job, store_job};
use crate::judge::{AttentionOutput, differences, judge_attention, judge_store, modified_inputs};
use crate::metamorphic;
use crate::problem::Op;
use crate::reference::{VARYING_ARM, references};
use crate::support;
use crate::verdict::{Failure, Verdict};

/// The name under which store cases run.
pub const STORE_ARM: &str = "store";

/// When `simt` checks every access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checking {
    /// Where the case is small enough to take about a second at most.
    #[default]
    WhereSmall,
    /// In every case.
    Always,
    /// Never: uninstrumented code only.
    Never,
}

/// Query-key pairs times head_dim up to which a case counts as small.
const SMALL_WORK: usize = 2_000_000;

/// Seed of the order of lanes and blocks in the run that must not depend on it.
const OTHER_SCHEDULE: u64 = 1;

/// How cases are run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which backend.
    pub device: DeviceKind,
    /// When every access is checked.
    pub checking: Checking,
    /// Seed of the lanes' order; `None` is plain order.
    pub schedule: Option<u64>,
    /// Time limit of one launch.
    pub limit: Duration,
}

impl Settings {
    /// The device a case's main run uses.
    #[must_use]
    pub fn main_device(&self, case: &Case) -> DeviceSpec {
        let small =
            case.problem.pairs() * (case.problem.head_dim + case.problem.head_dim_v) / 2 <= SMALL_WORK;
        let checked = match self.checking {
            Checking::Always => true,
            Checking::Never => false,
            Checking::WhereSmall => small,
        };
        DeviceSpec {
            kind: self.device,
            checked: checked && self.device == DeviceKind::Simt,
            schedule: self.schedule,
        }
    }

    /// The device of the runs that only compare bits.
    #[must_use]
    pub fn plain_device(&self) -> DeviceSpec {
        DeviceSpec { kind: self.device, checked: false, schedule: None }
    }
}

/// Judges one case on one arm.
pub fn run_case(case: &Case, arm: &str, executor: &mut dyn Executor, settings: &Settings) -> Verdict {
    if let Some(what) = support::gap(case, arm) {
        return Verdict::Unsupported { what, declared: true };
    }
    run_prepared(case, arm, executor, settings, None)
}

/// What a valid attention case is judged with. It depends on the case and the arm only.
pub struct Prepared {
    /// The inputs.
    pub inputs: Inputs,
    /// The reference of every request.
    pub references: Vec<Reference>,
}

/// Judges whether a case is refused, for whatever reason, with every buffer left alone.
pub fn must_refuse(case: &Case, arm: &str, executor: &mut dyn Executor, settings: &Settings) -> Verdict {
    let mut runner = Runner { case, arm, executor, settings };
    runner.refusal(None).unwrap_or_else(|verdict| verdict)
}

/// The same for a case that the arm serves, with inputs and references that were made before, if there are any.
pub fn run_prepared(
    case: &Case,
    arm: &str,
    executor: &mut dyn Executor,
    settings: &Settings,
    prepared: Option<&Prepared>,
) -> Verdict {
    let mut runner = Runner { case, arm, executor, settings };
    let judged = match (case.problem.op, &case.expectation, prepared) {
        (Op::Store, _, _) => runner.store(),
        (_, Expectation::Reject { argument }, _) => runner.refusal(Some(argument)),
        (_, Expectation::Valid, Some(prepared)) => runner.attention(prepared),
        (_, Expectation::Valid, None) => runner.prepare().and_then(|prepared| runner.attention(&prepared)),
    };
    judged.unwrap_or_else(|verdict| verdict)
}

struct Runner<'a> {
    case: &'a Case,
    arm: &'a str,
    executor: &'a mut dyn Executor,
    settings: &'a Settings,
}

/// A verdict reached before the end is the error of each step.
type Step<T> = Result<T, Verdict>;

impl Runner<'_> {
    fn prepare(&self) -> Step<Prepared> {
        let inputs = Inputs::generate(self.case).map_err(|error| no_inputs(&error))?;
        let references = references(self.case, &inputs, self.arm).map_err(|error| no_inputs(&error))?;
        Ok(Prepared { inputs, references })
    }

    fn attention(&mut self, prepared: &Prepared) -> Step<Verdict> {
        match self.case.relation {
            Some(relation) => self.relation(relation, prepared),
            None => self.plain_attention(prepared),
        }
    }

    /// Several runs that must agree with each other; see [`metamorphic`].
    fn relation(&mut self, relation: Relation, prepared: &Prepared) -> Step<Verdict> {
        let (case, arm, device) = (self.case, self.arm, self.settings.plain_device());
        let mut attend = |case: &Case, inputs: &Inputs, splits| {
            let variant = Variant::plain(Poison::Nan);
            let mut job = attention_job(case, inputs, arm, &device, variant);
            job.call_mut().splits = splits;
            self.attend(&job).map(|(output, _)| output)
        };
        let (failures, worst_share) = metamorphic::hold(case, relation, arm, prepared, &mut attend)?;
        Ok(if failures.is_empty() { Verdict::Pass { worst_share } } else { Verdict::Mismatch { failures } })
    }

    fn plain_attention(&mut self, Prepared { inputs, references }: &Prepared) -> Step<Verdict> {
        let device = self.settings.main_device(self.case);
        let main = Variant { returns_inputs: true, ..Variant::plain(Poison::Nan) };
        let job = attention_job(self.case, inputs, self.arm, &device, main);
        let (output, returned) = self.attend(&job)?;
        let (mut failures, worst_share) = self.judge(inputs, references, &output)?;
        let outputs: Vec<usize> = [Some(job.out), job.lse].into_iter().flatten().collect();
        failures.extend(modified_inputs(&job.job, &returned, &outputs));
        if failures.is_empty() {
            failures = self.variants(inputs, references, &output)?;
        }
        Ok(if failures.is_empty() { Verdict::Pass { worst_share } } else { Verdict::Mismatch { failures } })
    }

    fn judge(
        &self,
        inputs: &Inputs,
        references: &[Reference],
        output: &AttentionOutput,
    ) -> Step<(Vec<Failure>, f64)> {
        judge_attention(self.case, inputs, references, output).map_err(|error| Verdict::Environment {
            message: format!("the comparison is not possible: {error}"),
        })
    }

    /// Further runs: what must not matter is changed, and the output must not.
    fn variants(
        &mut self,
        inputs: &Inputs,
        references: &[Reference],
        main: &AttentionOutput,
    ) -> Step<Vec<Failure>> {
        let plain = self.settings.plain_device();
        let other_order = DeviceSpec { schedule: Some(OTHER_SCHEDULE), ..plain.clone() };
        // A foreign kernel is given what its interface promises by its own checks.
        let apart = if self.arm.parse::<Arm>().is_ok() { Rows::Apart } else { Rows::Packed };
        let runs = [
            (
                Poison::Zero,
                &plain,
                Rows::Packed,
                "unowned bytes (NaN or zero), or how the device runs the kernel (checked or not)",
            ),
            (
                Poison::Infinity,
                &plain,
                apart,
                "unowned bytes (NaN or infinity), or how far apart rows of q, out and lse lie",
            ),
            (
                Poison::Huge,
                &other_order,
                Rows::Packed,
                "unowned bytes (NaN or 2^100), or the order of lanes and blocks",
            ),
        ];
        for (poison, device, rows, on) in runs {
            let variant = Variant { rows, ..Variant::plain(poison) };
            let job = attention_job(self.case, inputs, self.arm, device, variant);
            let (output, returned) = self.attend(&job)?;
            let mut failures = differences(&self.case.problem, on, main, &output);
            failures.extend(job.writes_in_gaps(&returned));
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        let failures = self.announced(inputs, main)?;
        if !failures.is_empty() {
            return Ok(failures);
        }
        self.loose_metadata(inputs, references, main)
    }

    /// A dense arm gives the same bits where most of its scratch was filled while another call attended.
    fn announced(&mut self, inputs: &Inputs, main: &AttentionOutput) -> Step<Vec<Failure>> {
        if !self.arm.parse().is_ok_and(Arm::is_dense) {
            return Ok(Vec::new());
        }
        let variant = Variant::plain(Poison::Nan);
        // Checked: memory that comes back from the pool may hold what an earlier run left there, which is right.
        let device = self.settings.main_device(self.case);
        let mut job = attention_job(self.case, inputs, self.arm, &device, variant);
        job.call_mut().ahead = true;
        let (output, _) = self.attend(&job)?;
        Ok(differences(&self.case.problem, "dequantising before or within the call", main, &output))
    }

    /// Upper bounds of the lengths and no host copies. A batch with long queries gives the same bits; where one row per
    /// request may be split over the keys, the bounds choose the split, and the result is held to the error bound.
    fn loose_metadata(
        &mut self,
        inputs: &Inputs,
        references: &[Reference],
        main: &AttentionOutput,
    ) -> Step<Vec<Failure>> {
        let variant = Variant { loose_metadata: true, ..Variant::plain(Poison::Nan) };
        let job = attention_job(self.case, inputs, self.arm, &self.settings.plain_device(), variant);
        let (output, _) = self.attend(&job)?;
        let on = "upper bounds of the lengths in place of the lengths";
        let differing = differences(&self.case.problem, on, main, &output);
        let problem = &self.case.problem;
        let one_row_each = problem.query_lens.iter().all(|len| *len <= 1);
        let may_split =
            one_row_each || matches!(problem.op, Op::Decode | Op::Verify) || self.arm == VARYING_ARM;
        if differing.is_empty() || !may_split {
            return Ok(differing);
        }
        let (failures, _) = self.judge(inputs, references, &output)?;
        Ok(if failures.is_empty() { failures } else { differing.into_iter().chain(failures).collect() })
    }

    /// Runs an attention job to its end; returns its output, and all buffers that came back.
    fn attend(&mut self, job: &AttentionJob) -> Step<(AttentionOutput, Vec<Vec<u8>>)> {
        let reply = self.complete(&job.job)?;
        let output = job.output(&reply.buffers);
        Ok((output, reply.buffers))
    }

    fn store(&mut self) -> Step<Verdict> {
        if let Expectation::Reject { argument } = &self.case.expectation {
            return self.refusal(Some(argument));
        }
        let inputs = StoreInputs::generate(self.case).map_err(|error| no_inputs(&error))?;
        let job = store_job(self.case, &inputs, &self.settings.main_device(self.case));
        let reply = self.complete(&job)?;
        let caches = cache_buffers(&job);
        let after: Vec<Vec<u8>> = caches.iter().map(|index| reply.buffers[*index].clone()).collect();
        let mut failures = judge_store(self.case, &inputs, &after);
        failures.extend(modified_inputs(&job, &reply.buffers, &caches));
        Ok(if failures.is_empty() {
            Verdict::Pass { worst_share: 0.0 }
        } else {
            Verdict::Mismatch { failures }
        })
    }

    /// A case that must be refused: a typed error that names the argument if one is given, nothing launched, nothing written.
    fn refusal(&mut self, argument: Option<&str>) -> Step<Verdict> {
        let job = self.refusal_job()?;
        let reply = match self.executor.run(&job, self.settings.limit) {
            Outcome::Replied(reply) => reply,
            other => return Err(broken(other)),
        };
        let mut failures = match &reply.status {
            Status::Refused { argument: named, .. } if argument.is_none_or(|it| names(named, it)) => {
                Vec::new()
            }
            Status::Unsupported { message } if argument.is_none_or(|it| message.contains(it)) => Vec::new(),
            Status::Refused { message, .. } | Status::Unsupported { message } => {
                let expected = argument.unwrap_or_default().to_owned();
                vec![Failure::WrongRefusal { expected, message: message.clone() }]
            }
            // A checked run that finds faults has run; a foreign kernel's misconduct shows in a refused call, too.
            Status::Findings { .. } if self.settings.device != DeviceKind::Simt => {
                return Err(verdict_of(reply.status));
            }
            Status::Completed | Status::Findings { .. } => {
                let argument = argument.unwrap_or("what its info does not declare").to_owned();
                vec![Failure::NotRefused { argument }]
            }
            Status::DeviceError { .. } | Status::Environment { .. } => return Err(verdict_of(reply.status)),
        };
        if reply.launches > 0 {
            failures.push(Failure::LaunchedThoughRefused { launches: reply.launches });
        }
        failures.extend(modified_inputs(&job, &reply.buffers, &[]));
        Ok(if failures.is_empty() {
            Verdict::Pass { worst_share: 0.0 }
        } else {
            Verdict::Mismatch { failures }
        })
    }

    fn refusal_job(&self) -> Step<Job> {
        let device = self.settings.main_device(self.case);
        if self.case.problem.op == Op::Store {
            let inputs = StoreInputs::generate(self.case).map_err(|error| no_inputs(&error))?;
            return Ok(store_job(self.case, &inputs, &device));
        }
        let inputs = Inputs::generate(self.case).map_err(|error| no_inputs(&error))?;
        let variant = Variant { returns_inputs: true, ..Variant::plain(Poison::Nan) };
        Ok(attention_job(self.case, &inputs, self.arm, &device, variant).job)
    }

    /// Runs a job that must complete.
    fn complete(&mut self, job: &Job) -> Step<Reply> {
        complete(job, self.executor, self.settings)
    }
}

/// Runs a job that must complete.
///
/// # Errors
/// The verdict if it does not.
pub(crate) fn complete(
    job: &Job,
    executor: &mut dyn Executor,
    settings: &Settings,
) -> Result<Reply, Verdict> {
    let reply = match executor.run(job, settings.limit) {
        Outcome::Replied(reply) => reply,
        other => return Err(broken(other)),
    };
    if reply.status != Status::Completed {
        return Err(verdict_of(named(reply.status, job)));
    }
    let expected = job.buffers.iter().filter(|buffer| buffer.returned);
    let lengths_fit = reply.buffers.iter().map(Vec::len).eq(expected.map(|buffer| buffer.bytes.len()));
    if !lengths_fit {
        return Err(Verdict::DeviceError {
            findings: Vec::new(),
            error: Some("the buffers that came back are not those that were sent".to_owned()),
        });
    }
    if reply.pool.leaked_bytes() > 0 {
        let PoolUse { before_bytes, after_bytes } = reply.pool;
        let error =
            format!("{after_bytes} bytes of the pool are in use after the call, {before_bytes} before it");
        return Err(Verdict::DeviceError { findings: Vec::new(), error: Some(error) });
    }
    Ok(reply)
}

fn verdict_of(status: Status) -> Verdict {
    match status {
        Status::Completed => unreachable!("a completed job is not a failure"),
        Status::Refused { argument, message } => Verdict::Rejected { argument, message },
        // What the manifest leaves out is not run at all, so this case is one that it promises.
        Status::Unsupported { message } => Verdict::Unsupported { what: message, declared: false },
        Status::Findings { findings } => Verdict::DeviceError { findings, error: None },
        Status::DeviceError { message, .. } => {
            Verdict::DeviceError { findings: Vec::new(), error: Some(message) }
        }
        Status::Environment { message } => Verdict::Environment { message },
    }
}

/// Findings with the names of the allocations they speak of, where the size tells which one it is.
fn named(status: Status, job: &Job) -> Status {
    let Status::Findings { mut findings } = status else { return status };
    for finding in &mut findings {
        for buffer in &job.buffers {
            let size = format!("an allocation of {} bytes", buffer.bytes.len());
            let unique =
                job.buffers.iter().filter(|other| other.bytes.len() == buffer.bytes.len()).count() == 1;
            if unique && finding.message.contains(&size) {
                finding.message = finding.message.replace(&size, &format!("{size} ({})", buffer.name));
                break;
            }
        }
    }
    Status::Findings { findings }
}

/// Whether an error about `named` (`seq_lens[2]`, `query_start_loc length`) is about `argument`.
fn names(named: &str, argument: &str) -> bool {
    named
        .strip_prefix(argument)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

fn no_inputs(error: &oracle::OracleError) -> Verdict {
    let (argument, message) = (error.to_string(), format!("the case has no reference: {error}"));
    Verdict::Rejected { argument, message }
}

/// Indices of the cache's buffers, in the order K, V.
fn cache_buffers(job: &Job) -> Vec<usize> {
    let names = job.buffers.iter().enumerate();
    names.filter(|(_, buffer)| buffer.name.ends_with("_cache")).map(|(index, _)| index).collect()
}

fn broken(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Replied(_) => unreachable!("a reply is not a broken outcome"),
        Outcome::Crashed { signal, detail } => Verdict::Crashed { signal, detail },
        Outcome::TimedOut { limit } => Verdict::TimedOut { limit_ms: limit.as_millis() as u64 },
        Outcome::Unavailable { message } => Verdict::Environment { message },
    }
}
