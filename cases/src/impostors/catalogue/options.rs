//! Kernels that apply softcap, ALiBi or sinks wrongly.

use super::super::recipe::{HONEST, Recipe, RowAnswer, biased, capped, softmax};
use super::super::{Impostor, Kind};
use super::{attention, grouped};
use crate::case::Case;
use crate::problem::Sinks;

pub(super) fn has_sinks(case: &Case) -> bool {
    case.problem.options.sinks != Sinks::Absent
}

pub(super) fn impostors() -> Vec<Impostor> {
    [softcap(), alibi(), sinks()].concat()
}

fn softcap() -> Vec<Impostor> {
    let kind = Kind::Options;
    fn has_cap(case: &Case) -> bool {
        case.problem.options.softcap.is_some()
    }
    vec![
        attention(
            "softcap-on-base-2-score",
            kind,
            "caps the score after it was scaled for base-2 exponentials",
            has_cap,
            Recipe {
                score: |call, row, key, scaled| {
                    let log2e = std::f64::consts::LOG2_E;
                    biased(call, row, key, capped(call, scaled * log2e) / log2e)
                },
                ..HONEST
            },
        ),
        attention(
            "softcap-before-scale",
            kind,
            "caps the dot product before it is scaled",
            has_cap,
            Recipe {
                score: |call, row, key, scaled| {
                    let sigma = (HONEST.sigma)(call, row.head);
                    biased(call, row, key, capped(call, scaled / sigma) * sigma)
                },
                ..HONEST
            },
        ),
        attention(
            "softcap-after-alibi",
            kind,
            "caps the score with its ALiBi bias",
            |case| has_cap(case) && case.problem.options.alibi,
            Recipe { score: |call, row, key, scaled| capped(call, biased(call, row, key, scaled)), ..HONEST },
        ),
        attention(
            "softcap-without-factor",
            kind,
            "leaves tanh(s/c) without the factor c",
            has_cap,
            Recipe {
                score: |call, row, key, scaled| {
                    let capped = call.softcap.map_or(scaled, |cap| (scaled / cap).tanh());
                    biased(call, row, key, capped)
                },
                ..HONEST
            },
        ),
    ]
}

fn alibi() -> Vec<Impostor> {
    let kind = Kind::Options;
    fn has_alibi(case: &Case) -> bool {
        case.problem.options.alibi
    }
    fn with_slope_of(
        call: &super::super::call::Call<'_>,
        row: &super::super::recipe::Row,
        key: usize,
        scaled: f64,
        head: usize,
    ) -> f64 {
        let slope = call.alibi_slopes.as_ref().map_or(0.0, |slopes| slopes[head.min(slopes.len() - 1)]);
        capped(call, scaled) + slope * (key as i64 - row.position()) as f64
    }
    vec![
        attention(
            "alibi-dropped",
            kind,
            "leaves ALiBi out",
            has_alibi,
            Recipe { score: |call, _, _, scaled| capped(call, scaled), ..HONEST },
        ),
        attention(
            "alibi-symmetric",
            kind,
            "takes the distance for the bias on both sides of the row",
            |case| has_alibi(case) && !case.problem.options.causal && super::several_rows(case),
            Recipe {
                score: |call, row, key, scaled| {
                    let slope = call.alibi_slopes.as_ref().map_or(0.0, |slopes| slopes[row.head]);
                    capped(call, scaled) - slope * (key as i64 - row.position()).abs() as f64
                },
                ..HONEST
            },
        ),
        attention(
            "alibi-not-relative",
            kind,
            "counts the distance from the first key, which shows in lse only",
            |case| has_alibi(case) && case.problem.wants_lse,
            Recipe {
                score: |call, row, key, scaled| {
                    let slope = call.alibi_slopes.as_ref().map_or(0.0, |slopes| slopes[row.head]);
                    capped(call, scaled) + slope * key as f64
                },
                ..HONEST
            },
        ),
        attention(
            "alibi-by-kv-head",
            kind,
            "takes the KV head's number for the slope's",
            |case| has_alibi(case) && grouped(case),
            Recipe {
                score: |call, row, key, scaled| {
                    with_slope_of(call, row, key, scaled, row.head / call.group())
                },
                ..HONEST
            },
        ),
        attention(
            "alibi-of-local-head",
            kind,
            "takes the number within the group for the slope's",
            |case| has_alibi(case) && case.problem.num_kv_heads > 1,
            Recipe {
                score: |call, row, key, scaled| {
                    with_slope_of(call, row, key, scaled, row.head % call.group())
                },
                ..HONEST
            },
        ),
    ]
}

fn sinks() -> Vec<Impostor> {
    let kind = Kind::Options;
    vec![
        attention(
            "sink-twice",
            kind,
            "counts the sink in two splits",
            has_sinks,
            Recipe {
                attend: |scores| {
                    let twice = scores.sink.map(|sink| sink + std::f64::consts::LN_2);
                    softmax(&super::super::recipe::Scores {
                        sink: twice,
                        ..scores.part(0..scores.logits.len(), true)
                    })
                },
                ..HONEST
            },
        ),
        attention(
            "sink-as-a-key",
            kind,
            "gives the sink's weight to the first visible key",
            has_sinks,
            Recipe {
                attend: |scores| {
                    let mut answer = softmax(scores);
                    if let (Some(sink), false) = (scores.sink, scores.logits.is_empty()) {
                        answer.out.scaled_add((sink - answer.lse).exp(), &scores.values.row(scores.first));
                    }
                    answer
                },
                ..HONEST
            },
        ),
        attention(
            "sink-scaled",
            kind,
            "multiplies the sink by the softmax scale",
            has_sinks,
            Recipe {
                sink: |call, head| call.sinks.as_ref().map(|sinks| sinks[head] * call.softmax_scale),
                ..HONEST
            },
        ),
        attention(
            "sink-not-in-lse",
            kind,
            "leaves the sink out of lse only",
            |case| has_sinks(case) && case.problem.wants_lse,
            Recipe {
                attend: |scores| {
                    let without = softmax(&scores.part(0..scores.logits.len(), false));
                    RowAnswer { lse: without.lse, ..softmax(scores) }
                },
                ..HONEST
            },
        ),
        attention(
            "sink-of-kv-head",
            kind,
            "takes the KV head's number for the sink's",
            |case| has_sinks(case) && grouped(case),
            Recipe {
                sink: |call, head| call.sinks.as_ref().map(|sinks| sinks[head / call.group()]),
                ..HONEST
            },
        ),
        attention(
            "sink-outside-maximum",
            kind,
            "leaves the sink out of the maximum, so that its exponential overflows",
            has_sinks,
            Recipe {
                attend: |scores| {
                    if scores.sink.is_none() {
                        return softmax(scores);
                    }
                    let without = softmax(&scores.part(0..scores.logits.len(), false));
                    let max = scores.logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weight = scores.sink.map_or(0.0, |sink| f64::from(((sink - max) as f32).exp()));
                    let total = (without.lse - max).exp() + weight;
                    RowAnswer { out: without.out * (without.lse - max).exp() / total, lse: max + total.ln() }
                },
                ..HONEST
            },
        ),
    ]
}
