//! Runs about a foreign kernel's conduct, before its answers are judged: the same call again, elsewhere in memory, and at the
//! same place with other contents.

use crate::case::{Case, Relation};
use crate::executor::{DeviceSpec, Executor, Job};
use crate::inputs::{Inputs, Poison, StoreInputs};
use crate::job::{AttentionJob, Variant, attention_job, store_job};
use crate::judge::{AttentionOutput, differences, judge_attention, modified_inputs};
use crate::problem::Op;
use crate::reference::references;
use crate::run::Settings;
use crate::verdict::{Failure, Verdict};

/// Query-key pairs times head_dim up to which a second reference is worth its time.
const SMALL_WORK: usize = 4_000_000;

/// Seeds that are tried for other contents of the same sizes.
const OTHER_SEEDS: u64 = 12;

/// What two runs of one call at one place may differ by: nothing.
const CHANCE: &str = "chance: two runs of the same call differ";
/// Nor may it matter where the buffers lie.
const PLACE: &str = "where the buffers lie in memory";

/// Judges the conduct; `None` if there is nothing to say, or nothing to look at (a call that must be refused).
pub(super) fn judge(
    case: &Case,
    arm: &str,
    executor: &mut dyn Executor,
    settings: &Settings,
) -> Option<Verdict> {
    if case.must_reject() {
        return None;
    }
    let mut runner = Runner { case, arm, executor, settings };
    let judged = if case.problem.op == Op::Store { runner.store() } else { runner.attention() };
    match judged {
        Ok(failures) if failures.is_empty() => None,
        Ok(failures) => Some(Verdict::Mismatch { failures }),
        Err(verdict) => Some(verdict),
    }
}

struct Runner<'a> {
    case: &'a Case,
    arm: &'a str,
    executor: &'a mut dyn Executor,
    settings: &'a Settings,
}

type Step<T> = Result<T, Verdict>;

impl Runner<'_> {
    /// The device spec of a run: `schedule` draws the place in memory.
    fn device(&self, thorough: bool, place: u64) -> DeviceSpec {
        let schedule = Some(place_of(self.case).wrapping_add(place));
        DeviceSpec { kind: self.settings.device, checked: thorough, schedule }
    }

    fn attention(&mut self) -> Step<Vec<Failure>> {
        let inputs = Inputs::generate(self.case).map_err(impossible)?;
        let here = self.device(false, 0);
        let (first, failures) = self.attend(&inputs, &self.device(true, 0))?;
        if !failures.is_empty() {
            return Ok(failures);
        }
        // A case with a relation makes runs enough of its own.
        if self.case.relation.is_some_and(|relation| relation != Relation::Splits) {
            return Ok(Vec::new());
        }
        let problem = &self.case.problem;
        // Twice: what changes with every other call shows, too.
        for _ in 0..2 {
            let (again, _) = self.attend(&inputs, &here)?;
            let failures = differences(problem, CHANCE, &first, &again);
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        // Directly after a call at this place: a kernel may remember no more than the last.
        if problem.pairs() * problem.head_dim <= SMALL_WORK {
            let failures = self.other_contents(&inputs, &first, &here)?;
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        let there = self.device(false, 1);
        let (elsewhere, _) = self.attend(&inputs, &there)?;
        let failures = differences(problem, PLACE, &first, &elsewhere);
        if failures.is_empty() {
            return Ok(failures);
        }
        let chance = self.chance(&inputs, (&here, &first), (&there, &elsewhere))?;
        Ok(if chance.is_empty() { failures } else { chance })
    }

    /// Two places give different bits: whether either gives different bits by itself.
    fn chance(
        &mut self,
        inputs: &Inputs,
        here: (&DeviceSpec, &AttentionOutput),
        there: (&DeviceSpec, &AttentionOutput),
    ) -> Step<Vec<Failure>> {
        for (device, output) in [here, here, there, there] {
            let (again, _) = self.attend(inputs, device)?;
            let failures = differences(&self.case.problem, CHANCE, output, &again);
            if !failures.is_empty() {
                return Ok(failures);
            }
        }
        Ok(Vec::new())
    }

    /// The same shapes at the same addresses with other contents must give another answer: its own.
    fn other_contents(
        &mut self,
        inputs: &Inputs,
        first: &AttentionOutput,
        here: &DeviceSpec,
    ) -> Step<Vec<Failure>> {
        let variant = Variant::plain(Poison::Nan);
        let sizes = |case: &Case, inputs: &Inputs| -> Vec<usize> {
            let job = attention_job(case, inputs, self.arm, here, variant).job;
            job.buffers.iter().map(|buffer| buffer.bytes.len()).collect()
        };
        // Another seed may draw another width of the block table, and then the addresses differ.
        let own_sizes = sizes(self.case, inputs);
        let seeds = (1..=OTHER_SEEDS).map(|step| self.case.seed.wrapping_add(step << 32));
        let mut found = None;
        for seed in seeds {
            let other = Case { seed, ..self.case.clone() };
            let other_inputs = Inputs::generate(&other).map_err(impossible)?;
            if sizes(&other, &other_inputs) == own_sizes {
                found = Some((other, other_inputs));
                break;
            }
        }
        let Some((other, other_inputs)) = found else { return Ok(Vec::new()) };
        let job = attention_job(&other, &other_inputs, self.arm, here, variant);
        let output = self.run(&job)?.0;
        let own = references(&other, &other_inputs, self.arm).map_err(impossible)?;
        let (failures, _) = judge_attention(&other, &other_inputs, &own, &output).map_err(impossible)?;
        if failures.is_empty() {
            return Ok(failures);
        }
        Ok(self.remembered(first, &output).map_or(failures, |failure| vec![failure]))
    }

    /// Whether a wrong output is the one of the call before, in most of its elements.
    fn remembered(&self, first: &AttentionOutput, output: &AttentionOutput) -> Option<Failure> {
        let size = self.case.problem.query_format.size_bytes();
        let pairs = first.out.chunks_exact(size).zip(output.out.chunks_exact(size));
        let elements = pairs.filter(|(a, b)| a == b).count();
        let of = output.out.len() / size;
        (elements * 2 > of).then(|| Failure::Remembered { output: "out".to_owned(), elements, of })
    }

    /// Runs the case; also what the run did to its inputs.
    fn attend(&mut self, inputs: &Inputs, device: &DeviceSpec) -> Step<(AttentionOutput, Vec<Failure>)> {
        let variant = Variant { returns_inputs: true, ..Variant::plain(Poison::Nan) };
        self.run(&attention_job(self.case, inputs, self.arm, device, variant))
    }

    fn run(&mut self, job: &AttentionJob) -> Step<(AttentionOutput, Vec<Failure>)> {
        let buffers = self.complete(&job.job)?;
        let take = |index: usize| {
            let position = job.job.buffers[..index].iter().filter(|buffer| buffer.returned).count();
            buffers.get(position).cloned().unwrap_or_default()
        };
        let output = AttentionOutput { out: take(job.out), lse: job.lse.map(take) };
        let outputs: Vec<usize> = [Some(job.out), job.lse].into_iter().flatten().collect();
        Ok((output, modified_inputs(&job.job, &buffers, &outputs)))
    }

    fn store(&mut self) -> Step<Vec<Failure>> {
        let inputs = StoreInputs::generate(self.case).map_err(impossible)?;
        let job = |device: &DeviceSpec| store_job(self.case, &inputs, device);
        let [main, again, elsewhere] =
            [(true, 0), (false, 0), (false, 1)].map(|(thorough, place)| job(&self.device(thorough, place)));
        let first = self.complete(&main)?;
        for (job, on) in [(again, CHANCE), (elsewhere, PLACE)] {
            let other = self.complete(&job)?;
            let pairs = || first.iter().flatten().zip(other.iter().flatten());
            let wrong = pairs().filter(|(a, b)| a != b).count();
            if wrong > 0 {
                let of = pairs().count();
                let message = format!("the stored bytes depend on {on}");
                return Ok(vec![Failure::Probe { message, wrong, of }]);
            }
        }
        Ok(Vec::new())
    }

    /// Runs a job that must complete; refusals and failures are left to the judgement proper.
    fn complete(&mut self, job: &Job) -> Step<Vec<Vec<u8>>> {
        crate::run::complete(job, self.executor, self.settings).map(|reply| reply.buffers)
    }
}

/// A place in memory drawn from the case, so that no earlier case had its buffers there.
fn place_of(case: &Case) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    case.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// A reference that cannot be computed is a mistake in the case.
fn impossible(error: oracle::OracleError) -> Verdict {
    Verdict::Environment { message: format!("the case has no reference: {error}") }
}
