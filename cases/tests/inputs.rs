//! Inputs: what the device reads is what the reference reads, and everything else is poison.

use std::collections::HashSet;

use cases::case::Case;
use cases::inputs::{Inputs, Poison, StoreInputs, head_value, recorded};
use oracle::{Format, PagedView};
use rstest::rstest;

fn case(line: &str) -> Case {
    line.parse().unwrap_or_else(|error| panic!("{line}: {error}"))
}

fn generate(line: &str) -> Inputs {
    Inputs::generate(&case(line)).expect("the case can be laid out")
}

const PAGED: &str = "mixed bf16 kv=e4m3 h4/2 d24 page4 HND unbind-inner pad=3,1,2,9 causal q=[4,1,0] kv=[11,6,0] kscale=0.25 vscale=[0.5,2] seed=3";

/// Element indices of a view that belong to a request.
fn owned(inputs: &Inputs, view: &PagedView, kv_lens: &[usize]) -> HashSet<usize> {
    let mut owned = HashSet::new();
    for (request, kv_len) in kv_lens.iter().enumerate() {
        for position in 0..*kv_len {
            let (page, slot) = inputs.pages.locate(request, position);
            for head in 0..view.heads {
                owned.extend((0..view.dim).map(|dim| view.index(page, slot, head, dim)));
            }
        }
    }
    owned
}

#[rstest]
fn the_cache_holds_the_decoded_values_and_poison_everywhere_else(#[values(0, 1, 2, 3)] poison: usize) {
    let poison = Poison::ALL[poison];
    let inputs = generate(PAGED);
    let [buffer] = inputs.caches(poison).try_into().expect("an interleaved cache is one buffer");
    let mut all_owned = HashSet::new();
    for (view, values) in [(&inputs.views.k, &inputs.keys), (&inputs.views.v, &inputs.values)] {
        for (request, values) in values.iter().enumerate() {
            for ((position, head, dim), value) in values.indexed_iter() {
                let (page, slot) = inputs.pages.locate(request, position);
                let code = u32::from(buffer[view.index(page, slot, head, dim)]);
                assert_eq!(Format::E4m3.decode(code).to_bits(), value.to_bits());
            }
        }
        all_owned.extend(owned(&inputs, view, &[11, 6, 0]));
    }
    // K and V of 17 keys, 2 heads, 24 dims, each element its own.
    assert_eq!(all_owned.len(), 2 * 17 * 2 * 24);
    let unowned: Vec<u8> =
        (0..buffer.len()).filter(|at| !all_owned.contains(at)).map(|at| buffer[at]).collect();
    assert!(unowned.len() > buffer.len() / 3);
    assert!(unowned.iter().all(|byte| u32::from(*byte) == poison.code(Format::E4m3)));
}

#[rstest]
#[case(Format::F32, 0x7f80_0000, 0x7180_0000)]
#[case(Format::Bf16, 0x7f80, 0x7180)]
#[case(Format::F16, 0x7c00, 0x7bff)]
#[case(Format::E4m3, 0x7e, 0x7e)]
#[case(Format::E5m2, 0x7c, 0x7b)]
fn poison_is_nan_infinity_or_huge_in_every_format(
    #[case] format: Format,
    #[case] infinity: u32,
    #[case] huge: u32,
) {
    assert!(format.decode(Poison::Nan.code(format)).is_nan());
    assert_eq!(Poison::Infinity.code(format), infinity);
    assert_eq!(Poison::Huge.code(format), huge);
    assert_eq!(Poison::Zero.code(format), 0);
}

#[test]
fn pages_are_shuffled_apart_from_page_zero_and_spare_ones() {
    for seed in 0..50 {
        let inputs =
            generate(&format!("decode f32 kv=f32 h1/1 d8 page4 NHD q=[1x3] kv=[17,4,9] seed={seed}"));
        let pages: Vec<usize> = inputs.pages.requests.concat();
        let distinct: HashSet<usize> = pages.iter().copied().collect();
        assert_eq!((pages.len(), distinct.len()), (5 + 1 + 3, 9));
        assert!(!distinct.contains(&0) && distinct.iter().all(|page| *page < inputs.pages.num_pages));
        assert!(inputs.pages.num_pages > 10, "there is an unused page besides page 0");
        let table = inputs.pages.block_table();
        assert!(inputs.pages.width > 5, "the table has a column that no request uses");
        for (request, row) in table.chunks_exact(inputs.pages.width).enumerate() {
            let used = inputs.pages.requests[request].len();
            assert!(row[..used].iter().zip(&inputs.pages.requests[request]).all(|(a, b)| *a as usize == *b));
            assert!(row[used..].iter().all(|entry| *entry > 1 << 30), "{row:?}");
        }
    }
    let orders: HashSet<Vec<usize>> = (0..20)
        .map(|seed| {
            generate(&format!("decode f32 kv=f32 h1/1 d8 page4 NHD q=[1] kv=[30] seed={seed}"))
                .pages
                .requests
                .concat()
        })
        .collect();
    assert!(orders.len() > 15, "seeds give different orders");
}

#[test]
fn identity_and_descending_pages_are_what_they_say() {
    let line = "decode f32 kv=f32 h1/1 d8 page4 NHD q=[1x2] kv=[9,5]";
    assert_eq!(
        generate(&format!("{line} paging=identity seed=1")).pages.requests,
        [vec![0, 1, 2], vec![3, 4]]
    );
    assert_eq!(
        generate(&format!("{line} paging=descending seed=1")).pages.requests,
        [vec![6, 5, 4], vec![3, 2]]
    );
}

#[test]
fn a_seed_means_the_same_inputs_and_another_seed_others() {
    let (a, b) = (generate(PAGED), generate(PAGED));
    assert_eq!((&a.query, &a.keys, &a.values), (&b.query, &b.keys, &b.values));
    assert_eq!(a.caches(Poison::Nan), b.caches(Poison::Nan));
    let other = generate(&PAGED.replace("seed=3", "seed=4"));
    assert_ne!(a.query, other.query);
    assert_ne!(a.keys, other.keys);
    // The values of one seed, pinned: they must not change with a library or a machine.
    let first: Vec<f32> = a.query.iter().take(3).copied().collect();
    let pinned = generate("decode f32 kv=f32 h1/1 d8 page4 NHD q=[1] kv=[1] seed=0");
    assert_eq!(first.len(), 3);
    assert_eq!(pinned.query[[0, 0, 0]].to_bits(), PINNED_QUERY_BITS);
}

/// q[0, 0, 0] of seed 0.
const PINNED_QUERY_BITS: u32 = 0x3f80_80d7;

#[test]
fn stored_values_come_back_through_their_scale() {
    let scaled =
        generate("decode f32 kv=e4m3 h2/2 d32 page4 NHD q=[1] kv=[40] kscale=[0.25,4] vscale=0.5 seed=2");
    let plain = generate("decode f32 kv=f32 h2/2 d32 page4 NHD q=[1] kv=[40] seed=2");
    for ((position, head, dim), code) in scaled.keys[0].indexed_iter() {
        let value = code * [0.25, 4.0][head];
        let want = plain.keys[0][[position, head, dim]];
        // e4m3 has a relative step of 1/8 among its normal numbers and of 2^-9 in codes below.
        assert!((value - want).abs() <= want.abs() / 16.0 + 4.0 / 1024.0, "{want} became {value}");
    }
    let spread = plain.keys[0].iter().map(|k| k * k).sum::<f32>() / plain.keys[0].len() as f32;
    assert!((0.8..1.2).contains(&spread), "unit variance, not {spread}");
}

#[test]
fn grids_are_exact_and_shift_every_logit() {
    let shifted =
        generate("prefill bf16 kv=e4m3 h2/1 d64 page16 NHD q=[3] kv=[20] data=grid shift=-60000 seed=5");
    let plain = generate("prefill bf16 kv=e4m3 h2/1 d64 page16 NHD q=[3] kv=[20] data=grid seed=5");
    assert!(shifted.exact_products && plain.exact_products);
    let logit = |inputs: &Inputs, row: usize, key: usize, from: usize| -> f64 {
        let q = inputs.query.slice(ndarray::s![row, 1, from..]);
        let k = inputs.keys[0].slice(ndarray::s![key, 0, from..]);
        q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / 8.0
    };
    for (row, key) in [(0, 0), (2, 19), (1, 7)] {
        let shift = logit(&shifted, row, key, 0) - logit(&plain, row, key, 1);
        assert!((shift + 60_000.0).abs() < 500.0, "{shift}");
    }
    assert!(
        !generate("prefill f32 kv=f32 h2/1 d72 page16 NHD q=[3] kv=[20] data=grid seed=5").exact_products
    );
    assert!(
        !generate("prefill bf16 kv=f32 h2/1 d64 page16 NHD q=[3] kv=[20] data=grid mag=0.3 seed=5")
            .exact_products
    );
}

#[test]
fn probes_hold_what_they_promise() {
    let uniform =
        generate("prefill f32 kv=e5m2 h2/1 d16 page4 NHD q=[3] kv=[20] vscale=0.3 data=uniform-q0 seed=5");
    assert!(uniform.query.iter().all(|q| *q == 0.0));
    assert!(uniform.values[0].iter().all(|v| v.fract() == 0.0 && v.abs() <= 8.0));
    assert!(uniform.values[0].iter().any(|v| *v != 0.0));
    let heads = generate("prefill f32 kv=e5m2 h12/12 d16 page4 NHD q=[3] kv=[5] data=head-id seed=5");
    assert_eq!(heads.values[0][[0, 8, 0]], 8.0);
    assert_eq!(heads.values[0][[4, 9, 15]], 10.0, "e5m2 cannot hold 9");
    assert_eq!(head_value(Format::F32, 31), 31.0);
    let needle = generate("prefill f32 kv=e4m3 h2/2 d16 page4 NHD q=[3] kv=[20] data=needle:9 seed=5");
    let rows: HashSet<Vec<u32>> = (0..20)
        .flat_map(|key| {
            [0, 1]
                .map(|head| needle.values[0].slice(ndarray::s![key, head, ..]).map(|v| v.to_bits()).to_vec())
        })
        .collect();
    assert_eq!(rows.len(), 40, "every key of every head spells another address");
    assert!(
        needle.values[0].iter().all(|v| v.fract() == 0.0 && (0.0..=8.0).contains(v)),
        "whole numbers that e5m2 holds"
    );
    let logits: Vec<f32> = (0..20)
        .map(|key| {
            (&needle.query.slice(ndarray::s![0, 0, ..]) * &needle.keys[0].slice(ndarray::s![key, 0, ..]))
                .sum()
                / 4.0
        })
        .collect();
    assert!((0..20).all(|key| key == 9 || logits[9] - logits[key] >= 256.0), "{logits:?}");
}

#[test]
fn recorded_activations_arrive_unchanged_in_sixteen_bits() {
    let inputs = generate(
        "mixed bf16 kv=bf16 h9/3 d64 page16 NHD causal q=[24,1] kv=[61,185] data=real:layer12 seed=1",
    );
    let layer = recorded::layer(12).unwrap();
    assert_eq!(inputs.query.slice(ndarray::s![..24, .., ..]), layer.q.slice(ndarray::s![37..61, .., ..]));
    assert_eq!(inputs.query.slice(ndarray::s![24.., .., ..]), layer.q.slice(ndarray::s![184.., .., ..]));
    assert_eq!(inputs.keys[1], layer.k);
    assert_eq!(inputs.values[0], layer.v.slice(ndarray::s![..61, .., ..]));
}

#[test]
fn a_store_changes_its_slots_and_nothing_else() {
    let line = "store f32 kv=e4m3 h2/2 d16 page4 NHD unbind-outer pad=5,1,2,3 slots=[0,5,-1,7] kv=[8] kscale=0.5 vscale=0.25 paging=identity seed=9";
    let inputs = StoreInputs::generate(&case(line)).unwrap();
    let changed: HashSet<usize> =
        (0..inputs.before[0].len()).filter(|at| inputs.before[0][*at] != inputs.expected[0][*at]).collect();
    let mut stored = HashSet::new();
    for view in [&inputs.views.k, &inputs.views.v] {
        for slot in [0, 5, 7] {
            for head in 0..2 {
                stored.extend((0..16).map(|dim| view.index(slot / 4, slot % 4, head, dim)));
            }
        }
    }
    assert!(changed.is_subset(&stored) && changed.len() * 10 > stored.len() * 9);
    let at = inputs.views.v.index(1, 3, 1, 7);
    let want = oracle::store_code(Format::E4m3, inputs.values[[3, 1, 7]], 0.25);
    assert_eq!(u32::from(inputs.expected[0][at]), want);
}
