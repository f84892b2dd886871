//! Kernels that ignore an argument or answer with something simple.

use oracle::Mask;

use super::super::call::{Call, scale_of};
use super::super::recipe::{HONEST, Recipe, RowAnswer, Scores, softmax};
use super::super::{Impostor, Kind};
use super::{anywhere, attention, has_fp8, scaled, several_kv_heads, several_requests};
use crate::case::{Case, Paging};

pub(super) fn impostors() -> Vec<Impostor> {
    [answers(), scales(), mapping(), windows()].concat()
}

fn basic(name: &'static str, wrong: &'static str, applies: fn(&Case) -> bool, recipe: Recipe) -> Impostor {
    attention(name, Kind::Basic, wrong, applies, recipe)
}

fn answers() -> Vec<Impostor> {
    vec![
        basic(
            "zeros",
            "writes zeros; lse is right",
            anywhere,
            Recipe { finish: |_, answer| answer.out.fill(0.0), ..HONEST },
        ),
        basic(
            "mean-of-v",
            "weighs all visible keys the same; lse is right",
            anywhere,
            Recipe { attend: |scores| reweighted(scores, vec![1.0; scores.logits.len()]), ..HONEST },
        ),
        basic(
            "ignores-k",
            "takes every dot product for zero",
            anywhere,
            Recipe { score: |call, row, key, _| (HONEST.score)(call, row, key, 0.0), ..HONEST },
        ),
        basic(
            "first-key-only",
            "gives the first visible key all the weight; lse is right",
            anywhere,
            Recipe {
                attend: |scores| {
                    let weights = (0..scores.logits.len()).map(|key| f64::from(u8::from(key == 0)));
                    reweighted(scores, weights.collect())
                },
                ..HONEST
            },
        ),
        basic(
            "lse-base-2",
            "leaves lse as a base-2 logarithm",
            |case| case.problem.wants_lse,
            Recipe {
                finish: |_, answer| answer.lse.mapv_inplace(|lse| lse / std::f64::consts::LN_2),
                ..HONEST
            },
        ),
        basic(
            "stale-output",
            "writes nothing",
            anywhere,
            Recipe {
                finish: |_, answer| {
                    answer.writes_out.fill(false);
                    answer.writes_lse.fill(false);
                },
                ..HONEST
            },
        )
        .blunt(),
        basic(
            "nan-everywhere",
            "writes NaN",
            anywhere,
            Recipe { finish: |_, answer| answer.out.fill(f64::NAN), ..HONEST },
        )
        .blunt(),
        basic(
            "tile-last-row",
            "gives the last row of every tile of 16 its neighbour's answer",
            |case| case.problem.query_lens.iter().any(|len| *len >= 16),
            Recipe {
                finish: |call, answer| {
                    for request in 0..call.num_requests() {
                        let first = call.query_start_loc[request];
                        for row in (15..call.query_len(request)).step_by(16).map(|index| first + index) {
                            let neighbour = answer.out.index_axis(ndarray::Axis(0), row - 1).to_owned();
                            answer.out.index_axis_mut(ndarray::Axis(0), row).assign(&neighbour);
                        }
                    }
                },
                ..HONEST
            },
        ),
    ]
}

fn scales() -> Vec<Impostor> {
    let k_scaled: fn(&Case) -> bool = |case| scaled(&case.problem.k_scale);
    let v_scaled: fn(&Case) -> bool = |case| scaled(&case.problem.v_scale);
    vec![
        basic(
            "softmax-scale-one",
            "leaves the softmax scale out",
            |case| case.problem.softmax_scale() != 1.0,
            Recipe { sigma: |call, head| (HONEST.sigma)(call, head) / call.softmax_scale, ..HONEST },
        ),
        basic(
            "k-scale-dropped",
            "leaves k_scale out",
            k_scaled,
            Recipe { sigma: |call, _| call.softmax_scale, ..HONEST },
        ),
        basic("v-scale-dropped", "leaves v_scale out", v_scaled, Recipe { v_scale: |_, _| 1.0, ..HONEST }),
        basic(
            "scales-swapped",
            "takes k_scale for V and v_scale for K",
            |case| case.problem.k_scale != case.problem.v_scale,
            Recipe {
                sigma: |call, head| call.softmax_scale * scale_of(&call.v_scales, head / call.group()),
                v_scale: |call, head| scale_of(&call.k_scales, head / call.group()),
                ..HONEST
            },
        ),
        basic(
            "k-scale-twice",
            "applies k_scale twice",
            k_scaled,
            Recipe {
                sigma: |call, head| {
                    (HONEST.sigma)(call, head) * scale_of(&call.k_scales, head / call.group())
                },
                ..HONEST
            },
        ),
        basic(
            "v-scale-twice",
            "applies v_scale twice",
            v_scaled,
            Recipe { v_scale: |call, head| (HONEST.v_scale)(call, head).powi(2), ..HONEST },
        ),
        basic(
            "e5m2-as-e4m3",
            "reads the one fp8 format as the other",
            has_fp8,
            Recipe {
                decode: |format, code| match format {
                    oracle::Format::E4m3 => oracle::Format::E5m2.decode(code),
                    oracle::Format::E5m2 => oracle::Format::E4m3.decode(code),
                    other => other.decode(code),
                },
                ..HONEST
            },
        ),
    ]
}

fn mapping() -> Vec<Impostor> {
    vec![
        basic(
            "identity-block-table",
            "takes a logical page for the physical one",
            |case| case.paging != Paging::Identity || several_requests(case),
            Recipe { page: |call, _, logical| logical % call.k.pages, ..HONEST },
        ),
        basic(
            "neighbour-kv-head",
            "reads the next KV head",
            several_kv_heads,
            Recipe { kv_head: |call, head| (head / call.group() + 1) % call.num_kv_heads, ..HONEST },
        ),
        basic(
            "one-key-too-few",
            "leaves the last visible key out",
            anywhere,
            Recipe {
                keys: |call, row| {
                    let keys = (HONEST.keys)(call, row);
                    keys.start..keys.end.saturating_sub(1).max(keys.start)
                },
                ..HONEST
            },
        ),
        basic(
            "one-key-too-many",
            "counts the key after the last visible one",
            anywhere,
            Recipe {
                keys: |call, row| {
                    let keys = (HONEST.keys)(call, row);
                    keys.start..keys.end + 1
                },
                ..HONEST
            },
        ),
        basic(
            "top-left-causal",
            "aligns the causal mask with the first key instead of the last",
            |case| case.problem.options.causal && case.problem.query_lens != case.problem.kv_lens,
            Recipe { keys: |call, row| row.mask(call).visible_keys(row.index as i64), ..HONEST },
        ),
        basic(
            "softcap-dropped",
            "leaves the softcap out",
            |case| case.problem.options.softcap.is_some(),
            Recipe {
                score: |call, row, key, scaled| super::super::recipe::biased(call, row, key, scaled),
                ..HONEST
            },
        ),
        basic(
            "sink-dropped",
            "leaves the sinks out",
            super::options::has_sinks,
            Recipe { sink: |_, _| None, ..HONEST },
        ),
    ]
}

fn windows() -> Vec<Impostor> {
    fn left(case: &Case) -> bool {
        case.problem.options.window_left.is_some()
    }
    fn right(case: &Case) -> bool {
        case.problem.options.window_right.is_some() && !case.problem.options.causal
    }
    fn shifted(call: &Call<'_>, mask: Mask, position: i64, left: i64, right: i64) -> std::ops::Range<usize> {
        let window_left = call.window_left.map(|window| window.saturating_add(left));
        let window_right = call.window_right.map(|window| window.saturating_add(right));
        Mask { window_left, window_right, ..mask }.visible_keys(position)
    }
    vec![
        basic(
            "window-left-wide",
            "shows one key too many on the left of the window",
            left,
            Recipe { keys: |call, row| shifted(call, row.mask(call), row.position(), 1, 0), ..HONEST },
        ),
        basic(
            "window-left-narrow",
            "hides the leftmost key of the window",
            left,
            Recipe { keys: |call, row| shifted(call, row.mask(call), row.position(), -1, 0), ..HONEST },
        ),
        basic(
            "window-right-wide",
            "shows one key too many on the right of the window",
            right,
            Recipe { keys: |call, row| shifted(call, row.mask(call), row.position(), 0, 1), ..HONEST },
        ),
        basic(
            "window-right-narrow",
            "hides the rightmost key of the window",
            right,
            Recipe { keys: |call, row| shifted(call, row.mask(call), row.position(), 0, -1), ..HONEST },
        ),
    ]
}

/// The right lse, and the output of other weights.
pub(super) fn reweighted(scores: &Scores<'_>, weights: Vec<f64>) -> RowAnswer {
    let honest = softmax(scores);
    let total: f64 = weights.iter().sum();
    if total == 0.0 {
        return honest;
    }
    RowAnswer { out: scores.weighted(&weights) / total, lse: honest.lse }
}
