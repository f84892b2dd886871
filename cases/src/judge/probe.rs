//! What probes know beyond the bound: exact answers, and what a wrong one says about the cause.

use ndarray::{ArrayView1, ArrayView3};
use oracle::{Format, Mask};

use super::attention::request_rows;
use crate::case::{Case, Data};
use crate::inputs::{Inputs, head_value};
use crate::problem::{Problem, Sinks};
use crate::verdict::{Failure, Place};

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
        _ => None,
    }
}

fn v_scale(problem: &Problem, head: usize) -> f32 {
    problem.v_scale.of_head(kv_head(problem, head))
}

fn kv_head(problem: &Problem, head: usize) -> usize {
    head / (problem.num_q_heads / problem.num_kv_heads.max(1)).max(1)
}

/// Reads the octal digits of page, slot and head back from an output row.
fn explain_needle(
    case: &Case,
    inputs: &Inputs,
    at: crate::case::NeedleAt,
    place: &Place,
    row: ArrayView1<'_, f32>,
) -> Option<String> {
    let problem = &case.problem;
    let scale = v_scale(problem, place.head);
    let digits: Vec<f32> = row.iter().take(8).map(|x| x / scale).collect();
    let whole = digits.iter().all(|d| (d - d.round()).abs() < 0.05 && (0.0..7.5).contains(d));
    let kv_len = problem.kv_lens[place.request];
    let position = crate::inputs::needle_position(at, kv_len, problem.page_size);
    let (page, slot) = inputs.pages.locate(place.request, position);
    let expected = format!("page {page} slot {slot} of KV head {}", kv_head(problem, place.head));
    if !whole || digits.len() < 8 {
        return Some(format!("expected {expected} alone, read a mixture"));
    }
    let number =
        |range: std::ops::Range<usize>| range.rev().fold(0, |n, i| n * 8 + digits[i].round() as usize);
    let read = format!("page {} slot {} of KV head {}", number(0..3), number(3..6), number(6..8));
    Some(format!("read {read}, expected {expected}"))
}

fn explain_head(case: &Case, place: &Place, row: ArrayView1<'_, f32>) -> Option<String> {
    let problem = &case.problem;
    let value = row[place.dim?] / v_scale(problem, place.head);
    let format = problem.cache_format;
    let near = |head: &usize| (value - head_value(format, *head)).abs() < 0.25;
    let read = (0..problem.num_kv_heads).find(near)?;
    let expected = kv_head(problem, place.head);
    (read != expected).then(|| {
        format!("query head {} has the value of KV head {read}, expected KV head {expected}", place.head)
    })
}

/// Exact answers of the uniform-q0 probe: with q = 0 every visible key has the same weight, so the output is the mean of
/// integers. One lost key among thousands shows.
pub(super) fn exact(case: &Case, inputs: &Inputs, out: ArrayView3<'_, f32>) -> Option<Failure> {
    let problem = &case.problem;
    let plain =
        case.data == Data::UniformQ0 && !problem.options.alibi && problem.options.sinks == Sinks::Absent;
    if !plain {
        return None;
    }
    let mut found = Found::default();
    for request in 0..problem.num_requests() {
        let rows = request_rows(problem, out, request);
        let values = inputs.values[request].view();
        for row in 0..problem.query_lens[request] {
            let visible = visible_range(problem, request, row);
            if visible.is_empty() {
                continue;
            }
            for head in 0..problem.num_q_heads {
                for dim in 0..problem.head_dim_v {
                    let column = values.slice(ndarray::s![visible.clone(), kv_head(problem, head), dim]);
                    let sum: f64 = column.iter().map(|v| f64::from(*v)).sum();
                    let mean = Mean { sum, keys: visible.len(), scale: v_scale(problem, head) };
                    let place = || format!("request {request}, row {row}, head {head}, dim {dim}");
                    found.check(&mean, rows[[row, head, dim]], problem.query_format, place);
                }
            }
        }
    }
    found.failure()
}

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

/// The exact mean of one output element.
struct Mean {
    sum: f64,
    keys: usize,
    scale: f32,
}

#[derive(Default)]
struct Found {
    wrong: usize,
    of: usize,
    first: Option<String>,
}

impl Found {
    fn check(&mut self, mean: &Mean, got: f32, format: Format, place: impl FnOnce() -> String) {
        let scale_is_exact = mean.scale.to_bits() & 0x007f_ffff == 0;
        let right = if mean.keys.is_power_of_two() && scale_is_exact {
            f64::from(got) == format.round(mean.sum / mean.keys as f64 * f64::from(mean.scale))
        } else if format == Format::F32 {
            let sum = f64::from(got) / f64::from(mean.scale) * mean.keys as f64;
            (sum - mean.sum).abs() < 0.5
        } else {
            return;
        };
        self.of += 1;
        if !right {
            self.wrong += 1;
            self.first.get_or_insert_with(|| {
                let sum = f64::from(got) / f64::from(mean.scale) * mean.keys as f64;
                let (keys, want) = (mean.keys, mean.sum);
                format!(
                    "{}: V sums to {want} over {keys} visible keys, the output stands for {sum:.3}",
                    place()
                )
            });
        }
    }

    fn failure(self) -> Option<Failure> {
        self.first.map(|message| Failure::Probe { message, wrong: self.wrong, of: self.of })
    }
}
