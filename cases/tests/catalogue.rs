//! What the committed cases cover.

use std::collections::BTreeSet;

use cases::case::{Case, Data, Flag};
use cases::catalogue::{Entry, Tier, entries, minimum};
use cases::inputs::Inputs;
use cases::problem::Op;
use cases::reference::references;
use cases::support;
use kernels::arm::Arm;
use oracle::{CacheLayout, Format, Packing};

fn all() -> Vec<Entry> {
    entries().expect("the catalogue reads")
}

fn standard() -> Vec<Entry> {
    all().into_iter().filter(|e| e.tier <= Tier::Standard).collect()
}

#[test]
fn every_line_is_canonical_commented_and_unique() {
    let mut lines = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for entry in all() {
        let line = entry.case.to_string();
        assert!(!entry.comment.is_empty(), "{line}");
        assert_eq!(line.parse::<Case>().map(|case| case.to_string()).as_ref(), Ok(&line));
        assert!(ids.insert(entry.case.id()), "two cases have the id of {line}");
        assert!(lines.insert(line.clone()), "twice: {line}");
    }
}

#[test]
fn tiers_have_their_sizes() {
    let smoke = all().iter().filter(|e| e.tier == Tier::Smoke).count();
    assert!((40..=60).contains(&smoke), "{smoke} smoke cases");
    assert!(standard().len() >= 400, "{} standard cases", standard().len());
}

#[test]
fn every_pair_of_formats_is_read_and_stored() {
    for query in [Format::F32, Format::Bf16, Format::F16] {
        for cache in Format::ALL {
            for op in [Op::Prefill, Op::Decode, Op::Mixed, Op::Store] {
                let has = |e: &Entry| {
                    let p = &e.case.problem;
                    p.op == op && p.query_format == query && p.cache_format == cache && !e.case.must_reject()
                };
                assert!(standard().iter().any(has), "no {op:?} of {cache} under {query}");
            }
        }
    }
}

#[test]
fn shapes_of_real_models_are_there() {
    let shapes = [
        (32, 4, 256, Some(32)),
        (24, 4, 256, None),
        (16, 2, 256, None),
        (16, 4, 256, None),
        (16, 8, 128, None),
        (32, 8, 128, None),
        (32, 2, 128, None),
        (9, 3, 64, None),
        (64, 8, 128, None),
        (8, 1, 256, None),
    ];
    for (q, kv, dim, page) in shapes {
        for cache in [Format::Bf16, Format::E4m3] {
            let has = |e: &Entry| {
                let p = &e.case.problem;
                (p.num_q_heads, p.num_kv_heads, p.head_dim) == (q, kv, dim)
                    && p.cache_format == cache
                    && page.is_none_or(|page| p.page_size == page)
            };
            assert!(standard().iter().any(has), "no h{q}/{kv} d{dim} with {cache}");
        }
    }
}

#[test]
fn layouts_pages_and_dims_are_covered() {
    let cases = standard();
    let any = |test: &dyn Fn(&Entry) -> bool| cases.iter().any(test);
    for layout in CacheLayout::ALL {
        for packing in Packing::ALL {
            for padded in [false, true] {
                let has = |e: &Entry| {
                    let p = &e.case.problem;
                    p.layout == layout
                        && p.packing == packing
                        && e.case.flags().contains(&Flag::Padded) == padded
                };
                assert!(any(&has), "{layout} {packing} padded {padded}");
            }
        }
    }
    for page in [1, 4, 5, 8, 16, 32, 48, 64, 128, 256] {
        assert!(any(&|e| e.case.problem.page_size == page), "page {page}");
    }
    for dim in [8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 160, 192, 256, 512] {
        assert!(any(&|e| e.case.problem.head_dim == dim && !e.case.must_reject()), "head_dim {dim}");
    }
    for ratio in (1..=8).chain([12, 16, 20, 24, 32]) {
        let has = |e: &Entry| {
            let p = &e.case.problem;
            e.case.data == Data::HeadId && p.num_q_heads == ratio * p.num_kv_heads
        };
        assert!(any(&has), "ratio {ratio}");
    }
}

#[test]
fn every_flag_has_cases() {
    let seen: BTreeSet<Flag> = standard().iter().flat_map(|e| e.case.flags()).collect();
    let all = [
        Flag::Varlen,
        Flag::EmptyQuery,
        Flag::EmptyKv,
        Flag::QueryPastKv,
        Flag::Causal,
        Flag::Window,
        Flag::Softcap,
        Flag::Alibi,
        Flag::Sinks,
        Flag::Gqa,
        Flag::Mqa,
        Flag::UnequalDims,
        Flag::Fp8,
        Flag::Scaled,
        Flag::PerHeadScale,
        Flag::Hnd,
        Flag::Interleaved,
        Flag::Padded,
        Flag::VPadded,
        Flag::OddPage,
        Flag::PageSpanning,
        Flag::Probe,
        Flag::Real,
        Flag::IdentityPaging,
        Flag::Store,
        Flag::Invalid,
    ];
    let missing: Vec<_> = all.into_iter().filter(|flag| !seen.contains(flag)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

#[test]
fn recorded_activations_are_judged_with_every_cache_format() {
    for layer in [0, 12, 29] {
        for cache in Format::ALL {
            let has = |e: &Entry| e.case.data == Data::Real { layer } && e.case.problem.cache_format == cache;
            assert!(standard().iter().any(has), "layer {layer} with {cache}");
        }
    }
}

#[test]
fn every_arm_has_a_manifest_a_minimum_and_the_cases_to_reach_it() {
    let arms: Vec<&str> = Arm::ALL.iter().map(|arm| arm.name()).chain(["store"]).collect();
    for tier in [Tier::Smoke, Tier::Standard, Tier::Full] {
        let minimum = minimum(tier);
        for arm in &arms {
            assert!(support::manifests().iter().any(|s| s.name == *arm), "{arm} has no support manifest");
            let runs = |e: &&Entry| (e.case.problem.op == Op::Store) == (*arm == "store");
            let served = all()
                .iter()
                .filter(|e| e.tier <= tier)
                .filter(runs)
                .filter(|e| support::gap(&e.case, arm).is_none())
                .count();
            let least = minimum.get(*arm).copied().unwrap_or(0);
            assert!(
                least > 0 && served >= least,
                "{arm}: {served} cases in {}, minimum {least}",
                tier.name()
            );
        }
    }
}

/// The bound is first order in the weights' relative error: beyond a tenth it means nothing, and the case judges nothing.
#[test]
fn no_case_has_a_vacuous_bound() {
    let groups = ["magnitudes", "options", "scales", "real"];
    for entry in standard().iter().filter(|e| groups.contains(&e.group) && !e.case.must_reject()) {
        let inputs = Inputs::generate(&entry.case).expect("the case can be laid out");
        for reference in references(&entry.case, &inputs, "scalar").expect("the case has a reference") {
            assert!(reference.max_eta <= 0.1, "{}: eta {}", entry.case, reference.max_eta);
        }
    }
}
