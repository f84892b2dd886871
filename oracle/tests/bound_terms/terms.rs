//! The bound of one output element and of one lse, term by term, written from its definition and from nothing else.

use ndarray::{Array1, Array2, s};
use oracle::{AttentionOptions, BoundModel};

use super::common::Inputs;

const U: f64 = 1.0 / 16_777_216.0;
/// Error of the exponential.
const E: f64 = 4.0 * U;
/// What first order leaves out: a factor of the whole.
pub const SECOND_ORDER: f64 = 1.0 + 1.0 / 128.0;

/// A term of the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// D 2^-23 S_j.
    Dot,
    /// 4u S_j.
    Scaling,
    /// 4u |sink|, its part in the same.
    SinkScaling,
    /// c 2^-21.
    Softcap,
    /// 3u |slope| max |j − p|.
    Alibi,
    /// u |x_j|.
    Exponent,
    /// T (u + e).
    Rescaling,
    /// u max |x|.
    Anchor,
    /// e.
    Exponential,
    /// u_P B.
    RoundingP,
    /// L 2^-23, of B or of 1.
    Products,
    /// (min(B_T, L) + T + 4) u, of B or of 1.
    Sums,
    /// tau Σ |c_vj| / l.
    Underflow,
    /// u |lse|.
    Lse,
}

/// What a row's keys and sink are, in f64.
struct Row {
    weights: Vec<f64>,
    /// Logits relative to the maximum.
    x: Vec<f64>,
    magnitudes: Vec<f64>,
    /// c_vj, of the one dim.
    values: Vec<f64>,
    /// The last entry of each of the above is the sink's, if there is one.
    keys: usize,
    denominator: f64,
    lse: f64,
    distance: f64,
}

/// `k q`, in f64.
fn product(k: &Array2<f64>, q: &Array1<f64>) -> Array1<f64> {
    k.dot(q)
}

fn row(inputs: &Inputs, options: &AttentionOptions, dim: usize) -> Row {
    let keys = inputs.k.dim().0;
    let position = keys as i64 - inputs.q.dim().0 as i64;
    let q = inputs.q.slice(s![0, 0, ..]).mapv(f64::from);
    let k = inputs.k.slice(s![.., 0, ..]).mapv(f64::from);
    let slope = options.alibi_slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[0]));
    let logit = |(j, dot): (usize, &f64)| {
        let scaled = options.softmax_scale * dot;
        let capped = options.softcap.map_or(scaled, |cap| cap * (scaled / cap).tanh());
        capped + slope * (j as i64 - position) as f64
    };
    let mut x: Vec<f64> = product(&k, &q).iter().enumerate().map(logit).collect();
    let mut magnitudes: Vec<f64> =
        product(&k.mapv(f64::abs), &q.mapv(f64::abs)).iter().map(|s| s * options.softmax_scale).collect();
    let mut values: Vec<f64> = inputs.v.slice(s![.., 0, dim]).iter().map(|v| f64::from(*v)).collect();
    if let Some(sinks) = &options.sinks {
        x.push(f64::from(sinks[0]));
        magnitudes.push(f64::from(sinks[0].abs()));
        values.push(0.0);
    }
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    x.iter_mut().for_each(|x| *x -= max);
    let denominator: f64 = x.iter().map(|x| x.exp()).sum();
    let distances = [position.abs(), (keys as i64 - 1 - position).abs()];
    Row {
        weights: x.iter().map(|x| x.exp() / denominator).collect(),
        lse: max + denominator.ln(),
        distance: distances.into_iter().max().unwrap_or(0) as f64,
        x,
        magnitudes,
        values,
        keys,
        denominator,
    }
}

impl Row {
    /// Every term of eta_j, of a key or of the sink.
    fn eta(&self, j: usize, options: &AttentionOptions, model: &BoundModel, dims: usize) -> Vec<(Term, f64)> {
        let (is_key, magnitude) = (j < self.keys, self.magnitudes[j]);
        let tiles = self.keys.div_ceil(model.key_tile) as f64;
        let max_x = self.x[..self.keys].iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        let slope = options.alibi_slopes.as_ref().map_or(0.0, |slopes| f64::from(slopes[0].abs()));
        let of_keys = |value: f64| if is_key { value } else { 0.0 };
        let dot = if model.grid_inputs { 0.0 } else { dims as f64 * 2.0 * U * magnitude };
        vec![
            (Term::Dot, of_keys(dot)),
            (Term::Scaling, of_keys(4.0 * U * magnitude)),
            (Term::SinkScaling, if is_key { 0.0 } else { 4.0 * U * magnitude }),
            (Term::Softcap, of_keys(options.softcap.unwrap_or(0.0) * 8.0 * U)),
            (Term::Alibi, of_keys(3.0 * U * slope * self.distance)),
            (Term::Exponent, U * self.x[j].abs()),
            (Term::Rescaling, tiles * (U + E)),
            (Term::Anchor, U * max_x),
            (Term::Exponential, E),
        ]
    }

    /// Sums the terms of eta over keys and sink, each key with a factor of its own.
    fn sum_eta(
        &self,
        options: &AttentionOptions,
        model: &BoundModel,
        dims: usize,
        factor: impl Fn(usize) -> f64,
    ) -> Vec<(Term, f64)> {
        let mut sums: Vec<(Term, f64)> = Vec::new();
        for j in 0..self.x.len() {
            let terms =
                self.eta(j, options, model, dims).into_iter().map(|(term, eta)| (term, factor(j) * eta));
            match sums.is_empty() {
                true => sums = terms.collect(),
                false => sums.iter_mut().zip(terms).for_each(|(sum, term)| sum.1 += term.1),
            }
        }
        sums
    }

    /// Factors of B, or of 1 for lse.
    fn of_sums(&self, model: &BoundModel) -> [(Term, f64); 2] {
        let (keys, tile) = (self.keys as f64, model.key_tile.min(self.keys) as f64);
        let tiles = self.keys.div_ceil(model.key_tile) as f64;
        [(Term::Products, keys * 2.0 * U), (Term::Sums, (tile + tiles + 4.0) * U)]
    }
}

/// The terms of the bound of an output element of row 0, head 0, with a v_scale of 1.
pub fn of_out(
    inputs: &Inputs,
    options: &AttentionOptions,
    model: &BoundModel,
    dim: usize,
) -> Vec<(Term, f64)> {
    let row = row(inputs, options, dim);
    let pairs = || row.weights.iter().zip(&row.values);
    let mean: f64 = pairs().map(|(w, v)| w * v).sum();
    let b: f64 = pairs().map(|(w, v)| w * v.abs()).sum();
    let lost: f64 = row.values.iter().map(|v| v.abs()).sum::<f64>() / row.denominator;
    let dims = inputs.q.dim().2;
    let mut terms = row.sum_eta(options, model, dims, |j| row.weights[j] * (row.values[j] - mean).abs());
    terms.push((Term::RoundingP, model.p_unit_roundoff * b));
    terms.extend(row.of_sums(model).map(|(term, factor)| (term, factor * b)));
    terms.push((Term::Underflow, model.p_underflow * lost));
    terms
}

/// The terms of the bound of the lse of row 0, head 0.
pub fn of_lse(inputs: &Inputs, options: &AttentionOptions, model: &BoundModel) -> Vec<(Term, f64)> {
    let row = row(inputs, options, 0);
    let mut terms = row.sum_eta(options, model, inputs.q.dim().2, |j| row.weights[j]);
    terms.extend(row.of_sums(model));
    terms.push((Term::Lse, U * row.lse.abs()));
    terms
}
