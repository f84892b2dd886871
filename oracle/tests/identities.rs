//! What holds for attention whatever the inputs.

mod common;

use common::{Inputs, Shape, mask_of};
use ndarray::{Array2, Array3, Axis, concatenate, s};
use oracle::{
    AttentionOptions, BoundModel, Format, OracleError, PartialState, Reference, Request, Rows, attend_f64,
    attend_f64_blocked, merge_states,
};
use rstest::rstest;

type Path = fn(&Request<'_>, &AttentionOptions, &BoundModel, Rows<'_>) -> Result<Reference, OracleError>;

const SHAPE: Shape = Shape { q_len: 9, kv_len: 70, q_heads: 6, kv_heads: 3, k_dim: 16, v_dim: 24 };

fn run(path: Path, inputs: &Inputs, options: &AttentionOptions) -> Reference {
    path(&inputs.request(), options, &BoundModel::new(Format::Bf16, 64), Rows::All).expect("valid")
}

#[track_caller]
fn assert_same_out(a: &Array3<f64>, b: &Array3<f64>) {
    assert_eq!(a.dim(), b.dim());
    a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() <= 1e-13, "{a} {b}"));
}

#[track_caller]
fn assert_same_lse(a: &Array2<f64>, b: &Array2<f64>, shift: f64) {
    assert_eq!(a.dim(), b.dim());
    a.iter()
        .zip(b)
        .for_each(|(a, b)| assert!(a == b || (a + shift - b).abs() <= 1e-11, "{a} + {shift}, {b}"));
}

#[rstest]
fn the_order_of_the_keys_does_not_matter(#[values(attend_f64, attend_f64_blocked)] path: Path) {
    let inputs = Inputs::normal(SHAPE, 1);
    let order: Vec<usize> = (0..SHAPE.kv_len).map(|j| j * 29 % SHAPE.kv_len).collect();
    let permuted =
        Inputs { k: inputs.k.select(Axis(0), &order), v: inputs.v.select(Axis(0), &order), ..inputs.clone() };
    let options = AttentionOptions::new(0.3);
    let (a, b) = (run(path, &inputs, &options), run(path, &permuted, &options));
    assert_same_out(&a.out, &b.out);
    assert_same_lse(&a.lse, &b.lse, 0.0);
}

/// Parts of the keys, joined, are the whole. Windows and a causal mask leave some parts without a visible key.
#[rstest]
fn split_and_merge(
    #[values(attend_f64, attend_f64_blocked)] path: Path,
    #[values(&[0, 35], &[0, 1, 69], &[0, 0, 10, 20, 30, 40, 50, 60])] starts: &[usize],
    #[values(None, Some(20))] window: Option<i64>,
) {
    let inputs = Inputs::normal(SHAPE, 2);
    let options = AttentionOptions { window_left: window, ..AttentionOptions::causal(0.3) };
    let whole = run(path, &inputs, &options);
    let parts: Vec<Reference> = starts
        .iter()
        .enumerate()
        .map(|(part, &start)| {
            let end = starts.get(part + 1).copied().unwrap_or(SHAPE.kv_len);
            run_part(path, &inputs, &options, start..end)
        })
        .collect();
    let states: Vec<PartialState<'_>> =
        parts.iter().map(|part| PartialState { out: part.out.view(), lse: part.lse.view() }).collect();
    let merged = merge_states(&states).expect("equal shapes");
    assert_same_out(&merged.out, &whole.out);
    assert_same_lse(&merged.lse, &whole.lse, 0.0);
}

/// Attention of all rows over a part of the keys: row by row, because the mask depends on the position.
fn run_part(
    path: Path,
    inputs: &Inputs,
    options: &AttentionOptions,
    keys: std::ops::Range<usize>,
) -> Reference {
    let mask = mask_of(inputs, options);
    let plain = AttentionOptions { causal: false, window_left: None, window_right: None, ..options.clone() };
    let rows: Vec<Reference> = (0..SHAPE.q_len)
        .map(|row| {
            let visible = mask.visible_keys(mask.position(row));
            let (start, end) = (visible.start.max(keys.start), visible.end.min(keys.end));
            let part = Inputs {
                q: inputs.q.slice(s![row..row + 1, .., ..]).to_owned(),
                k: inputs.k.slice(s![start..end.max(start), .., ..]).to_owned(),
                v: inputs.v.slice(s![start..end.max(start), .., ..]).to_owned(),
            };
            run(path, &part, &plain)
        })
        .collect();
    let outs: Vec<_> = rows.iter().map(|row| row.out.view()).collect();
    let lses: Vec<_> = rows.iter().map(|row| row.lse.view()).collect();
    Reference {
        out: concatenate(Axis(0), &outs).expect("equal shapes"),
        lse: concatenate(Axis(0), &lses).expect("equal shapes"),
        ..rows[0].clone()
    }
}

/// A constant in all logits leaves out alone and shifts the lse. One more dim of q and k carries it.
#[rstest]
fn logits_may_be_shifted(
    #[values(attend_f64, attend_f64_blocked)] path: Path,
    #[values(1.0, -1.0, 1e3, -1e3, 6e4, -6e4)] shift: f64,
) {
    let mut inputs = Inputs::grid(SHAPE, 3);
    inputs.q.slice_mut(s![.., .., 0]).fill(0.0);
    let options = AttentionOptions::causal(0.25);
    let before = run(path, &inputs, &options);
    inputs.q.slice_mut(s![.., .., 0]).fill(4.0);
    inputs.k.slice_mut(s![.., .., 0]).fill(shift as f32);
    let after = run(path, &inputs, &options);
    assert_same_out(&before.out, &after.out);
    assert_same_lse(&before.lse, &after.lse, shift);
}

#[rstest]
fn an_unlimited_window_is_no_window(
    #[values(attend_f64, attend_f64_blocked)] path: Path,
    #[values(true, false)] causal: bool,
) {
    let inputs = Inputs::normal(SHAPE, 4);
    let none = AttentionOptions { causal, ..AttentionOptions::new(0.3) };
    let wide = AttentionOptions { window_left: Some(i64::MAX), window_right: Some(i64::MAX), ..none.clone() };
    let just = AttentionOptions { window_left: Some(69), window_right: Some(8), ..none.clone() };
    let want = run(path, &inputs, &none);
    for options in [wide, just] {
        let got = run(path, &inputs, &options);
        assert_eq!((got.out, got.lse, got.bound), (want.out.clone(), want.lse.clone(), want.bound.clone()));
    }
    let narrow = AttentionOptions { window_left: Some(60), ..none };
    assert_ne!(run(path, &inputs, &narrow).out, want.out, "a window that hides a key must show");
}

/// Grouped heads are the same as a KV head of its own, repeated, for each query head.
#[rstest]
fn grouped_heads_are_repeated_heads(
    #[values(attend_f64, attend_f64_blocked)] path: Path,
    #[values(1, 2, 3, 5, 8, 12, 32)] ratio: usize,
) {
    let shape = Shape { q_heads: 2 * ratio, kv_heads: 2, ..SHAPE };
    let inputs = Inputs::normal(shape, 5);
    let repeated: Vec<usize> = (0..shape.q_heads).map(|head| head / ratio).collect();
    let own = Inputs {
        k: inputs.k.select(Axis(1), &repeated),
        v: inputs.v.select(Axis(1), &repeated),
        ..inputs.clone()
    };
    let options = AttentionOptions {
        k_scale: vec![0.5, 2.0],
        v_scale: vec![3.0, 0.7],
        ..AttentionOptions::causal(0.3)
    };
    let repeat = |scales: &[f32]| repeated.iter().map(|&head| scales[head]).collect();
    let own_options = AttentionOptions {
        k_scale: repeat(&options.k_scale),
        v_scale: repeat(&options.v_scale),
        ..options.clone()
    };
    let (grouped, own) = (run(path, &inputs, &options), run(path, &own, &own_options));
    assert_same_out(&grouped.out, &own.out);
    assert_same_lse(&grouped.lse, &own.lse, 0.0);
    assert_same_out(&grouped.bound, &own.bound);
}

/// Powers of two in the scales are exact.
#[rstest]
fn scales_by_powers_of_two_are_exact(#[values(attend_f64, attend_f64_blocked)] path: Path) {
    let inputs = Inputs::normal(SHAPE, 6);
    let one = run(path, &inputs, &AttentionOptions::causal(0.3));
    let scaled =
        AttentionOptions { v_scale: vec![8.0], k_scale: vec![4.0], ..AttentionOptions::causal(0.3 / 4.0) };
    let got = run(path, &inputs, &scaled);
    assert_eq!(got.out, &one.out * 8.0);
    assert_eq!(got.bound, &one.bound * 8.0);
    assert_eq!(got.lse, one.lse);
}

/// Prefill's last row is decode, and a chunk of queries is part of the whole.
#[rstest]
fn chunks_of_queries_are_rows_of_the_whole(#[values(attend_f64, attend_f64_blocked)] path: Path) {
    let inputs = Inputs::normal(Shape { q_len: 70, ..SHAPE }, 7);
    let options = AttentionOptions { window_left: Some(30), ..AttentionOptions::causal(0.3) };
    let whole = run(path, &inputs, &options);
    for (start, end) in [(0, 32), (32, 69), (69, 70)] {
        let chunk = Inputs {
            q: inputs.q.slice(s![start..end, .., ..]).to_owned(),
            k: inputs.k.slice(s![..end, .., ..]).to_owned(),
            v: inputs.v.slice(s![..end, .., ..]).to_owned(),
        };
        let got = run(path, &chunk, &options);
        assert_same_out(&got.out, &whole.out.slice(s![start..end, .., ..]).to_owned());
        assert_same_lse(&got.lse, &whole.lse.slice(s![start..end, ..]).to_owned(), 0.0);
    }
}

#[test]
fn merging_empty_parts() {
    let rows = |values: [f64; 2]| Array3::from_shape_fn((1, 2, 2), |(_, head, _)| values[head]);
    let lse = |values: [f64; 2]| Array2::from_shape_fn((1, 2), |(_, head)| values[head]);
    let empty = f64::NEG_INFINITY;
    let (full_out, full_lse) = (rows([3.0, 4.0]), lse([1.0, empty]));
    let (none_out, none_lse) = (rows([f64::NAN, f64::NAN]), lse([empty, empty]));
    let full = PartialState { out: full_out.view(), lse: full_lse.view() };
    let none = PartialState { out: none_out.view(), lse: none_lse.view() };
    for parts in [vec![full, none], vec![none, full], vec![none, none, full]] {
        let merged = merge_states(&parts).expect("equal shapes");
        assert_eq!(merged.out.slice(s![0, 0, ..]).to_vec(), [3.0, 3.0]);
        assert_eq!(merged.out.slice(s![0, 1, ..]).to_vec(), [0.0, 0.0], "every part of head 1 is empty");
        assert_eq!(merged.lse.row(0).to_vec(), [1.0, empty]);
    }
    // Weights e^0 and e^(ln 3): a quarter and three quarters; no overflow at 1000.
    let (a, b) = (rows([0.0, 8.0]), rows([4.0, 0.0]));
    let (a_lse, b_lse) = (lse([1000.0, 0.0]), lse([1000.0 + 3.0_f64.ln(), 0.0]));
    let parts = [
        PartialState { out: a.view(), lse: a_lse.view() },
        PartialState { out: b.view(), lse: b_lse.view() },
    ];
    let merged = merge_states(&parts).expect("equal shapes");
    assert!((merged.out[[0, 0, 0]] - 3.0).abs() < 1e-12 && (merged.out[[0, 1, 0]] - 4.0).abs() < 1e-12);
    assert!((merged.lse[[0, 0]] - 1000.0 - 4.0_f64.ln()).abs() < 1e-12);
    // NaN in an inhabited part is not hidden.
    let nan = rows([f64::NAN, 0.0]);
    let parts = [full, PartialState { out: nan.view(), lse: a_lse.view() }];
    assert!(merge_states(&parts).expect("equal shapes").out[[0, 0, 0]].is_nan());
}
