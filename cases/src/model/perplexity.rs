//! How well a model predicts a text: the one figure in which all rounding of the cache adds up.

use super::engine::{Engine, Work};
use super::error::ModelError;
use super::generate::with_sequence;

/// Rows whose logits are held at once.
const LOGIT_ROWS: usize = 64;

/// Sum of surprise over the tokens of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Tokens predicted.
    pub tokens: usize,
    /// Sum of their negative natural log-likelihoods.
    pub nats: f64,
}

impl Perplexity {
    /// Mean negative log-likelihood, in nats per token.
    #[must_use]
    pub fn nats_per_token(&self) -> f64 {
        self.nats / self.tokens as f64
    }

    /// The perplexity: e to the mean negative log-likelihood.
    #[must_use]
    pub fn value(&self) -> f64 {
        self.nats_per_token().exp()
    }
}

/// Predicts every token of a text but the first of each window. Windows of `window` tokens do not overlap and do not see
/// each other; each is prefilled in chunks of `chunk` rows.
///
/// # Errors
/// If there is no token to predict, or a step fails.
pub fn perplexity(
    engine: &mut Engine<'_>,
    tokens: &[u32],
    window: usize,
    chunk: usize,
) -> Result<Perplexity, ModelError> {
    if tokens.len() < 2 || window < 2 {
        return Err(ModelError::Argument {
            argument: "text",
            value: format!("{} tokens in windows of {window}", tokens.len()),
            accepted: "at least 2 tokens in windows of at least 2".to_owned(),
        });
    }
    let mut sum = Perplexity::default();
    for text in tokens.chunks(window).filter(|text| text.len() > 1) {
        with_sequence(engine, |engine, sequence| {
            for inputs in text[..text.len() - 1].chunks(chunk.max(1)) {
                let first = sequence.len();
                let rows = engine.step(&mut [Work { sequence, tokens: inputs }], None)?;
                let wanted = &text[first + 1..=first + inputs.len()];
                surprise(engine, &rows, wanted, first, &mut sum)?;
            }
            Ok(())
        })?;
    }
    Ok(sum)
}

fn surprise(
    engine: &Engine<'_>,
    rows: &[f32],
    wanted: &[u32],
    first: usize,
    sum: &mut Perplexity,
) -> Result<(), ModelError> {
    let model = engine.model();
    let width = model.config().embedding;
    for (part, (rows, wanted)) in rows.chunks(LOGIT_ROWS * width).zip(wanted.chunks(LOGIT_ROWS)).enumerate() {
        let logits = model.logits(rows)?;
        for (row, &token) in wanted.iter().enumerate() {
            let logits = &logits[row * logits.len() / wanted.len()..(row + 1) * logits.len() / wanted.len()];
            let nats = negative_log_likelihood(logits, token as usize);
            if !nats.is_finite() {
                let position = first + part * LOGIT_ROWS + row;
                return Err(ModelError::NotFinite { position, value: nats as f32 });
            }
            sum.nats += nats;
            sum.tokens += 1;
        }
    }
    Ok(())
}

fn negative_log_likelihood(logits: &[f32], token: usize) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    sum.ln() + f64::from(max) - f64::from(logits[token])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_are_as_surprising_as_a_die() {
        assert!((negative_log_likelihood(&[3.0; 6], 2) - 6_f64.ln()).abs() < 1e-12);
        let certain = negative_log_likelihood(&[1000.0, 0.0], 0);
        assert!(certain.abs() < 1e-12, "{certain}");
        assert!((negative_log_likelihood(&[1000.0, 0.0], 1) - 1000.0).abs() < 1e-9);
    }

    #[test]
    fn perplexity_is_the_exponential_of_the_mean() {
        let sum = Perplexity { tokens: 4, nats: 4.0 * 6_f64.ln() };
        assert!((sum.value() - 6.0).abs() < 1e-12);
    }
}
