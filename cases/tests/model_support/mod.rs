//! A tiny llama with random weights as a GGUF file, and what the tests of `attest model` share.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use cases::model::check::Checks;
use cases::model::decoder::Decoder;
use cases::model::engine::Launching;
use cases::model::gguf::Gguf;
use cases::model::session::Session;
use cases::model::tokenizer::Tokenizer;
use kernels::device::DeviceRef;
use kernels::route::Knobs;
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

pub const LAYERS: usize = 2;
pub const EMBEDDING: usize = 128;
pub const FEED_FORWARD: usize = 192;
pub const Q_HEADS: usize = 2;
pub const KV_HEADS: usize = 1;
pub const HEAD_DIM: usize = 64;
pub const ROPE_BASE: f32 = 10_000.0;
pub const EPSILON: f32 = 1e-5;
pub const CONTROLS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub const MERGES: [&str; 3] = ["Ġ t", "h e", "Ġt he"];

/// The vocabulary: control tokens, then one token per byte, then the merged ones.
pub fn vocabulary() -> Vec<String> {
    let mut alphabet: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    alphabet.sort();
    let merged = MERGES.map(|merge| merge.replace(' ', ""));
    CONTROLS.into_iter().map(str::to_owned).chain(alphabet).chain(merged).collect()
}

/// Name, shape (outputs first) and spread of every tensor of the model.
pub fn tensors() -> Vec<(String, Vec<usize>, f32)> {
    let vocabulary = vocabulary().len();
    let spread = |inputs: usize| 1.0 / (inputs as f32).sqrt();
    let kv = KV_HEADS * HEAD_DIM;
    let mut all = vec![
        ("token_embd.weight".to_owned(), vec![vocabulary, EMBEDDING], 1.0),
        ("output.weight".to_owned(), vec![vocabulary, EMBEDDING], 4.0 * spread(EMBEDDING)),
        ("output_norm.weight".to_owned(), vec![EMBEDDING], 0.0),
    ];
    for layer in 0..LAYERS {
        let mut matrix = |part: &str, outputs: usize, inputs: usize, gain: f32| {
            let name = format!("blk.{layer}.{part}.weight");
            all.push((name, vec![outputs, inputs], gain * spread(inputs)));
        };
        // Sharp scores and a loud attention output: a wrong attention must change the answer.
        matrix("attn_q", EMBEDDING, EMBEDDING, 2.0);
        matrix("attn_k", kv, EMBEDDING, 2.0);
        matrix("attn_v", kv, EMBEDDING, 2.0);
        matrix("attn_output", EMBEDDING, EMBEDDING, 2.0);
        matrix("ffn_gate", FEED_FORWARD, EMBEDDING, 1.0);
        matrix("ffn_up", FEED_FORWARD, EMBEDDING, 1.0);
        matrix("ffn_down", EMBEDDING, FEED_FORWARD, 1.0);
        for part in ["attn_norm", "ffn_norm"] {
            all.push((format!("blk.{layer}.{part}.weight"), vec![EMBEDDING], 0.0));
        }
    }
    all
}

/// The values of a tensor: ones where its spread is 0, else uniform with that standard deviation.
pub fn values(index: usize, elements: usize, spread: f32) -> Vec<f32> {
    if spread == 0.0 {
        return vec![1.0; elements];
    }
    let mut random = ChaCha8Rng::seed_from_u64(1000 + index as u64);
    let half = spread * 3_f32.sqrt();
    (0..elements).map(|_| random.random_range(-half..half)).collect()
}

/// Metadata of the model, with some entries replaced.
pub fn metadata(changes: &[(&str, Value)]) -> Vec<(String, Value)> {
    let strings = |list: Vec<String>| Value::Array(list.into_iter().map(Value::String).collect());
    let tokens = vocabulary();
    let types = (0..tokens.len()).map(|id| Value::I32(if id < CONTROLS.len() { 3 } else { 1 })).collect();
    let text = |text: &str| Value::String(text.to_owned());
    let mut all = vec![
        ("general.architecture", text("llama")),
        ("general.name", text("tiny")),
        ("llama.block_count", Value::U32(LAYERS as u32)),
        ("llama.context_length", Value::U32(512)),
        ("llama.embedding_length", Value::U32(EMBEDDING as u32)),
        ("llama.feed_forward_length", Value::U32(FEED_FORWARD as u32)),
        ("llama.attention.head_count", Value::U32(Q_HEADS as u32)),
        ("llama.attention.head_count_kv", Value::U32(KV_HEADS as u32)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(EPSILON)),
        ("llama.rope.freq_base", Value::F32(ROPE_BASE)),
        ("llama.rope.dimension_count", Value::U32(HEAD_DIM as u32)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("smollm")),
        ("tokenizer.ggml.tokens", strings(tokens)),
        ("tokenizer.ggml.token_type", Value::Array(types)),
        ("tokenizer.ggml.merges", strings(MERGES.map(str::to_owned).to_vec())),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
    ];
    for (key, value) in changes {
        all.retain(|(name, _)| name != key);
        all.push((key, value.clone()));
    }
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Writes the model.
pub fn write(path: &Path, changes: &[(&str, Value)]) {
    let quantise = |(index, (name, shape, spread)): (usize, (String, Vec<usize>, f32))| {
        let values = values(index, shape.iter().product(), spread);
        let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
        (name, QTensor::quantize(&tensor, GgmlDType::F32).unwrap())
    };
    let tensors: Vec<(String, QTensor)> = tensors().into_iter().enumerate().map(quantise).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let metadata = metadata(changes);
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(name, value)| (name.as_str(), value)).collect();
    gguf_file::write(&mut std::fs::File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// The model, read back from a file.
pub fn load() -> (Decoder, Tokenizer) {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), &[]);
    let mut gguf = Gguf::open(file.path()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    (Decoder::from_gguf(&mut gguf).unwrap(), tokenizer)
}

/// A simt device with these kernel sources.
pub fn device_with(sources: SourceSet) -> DeviceRef {
    let options = SimtOptions { mode: Mode::Fast, ..SimtOptions::new(sources) };
    SimtDevice::new(options).unwrap()
}

/// A simt device with the kernels as they are.
pub fn device() -> DeviceRef {
    device_with(SourceSet::load().unwrap())
}

/// A session that judges every call.
pub fn session<'m>(model: &'m (Decoder, Tokenizer), device: DeviceRef) -> Session<'m> {
    Session {
        model: &model.0,
        tokenizer: &model.1,
        device,
        launching: Launching { arm: None, knobs: Knobs::default() },
        checks: Checks::All,
        page_size: 16,
        seed: 3,
        calibrate: false,
    }
}

/// So many tokens of nonsense, none of them a control token.
pub fn prompt(tokens: usize, seed: u64) -> Vec<u32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let vocabulary = vocabulary().len() as u32;
    (0..tokens).map(|_| random.random_range(CONTROLS.len() as u32..vocabulary)).collect()
}
