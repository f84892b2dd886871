//! Kernels that are wrong about which keys count: garbage past the end, masked rows, windows, lengths.

use std::ops::Range;

use ndarray::Axis;
use oracle::Mask;

use super::super::recipe::{HONEST, Recipe, RowAnswer, Scores, softmax};
use super::super::{Impostor, Kind};
use super::{anywhere, attention, has_tail, several_rows};
use crate::case::{Case, Data};
use crate::problem::Op;

pub(super) fn impostors() -> Vec<Impostor> {
    [garbage(), masked(), windows(), launch()].concat()
}

fn garbage() -> Vec<Impostor> {
    let kind = Kind::Garbage;
    fn tail(case: &Case) -> bool {
        has_tail(&case.problem)
    }
    vec![
        attention(
            "tail-counted",
            kind,
            "counts every slot of the last page",
            tail,
            Recipe {
                keys: |call, row| {
                    let keys = (HONEST.keys)(call, row);
                    let end = if keys.end == row.kv_len {
                        row.kv_len.div_ceil(call.page_size) * call.page_size
                    } else {
                        keys.end
                    };
                    keys.start..end
                },
                ..HONEST
            },
        ),
        attention(
            "tail-times-zero",
            kind,
            "multiplies V of the last page's tail by a weight of zero",
            tail,
            Recipe { attend: |scores| plus_zero_times(scores, tail_of(scores), |value| value), ..HONEST },
        ),
        attention(
            "tail-guarded-for-nan",
            kind,
            "clears NaN, but not infinity, before it multiplies the tail by zero",
            |case| {
                // Where a format has no infinity, the guard is enough.
                has_tail(&case.problem) && case.problem.cache_format != oracle::Format::E4m3
            },
            Recipe {
                attend: |scores| {
                    let guarded = |value: f64| if value.is_nan() { 0.0 } else { value };
                    plus_zero_times(scores, tail_of(scores), guarded)
                },
                ..HONEST
            },
        ),
        attention(
            "tail-score-masked-by-adding",
            kind,
            "adds minus infinity to the scores of the tail, which keeps their NaN",
            tail,
            Recipe {
                attend: |scores| {
                    let honest = softmax(scores);
                    let tail = &scores.dots[tail_of(scores)];
                    let spoilt = tail.iter().any(|dot| (dot + f64::NEG_INFINITY).is_nan());
                    if spoilt { RowAnswer { out: honest.out * f64::NAN, lse: f64::NAN } } else { honest }
                },
                ..HONEST
            },
        ),
        attention(
            "tail-clear-inclusive",
            kind,
            "clears V of the last key along with the tail",
            tail,
            Recipe {
                attend: |scores| {
                    let mut values = scores.values.to_owned();
                    if scores.row.kv_len > 0 && !scores.row.kv_len.is_multiple_of(scores.call.page_size) {
                        values.row_mut(scores.row.kv_len - 1).fill(0.0);
                    }
                    let part = scores.part(0..scores.logits.len(), true);
                    softmax(&Scores { values: values.view(), ..part })
                },
                ..HONEST
            },
        ),
        attention(
            "passed-page-times-zero",
            kind,
            "multiplies V of pages that the window has passed by a weight of zero",
            |case| case.problem.options.window_left.is_some(),
            Recipe {
                attend: |scores| {
                    plus_zero_times(scores, 0..scores.first.min(scores.values.nrows()), |value| value)
                },
                ..HONEST
            },
        ),
        attention(
            "nan-hidden",
            kind,
            "replaces NaN of visible keys by zero",
            |case| case.data == Data::NanKey,
            Recipe {
                decode: |format, code| {
                    let value = format.decode(code);
                    if value.is_nan() { 0.0 } else { value }
                },
                ..HONEST
            },
        ),
    ]
}

/// The slots of a request's last page past its last key.
fn tail_of(scores: &Scores<'_>) -> Range<usize> {
    let (len, page_size) = (scores.row.kv_len, scores.call.page_size);
    let end = (len.div_ceil(page_size) * page_size).min(scores.dots.len());
    len.min(end)..end
}

/// The right answer plus zero times some rows of V.
fn plus_zero_times(scores: &Scores<'_>, keys: Range<usize>, guard: fn(f64) -> f64) -> RowAnswer {
    let mut answer = softmax(scores);
    for key in keys {
        answer.out.zip_mut_with(&scores.values.row(key), |out, value| *out += 0.0 * guard(*value));
    }
    answer
}

fn masked() -> Vec<Impostor> {
    let kind = Kind::Masked;
    fn may_be_empty(case: &Case) -> bool {
        let options = &case.problem.options;
        let limited = options.causal || options.window_left.is_some() || options.window_right.is_some();
        let mut lens = case.problem.query_lens.iter().zip(&case.problem.kv_lens);
        lens.any(|(q, kv)| *q > 0 && (*kv == 0 || (limited && q > kv)))
    }
    vec![
        attention(
            "masked-row-mean",
            kind,
            "answers a row without visible keys with the mean of V",
            may_be_empty,
            Recipe {
                attend: |scores| {
                    let mut answer = softmax(scores);
                    if scores.logits.is_empty() && scores.row.kv_len > 0 {
                        let all = scores.values.slice(ndarray::s![..scores.row.kv_len, ..]);
                        answer.out = all.mean_axis(Axis(0)).expect("there is a key");
                    }
                    answer
                },
                ..HONEST
            },
        ),
        attention(
            "masked-row-lse-zero",
            kind,
            "leaves an lse of 0 for a row without visible keys",
            may_be_empty,
            Recipe {
                attend: |scores| {
                    let answer = softmax(scores);
                    let lse = if answer.lse == f64::NEG_INFINITY { 0.0 } else { answer.lse };
                    RowAnswer { lse, ..answer }
                },
                ..HONEST
            },
        ),
        attention(
            "masked-row-nan",
            kind,
            "divides 0 by 0 for a row without visible keys",
            may_be_empty,
            Recipe {
                attend: |scores| {
                    let answer = softmax(scores);
                    let empty = answer.lse == f64::NEG_INFINITY;
                    if empty { RowAnswer { out: answer.out * f64::NAN, ..answer } } else { answer }
                },
                ..HONEST
            },
        ),
        attention(
            "maximum-starts-at-minus-10000",
            kind,
            "starts the running maximum at -10000 instead of minus infinity",
            |case| case.logit_shift < 0.0,
            Recipe { attend: |scores| with_floor(scores, -1e4), ..HONEST },
        ),
        attention(
            "maximum-starts-at-zero",
            kind,
            "starts the running maximum at 0",
            |case| case.logit_shift < 0.0,
            Recipe { attend: |scores| with_floor(scores, 0.0), ..HONEST },
        ),
        attention(
            "no-maximum",
            kind,
            "takes exponentials in f32 without subtracting the maximum",
            anywhere,
            Recipe {
                attend: |scores| {
                    let exponential = |x: &f64| f64::from((*x as f32).exp());
                    let weights: Vec<f64> = scores.logits.iter().map(exponential).collect();
                    let total =
                        weights.iter().sum::<f64>() + scores.sink.map_or(0.0, |sink| exponential(&sink));
                    RowAnswer { out: scores.weighted(&weights) / total, lse: total.ln() }
                },
                ..HONEST
            },
        ),
        attention(
            "query-start-is-request",
            kind,
            "takes a request's number for its first query row",
            several_rows,
            Recipe { query_row: |_, request, index| request + index, ..HONEST },
        ),
    ]
}

/// Softmax in f32 whose running maximum starts at `floor`; weights that underflow are gone.
fn with_floor(scores: &Scores<'_>, floor: f64) -> RowAnswer {
    let max = scores.logits.iter().copied().chain(scores.sink).fold(floor, f64::max);
    let exponential = |x: f64| f64::from(((x - max) as f32).exp());
    let weights: Vec<f64> = scores.logits.iter().map(|x| exponential(*x)).collect();
    let total = weights.iter().sum::<f64>() + scores.sink.map_or(0.0, exponential);
    if total == 0.0 {
        return RowAnswer { out: scores.weighted(&weights), lse: f64::NEG_INFINITY };
    }
    RowAnswer { out: scores.weighted(&weights) / total, lse: max + total.ln() }
}

fn windows() -> Vec<Impostor> {
    let kind = Kind::Window;
    fn left(case: &Case) -> bool {
        case.problem.options.window_left.is_some()
    }
    vec![
        attention(
            "causal-dropped",
            kind,
            "leaves the causal mask out",
            |case| case.problem.options.causal && several_rows(case),
            Recipe {
                keys: |call, row| Mask { causal: false, ..row.mask(call) }.visible_keys(row.position()),
                ..HONEST
            },
        ),
        attention(
            "left-window-dropped",
            kind,
            "leaves the left window out",
            left,
            Recipe {
                keys: |call, row| Mask { window_left: None, ..row.mask(call) }.visible_keys(row.position()),
                ..HONEST
            },
        ),
        attention(
            "right-window-dropped",
            kind,
            "leaves the right window out",
            |case| case.problem.options.window_right.is_some() && !case.problem.options.causal,
            Recipe {
                keys: |call, row| Mask { window_right: None, ..row.mask(call) }.visible_keys(row.position()),
                ..HONEST
            },
        ),
        attention(
            "window-of-last-row",
            kind,
            "starts every row's window where the last row's starts",
            |case| case.problem.options.window_left.is_some() && several_rows(case),
            Recipe {
                keys: |call, row| {
                    let keys = (HONEST.keys)(call, row);
                    let last = row.mask(call).visible_keys(row.kv_len as i64 - 1).start;
                    last.max(keys.start).min(keys.end)..keys.end
                },
                ..HONEST
            },
        ),
        attention(
            "window-from-first-key",
            kind,
            "counts the window from the first key instead of the row's position",
            |case| case.problem.options.window_left.is_some() || case.problem.options.window_right.is_some(),
            Recipe {
                keys: |call, row| {
                    let unlimited = Mask { window_left: None, window_right: None, ..row.mask(call) };
                    let window = Mask { causal: false, ..row.mask(call) }.visible_keys(row.index as i64);
                    let visible = unlimited.visible_keys(row.position());
                    let first = window.start.max(visible.start);
                    first..window.end.min(visible.end).max(first)
                },
                ..HONEST
            },
        ),
        attention(
            "right-window-clamped",
            kind,
            "limits the right window to the number of keys",
            |case| {
                let mut lens = case.problem.query_lens.iter().zip(&case.problem.kv_lens);
                !case.problem.options.causal && lens.any(|(q, kv)| q > kv)
            },
            Recipe {
                keys: |call, row| {
                    let clamp = call.window_right.unwrap_or(i64::MAX).min(row.kv_len as i64);
                    Mask { window_right: Some(clamp), ..row.mask(call) }.visible_keys(row.position())
                },
                ..HONEST
            },
        ),
        attention(
            "window-edge-by-page",
            kind,
            "rounds the window's left edge down to a whole page",
            left,
            Recipe {
                keys: |call, row| {
                    let keys = (HONEST.keys)(call, row);
                    keys.start / call.page_size * call.page_size..keys.end
                },
                ..HONEST
            },
        ),
    ]
}

fn launch() -> Vec<Impostor> {
    let kind = Kind::Launch;
    vec![
        attention(
            "upper-bound-as-length",
            kind,
            "takes max_seq_len for the length of every request",
            anywhere,
            Recipe { kv_len: |call, _| call.max_seq_len.min(call.capacity()), ..HONEST },
        ),
        attention(
            "lse-stale",
            kind,
            "does not write lse",
            |case| case.problem.wants_lse,
            Recipe { finish: |_, answer| answer.writes_lse.fill(false), ..HONEST },
        ),
        attention(
            "last-request-lost",
            kind,
            "does not compute the last request",
            |case| case.problem.query_lens.last().is_some_and(|len| *len > 0),
            Recipe {
                finish: |call, answer| {
                    let first = call.query_start_loc[call.num_requests() - 1];
                    answer.writes_out.slice_mut(ndarray::s![first.., ..]).fill(false);
                    answer.writes_lse.slice_mut(ndarray::s![first.., ..]).fill(false);
                },
                ..HONEST
            },
        ),
        attention(
            "decode-rows-see-all",
            Kind::Speculative,
            "gives every row of a request the last row's keys",
            |case| case.problem.op != Op::Decode && several_rows(case) && case.problem.options.causal,
            Recipe { keys: |call, row| row.mask(call).visible_keys(row.kv_len as i64 - 1), ..HONEST },
        ),
        attention(
            "draft-rows-reversed",
            Kind::Speculative,
            "masks the rows of a request in reverse order",
            |case| several_rows(case) && case.problem.options.causal,
            Recipe {
                keys: |call, row| row.mask(call).visible_keys(row.kv_len as i64 - 1 - row.index as i64),
                ..HONEST
            },
        ),
    ]
}
