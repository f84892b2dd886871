//! The byte-level BPE tokenizer that a GGUF file describes.

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::{AddedToken, Tokenizer as Inner};

use super::error::ModelError;
use super::gguf::Gguf;

/// `tokenizer.ggml.token_type` of a token that never comes out of text.
const CONTROL: i32 = 3;

/// Turns text into tokens and back.
pub struct Tokenizer {
    inner: Inner,
    ends: Vec<u32>,
}

impl Tokenizer {
    /// The tokenizer of a model file.
    ///
    /// # Errors
    /// If the file describes another kind of tokenizer.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        check_kind(gguf)?;
        let tokens = gguf.strings("tokenizer.ggml.tokens")?;
        let types = gguf.integers("tokenizer.ggml.token_type")?;
        let merges = gguf.strings("tokenizer.ggml.merges")?;
        let merges = merges
            .iter()
            .map(|merge| {
                let (left, right) = merge.split_once(' ').ok_or_else(|| {
                    ModelError::metadata(
                        "tokenizer.ggml.merges",
                        format!("{merge:?}"),
                        "two parts and a space",
                    )
                })?;
                Ok((left.to_owned(), right.to_owned()))
            })
            .collect::<Result<Vec<_>, ModelError>>()?;
        let vocabulary: Vocab = tokens.iter().cloned().zip(0..).collect();
        let model =
            BPE::builder().vocab_and_merges(vocabulary, merges).build().map_err(refused("be built"))?;
        let mut inner = Inner::new(model);
        let bytes = ByteLevel::new(false, true, true);
        inner.with_pre_tokenizer(Some(Sequence::new(vec![Digits::new(true).into(), bytes.into()])));
        inner.with_decoder(Some(bytes));
        let controls = tokens.iter().zip(&types).filter(|(_, kind)| **kind == CONTROL);
        inner
            .add_special_tokens(controls.map(|(token, _)| AddedToken::from(token.clone(), true)))
            .map_err(refused("take its control tokens"))?;
        let end = gguf.size("tokenizer.ggml.eos_token_id").ok().and_then(|id| u32::try_from(id).ok());
        let ends = end.into_iter().chain(inner.token_to_id("<|endoftext|>")).collect();
        Ok(Self { inner, ends })
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        let encoding = self.inner.encode(text, false).map_err(refused("encode the text"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of tokens, control tokens included.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, ModelError> {
        self.inner.decode(tokens, false).map_err(refused("decode tokens"))
    }

    /// Whether a token ends an answer.
    #[must_use]
    pub fn is_end(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }
}

/// Only the kind whose rules are written down above is accepted: another split of the text would give other tokens
/// without any error.
fn check_kind(gguf: &Gguf) -> Result<(), ModelError> {
    for (key, accepted) in [("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")] {
        let kind = gguf.string(key)?;
        if kind != accepted {
            return Err(ModelError::metadata(key, kind, accepted));
        }
    }
    for key in ["tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"] {
        if gguf.flag(key) {
            return Err(ModelError::metadata(key, true, "false"));
        }
    }
    Ok(())
}

fn refused(what: &'static str) -> impl FnOnce(tokenizers::Error) -> ModelError {
    move |reason| ModelError::Tokenizer { what, reason: reason.to_string() }
}
