//! What the strategies reach: every option, and every pair of options, together.

use std::collections::BTreeSet;

use cases::case::Case;
use cases::problem::{Scale, Sinks};
use oracle::{CacheLayout, Packing};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::strategy;

/// Draws that the coverage is counted over.
const DRAWS: usize = 6000;

/// A property of a case that is on or off.
type Factor = (&'static str, fn(&Case) -> bool);

const FACTORS: [Factor; 19] = [
    ("causal", |c| c.problem.options.causal),
    ("window_left", |c| c.problem.options.window_left.is_some()),
    ("window_right", |c| c.problem.options.window_right.is_some()),
    ("softcap", |c| c.problem.options.softcap.is_some()),
    ("alibi", |c| c.problem.options.alibi),
    ("sinks", |c| c.problem.options.sinks != Sinks::Absent),
    ("scale", |c| c.problem.options.softmax_scale.is_some()),
    ("no lse", |c| !c.problem.wants_lse),
    ("k_scale", |c| c.problem.k_scale != Scale::default()),
    ("v_scale", |c| c.problem.v_scale != Scale::default()),
    ("per-head scale", |c| {
        matches!(c.problem.k_scale, Scale::PerHead(_)) || matches!(c.problem.v_scale, Scale::PerHead(_))
    }),
    ("HND", |c| c.problem.layout == CacheLayout::Hnd),
    ("interleaved", |c| c.problem.packing != Packing::Separate),
    ("padded", |c| c.problem.is_padded()),
    ("V padded apart", |c| c.problem.v_padding.is_some()),
    ("K and V differ", |c| c.problem.head_dim != c.problem.head_dim_v),
    ("odd page", |c| !c.problem.page_size.is_power_of_two()),
    ("empty query", |c| c.problem.query_lens.contains(&0)),
    ("batch", |c| c.problem.num_requests() > 1),
];

/// Pairs that no case can have.
const IMPOSSIBLE: [(&str, &str); 2] = [("interleaved", "K and V differ"), ("interleaved", "V padded apart")];

fn drawn() -> Vec<Case> {
    let mut runner = TestRunner::deterministic();
    let strategy = strategy::scalar();
    (0..DRAWS).map(|_| strategy.new_tree(&mut runner).expect("a case").current().case).collect()
}

/// Prints the table with `--nocapture`: how many draws have both factors, and neither of some pair is never seen.
#[test]
fn every_pair_of_options_is_drawn() {
    let cases = drawn();
    let mut missing = Vec::new();
    println!("draws of {DRAWS} with both");
    for (row, (a, has_a)) in FACTORS.iter().enumerate() {
        let mut counts = Vec::new();
        for (b, has_b) in &FACTORS[..=row] {
            let both = cases.iter().filter(|case| has_a(case) && has_b(case)).count();
            let impossible = IMPOSSIBLE.iter().any(|pair| [*pair, (pair.1, pair.0)].contains(&(*a, *b)));
            if (both == 0) != impossible {
                missing.push(format!("{a} with {b}: {both}"));
            }
            counts.push(format!("{both:5}"));
        }
        println!("{a:>15} {}", counts.join(""));
    }
    let pairs = FACTORS.len() * (FACTORS.len() - 1) / 2 - IMPOSSIBLE.len();
    println!("{} of {pairs} possible pairs drawn", pairs - missing.len());
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn lengths_lie_on_both_sides_of_page_and_tile_edges() {
    let cases = drawn();
    for edge in [16, 64] {
        for off in [edge - 1, edge, edge + 1] {
            let hit = cases.iter().any(|case| case.problem.kv_lens.contains(&off));
            assert!(hit, "no request of {off} keys");
        }
    }
    let on_page_edges: BTreeSet<usize> = cases
        .iter()
        .filter(|case| case.problem.kv_lens.iter().any(|kv| *kv > 0 && kv % case.problem.page_size == 0))
        .map(|case| case.problem.page_size)
        .collect();
    assert!(on_page_edges.len() >= 8, "{on_page_edges:?}");
    assert!(cases.iter().any(|c| c.problem.query_lens.iter().zip(&c.problem.kv_lens).any(|(q, kv)| q > kv)));
    assert!(cases.iter().any(|c| c.problem.kv_lens.contains(&0)));
}
