//! A llama decoder, written plainly: norms, rotary embedding, projections and feed-forward on the host in f32.
//!
//! Attention is the one part that is not done here: [`Attention`] stands for the paged cache and the kernels.

use candle_core::quantized::QMatMul;
use candle_core::{Device, Module, Tensor};

use super::error::ModelError;
use super::gguf::{Config, Gguf};

/// Attention of one layer, with the cache behind it.
pub trait Attention {
    /// Takes the rows of a step and returns the attention output `[rows, num_q_heads, head_dim]`.
    ///
    /// # Errors
    /// Whatever stops the kernels.
    fn attend(&mut self, layer: usize, rows: &Projected) -> Result<Vec<f32>, ModelError>;
}

/// Queries, keys and values of one layer, rotary embedding applied; row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Projected {
    /// `[rows, num_q_heads, head_dim]`.
    pub q: Vec<f32>,
    /// `[rows, num_kv_heads, head_dim]`.
    pub k: Vec<f32>,
    /// `[rows, num_kv_heads, head_dim]`.
    pub v: Vec<f32>,
}

/// A matrix `[outputs, inputs]` that rows are multiplied with.
///
/// The quantised weights are expanded to f32 once: candle's product of quantised blocks has no vector code on x86-64
/// unless the whole build targets one machine, and was measured at a thirtieth of the speed for a prefill.
struct Linear {
    weights: QMatMul,
    inputs: usize,
}

impl Linear {
    fn read(gguf: &mut Gguf, name: &str, outputs: usize, inputs: usize) -> Result<Self, ModelError> {
        let stored = gguf.matrix(name, (outputs, inputs))?;
        let weights = stored.dequantize(&Device::Cpu).map_err(ModelError::tensor(name))?;
        Ok(Self { weights: QMatMul::Tensor(weights), inputs })
    }

    /// `[rows, inputs]` to `[rows, outputs]`.
    fn apply(&self, rows: &[f32]) -> Result<Vec<f32>, ModelError> {
        let product = || {
            let rows = Tensor::from_slice(rows, (rows.len() / self.inputs, self.inputs), &Device::Cpu)?;
            self.weights.forward(&rows)?.flatten_all()?.to_vec1()
        };
        product().map_err(ModelError::tensor("matrix product"))
    }
}

struct Layer {
    attention_norm: Vec<f32>,
    q: Linear,
    k: Linear,
    v: Linear,
    attention_out: Linear,
    feed_forward_norm: Vec<f32>,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn read(gguf: &mut Gguf, config: &Config, index: usize) -> Result<Self, ModelError> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let (embedding, kv) = (config.embedding, config.num_kv_heads * config.head_dim);
        let mut linear = |part: &str, outputs, inputs| Linear::read(gguf, &name(part), outputs, inputs);
        let (q, k, v) = (
            linear("attn_q", embedding, embedding)?,
            linear("attn_k", kv, embedding)?,
            linear("attn_v", kv, embedding)?,
        );
        let attention_out = linear("attn_output", embedding, embedding)?;
        let (gate, up) = (
            linear("ffn_gate", config.feed_forward, embedding)?,
            linear("ffn_up", config.feed_forward, embedding)?,
        );
        let down = linear("ffn_down", embedding, config.feed_forward)?;
        Ok(Self {
            attention_norm: gguf.vector(&name("attn_norm"), embedding)?,
            q,
            k,
            v,
            attention_out,
            feed_forward_norm: gguf.vector(&name("ffn_norm"), embedding)?,
            gate,
            up,
            down,
        })
    }
}

/// A model ready to run.
pub struct Decoder {
    config: Config,
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    output: Linear,
}

impl Decoder {
    /// Reads all weights of a file.
    ///
    /// # Errors
    /// If tensors are missing or have other shapes than the configuration says.
    pub fn from_gguf(gguf: &mut Gguf) -> Result<Self, ModelError> {
        let config = gguf.config()?;
        let vocabulary = gguf.rows("token_embd.weight")?;
        let stored = gguf.matrix("token_embd.weight", (vocabulary, config.embedding))?;
        let embedding = stored.dequantize(&Device::Cpu).map_err(ModelError::tensor("token_embd.weight"))?;
        // Without a matrix of its own, the output shares the embedding's memory.
        let output = match gguf.has("output.weight") {
            true => Linear::read(gguf, "output.weight", vocabulary, config.embedding)?,
            false => Linear { weights: QMatMul::Tensor(embedding.clone()), inputs: config.embedding },
        };
        let layers =
            (0..config.layers).map(|index| Layer::read(gguf, &config, index)).collect::<Result<_, _>>()?;
        let norm = gguf.vector("output_norm.weight", config.embedding)?;
        Ok(Self { config, embedding, layers, norm, output })
    }

    /// The model's dimensions.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Runs tokens through all layers. `positions` are theirs in their sequences. Returns `[rows, embedding]`, normed.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, or attention fails.
    pub fn forward(
        &self,
        tokens: &[u32],
        positions: &[usize],
        attention: &mut dyn Attention,
    ) -> Result<Vec<f32>, ModelError> {
        let config = &self.config;
        let rope = Rope::new(config, positions);
        let mut stream = self.embed(tokens)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = rms_norm(&stream, &layer.attention_norm, config.norm_epsilon);
            let mut rows = Projected {
                q: layer.q.apply(&normed)?,
                k: layer.k.apply(&normed)?,
                v: layer.v.apply(&normed)?,
            };
            rope.rotate(&mut rows.q, config.num_q_heads);
            rope.rotate(&mut rows.k, config.num_kv_heads);
            let attended = attention.attend(index, &rows)?;
            add(&mut stream, &layer.attention_out.apply(&attended)?);
            let normed = rms_norm(&stream, &layer.feed_forward_norm, config.norm_epsilon);
            let gated = silu_times(&layer.gate.apply(&normed)?, &layer.up.apply(&normed)?);
            add(&mut stream, &layer.down.apply(&gated)?);
        }
        Ok(rms_norm(&stream, &self.norm, config.norm_epsilon))
    }

    /// The logits `[rows, vocabulary]` of rows that [`Self::forward`] returned.
    ///
    /// # Errors
    /// If the product fails.
    pub fn logits(&self, rows: &[f32]) -> Result<Vec<f32>, ModelError> {
        self.output.apply(rows)
    }

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        let rows = || {
            let tokens = Tensor::from_slice(tokens, tokens.len(), &Device::Cpu)?;
            self.embedding.index_select(&tokens, 0)?.flatten_all()?.to_vec1()
        };
        rows().map_err(ModelError::tensor("embedding"))
    }
}

/// Cosines and sines of the rotary embedding for the rows of a step.
///
/// Neighbouring elements (2i, 2i + 1) form a pair: the order in which GGUF files keep the weights of Q and K.
struct Rope {
    /// `[rows][head_dim / 2]`.
    angles: Vec<(f32, f32)>,
    head_dim: usize,
}

impl Rope {
    fn new(config: &Config, positions: &[usize]) -> Self {
        let pairs = config.head_dim / 2;
        let frequency = |pair: usize| f64::from(config.rope_base).powf(-(pair as f64) / pairs as f64);
        let frequencies: Vec<f64> = (0..pairs).map(frequency).collect();
        let angle = |position: usize, frequency: f64| {
            let (sine, cosine) = (position as f64 * frequency).sin_cos();
            (cosine as f32, sine as f32)
        };
        let angles = positions.iter().flat_map(|&p| frequencies.iter().map(move |&f| angle(p, f))).collect();
        Self { angles, head_dim: config.head_dim }
    }

    fn rotate(&self, values: &mut [f32], heads: usize) {
        let row = heads * self.head_dim;
        for (values, angles) in values.chunks_exact_mut(row).zip(self.angles.chunks_exact(self.head_dim / 2))
        {
            for head in values.chunks_exact_mut(self.head_dim) {
                for (pair, (cosine, sine)) in head.chunks_exact_mut(2).zip(angles) {
                    (pair[0], pair[1]) =
                        (pair[0] * cosine - pair[1] * sine, pair[0] * sine + pair[1] * cosine);
                }
            }
        }
    }
}

fn rms_norm(rows: &[f32], weights: &[f32], epsilon: f32) -> Vec<f32> {
    let mut normed = Vec::with_capacity(rows.len());
    for row in rows.chunks_exact(weights.len()) {
        let squares: f64 = row.iter().map(|x| f64::from(x * x)).sum();
        let scale = 1.0 / (squares / row.len() as f64 + f64::from(epsilon)).sqrt();
        normed.extend(row.iter().zip(weights).map(|(x, w)| x * scale as f32 * w));
    }
    normed
}

fn add(to: &mut [f32], what: &[f32]) {
    to.iter_mut().zip(what).for_each(|(to, what)| *to += what);
}

fn silu_times(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            name: String::new(),
            layers: 1,
            embedding: 8,
            feed_forward: 8,
            num_q_heads: 2,
            num_kv_heads: 1,
            head_dim: 4,
            context: 16,
            rope_base: 10_000.0,
            norm_epsilon: 0.0,
        }
    }

    #[test]
    fn rotation_turns_neighbours_by_the_position() {
        let rope = Rope::new(&config(), &[0, 3]);
        let mut values = vec![1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        rope.rotate(&mut values, 1);
        assert_eq!(&values[..4], [1.0, 0.0, 0.0, 1.0]);
        // The second pair turns a hundredth as fast: 10000^(-1/2).
        let want = [3_f32.cos(), 3_f32.sin(), -0.03_f32.sin(), 0.03_f32.cos()];
        for (got, want) in values[4..].iter().zip(want) {
            assert!((got - want).abs() < 1e-6, "{got} {want}");
        }
    }

    #[test]
    fn scores_depend_on_the_distance_alone() {
        let rotated = |position: usize| {
            let mut values = vec![0.3, -1.2, 0.7, 0.9];
            Rope::new(&config(), &[position]).rotate(&mut values, 1);
            values
        };
        let score =
            |a: usize, b: usize| -> f32 { rotated(a).iter().zip(rotated(b)).map(|(x, y)| x * y).sum() };
        assert!((score(2, 5) - score(9, 12)).abs() < 1e-5);
        assert!((score(2, 5) - score(2, 6)).abs() > 1e-2);
    }

    #[test]
    fn a_norm_makes_the_mean_square_one() {
        assert_eq!(rms_norm(&[3.0, -3.0, 1.0, 1.0], &[1.0, 2.0], 0.0), [1.0, -2.0, 1.0, 2.0]);
    }

    #[test]
    fn the_gate_is_a_sigmoid_of_itself() {
        assert_eq!(silu_times(&[0.0, 100.0, -100.0], &[5.0, 2.0, 3.0])[..2], [0.0, 200.0]);
        assert!((silu_times(&[1.0], &[1.0])[0] - 0.731_058_6).abs() < 1e-6);
    }
}
