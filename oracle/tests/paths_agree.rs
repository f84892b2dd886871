//! The blocked paths against the judge, over every option and awkward shape.

mod common;

use common::{Inputs, Rng, Shape};
use oracle::{
    AttentionOptions, BoundModel, Format, Reference, Rows, attend_f32, attend_f64, attend_f64_blocked,
    attend_f64_values, compare, compare_lse,
};
use rstest::rstest;

/// Checks all paths against the judge; returns the judge's answer.
#[track_caller]
fn check(inputs: &Inputs, options: &AttentionOptions, model: &BoundModel, rows: Rows<'_>) -> Reference {
    let request = inputs.request();
    let judge = attend_f64(&request, options, model, rows).expect("valid");
    let values = attend_f64_values(&request, options, rows).expect("valid");
    let bounded = attend_f64_blocked(&request, options, model, rows).expect("valid");
    for (name, out, lse) in [("values", &values.out, &values.lse), ("bounded", &bounded.out, &bounded.lse)] {
        let size = judge.out.iter().filter(|x| x.is_finite()).fold(1.0, |max, x| f64::max(max, x.abs()));
        for (place, &want) in judge.out.indexed_iter() {
            assert!(is_close(out[place], want, 1e-12 * size), "{name} {place:?}: {} {want}", out[place]);
        }
        for (place, &want) in judge.lse.indexed_iter() {
            let error = 1e-12 * want.abs().max(1.0);
            assert!(is_close(lse[place], want, error), "{name} lse {place:?}: {} {want}", lse[place]);
        }
    }
    check_bounds(&judge, &bounded);
    assert_eq!(
        (&values.rows, &bounded.rows, &bounded.positions),
        (&judge.rows, &judge.rows, &judge.positions)
    );

    // f32 is a kernel like any other and must keep its bound, with P in f32 and a tile of 96 keys.
    let f32_model = BoundModel { key_tile: 96, ..BoundModel::new(Format::F32, 96) };
    let reference = attend_f64(&request, options, &f32_model, rows).expect("valid");
    let values = attend_f32(&request, options, rows).expect("valid");
    let out = compare(values.out.view(), &reference, Format::F32).expect("f32");
    assert!(out.passes(), "f32: {} of {}, {}", out.mismatches, out.elements, out.worst.expect("a worst"));
    let lse = compare_lse(values.lse.view(), &reference).expect("f32");
    assert!(lse.passes(), "f32 lse: {}", lse.worst.expect("a worst"));
    judge
}

fn is_close(got: f64, want: f64, error: f64) -> bool {
    got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= error
}

/// The fast bound is never below the judge's.
#[track_caller]
fn check_bounds(judge: &Reference, bounded: &Reference) {
    for (place, &want) in judge.bound.indexed_iter() {
        let got = bounded.bound[place];
        assert_eq!(got.is_nan(), want.is_nan(), "bound {place:?}: {got:e} {want:e}");
        assert!(got.is_nan() || got >= want * (1.0 - 1e-6), "bound {place:?}: {got:e} below {want:e}");
    }
    for (place, &want) in judge.lse_bound.indexed_iter() {
        let got = bounded.lse_bound[place];
        assert!(is_close(got, want, 1e-9 * want.abs()), "lse bound {place:?}: {got:e} {want:e}");
    }
    assert!(is_close(bounded.max_eta, judge.max_eta, 1e-9 * judge.max_eta));
}

fn models() -> [BoundModel; 3] {
    [
        BoundModel::new(Format::F32, 64),
        BoundModel { sign_symmetric_v: true, ..BoundModel::new(Format::Bf16, 16) },
        BoundModel { grid_inputs: true, ..BoundModel::new(Format::F16, 128) },
    ]
}

#[rstest]
#[case::square(Shape::new(200, 200, 4, 2, 64))]
#[case::decode(Shape::new(1, 333, 8, 1, 128))]
#[case::more_queries_than_keys(Shape::new(50, 20, 2, 2, 16))]
#[case::one_key(Shape::new(3, 1, 1, 1, 8))]
#[case::no_key(Shape::new(3, 0, 2, 1, 8))]
#[case::no_query(Shape::new(0, 30, 2, 1, 8))]
#[case::odd_extents(Shape { q_len: 13, kv_len: 101, q_heads: 21, kv_heads: 7, k_dim: 24, v_dim: 40 })]
#[case::one_dim(Shape { q_len: 7, kv_len: 97, q_heads: 3, kv_heads: 1, k_dim: 1, v_dim: 1 })]
fn on_every_shape(#[case] shape: Shape, #[values(false, true)] causal: bool) {
    let inputs = Inputs::normal(shape, 11);
    let options = AttentionOptions { causal, ..AttentionOptions::new(1.0 / (shape.k_dim as f64).sqrt()) };
    for model in models() {
        check(&inputs, &options, &model, Rows::All);
    }
}

/// Options drawn at random, several at a time, over random shapes.
#[rstest]
fn on_random_options(#[values(1, 2, 3, 4, 5, 6, 7, 8)] seed: u64) {
    let mut rng = Rng(seed);
    for _ in 0..12 {
        let below = |rng: &mut Rng, n: u64| (rng.next() % n) as usize;
        let kv_heads = 1 + below(&mut rng, 3);
        let shape = Shape {
            q_len: below(&mut rng, 40),
            kv_len: below(&mut rng, 260),
            q_heads: kv_heads * (1 + below(&mut rng, 5)),
            kv_heads,
            k_dim: 1 + below(&mut rng, 70),
            v_dim: 1 + below(&mut rng, 70),
        };
        let inputs = Inputs::normal(shape, rng.next());
        let per_head = |rng: &mut Rng, heads: usize, size: f64| -> Vec<f32> {
            (0..heads).map(|_| (size * rng.unit()) as f32 + 1e-3).collect()
        };
        let options = AttentionOptions {
            softmax_scale: 0.02 + rng.unit(),
            causal: below(&mut rng, 2) == 0,
            window_left: (below(&mut rng, 2) == 0).then(|| below(&mut rng, 60) as i64),
            window_right: (below(&mut rng, 3) == 0).then(|| below(&mut rng, 60) as i64),
            softcap: (below(&mut rng, 3) == 0).then(|| 1.0 + 30.0 * rng.unit()),
            alibi_slopes: (below(&mut rng, 3) == 0).then(|| per_head(&mut rng, shape.q_heads, 0.5)),
            sinks: (below(&mut rng, 3) == 0).then(|| per_head(&mut rng, shape.q_heads, 9.0)),
            k_scale: if below(&mut rng, 2) == 0 { vec![0.3] } else { per_head(&mut rng, kv_heads, 1.0) },
            v_scale: if below(&mut rng, 2) == 0 { vec![4.0] } else { per_head(&mut rng, kv_heads, 1.0) },
        };
        for model in models() {
            check(&inputs, &options, &model, Rows::All);
        }
    }
}

/// On ordinary inputs the fast bound is loose by less than the 1.25 of normal values around their mean.
#[rstest]
fn the_fast_bound_is_not_loose(#[values(Format::F32, Format::Bf16)] p_format: Format) {
    let inputs = Inputs::normal(Shape::new(64, 256, 4, 2, 64), 15);
    let options = AttentionOptions::causal(0.125);
    let model = BoundModel::new(p_format, 64);
    let judge = attend_f64(&inputs.request(), &options, &model, Rows::All).expect("valid");
    let fast = attend_f64_blocked(&inputs.request(), &options, &model, Rows::All).expect("valid");
    let ratio = fast.bound.sum() / judge.bound.sum();
    assert!((1.0..1.25).contains(&ratio), "{ratio}");
}

#[test]
fn on_a_sample_of_rows_in_any_order() {
    let shape = Shape::new(90, 150, 6, 3, 32);
    let inputs = Inputs::normal(shape, 12);
    let options = AttentionOptions::causal(0.2);
    let all = check(&inputs, &options, &models()[0], Rows::All);
    let rows = [89, 0, 44, 45, 44, 7];
    let sample = check(&inputs, &options, &models()[0], Rows::Sample(&rows));
    assert_eq!(sample.rows, rows);
    for (index, &row) in rows.iter().enumerate() {
        assert_eq!(sample.out.index_axis(ndarray::Axis(0), index), all.out.index_axis(ndarray::Axis(0), row));
        assert_eq!(sample.positions[index], all.positions[row]);
    }
    check(&inputs, &options, &models()[0], Rows::Sample(&[]));
}

/// NaN and infinity, in every operand, in keys that some rows see and some do not.
#[rstest]
fn on_values_that_are_not_finite(
    #[values(f32::NAN, f32::INFINITY, f32::NEG_INFINITY)] bad: f32,
    #[values("q", "k", "v")] operand: &str,
) {
    let shape = Shape::new(40, 60, 2, 1, 16);
    let mut inputs = Inputs::normal(shape, 13);
    match operand {
        "q" => inputs.q[[9, 1, 3]] = bad,
        "k" => inputs.k[[30, 0, 3]] = bad,
        _ => inputs.v[[30, 0, 3]] = bad,
    }
    let options = AttentionOptions { window_left: Some(12), ..AttentionOptions::causal(0.25) };
    let judge = check(&inputs, &options, &models()[0], Rows::All);
    for (place, &out) in judge.out.indexed_iter() {
        let (row, head, dim) = place;
        let position = row + 20;
        let sees = (30..=42).contains(&position);
        match operand {
            "q" => assert_eq!(out.is_finite(), (row, head) != (9, 1), "{place:?}"),
            "v" => assert_eq!(out.is_finite(), !sees || dim != 3, "{place:?}"),
            // A logit of −∞ is an ordinary weight of 0.
            _ => assert!(out.is_finite() || (sees && !out.is_infinite()), "{place:?}"),
        }
        if operand == "k" && bad.is_nan() {
            assert_eq!(out.is_nan(), sees, "{place:?}");
        }
        assert_eq!(judge.bound[place].is_finite(), out.is_finite(), "bound {place:?}");
    }
}

/// Values far outside what a cache holds stay where they belong.
#[test]
fn on_huge_values_in_keys_that_no_row_sees() {
    let mut inputs = Inputs::normal(Shape::new(10, 64, 2, 1, 16), 14);
    let options = AttentionOptions { window_left: Some(8), ..AttentionOptions::causal(0.25) };
    let clean = check(&inputs, &options, &models()[0], Rows::All);
    inputs.k.slice_mut(ndarray::s![..46, .., ..]).fill(1.0e30);
    inputs.v.slice_mut(ndarray::s![..46, .., ..]).fill(f32::NAN);
    let poisoned = check(&inputs, &options, &models()[0], Rows::All);
    assert_eq!(clean.out, poisoned.out);
    assert_eq!(clean.lse, poisoned.lse);
    assert_eq!(clean.bound, poisoned.bound);
}
