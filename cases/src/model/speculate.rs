//! Speculative verify: drafted tokens are checked several rows at a time.

use super::engine::{Engine, Work};
use super::error::ModelError;
use super::generate::{Generation, Plan, Watch, choose, prefill, with_sequence};

/// Rows of one verify step: the token known to be right and three drafts.
pub const VERIFY_ROWS: usize = 4;
/// Longest run of tokens that is looked up for a draft.
const LONGEST_NGRAM: usize = 3;

/// Serves one request like [`super::generate::generate`], with drafted tokens verified four rows at once.
///
/// The route is told that every request has four rows, so that the step takes the decode kernels. Rejected rows stay in
/// the cache until their slots are written again; no row can see them.
///
/// # Errors
/// The first error of its steps.
pub fn generate_speculative(
    engine: &mut Engine<'_>,
    prompt: &[u32],
    plan: Plan<'_>,
) -> Result<Generation, ModelError> {
    with_sequence(engine, |engine, sequence| {
        let mut generation = Generation::default();
        prefill(engine, sequence, prompt, plan, &mut generation)?;
        let mut context: Vec<u32> = prompt.iter().copied().chain(generation.tokens()).collect();
        while let (false, Some(last)) = (plan.done(&generation), generation.choices.last()) {
            let known = last.token;
            let watch = Watch::start(engine);
            let drafts = draft(&context, VERIFY_ROWS - 1);
            let tokens: Vec<u32> = [known].into_iter().chain(drafts.iter().copied()).collect();
            let start = sequence.len();
            let rows = engine.step(&mut [Work { sequence, tokens: &tokens }], Some(VERIFY_ROWS))?;
            generation.drafts.0 += 1;
            let mut accepted = 0;
            for row in 0..VERIFY_ROWS {
                let choice = choose(engine, &rows, row, start + row)?;
                let right = drafts.get(row) == Some(&choice.token);
                context.push(choice.token);
                generation.choices.push(choice);
                accepted = row + 1;
                if plan.done(&generation) || !right {
                    break;
                }
                generation.drafts.1 += 1;
            }
            sequence.rewind(start + accepted);
            watch.stop(engine, accepted, &mut generation.decode);
        }
        Ok(generation)
    })
}

/// Guesses the next tokens: what followed the last earlier occurrence of the context's longest repeated ending. Where
/// nothing repeats, the last token over and over, so that a draft always has its full length.
fn draft(context: &[u32], count: usize) -> Vec<u32> {
    let mut guess = context.to_vec();
    for _ in 0..count {
        let next = follower(&guess).or(guess.last().copied()).unwrap_or(0);
        guess.push(next);
    }
    guess.split_off(context.len())
}

fn follower(context: &[u32]) -> Option<u32> {
    (1..=LONGEST_NGRAM.min(context.len())).rev().find_map(|length| {
        let (before, ending) = (&context[..context.len() - 1], &context[context.len() - length..]);
        let at = before.windows(length).rposition(|window| window == ending)?;
        Some(context[at + length])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_continues_the_longest_repeated_ending() {
        assert_eq!(draft(&[1, 2, 3, 9, 2, 4, 1, 2], 3), [3, 9, 2]);
        assert_eq!(draft(&[7, 8], 3), [8, 8, 8]);
        assert_eq!(draft(&[5, 5], 2), [5, 5]);
        // The later of two occurrences wins.
        assert_eq!(draft(&[1, 2, 1, 3, 1], 1), [3]);
    }
}
