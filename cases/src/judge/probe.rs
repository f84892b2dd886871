//! What probes know beyond the bound: exact answers, and what a wrong one says about the cause.

mod uniform;

use ndarray::{ArrayView1, ArrayView3};
use oracle::Mask;

pub(super) use uniform::exact;

use super::attention::request_rows;
use crate::case::{Case, Data, NeedleAt};
use crate::inputs::{Inputs, head_value, needle_address, needle_position, needle_value};
use crate::problem::Problem;
use crate::verdict::Place;

/// Says in the probe's own terms what a wrong element means.
pub(super) fn explain(
    case: &Case,
    inputs: &Inputs,
    place: &Place,
    out: ArrayView3<'_, f32>,
) -> Option<String> {
    let rows = request_rows(&case.problem, out, place.request);
    let row = rows.slice_move(ndarray::s![place.row, place.head, ..]);
    match case.data {
        Data::Needle(at) => explain_needle(case, inputs, at, place, row),
        Data::HeadId => explain_head(case, place, row),
        Data::NanKey => explain_nan(place, row),
        _ => None,
    }
}

fn v_scale(problem: &Problem, head: usize) -> f32 {
    problem.v_scale.of_head(kv_head(problem, head))
}

fn kv_head(problem: &Problem, head: usize) -> usize {
    head / (problem.num_q_heads / problem.num_kv_heads.max(1)).max(1)
}

/// Keys that a row sees.
fn visible_range(problem: &Problem, request: usize, row: usize) -> std::ops::Range<usize> {
    let mask = Mask {
        q_len: problem.query_lens[request] as i64,
        kv_len: problem.kv_lens[request] as i64,
        causal: problem.options.causal,
        window_left: problem.options.window_left,
        window_right: problem.options.window_right,
    };
    mask.visible_keys(mask.position(row))
}

/// Reads page, slot and head back from an output row.
fn explain_needle(
    case: &Case,
    inputs: &Inputs,
    at: NeedleAt,
    place: &Place,
    row: ArrayView1<'_, f32>,
) -> Option<String> {
    let problem = &case.problem;
    let kv_len = problem.kv_lens[place.request];
    if kv_len == 0 {
        return Some("read something, although there is no key".to_owned());
    }
    let position = needle_position(at, kv_len, problem.page_size);
    let (page, slot) = inputs.pages.locate(place.request, position);
    let head = kv_head(problem, place.head);
    let values: Vec<f32> = row.iter().map(|x| x / v_scale(problem, place.head)).collect();
    let read = needle_address(&values);
    let expected = describe([page, slot, head], problem);
    if !visible_range(problem, place.request, place.row).contains(&position) {
        return Some(match read {
            Some(read) if read == [page, slot, head] => {
                format!("read {expected}, which holds key {position}: row {} does not see it", place.row)
            }
            Some(read) => format!("read {} alone, expected a mean of many keys", describe(read, problem)),
            None => format!("expected the mean of all visible keys, without key {position} at {expected}"),
        });
    }
    let shifted = || (1..values.len()).find(|shift| is_shifted(&values, [page, slot, head], *shift));
    Some(match (read, read.is_none().then(shifted).flatten()) {
        (Some(read), _) => format!("read {}, expected {expected}", describe(read, problem)),
        (None, Some(shift)) => format!("dim 0 has the value of dim {shift}, at {expected}"),
        (None, None) => format!("expected {expected} alone, read a mixture"),
    })
}

fn describe([page, slot, head]: [usize; 3], problem: &Problem) -> String {
    match problem.num_kv_heads {
        1 => format!("page {page} slot {slot}"),
        _ => format!("page {page} slot {slot} of KV head {head}"),
    }
}

/// Whether a row is the needle's, read from dims `shift` further on.
fn is_shifted(values: &[f32], address: [usize; 3], shift: usize) -> bool {
    let expected = |dim: usize| needle_value(address, (dim + shift) % values.len());
    values.iter().enumerate().all(|(dim, value)| (value - expected(dim)).abs() < 0.05)
}

fn explain_head(case: &Case, place: &Place, row: ArrayView1<'_, f32>) -> Option<String> {
    let problem = &case.problem;
    let value = row[place.dim?] / v_scale(problem, place.head);
    let near = |head: &usize| (value - head_value(problem.cache_format, *head)).abs() < 0.25;
    let read = (0..problem.num_kv_heads).find(near)?;
    let expected = kv_head(problem, place.head);
    (read != expected).then(|| {
        format!("query head {} has the value of KV head {read}, expected KV head {expected}", place.head)
    })
}

fn explain_nan(place: &Place, row: ArrayView1<'_, f32>) -> Option<String> {
    let value = row[place.dim?];
    (!value.is_nan()).then(|| "NaN of a visible key did not reach the output".to_owned())
}
