//! Greedy generation: one request, continued requests, and several in one batch.

use std::time::{Duration, Instant};

use super::engine::{Engine, Work};
use super::error::ModelError;
use super::kv::Sequence;
use super::timer::KernelTimes;
use super::tokenizer::Tokenizer;

/// Candidates that are remembered of each choice.
const REMEMBERED: usize = 32;

/// One generated token and what else was likely.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The token.
    pub token: u32,
    /// The likeliest tokens with their logits, the chosen one first.
    pub candidates: Vec<(u32, f32)>,
}

impl Choice {
    /// The greedy choice among a row of logits; the lowest token on a tie.
    ///
    /// # Errors
    /// If a logit is not finite.
    pub fn greedy(logits: &[f32], position: usize) -> Result<Self, ModelError> {
        if let Some(&value) = logits.iter().find(|logit| !logit.is_finite()) {
            return Err(ModelError::NotFinite { position, value });
        }
        let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        let likelier = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let kept = REMEMBERED.min(all.len());
        if kept < all.len() {
            all.select_nth_unstable_by(kept, likelier);
            all.truncate(kept);
        }
        all.sort_unstable_by(likelier);
        let token = all.first().map(|(token, _)| *token).ok_or_else(|| ModelError::Argument {
            argument: "logits",
            value: "empty".to_owned(),
            accepted: "at least one".to_owned(),
        })?;
        Ok(Self { token, candidates: all })
    }

    /// How far a token's logit lies below the chosen one's; `None` if it was not among the remembered.
    #[must_use]
    pub fn gap_to(&self, token: u32) -> Option<f32> {
        let other = self.candidates.iter().find(|(candidate, _)| *candidate == token)?;
        Some(self.candidates[0].1 - other.1)
    }
}

/// How much was done in how long.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phase {
    /// Tokens run through the model.
    pub tokens: usize,
    /// Wall-clock time, judging not included.
    pub wall: Duration,
    /// Time of the kernels on the device.
    pub kernels: KernelTimes,
}

/// What came of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generation {
    /// The choices, in order.
    pub choices: Vec<Choice>,
    /// The prompt.
    pub prefill: Phase,
    /// Everything after.
    pub decode: Phase,
    /// Steps of more than one row that checked drafted tokens, and drafted tokens that were right.
    pub drafts: (usize, usize),
}

impl Generation {
    /// The generated tokens.
    #[must_use]
    pub fn tokens(&self) -> Vec<u32> {
        self.choices.iter().map(|choice| choice.token).collect()
    }
}

/// When to stop, and how the prompt is fed.
#[derive(Clone, Copy)]
pub struct Plan<'t> {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Rows of one prefill step; `None` takes the whole prompt at once.
    pub chunk: Option<usize>,
    /// Knows which tokens end an answer; `None` goes on to `max_tokens`.
    pub ends: Option<&'t Tokenizer>,
}

impl Plan<'_> {
    pub(super) fn done(&self, generation: &Generation) -> bool {
        let last = generation.choices.last();
        let ended = last.is_some_and(|last| self.ends.is_some_and(|ends| ends.is_end(last.token)));
        generation.choices.len() >= self.max_tokens || ended
    }
}

/// Serves one request and gives its pages back, whatever happens.
///
/// # Errors
/// The first error of its steps.
pub fn generate(engine: &mut Engine<'_>, prompt: &[u32], plan: Plan<'_>) -> Result<Generation, ModelError> {
    with_sequence(engine, |engine, sequence| {
        let mut generation = Generation::default();
        prefill(engine, sequence, prompt, plan, &mut generation)?;
        decode(engine, sequence, plan, &mut generation)?;
        Ok(generation)
    })
}

/// Serves a request that goes on after its first answer: `prompt`, tokens generated as planned, then `more` as if the user
/// had typed it, and as many tokens again. Returns both answers.
///
/// # Errors
/// The first error of its steps.
pub fn generate_continued(
    engine: &mut Engine<'_>,
    prompt: &[u32],
    more: &[u32],
    plan: Plan<'_>,
) -> Result<[Generation; 2], ModelError> {
    with_sequence(engine, |engine, sequence| {
        let [mut first, mut second] = [Generation::default(), Generation::default()];
        prefill(engine, sequence, prompt, plan, &mut first)?;
        decode(engine, sequence, plan, &mut first)?;
        // The last generated token has not been through the model yet.
        let last = first.choices.last().map(|choice| choice.token);
        let continued: Vec<u32> = last.into_iter().chain(more.iter().copied()).collect();
        prefill(engine, sequence, &continued, plan, &mut second)?;
        decode(engine, sequence, plan, &mut second)?;
        Ok([first, second])
    })
}

/// Serves several requests in one batch: all prompts in one step, then one row of each that is not done.
///
/// # Errors
/// The first error of any step, which ends all of them.
pub fn generate_batch(
    engine: &mut Engine<'_>,
    prompts: &[&[u32]],
    plan: Plan<'_>,
) -> Result<Vec<Generation>, ModelError> {
    let mut sequences: Vec<Sequence> = prompts.iter().map(|_| Sequence::default()).collect();
    let result = run_batch(engine, &mut sequences, prompts, plan);
    for sequence in sequences {
        engine.finish(sequence);
    }
    result
}

fn run_batch(
    engine: &mut Engine<'_>,
    sequences: &mut [Sequence],
    prompts: &[&[u32]],
    plan: Plan<'_>,
) -> Result<Vec<Generation>, ModelError> {
    let mut generations = vec![Generation::default(); prompts.len()];
    let mut inputs: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.to_vec()).collect();
    loop {
        let active: Vec<usize> = (0..prompts.len()).filter(|&r| !plan.done(&generations[r])).collect();
        if active.is_empty() {
            return Ok(generations);
        }
        let mut work: Vec<Work<'_>> = sequences
            .iter_mut()
            .zip(&inputs)
            .enumerate()
            .filter(|(request, _)| active.contains(request))
            .map(|(_, (sequence, tokens))| Work { sequence, tokens })
            .collect();
        let rows = engine.step(&mut work, None)?;
        let lens: Vec<usize> = work.iter().map(|request| request.tokens.len()).collect();
        let mut end = 0;
        for (request, len) in active.into_iter().zip(lens) {
            end += len;
            let choice = choose(engine, &rows, end - 1, sequences[request].len() - 1)?;
            inputs[request] = vec![choice.token];
            generations[request].choices.push(choice);
        }
    }
}

/// Runs `serve` with a new sequence and gives its pages back.
pub(super) fn with_sequence<T>(
    engine: &mut Engine<'_>,
    serve: impl FnOnce(&mut Engine<'_>, &mut Sequence) -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    let mut sequence = Sequence::default();
    let result = serve(engine, &mut sequence);
    engine.finish(sequence);
    result
}

/// Feeds a prompt in chunks and makes the first choice.
pub(super) fn prefill(
    engine: &mut Engine<'_>,
    sequence: &mut Sequence,
    prompt: &[u32],
    plan: Plan<'_>,
    generation: &mut Generation,
) -> Result<(), ModelError> {
    if prompt.is_empty() {
        return Err(ModelError::Argument {
            argument: "prompt",
            value: "empty".to_owned(),
            accepted: "at least one token".to_owned(),
        });
    }
    let chunk = plan.chunk.unwrap_or(prompt.len()).max(1);
    let watch = Watch::start(engine);
    let mut last = Vec::new();
    for tokens in prompt.chunks(chunk) {
        last = engine.step(&mut [Work { sequence, tokens }], None)?;
    }
    watch.stop(engine, prompt.len(), &mut generation.prefill);
    if plan.max_tokens > 0 {
        let row = last.len() / engine.model().config().embedding - 1;
        generation.choices.push(choose(engine, &last, row, sequence.len() - 1)?);
    }
    Ok(())
}

/// Generates one token after another.
fn decode(
    engine: &mut Engine<'_>,
    sequence: &mut Sequence,
    plan: Plan<'_>,
    generation: &mut Generation,
) -> Result<(), ModelError> {
    while let (false, Some(last)) = (plan.done(generation), generation.choices.last()) {
        let tokens = [last.token];
        let watch = Watch::start(engine);
        let rows = engine.step(&mut [Work { sequence, tokens: &tokens }], None)?;
        let choice = choose(engine, &rows, 0, sequence.len() - 1)?;
        watch.stop(engine, 1, &mut generation.decode);
        generation.choices.push(choice);
    }
    Ok(())
}

/// The choice after one row of a step; `position` is the row's.
pub(super) fn choose(
    engine: &Engine<'_>,
    rows: &[f32],
    row: usize,
    position: usize,
) -> Result<Choice, ModelError> {
    let model = engine.model();
    let width = model.config().embedding;
    Choice::greedy(&model.logits(&rows[row * width..(row + 1) * width])?, position)
}

/// Times a part of a request; the judge's own time is not counted.
pub(super) struct Watch {
    start: Instant,
    judging: Duration,
    kernels: KernelTimes,
}

impl Watch {
    pub(super) fn start(engine: &Engine<'_>) -> Self {
        Self { start: Instant::now(), judging: engine.judge.spent, kernels: engine.times }
    }

    pub(super) fn stop(self, engine: &Engine<'_>, tokens: usize, phase: &mut Phase) {
        phase.tokens += tokens;
        phase.wall += self.start.elapsed().saturating_sub(engine.judge.spent - self.judging);
        phase.kernels.store_ms += engine.times.store_ms - self.kernels.store_ms;
        phase.kernels.attention_ms += engine.times.attention_ms - self.kernels.attention_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greedy_choice_is_the_largest_logit_and_the_lower_token_on_a_tie() {
        let mut logits = vec![0.0; 100];
        (logits[70], logits[40], logits[50]) = (3.0, 5.0, 5.0);
        let choice = Choice::greedy(&logits, 0).unwrap();
        assert_eq!(choice.token, 40);
        assert_eq!(choice.candidates.len(), REMEMBERED);
        assert_eq!(choice.candidates[..3], [(40, 5.0), (50, 5.0), (70, 3.0)]);
        assert_eq!(choice.gap_to(70), Some(2.0));
        assert_eq!(choice.gap_to(99), None);
    }

    #[test]
    fn a_logit_that_is_no_number_is_an_error_and_not_a_choice() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let error = Choice::greedy(&[1.0, value, 2.0], 7).unwrap_err();
            assert!(matches!(error, ModelError::NotFinite { position: 7, .. }), "{error}");
        }
    }
}
