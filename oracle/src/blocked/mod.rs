//! Attention in blocks: the same answers as the judge, at the speed of matrix products.
//!
//! A unit of work is a group of lanes, each a query row of one head, all of one KV head. K and V of that head are
//! packed once into panels of a few keys or dims. A group's logits are K·qᵀ, its output Vᵀ·weights, both with
//! lanes along the vector registers: softmax needs no reduction across a register and no transposition.

#![allow(clippy::needless_range_loop, reason = "several arrays are indexed by the same lane")]

mod bounded;
mod flash;
mod lanes;
mod panels;
mod plan;
mod simd;

use crate::bound::BoundModel;
use crate::error::OracleError;
use crate::judge::{self, RowAnswer};
use crate::request::{Attention, AttentionOptions, Problem, Reference, Request, Rows};
use bounded::{Bounded, MagnitudeSums};
use flash::Flash;
use lanes::LaneGroup;
use plan::Plan;
use simd::{Real, dispatch};

/// Lanes of a group in f32: two vectors of eight.
const F32_LANES: usize = 16;
/// Lanes of a group in f64: two vectors of four.
const F64_LANES: usize = 8;

/// Reference attention in f32, without a bound.
///
/// Rows that meet NaN or infinity in a visible key, or in their query, are computed in f64.
///
/// # Errors
/// As [`attend_f64`](crate::attend_f64).
pub fn attend_f32(
    request: &Request<'_>,
    options: &AttentionOptions,
    rows: Rows<'_>,
) -> Result<Attention<f32>, OracleError> {
    Ok(attend_values::<f32, F32_LANES>(&Problem::new(request, options, rows)?))
}

/// Reference attention in f64 by the fast path, without a bound.
///
/// # Errors
/// As [`attend_f64`](crate::attend_f64).
pub fn attend_f64_values(
    request: &Request<'_>,
    options: &AttentionOptions,
    rows: Rows<'_>,
) -> Result<Attention<f64>, OracleError> {
    Ok(attend_values::<f64, F64_LANES>(&Problem::new(request, options, rows)?))
}

/// Reference attention and error bound in f64 by the fast path.
///
/// Output and lse agree with [`attend_f64`](crate::attend_f64) to rounding in f64. The bound is made of matrix
/// products, which takes Σ w·eta·|v − mean| to its Cauchy–Schwarz bound sqrt(Σ w·eta · Σ w·eta·(v − mean)²): that
/// term comes out about 1.25 times as large, never smaller.
///
/// # Errors
/// As [`attend_f64`](crate::attend_f64).
pub fn attend_f64_blocked(
    request: &Request<'_>,
    options: &AttentionOptions,
    model: &BoundModel,
    rows: Rows<'_>,
) -> Result<Reference, OracleError> {
    model.check()?;
    let problem = Problem::new(request, options, rows)?;
    let plan = Plan::new(&problem, F64_LANES);
    let magnitudes = MagnitudeSums::new(&problem);
    let answers = plan.run(&problem, |panels, lanes| {
        let group = LaneGroup::<f64, F64_LANES>::new(&problem, lanes);
        match group.is_finite(panels) {
            true => {
                dispatch(Bounded { problem: &problem, model, group: &group, panels, magnitudes: &magnitudes })
            }
            false => {
                lanes.iter().map(|lane| judge::answer_row(&problem, model, lane.row, &lane.head)).collect()
            }
        }
    });
    let mut ordered = Vec::with_capacity(problem.rows.len() * problem.heads.len());
    let mut answers: Vec<Vec<Option<RowAnswer>>> =
        answers.into_iter().map(|group| group.into_iter().map(Some).collect()).collect();
    for index in 0..problem.rows.len() {
        for head in 0..problem.heads.len() {
            let (group, lane) = plan.place(index, head);
            ordered.extend(answers[group][lane].take());
        }
    }
    Ok(judge::assemble(&problem, ordered))
}

/// Multiply-adds of q·k up to which [`attend`] takes the judge: a fraction of a second.
const JUDGE_LIMIT: usize = 1 << 26;

/// Reference attention and error bound: by the judge where that takes a fraction of a second, else by the fast path.
///
/// # Errors
/// As [`attend_f64`](crate::attend_f64).
pub fn attend(
    request: &Request<'_>,
    options: &AttentionOptions,
    model: &BoundModel,
    rows: Rows<'_>,
) -> Result<Reference, OracleError> {
    let problem = Problem::new(request, options, rows)?;
    let pairs: usize =
        problem.rows.iter().map(|&row| problem.mask.visible_keys(problem.mask.position(row)).len()).sum();
    match pairs.saturating_mul(problem.heads.len()).saturating_mul(problem.k_dim()) <= JUDGE_LIMIT {
        true => judge::attend_f64(request, options, model, rows),
        false => attend_f64_blocked(request, options, model, rows),
    }
}

/// Output and lse of one group of lanes.
struct GroupValues<R> {
    /// `[lanes][v_dim]`.
    out: Vec<R>,
    lse: Vec<R>,
}

fn attend_values<R: Real, const N: usize>(problem: &Problem<'_>) -> Attention<R> {
    let plan = Plan::new(problem, N);
    let v_dim = problem.v_dim();
    let answers = plan.run(problem, |panels, lanes| {
        let group = LaneGroup::<R, N>::new(problem, lanes);
        let mut values =
            GroupValues { out: vec![R::zero(); lanes.len() * v_dim], lse: vec![R::zero(); lanes.len()] };
        if group.is_finite(panels) {
            dispatch(Flash { group: &group, panels, out: &mut values.out, lse: &mut values.lse });
        } else {
            // The bound is computed along and thrown away: NaN is rare.
            let model = BoundModel::new(crate::Format::F32, 1);
            for ((lane, out), lse) in lanes.iter().zip(values.out.chunks_mut(v_dim)).zip(&mut values.lse) {
                let answer = judge::answer_row(problem, &model, lane.row, &lane.head);
                out.iter_mut().zip(&answer.out).for_each(|(to, &from)| *to = R::narrow(from));
                *lse = R::narrow(answer.lse);
            }
        }
        values
    });
    plan.gather(problem, &answers)
}
