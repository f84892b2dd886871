//! Ways to serve one request that must not change its answer.

use std::sync::Arc;

use fault_injection::{At, CallKind, FaultPlan, FaultyDevice, KindSet, inject};
use kernels::device::DeviceRef;
use oracle::Format;

use super::claim::{Claim, divergence};
use super::engine::Engine;
use super::error::ModelError;
use super::generate::{Generation, Plan, generate, generate_batch, generate_continued};
use super::session::{Session, judged};
use super::speculate::{VERIFY_ROWS, generate_speculative};

/// Chunk sizes of a prefill that are tried.
const CHUNKS: [usize; 4] = [1, 7, 64, 2048];
/// Tokens of the request that faults are injected into: short, since it is served some thirty times.
const FAULTY_TOKENS: usize = 3;
/// Tokens of its prompt, the first of the whole one.
const FAULTY_PROMPT: usize = 8;

/// A request, and another one to go with it.
#[derive(Clone, Copy)]
pub struct Prompts<'p> {
    /// The request.
    pub main: &'p [u32],
    /// Served beside it, and typed after its answer.
    pub other: &'p [u32],
}

impl Session<'_> {
    /// Serves a request in every other way. `alone` is its answer when its prompt is prefilled at once.
    ///
    /// # Errors
    /// What stops a request, injected faults apart.
    pub fn scenarios(
        &self,
        format: Format,
        prompts: Prompts<'_>,
        plan: Plan<'_>,
        alone: &Generation,
    ) -> Result<Vec<Claim>, ModelError> {
        // The most that is stored at once: both prompts with both answers, and a verify step at the end.
        let tokens = prompts.main.len() + prompts.other.len() + 2 * plan.max_tokens + VERIFY_ROWS;
        let capacity = tokens + 2 * self.page_size;
        let mut engine = self.engine(format, capacity, self.scales(format, prompts.main)?)?;
        let mut claims = self.chunks(&mut engine, prompts.main, plan, alone)?;
        claims.push(self.continued(&mut engine, prompts, plan)?);
        claims.push(self.speculative(&mut engine, prompts.main, plan, alone)?);
        claims.push(self.batched(&mut engine, prompts, plan, alone)?);
        claims.push(judged(&format!("{format}, all of these"), &engine.judge));
        engine.release()?;
        claims.extend(self.faults(format, &prompts.main[..prompts.main.len().min(FAULTY_PROMPT)])?);
        Ok(claims)
    }

    fn chunks(
        &self,
        engine: &mut Engine<'_>,
        prompt: &[u32],
        plan: Plan<'_>,
        alone: &Generation,
    ) -> Result<Vec<Claim>, ModelError> {
        let format = engine.cache().format;
        let mut claims = Vec::new();
        for chunk in CHUNKS {
            let what = format!("{format}: prefill in chunks of {chunk} gives the same tokens");
            if chunk >= prompt.len() {
                claims.push(Claim::skipped(what, format!("the prompt has only {} tokens", prompt.len())));
                continue;
            }
            let chunked = generate(engine, prompt, Plan { chunk: Some(chunk), ..plan })?;
            let against = divergence(("whole", alone), ("chunked", &chunked), self.tokenizer);
            claims.push(Claim::unless(what, against));
        }
        Ok(claims)
    }

    fn continued(
        &self,
        engine: &mut Engine<'_>,
        prompts: Prompts<'_>,
        plan: Plan<'_>,
    ) -> Result<Claim, ModelError> {
        let [first, second] = generate_continued(engine, prompts.main, prompts.other, plan)?;
        let whole: Vec<u32> = [prompts.main, &first.tokens(), prompts.other].concat();
        let fresh = generate(engine, &whole, plan)?;
        let what = format!(
            "{}: a prefill of {} tokens continued after decode gives the tokens of one prefill",
            engine.cache().format,
            prompts.other.len()
        );
        Ok(Claim::unless(what, divergence(("whole", &fresh), ("continued", &second), self.tokenizer)))
    }

    fn speculative(
        &self,
        engine: &mut Engine<'_>,
        prompt: &[u32],
        plan: Plan<'_>,
        alone: &Generation,
    ) -> Result<Claim, ModelError> {
        let speculative = generate_speculative(engine, prompt, plan)?;
        let (steps, right) = speculative.drafts;
        let what = format!(
            "{}: drafts verified {VERIFY_ROWS} rows at once give the same tokens ({steps} steps, {right} drafts right)",
            engine.cache().format
        );
        let against = divergence(("one at a time", alone), ("verified", &speculative), self.tokenizer);
        Ok(Claim::unless(what, against))
    }

    fn batched(
        &self,
        engine: &mut Engine<'_>,
        prompts: Prompts<'_>,
        plan: Plan<'_>,
        alone: &Generation,
    ) -> Result<Claim, ModelError> {
        let other_alone = generate(engine, prompts.other, plan)?;
        let batch = generate_batch(engine, &[prompts.main, prompts.other], plan)?;
        let what = format!(
            "{}: requests of {} and {} tokens in one batch give what each gives alone",
            engine.cache().format,
            prompts.main.len(),
            prompts.other.len()
        );
        let pairs = [alone, &other_alone].into_iter().zip(&batch);
        let against = pairs
            .filter_map(|(alone, batched)| divergence(("alone", alone), ("batched", batched), self.tokenizer))
            .next();
        Ok(Claim::unless(what, against))
    }

    /// Fails one device call of each kind in the middle of a request, on a cache that stays.
    fn faults(&self, format: Format, prompt: &[u32]) -> Result<Vec<Claim>, ModelError> {
        let device = FaultyDevice::new(self.device.clone());
        let handle: DeviceRef = device.clone();
        let plan = Plan { max_tokens: FAULTY_TOKENS, chunk: None, ends: None };
        let scales = self.scales(format, prompt)?;
        let unjudged = Session { checks: super::check::Checks::None, device: handle.clone(), ..*self };
        let mut engine = unjudged.engine_on(&handle, format, prompt.len() + FAULTY_TOKENS, scales)?;
        let mut request = |_: &DeviceRef| generate(&mut engine, prompt, plan).map(|answer| bits(&answer));
        request(&handle)?;
        device.arm(FaultPlan::nth(u64::MAX));
        request(&handle)?;
        let calls = device.calls();
        device.disarm();
        let mut claims = Vec::new();
        for (kind, at) in fault_points() {
            let counting = FaultPlan { at, ..FaultPlan::nth(1).of(KindSet::only(kind)) };
            let count = calls.iter().filter(|call| counting.counts(**call)).count() as u64;
            let moment = if at == At::Call { "at once" } else { "at the next wait" };
            let what = format!(
                "{format}: one {kind} call failing {moment} in mid-generation ends that request alone, and the next \
                 one is unharmed"
            );
            if count == 0 {
                claims.push(Claim::skipped(what, format!("a generation makes no {kind} call")));
                continue;
            }
            let plan = FaultPlan { nth: count.div_ceil(2), ..counting };
            claims.push(Claim::unless(what, escaped(&device, plan, &mut request)));
        }
        engine.release()?;
        Ok(claims)
    }
}

fn fault_points() -> Vec<(CallKind, At)> {
    let at_call = [CallKind::Alloc, CallKind::Copy, CallKind::ModuleLoad, CallKind::Launch, CallKind::Event];
    let later = [CallKind::Launch, CallKind::Copy];
    at_call
        .map(|kind| (kind, At::Call))
        .into_iter()
        .chain(later.map(|kind| (kind, At::NextSynchronize)))
        .collect()
}

fn escaped(
    device: &Arc<FaultyDevice<dyn kernels::device::Device>>,
    plan: FaultPlan,
    request: &mut impl FnMut(&DeviceRef) -> Result<Vec<u8>, ModelError>,
) -> Option<String> {
    match inject(device, plan, request) {
        Ok(Some(step)) if step.contained() => None,
        Ok(Some(step)) => Some(step.to_string()),
        Ok(None) => Some(format!("the fault at call {} never fired", plan.nth)),
        Err(error) => Some(error.to_string()),
    }
}

/// Everything about an answer that has to be the same again.
fn bits(generation: &Generation) -> Vec<u8> {
    let candidates = generation.choices.iter().flat_map(|choice| &choice.candidates);
    candidates
        .flat_map(|(token, logit)| token.to_le_bytes().into_iter().chain(logit.to_bits().to_le_bytes()))
        .collect()
}
