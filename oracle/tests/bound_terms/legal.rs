//! A flash kernel that does what the bound's derivation allows and nothing else, with every liberty taken on purpose.

use ndarray::s;
use oracle::{AttentionOptions, Format};

use super::common::Inputs;

pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
const LN_2: f32 = std::f32::consts::LN_2;

/// From which logit the exponents are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Anchor {
    /// The running maximum, as most kernels do.
    Maximum,
    /// The first key's logit. Softmax does not mind: the maximum only keeps exponentials from overflowing, so a kernel may
    /// keep an old one for as long as they do not.
    FirstKey,
}

/// How a sum is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sum {
    /// One term after the other, rounded each time.
    InOrder,
    /// In an order that makes no error but the last rounding.
    WellOrdered,
}

/// The kernel's choices.
#[derive(Clone, Copy, Debug)]
pub struct Legal {
    /// Format in which P is kept for the second product. The denominator sums P as it was before.
    pub p_format: Format,
    /// Keys between two looks at the maximum.
    pub key_tile: usize,
    /// An exponential within 2 units in the last place.
    pub exp2: fn(f32) -> f32,
    pub anchor: Anchor,
    /// Sum of p·v.
    pub values: Sum,
    /// Sum of p.
    pub denominator: Sum,
}

impl Legal {
    pub const fn new(key_tile: usize) -> Self {
        Self {
            p_format: Format::F32,
            key_tile,
            exp2: f32::exp2,
            anchor: Anchor::Maximum,
            values: Sum::WellOrdered,
            denominator: Sum::WellOrdered,
        }
    }

    /// Output and lse of the only head of row 0, which sees every key.
    pub fn run(&self, inputs: &Inputs, options: &AttentionOptions) -> (Vec<f32>, f32) {
        let scores: Vec<f32> = (0..inputs.k.dim().0).map(|j| self.score(inputs, options, j)).collect();
        let sink = options.sinks.as_ref().map(|sinks| sinks[0] * LOG2_E);
        let mut max = sink.unwrap_or(f32::NEG_INFINITY);
        let mut l = Total::new(self.denominator, if sink.is_some() { 1.0 } else { 0.0 });
        let mut acc: Vec<Total> = vec![Total::new(self.values, 0.0); inputs.v.dim().2];
        for (tile, scores) in scores.chunks(self.key_tile).enumerate() {
            let top = match self.anchor {
                Anchor::Maximum => scores.iter().fold(max, |a, b| a.max(*b)),
                Anchor::FirstKey if tile == 0 => scores[0],
                Anchor::FirstKey => max,
            };
            if max != f32::NEG_INFINITY && top != max {
                let factor = (self.exp2)(max - top);
                l.scale(factor);
                acc.iter_mut().for_each(|acc| acc.scale(factor));
            }
            max = top;
            for (j, score) in scores.iter().enumerate() {
                let p = (self.exp2)(score - max);
                l.add(p, 1.0);
                let kept = self.p_format.decode(self.p_format.encode(p));
                let v = inputs.v.slice(s![tile * self.key_tile + j, 0, ..]);
                acc.iter_mut().zip(v).for_each(|(acc, v)| acc.add(kept, *v));
            }
        }
        let factor = options.v_scale[0] / l.value();
        (acc.iter().map(|acc| acc.value() * factor).collect(), max * LN_2 + l.value().ln())
    }

    /// The logit times log2 e.
    pub fn score(&self, inputs: &Inputs, options: &AttentionOptions, key: usize) -> f32 {
        let pairs = inputs.q.slice(s![0, 0, ..]).into_iter().zip(inputs.k.slice(s![key, 0, ..]));
        let dot = pairs.fold(0.0f32, |sum, (a, b)| a.mul_add(*b, sum));
        let scale = options.softmax_scale as f32;
        if options.softcap.is_none() && options.alibi_slopes.is_none() {
            return dot * (scale * LOG2_E);
        }
        let mut logit = dot * scale;
        if let Some(cap) = options.softcap {
            // tanh through the exponential.
            let cap = cap as f32;
            logit = cap * (1.0 - 2.0 / ((self.exp2)(2.0 * (logit / cap) * LOG2_E) + 1.0));
        }
        if let Some(slopes) = &options.alibi_slopes {
            let position = inputs.k.dim().0 as i64 - inputs.q.dim().0 as i64;
            logit = slopes[0].mul_add((key as i64 - position) as f32, logit);
        }
        logit * LOG2_E
    }
}

/// A running sum in f32, or one whose error is that of its last rounding.
#[derive(Clone, Copy, Debug)]
struct Total {
    order: Sum,
    value: f64,
}

impl Total {
    fn new(order: Sum, value: f64) -> Self {
        Self { order, value }
    }

    fn add(&mut self, a: f32, b: f32) {
        self.value = match self.order {
            Sum::InOrder => f64::from(a.mul_add(b, self.value as f32)),
            Sum::WellOrdered => f64::from(a) * f64::from(b) + self.value,
        };
    }

    /// A rescaling is rounded, whatever the order of the sum.
    fn scale(&mut self, factor: f32) {
        self.value = f64::from(self.value as f32 * factor);
    }

    fn value(&self) -> f32 {
        self.value as f32
    }
}

/// 2 units in the last place too low, except where the result is exact.
pub fn exp2_low(x: f32) -> f32 {
    let exact = x.exp2();
    if x == 0.0 { exact } else { f32::from_bits(exact.to_bits() - 2) }
}

/// Up to 2 units in the last place off, either way: hardly a pattern.
pub fn exp2_uneven(x: f32) -> f32 {
    let hash = (x.to_bits() ^ x.to_bits() >> 15).wrapping_mul(0x2c1b_3c6d);
    let exact = x.exp2();
    if x == 0.0 {
        exact
    } else {
        f32::from_bits(exact.to_bits().wrapping_add((hash >> 13) % 5).wrapping_sub(2))
    }
}

/// Results below the smallest normal number are 0.
pub fn exp2_flushing(x: f32) -> f32 {
    let exact = x.exp2();
    if exact < f32::MIN_POSITIVE { 0.0 } else { exact }
}
