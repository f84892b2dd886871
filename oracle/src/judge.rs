//! The judge: attention in f64, written plainly, one row of one head at a time.
//!
//! Each quantity of the definition and of the bound has a pass of its own, in the order in which they are
//! defined. Faster paths are tested against this one.

use ndarray::{Array1, Array2, Array3, Axis, Zip, s};
use rayon::prelude::*;

use crate::bound::{BoundModel, ElementSums};
use crate::request::{AttentionOptions, Head, Problem, Reference, Request, Rows};
use crate::{Mask, OracleError};

/// One row of one head.
pub(crate) struct RowAnswer {
    pub out: Array1<f64>,
    pub bound: Array1<f64>,
    pub lse: f64,
    pub lse_bound: f64,
    pub max_eta: f64,
}

impl RowAnswer {
    /// A row with no visible key and no sink: 0 and −∞, both exact.
    pub fn of_nothing(v_dim: usize) -> Self {
        let zeros = Array1::zeros(v_dim);
        Self { out: zeros.clone(), bound: zeros, lse: f64::NEG_INFINITY, lse_bound: 0.0, max_eta: 0.0 }
    }
}

/// Reference attention and error bound, in f64: the plain path, which judges.
///
/// # Errors
/// If the shapes do not fit each other, an option is outside its range, or a sampled row does not exist.
pub fn attend_f64(
    request: &Request<'_>,
    options: &AttentionOptions,
    model: &BoundModel,
    rows: Rows<'_>,
) -> Result<Reference, OracleError> {
    model.check()?;
    let problem = Problem::new(request, options, rows)?;
    let places: Vec<(usize, Head)> =
        problem.rows.iter().flat_map(|&row| problem.heads.iter().map(move |&head| (row, head))).collect();
    let answers: Vec<RowAnswer> =
        places.par_iter().map(|&(row, head)| answer_row(&problem, model, row, &head)).collect();
    Ok(assemble(&problem, answers))
}

/// Puts the answers, row by row and head by head, into arrays.
pub(crate) fn assemble(problem: &Problem<'_>, answers: Vec<RowAnswer>) -> Reference {
    let (rows, heads, dim) = (problem.rows.len(), problem.heads.len(), problem.v_dim());
    let mut out = Array3::zeros((rows, heads, dim));
    let mut bound = Array3::zeros((rows, heads, dim));
    let mut lse = Array2::zeros((rows, heads));
    let mut lse_bound = Array2::zeros((rows, heads));
    let mut max_eta = 0.0;
    for (place, answer) in answers.into_iter().enumerate() {
        let (row, head) = (place / heads, place % heads);
        out.slice_mut(s![row, head, ..]).assign(&answer.out);
        bound.slice_mut(s![row, head, ..]).assign(&answer.bound);
        lse[[row, head]] = answer.lse;
        lse_bound[[row, head]] = answer.lse_bound;
        max_eta = f64::max(max_eta, answer.max_eta);
    }
    let positions = problem.rows.iter().map(|&row| problem.mask.position(row)).collect();
    Reference { out, lse, bound, lse_bound, rows: problem.rows.clone(), positions, max_eta }
}

/// The judge's answer for one row of one head.
pub(crate) fn answer_row(problem: &Problem<'_>, model: &BoundModel, row: usize, head: &Head) -> RowAnswer {
    let p = problem.mask.position(row);
    let visible = visible_keys(&problem.mask, p);
    if visible.is_empty() && head.sink.is_none() {
        return RowAnswer::of_nothing(problem.v_dim());
    }
    let q = problem.request.q.slice(s![row, head.index, ..]).mapv(f64::from);
    let k = problem.request.k.slice(s![visible.clone(), head.kv_index, ..]).mapv(f64::from);
    let v = problem.request.v.slice(s![visible.clone(), head.kv_index, ..]).mapv(f64::from);

    let logits: Array1<f64> =
        k.dot(&q).iter().zip(visible.clone()).map(|(&dot, j)| head.logit(dot, p, j as i64)).collect();
    let max = logits.iter().copied().chain(head.sink).fold(f64::NEG_INFINITY, f64::max);
    let x = logits.mapv(|logit| logit - max);
    let exps = x.mapv(f64::exp);
    let denominator = exps.sum() + head.sink.map_or(0.0, |sink| (sink - max).exp());
    let weights = exps.mapv(|exp| exp / denominator);
    let mean = weighted_sum(&weights, &v);
    let lse = max + denominator.ln();

    // A logit of −∞ is a weight of exactly 0 and brings no error.
    let max_x = x.iter().filter(|x| x.is_finite()).fold(0.0, |max, x| f64::max(max, x.abs()));
    let row_bound = model.row(head, problem.k_dim(), &visible, p, max_x);
    let magnitudes = k.mapv(f64::abs).dot(&q.mapv(f64::abs)) * head.sigma.abs();
    let etas = Zip::from(&magnitudes).and(&x).map_collect(|&magnitude, &x| row_bound.eta(magnitude, x));
    let weighted_etas = Zip::from(&weights)
        .and(&etas)
        .map_collect(|&weight, &eta| if weight == 0.0 { 0.0 } else { weight * eta });
    // The sink is a key whose V is 0.
    let sink_eta = head.sink.map_or(0.0, |sink| {
        let weight = (sink - max).exp() / denominator;
        if weight == 0.0 { 0.0 } else { weight * row_bound.sink_eta(sink, sink - max) }
    });
    let weighted = weighted_sum(&weights, &v.mapv(f64::abs));
    let squares = weighted_sum(&weights.mapv(|w| w * w), &v.mapv(|v| v * v));
    let spread = weighted_sum(&weighted_etas, &(&v - &mean).mapv(f64::abs)) + mean.mapv(f64::abs) * sink_eta;
    let lost = v.mapv(f64::abs).sum_axis(Axis(0)) / denominator;

    let element = |d: usize| ElementSums {
        weighted: weighted[d],
        squares: squares[d],
        spread: spread[d],
        lost: lost[d],
    };
    RowAnswer {
        bound: (0..v.ncols()).map(|d| row_bound.out(&element(d))).collect(),
        out: mean * head.v_scale,
        lse,
        lse_bound: row_bound.lse(weighted_etas.sum() + sink_eta, lse),
        max_eta: etas.iter().filter(|eta| eta.is_finite()).fold(0.0, |max, &eta| f64::max(max, eta)),
    }
}

/// The visible keys, found by asking about each key in turn.
fn visible_keys(mask: &Mask, p: i64) -> std::ops::Range<usize> {
    let mut visible = (0..mask.kv_len).filter(|&j| mask.is_visible(p, j));
    let Some(first) = visible.next() else { return 0..0 };
    let last = visible.next_back().unwrap_or(first);
    first as usize..last as usize + 1
}

/// Σ_j w_j v_jd for each d.
fn weighted_sum(weights: &Array1<f64>, v: &Array2<f64>) -> Array1<f64> {
    let mut sums = Array1::zeros(v.ncols());
    for (&weight, value) in weights.iter().zip(v.outer_iter()) {
        sums.scaled_add(weight, &value);
    }
    sums
}
