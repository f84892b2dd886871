//! Model files: what is read from them, and what is refused.
#![cfg(feature = "model")]

#[path = "model_support/mod.rs"]
mod support;

use candle_core::quantized::gguf_file::Value;
use cases::model::gguf::Gguf;
use cases::model::tokenizer::Tokenizer;
use rstest::rstest;
use support::{CONTROLS, load, vocabulary, write};

#[test]
fn dimensions_are_read() {
    let (model, _) = load();
    let config = model.config();
    let heads = (config.num_q_heads, config.num_kv_heads, config.head_dim);
    assert_eq!(heads, (support::Q_HEADS, support::KV_HEADS, support::HEAD_DIM));
    assert_eq!((config.layers, config.context), (support::LAYERS, 512));
}

#[rstest]
#[case("general.architecture", Value::String("gpt2".to_owned()), "accepted: llama")]
#[case("llama.attention.head_count", Value::U32(3), "accepted: a divisor of 128")]
#[case("llama.attention.head_count_kv", Value::U32(0), "accepted: a divisor of 2")]
#[case("llama.rope.dimension_count", Value::U32(32), "accepted: 64")]
#[case("llama.block_count", Value::String("two".to_owned()), "accepted: a 32-bit count")]
#[case("tokenizer.ggml.model", Value::String("llama".to_owned()), "accepted: gpt2")]
#[case("tokenizer.ggml.pre", Value::String("qwen2".to_owned()), "accepted: smollm")]
#[case("tokenizer.ggml.add_bos_token", Value::Bool(true), "accepted: false")]
fn metadata_that_would_be_misread_are_refused(
    #[case] key: &str,
    #[case] value: Value,
    #[case] accepted: &str,
) {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), &[(key, value)]);
    let gguf = Gguf::open(file.path()).unwrap();
    let error = gguf.config().map(|_| ()).and_then(|()| Tokenizer::from_gguf(&gguf).map(|_| ())).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with(key) && error.contains(accepted), "{error}");
}

#[test]
fn what_is_no_model_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "not a model").unwrap();
    let error = Gguf::open(file.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("is not a GGUF file"), "{error}");
    let error = Gguf::open("no such file".as_ref()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no such file cannot be read"), "{error}");
}

#[test]
fn text_becomes_tokens_by_merges_digits_stay_apart_and_all_of_it_comes_back() {
    let (_, tokenizer) = load();
    let names = vocabulary();
    let name = |text: &str| {
        tokenizer.encode(text).unwrap().iter().map(|id| names[*id as usize].clone()).collect::<Vec<_>>()
    };
    assert_eq!(name("a the"), ["a", "Ġthe"]);
    assert_eq!(name("the"), ["t", "he"]);
    assert_eq!(name("42"), ["4", "2"]);
    assert_eq!(name("<|im_end|>a"), ["<|im_end|>", "a"]);
    for text in ["Grüße, 世界!\n\t 12", " the  the", "<|im_start|>user"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
    }
    let ends: Vec<bool> = (0..CONTROLS.len() as u32 + 1).map(|id| tokenizer.is_end(id)).collect();
    assert_eq!(ends, [true, false, true, false]);
}
