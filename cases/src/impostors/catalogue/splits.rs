//! Kernels that split the keys and merge the parts wrongly, or mistake what lse is.

use ndarray::{Array1, Axis};

use super::super::recipe::{HONEST, Recipe, RowAnswer, Scores, softmax};
use super::super::{Impostor, Kind};
use super::{anywhere, attention, several_kv_heads};
use crate::case::Case;

pub(super) fn impostors() -> Vec<Impostor> {
    [merges(), lse()].concat()
}

/// Two parts of unequal length: a mistake in their weights cannot cancel. The sink counts with the first.
fn parts(scores: &Scores<'_>) -> [RowAnswer; 2] {
    let cut = scores.logits.len() / 4;
    let part = |keys: std::ops::Range<usize>, sink| softmax(&scores.part(keys, sink));
    [part(0..cut, true), part(cut..scores.logits.len(), false)]
}

/// Weighted sum of parts with weights that need not add up to one; empty parts count nothing.
fn weighed(parts: &[RowAnswer], weight: impl Fn(&RowAnswer) -> f64) -> Array1<f64> {
    let mut out = Array1::zeros(parts[0].out.len());
    let mut total = 0.0;
    for part in parts.iter().filter(|part| part.lse != f64::NEG_INFINITY) {
        let weight = weight(part);
        total += weight;
        out.scaled_add(weight, &part.out);
    }
    if total == 0.0 { out } else { out / total }
}

fn merges() -> Vec<Impostor> {
    let kind = Kind::Splits;
    fn long(case: &Case) -> bool {
        case.problem.kv_lens.iter().any(|len| *len >= 4)
    }
    vec![
        attention(
            "split-average",
            kind,
            "averages the splits without weights; lse is right",
            long,
            Recipe {
                attend: |scores| RowAnswer {
                    out: weighed(&parts(scores), |_| 1.0),
                    lse: softmax(scores).lse,
                },
                ..HONEST
            },
        ),
        attention(
            "split-by-length",
            kind,
            "weighs the splits by their number of keys; lse is right",
            long,
            Recipe {
                attend: |scores| {
                    let [a, b] = parts(scores);
                    let cut = (scores.logits.len() / 4) as f64;
                    let rest = scores.logits.len() as f64 - cut;
                    let first = a.lse;
                    let out = weighed(&[a, b], |part| if part.lse == first { cut } else { rest });
                    RowAnswer { out, lse: softmax(scores).lse }
                },
                ..HONEST
            },
        ),
        attention(
            "split-merge-base-2",
            kind,
            "merges base-2 logarithms as if they were natural ones; lse is right",
            long,
            Recipe {
                attend: |scores| {
                    let parts = parts(scores);
                    let max = parts[0].lse.max(parts[1].lse);
                    let out = weighed(&parts, |part| ((part.lse - max) / std::f64::consts::LN_2).exp());
                    RowAnswer { out, lse: softmax(scores).lse }
                },
                ..HONEST
            },
        ),
        attention(
            "split-last-lost",
            kind,
            "loses the last split",
            long,
            Recipe {
                attend: |scores| {
                    let [first, last] = parts(scores);
                    if first.lse == f64::NEG_INFINITY { last } else { first }
                },
                ..HONEST
            },
        ),
        attention(
            "split-first-lost",
            kind,
            "loses the first split",
            long,
            Recipe {
                attend: |scores| {
                    let [_, last] = parts(scores);
                    last
                },
                ..HONEST
            },
        ),
        attention(
            "split-not-rescaled",
            kind,
            "adds the sums of splits without bringing them to one maximum",
            long,
            Recipe {
                attend: |scores| {
                    let parts = parts(scores);
                    let max = |keys: &[f64]| keys.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let cut = scores.logits.len() / 4;
                    let maxima = [max(&scores.logits[..cut]), max(&scores.logits[cut..])];
                    let first = parts[0].lse;
                    let out = weighed(&parts, |part| {
                        let max = if part.lse == first { maxima[0] } else { maxima[1] };
                        (part.lse - max).exp()
                    });
                    RowAnswer { out, lse: softmax(scores).lse }
                },
                ..HONEST
            },
        ),
        attention(
            "empty-split-counts",
            kind,
            "merges an empty split as one with an lse of 0",
            anywhere,
            Recipe {
                attend: |scores| {
                    let RowAnswer { out, lse } = softmax(scores);
                    let share = 1.0 / (1.0 + (-lse).exp());
                    RowAnswer { out: out * share, lse: (lse.exp() + 1.0).ln() }
                },
                ..HONEST
            },
        ),
    ]
}

fn lse() -> Vec<Impostor> {
    let kind = Kind::Splits;
    vec![
        attention(
            "lse-of-first-split",
            kind,
            "leaves the lse of the first quarter of the keys",
            |case| case.problem.wants_lse && case.problem.kv_lens.iter().any(|len| *len >= 4),
            Recipe {
                attend: |scores| {
                    let [first, _] = parts(scores);
                    let honest = softmax(scores);
                    let lse = if first.lse == f64::NEG_INFINITY { honest.lse } else { first.lse };
                    RowAnswer { lse, ..honest }
                },
                ..HONEST
            },
        ),
        attention(
            "lse-without-head-stride",
            kind,
            "stores lse without the stride of the KV head",
            |case| case.problem.wants_lse && several_kv_heads(case),
            Recipe {
                finish: |call, answer| {
                    let heads: Vec<usize> = (0..call.num_q_heads).map(|head| head % call.group()).collect();
                    answer.lse = answer.lse.select(Axis(1), &heads);
                },
                ..HONEST
            },
        ),
        attention(
            "lse-without-maximum",
            kind,
            "leaves the logarithm of the sum relative to the maximum",
            |case| case.problem.wants_lse,
            Recipe {
                attend: |scores| {
                    let answer = softmax(scores);
                    let max =
                        scores.logits.iter().copied().chain(scores.sink).fold(f64::NEG_INFINITY, f64::max);
                    let lse = if max == f64::NEG_INFINITY { answer.lse } else { answer.lse - max };
                    RowAnswer { lse, ..answer }
                },
                ..HONEST
            },
        ),
        attention(
            "lse-is-maximum",
            kind,
            "leaves the maximum in place of lse",
            |case| case.problem.wants_lse,
            Recipe {
                attend: |scores| {
                    let max =
                        scores.logits.iter().copied().chain(scores.sink).fold(f64::NEG_INFINITY, f64::max);
                    RowAnswer { lse: max, ..softmax(scores) }
                },
                ..HONEST
            },
        ),
    ]
}
