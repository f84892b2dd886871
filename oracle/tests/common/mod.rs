//! Inputs, a simulated kernel that is right, and impostors that are wrong: what the bound is tested with.
#![allow(dead_code, reason = "each test binary uses its own part")]

use ndarray::{Array2, Array3, Axis, s};
use oracle::{AttentionOptions, Format, Mask, Request};

/// splitmix64: a small generator whose numbers depend on nothing but the seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Roughly normal, mean 0 and variance 1, within ±6.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// Uniform integer in −limit..=limit.
    pub fn integer(&mut self, limit: i64) -> i64 {
        (self.next() % (2 * limit as u64 + 1)) as i64 - limit
    }
}

/// The arrays that a request borrows.
#[derive(Clone)]
pub struct Inputs {
    pub q: Array3<f32>,
    pub k: Array3<f32>,
    pub v: Array3<f32>,
}

/// Extents of a problem.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub q_len: usize,
    pub kv_len: usize,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

impl Shape {
    pub const fn new(q_len: usize, kv_len: usize, q_heads: usize, kv_heads: usize, dim: usize) -> Self {
        Self { q_len, kv_len, q_heads, kv_heads, k_dim: dim, v_dim: dim }
    }
}

impl Inputs {
    /// Normal values rounded to bf16.
    pub fn normal(shape: Shape, seed: u64) -> Self {
        let mut rng = Rng(seed);
        Self::from_fn(shape, |_| Format::Bf16.round(rng.normal()) as f32)
    }

    /// Integers: q and k in −2..=2, v in −8..=8, so that every product and sum is exact in f32.
    pub fn grid(shape: Shape, seed: u64) -> Self {
        let mut rng = Rng(seed);
        Self::from_fn(shape, |is_v| rng.integer(if is_v { 8 } else { 2 }) as f32)
    }

    pub fn from_fn(shape: Shape, mut value: impl FnMut(bool) -> f32) -> Self {
        Self {
            q: Array3::from_shape_simple_fn((shape.q_len, shape.q_heads, shape.k_dim), || value(false)),
            k: Array3::from_shape_simple_fn((shape.kv_len, shape.kv_heads, shape.k_dim), || value(false)),
            v: Array3::from_shape_simple_fn((shape.kv_len, shape.kv_heads, shape.v_dim), || value(true)),
        }
    }

    pub fn request(&self) -> Request<'_> {
        Request { q: self.q.view(), k: self.k.view(), v: self.v.view() }
    }
}

/// Answers of a kernel: output in `out_format`, decoded, and lse.
pub struct Answer {
    pub out: Array3<f32>,
    pub lse: Array2<f32>,
}

/// A correct flash kernel in f32, with the roundings that GPU kernels make.
#[derive(Clone, Copy, Debug)]
pub struct Flash {
    pub p_format: Format,
    pub out_format: Format,
    pub key_tile: usize,
    /// Multiply q·k by softmax_scale·log2(e) at once, where no option needs the natural logit.
    pub folds_log2e: bool,
}

/// Running state of one row of one head.
struct Running {
    max: f32,
    sum: f32,
    acc: Vec<f32>,
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;

/// exp2 as hardware gives it: off by up to 2 units in the last place, in either direction.
fn hardware_exp2(x: f32) -> f32 {
    let hash = (x.to_bits() ^ x.to_bits() >> 15).wrapping_mul(0x2c1b_3c6d);
    let ulps = (hash >> 13) as i32 % 5 - 2;
    x.exp2() * (1.0 + ulps as f32 * f32::EPSILON / 2.0)
}

/// tanh through the exponential, as kernels without a hardware tanh have it.
fn tanh_by_exp(x: f32) -> f32 {
    1.0 - 2.0 / (hardware_exp2(2.0 * x * LOG2_E) + 1.0)
}

impl Flash {
    pub fn run(&self, inputs: &Inputs, options: &AttentionOptions) -> Answer {
        let (q_len, q_heads, _) = inputs.q.dim();
        let v_dim = inputs.v.dim().2;
        let mut answer =
            Answer { out: Array3::zeros((q_len, q_heads, v_dim)), lse: Array2::zeros((q_len, q_heads)) };
        for row in 0..q_len {
            for head in 0..q_heads {
                let (out, lse) = self.row(inputs, options, row, head);
                for (d, value) in out.into_iter().enumerate() {
                    answer.out[[row, head, d]] = self.out_format.decode(self.out_format.encode(value));
                }
                answer.lse[[row, head]] = lse;
            }
        }
        answer
    }

    fn row(&self, inputs: &Inputs, options: &AttentionOptions, row: usize, head: usize) -> (Vec<f32>, f32) {
        let kv_head = head / (inputs.q.dim().1 / inputs.k.dim().1);
        let mask = mask_of(inputs, options);
        let visible = mask.visible_keys(mask.position(row));
        let v_scale = scale(&options.v_scale, kv_head);
        let sink = options.sinks.as_ref().map(|sinks| sinks[head] * LOG2_E);
        let mut state = Running {
            max: sink.unwrap_or(f32::NEG_INFINITY),
            sum: if sink.is_some() { 1.0 } else { 0.0 },
            acc: vec![0.0; inputs.v.dim().2],
        };
        let mut start = visible.start;
        while start < visible.end {
            let end = (start + self.key_tile).min(visible.end);
            let logits: Vec<f32> =
                (start..end).map(|j| self.log2_logit(inputs, options, row, head, j)).collect();
            state.add_tile(&logits, self.p_format, |j, d| inputs.v[[start + j, kv_head, d]]);
            start = end;
        }
        if state.max == f32::NEG_INFINITY {
            return (state.acc, f32::NEG_INFINITY);
        }
        let factor = v_scale / state.sum;
        let lse = state.max * std::f32::consts::LN_2 + state.sum.ln();
        (state.acc.iter().map(|acc| acc * factor).collect(), lse)
    }

    /// The logit times log2(e), in f32.
    fn log2_logit(
        &self,
        inputs: &Inputs,
        options: &AttentionOptions,
        row: usize,
        head: usize,
        j: usize,
    ) -> f32 {
        let kv_head = head / (inputs.q.dim().1 / inputs.k.dim().1);
        let q = inputs.q.slice(s![row, head, ..]);
        let dot =
            q.iter().zip(inputs.k.slice(s![j, kv_head, ..])).fold(0.0f32, |sum, (a, b)| a.mul_add(*b, sum));
        let sigma = options.softmax_scale as f32 * scale(&options.k_scale, kv_head);
        if self.folds_log2e && options.softcap.is_none() && options.alibi_slopes.is_none() {
            return dot * (sigma * LOG2_E);
        }
        let mut logit = dot * sigma;
        if let Some(cap) = options.softcap {
            logit = cap as f32 * tanh_by_exp(logit / cap as f32);
        }
        if let Some(slopes) = &options.alibi_slopes {
            let distance = j as i64 - mask_of(inputs, options).position(row);
            logit = slopes[head].mul_add(distance as f32, logit);
        }
        logit * LOG2_E
    }
}

impl Running {
    fn add_tile(&mut self, logits: &[f32], p_format: Format, v: impl Fn(usize, usize) -> f32) {
        let max = logits.iter().fold(self.max, |max, &logit| max.max(logit));
        if max == f32::NEG_INFINITY {
            return;
        }
        let rescale = hardware_exp2(self.max - max);
        self.sum *= rescale;
        self.acc.iter_mut().for_each(|acc| *acc *= rescale);
        self.max = max;
        for (j, logit) in logits.iter().enumerate() {
            let p = hardware_exp2(logit - max);
            self.sum += p;
            let kept = p_format.decode(p_format.encode(p));
            for (d, acc) in self.acc.iter_mut().enumerate() {
                *acc = kept.mul_add(v(j, d), *acc);
            }
        }
    }
}

pub fn mask_of(inputs: &Inputs, options: &AttentionOptions) -> Mask {
    Mask {
        q_len: inputs.q.dim().0 as i64,
        kv_len: inputs.k.dim().0 as i64,
        causal: options.causal,
        window_left: options.window_left,
        window_right: options.window_right,
    }
}

fn scale(scales: &[f32], kv_head: usize) -> f32 {
    if scales.len() == 1 { scales[0] } else { scales[kv_head] }
}

/// An impostor that writes zeros.
pub fn zeros(inputs: &Inputs) -> Array3<f32> {
    let (q_len, q_heads, _) = inputs.q.dim();
    Array3::zeros((q_len, q_heads, inputs.v.dim().2))
}

/// An impostor that ignores Q and K: the mean of the visible values.
pub fn mean_of_v(inputs: &Inputs, options: &AttentionOptions, out_format: Format) -> Array3<f32> {
    let mask = mask_of(inputs, options);
    let mut out = zeros(inputs);
    let group = inputs.q.dim().1 / inputs.k.dim().1;
    for ((row, head, d), value) in out.indexed_iter_mut() {
        let visible = mask.visible_keys(mask.position(row));
        let column = inputs.v.slice(s![visible, head / group, d]);
        let mean = column.iter().map(|&v| f64::from(v)).sum::<f64>() / column.len_of(Axis(0)).max(1) as f64;
        *value = out_format.round(mean * f64::from(scale(&options.v_scale, head / group))) as f32;
    }
    out
}
