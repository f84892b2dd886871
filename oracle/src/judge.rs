//! The judge: attention in f64, written plainly, one row of one head at a time.
//!
//! Each quantity of the definition and of the bound has a pass of its own, in the order in which they are
//! defined. Faster paths are tested against this one.

use ndarray::{Array1, Array2, Array3, ArrayView1, ArrayView2, Axis, Zip, s};
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

/// Reference attention and error bound, in f64.
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
    let visible = contiguous(&problem.mask, p);
    let q = problem.request.q.slice(s![row, head.index, ..]);
    let k = problem.request.k.slice(s![visible.clone(), head.kv_index, ..]);
    let v = problem.request.v.slice(s![visible.clone(), head.kv_index, ..]);

    let logits: Array1<f64> =
        k.outer_iter().zip(visible.clone()).map(|(key, j)| head.logit(dot(q, key), p, j as i64)).collect();
    let max = logits.iter().copied().chain(head.sink).fold(f64::NEG_INFINITY, f64::max);
    let x = logits.mapv(|logit| logit - max);
    let exps = x.mapv(f64::exp);
    let denominator = exps.sum() + head.sink.map_or(0.0, |sink| (sink - max).exp());
    let weights = exps.mapv(|exp| exp / denominator);
    let mean = weighted_sum(&weights, v, |v| v);
    let nothing = visible.is_empty() && head.sink.is_none();
    let lse = if nothing { f64::NEG_INFINITY } else { max + denominator.ln() };

    let row_bound = model.row(head, problem.k_dim(), &visible, x.fold(0.0, |max, x| f64::max(max, x.abs())));
    let magnitudes = k.outer_iter().map(|key| head.sigma.abs() * dot_of_magnitudes(q, key));
    let etas: Array1<f64> = magnitudes.zip(&x).map(|(magnitude, &x)| row_bound.eta(magnitude, x)).collect();
    let weighted_etas = &weights * &etas;
    let weighted = weighted_sum(&weights, v, f64::abs);
    let squares = weighted_sum(&weights.mapv(|w| w * w), v, |v| v * v);
    let spread: Array1<f64> = v
        .axis_iter(Axis(1))
        .zip(&mean)
        .map(|(column, &mean)| {
            Zip::from(column)
                .and(&weighted_etas)
                .fold(0.0, |sum, &v, &a| sum + a * (f64::from(v) - mean).abs())
        })
        .collect();
    let lost = weighted_sum(&Array1::ones(weights.len()), v, |v| v.abs() / denominator);

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
        lse_bound: row_bound.lse(weighted_etas.sum(), lse),
        max_eta: etas.fold(0.0, |max, &eta| f64::max(max, eta)),
    }
}

/// The visible keys, found by asking about each key in turn.
fn contiguous(mask: &Mask, p: i64) -> std::ops::Range<usize> {
    let mut visible = (0..mask.kv_len).filter(|&j| mask.is_visible(p, j));
    let Some(first) = visible.next() else { return 0..0 };
    let last = visible.next_back().unwrap_or(first);
    first as usize..last as usize + 1
}

fn dot(a: ArrayView1<'_, f32>, b: ArrayView1<'_, f32>) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn dot_of_magnitudes(a: ArrayView1<'_, f32>, b: ArrayView1<'_, f32>) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| (f64::from(a) * f64::from(b)).abs()).sum()
}

/// Σ_j w_j f(v_jd) for each d.
fn weighted_sum(weights: &Array1<f64>, v: ArrayView2<'_, f32>, f: impl Fn(f64) -> f64) -> Array1<f64> {
    let mut sums = Array1::zeros(v.ncols());
    for (&weight, value) in weights.iter().zip(v.outer_iter()) {
        Zip::from(&mut sums).and(value).for_each(|sum, &v| *sum += weight * f(f64::from(v)));
    }
    sums
}
