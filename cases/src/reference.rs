//! The reference answer of an attention case: the oracle, asked request by request.

use ndarray::{Axis, s};
use oracle::{AttentionOptions, BoundModel, Format, OracleError, Reference, Request, Rows, attend};

use crate::case::{Case, Data};
use crate::inputs::Inputs;
use crate::problem::Problem;

/// Multiply-adds above which only a sample of a request's rows is computed.
const FULL_WORK: usize = 1 << 31;
/// Rows of a sample besides the edges.
const SPREAD_ROWS: usize = 24;

/// The shortest key tile of any arm. The bound grows with the number of tiles; what it grants per tile length is covered
/// by its term in the number of keys.
const KEY_TILE: usize = 16;

/// The arm under which a kernel from a shared library is judged.
pub const FOREIGN_ARM: &str = "kernel";

/// The same for one that does not promise that a request's bits are independent of the rest of its call: relations between
/// calls are held to the error bound.
pub const VARYING_ARM: &str = "varying-kernel";

/// Head dims of the tensor-core kernels. Arms that prefer them fall back to the scalar kernel for others.
const TENSOR_CORE_DIMS: [usize; 7] = [64, 80, 96, 112, 128, 192, 256];

/// The format in which an arm keeps P.
///
/// Written down here, apart from the kernels, so that a kernel that starts to round more coarsely fails.
#[must_use]
pub fn p_format(arm: &str, problem: &Problem) -> Format {
    let tensor_cores = problem.head_dim == problem.head_dim_v && TENSOR_CORE_DIMS.contains(&problem.head_dim);
    match arm {
        "scalar" => Format::F32,
        "fp8-dense" | "bf16-dense" if !tensor_cores => Format::F32,
        _ => problem.query_format,
    }
}

/// The bound's parameters for a case on an arm.
#[must_use]
pub fn bound_model(case: &Case, inputs: &Inputs, arm: &str) -> BoundModel {
    let model = match arm {
        // Nothing is known of a foreign kernel but that it accumulates in f32: it may rescale after every key, and it may
        // sum the weights after it has rounded them.
        FOREIGN_ARM | VARYING_ARM => {
            let model = BoundModel::new(p_format(arm, &case.problem), 1);
            BoundModel { p_unit_roundoff: 2.0 * model.p_unit_roundoff, ..model }
        }
        _ => BoundModel::new(p_format(arm, &case.problem), KEY_TILE),
    };
    // The staged arms decode with P in f16, which loses what lies below 2^-25, and do all else with P in the query's
    // format. Which of the two serves a call depends on the lengths that it announces, so the bound grants either.
    let p_underflow = match arm {
        "fp8-staged-soft" | "fp8-staged-hw" => BoundModel::new(Format::F16, KEY_TILE).p_underflow,
        _ => model.p_underflow,
    };
    BoundModel {
        p_underflow,
        grid_inputs: inputs.exact_products,
        sign_symmetric_v: matches!(case.data, Data::Random | Data::Outlier | Data::Lopsided | Data::Grid),
        ..model
    }
}

/// The options of a case in the oracle's vocabulary.
#[must_use]
pub fn attention_options(case: &Case, inputs: &Inputs) -> AttentionOptions {
    let problem = &case.problem;
    let options = &problem.options;
    AttentionOptions {
        softmax_scale: f64::from(problem.softmax_scale()),
        causal: options.causal,
        window_left: options.window_left,
        window_right: options.window_right,
        softcap: options.softcap.map(f64::from),
        alibi_slopes: inputs.alibi_slopes.clone(),
        sinks: inputs.sinks.clone(),
        k_scale: problem.k_scale.values(),
        v_scale: problem.v_scale.values(),
    }
}

/// The reference of every request, in order.
///
/// # Errors
/// If the oracle refuses the problem: then the case must be refused by the code under test, too.
pub fn references(case: &Case, inputs: &Inputs, arm: &str) -> Result<Vec<Reference>, OracleError> {
    let options = attention_options(case, inputs);
    let model = bound_model(case, inputs, arm);
    let mut first_row = 0;
    let mut all = Vec::with_capacity(case.problem.num_requests());
    for (request, q_len) in case.problem.query_lens.iter().enumerate() {
        let q = inputs.query.slice(s![first_row..first_row + q_len, .., ..]);
        first_row += q_len;
        let (k, v) = (inputs.keys[request].view(), inputs.values[request].view());
        let request = Request { q, k, v };
        let sample = sampled_rows(case, *q_len, k.len_of(Axis(0)));
        let rows = sample.as_deref().map_or(Rows::All, Rows::Sample);
        let mut reference = attend(&request, &options, &model, rows)?;
        if let Some(limit) = case.within {
            reference.bound.mapv_inplace(|bound| bound.min(f64::from(limit)));
        }
        all.push(reference);
    }
    Ok(all)
}

/// Rows to compute of a long request: both ends, both sides of every edge that kernels have, and some in between.
/// `None` computes all.
fn sampled_rows(case: &Case, q_len: usize, kv_len: usize) -> Option<Vec<usize>> {
    let problem = &case.problem;
    let per_row = kv_len * problem.num_q_heads * (problem.head_dim + problem.head_dim_v);
    if per_row.saturating_mul(q_len) <= FULL_WORK {
        return None;
    }
    let edges = [0, 1, 7, 8, 15, 16, 31, 32, 63, 64, 127, 128, q_len / 2];
    let mut rows: Vec<usize> = edges.into_iter().chain(edges.map(|e| q_len.saturating_sub(e + 1))).collect();
    rows.extend((0..SPREAD_ROWS).map(|i| i * q_len / SPREAD_ROWS));
    rows.retain(|row| *row < q_len);
    rows.sort_unstable();
    rows.dedup();
    Some(rows)
}
