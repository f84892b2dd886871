//! Values that a person can check with pencil and paper, on every path.
//!
//! Logits are built from integers: with a softmax scale of ln 2, an integer dot product n is a weight of 2ⁿ.

use std::f64::consts::LN_2;

use ndarray::{Array3, s};
use oracle::{
    AttentionOptions, BoundModel, Format, Reference, Request, Rows, attend_f32, attend_f64,
    attend_f64_blocked,
};

/// Runs every path, checks that they agree, and returns the judge's answer.
#[track_caller]
fn attend(q: &Array3<f32>, k: &Array3<f32>, v: &Array3<f32>, options: &AttentionOptions) -> Reference {
    let request = Request { q: q.view(), k: k.view(), v: v.view() };
    let model = BoundModel::new(Format::F32, 64);
    let judge = attend_f64(&request, options, &model, Rows::All).expect("valid");
    let blocked = attend_f64_blocked(&request, options, &model, Rows::All).expect("valid");
    let single = attend_f32(&request, options, Rows::All).expect("valid");
    for (place, &want) in judge.out.indexed_iter() {
        assert_close(blocked.out[place], want, 1e-14);
        assert_close(f64::from(single.out[place]), want, 1e-6);
    }
    for (place, &want) in judge.lse.indexed_iter() {
        assert_close(blocked.lse[place], want, 1e-14);
        assert_close(f64::from(single.lse[place]), want, 1e-6);
    }
    judge
}

#[track_caller]
fn assert_close(got: f64, want: f64, relative: f64) {
    let close = got == want || (got - want).abs() <= relative * want.abs().max(1.0);
    assert!(close, "got {got:e}, want {want:e}");
}

/// One KV head of one dim.
fn column(values: &[i32]) -> Array3<f32> {
    Array3::from_shape_fn((values.len(), 1, 1), |(j, _, _)| values[j] as f32)
}

fn queries(rows: usize, heads: usize) -> Array3<f32> {
    Array3::ones((rows, heads, 1))
}

#[track_caller]
fn assert_answer(got: &Reference, row: usize, head: usize, out: f64, lse: f64) {
    assert_close(got.out[[row, head, 0]], out, 1e-14);
    assert_close(got.lse[[row, head]], lse, 1e-14);
}

#[test]
fn one_key_is_its_value_and_its_logit() {
    let got = attend(&queries(1, 1), &column(&[3]), &column(&[7]), &AttentionOptions::new(0.5));
    assert_answer(&got, 0, 0, 7.0, 1.5);
}

#[test]
fn equal_logits_average() {
    let got =
        attend(&queries(1, 1), &column(&[2, 2, 2, 2]), &column(&[1, 2, 3, 6]), &AttentionOptions::new(1.0));
    assert_answer(&got, 0, 0, 3.0, 2.0 + 2.0 * LN_2);
}

#[test]
fn weights_in_powers_of_two() {
    // Weights 1, 2, 1: a quarter of 4, a half of 8, a quarter of 12.
    let got = attend(&queries(1, 1), &column(&[0, 1, 0]), &column(&[4, 8, 12]), &AttentionOptions::new(LN_2));
    assert_answer(&got, 0, 0, 8.0, 2.0 * LN_2);
}

#[test]
fn causal_rows_are_aligned_at_the_bottom_right() {
    // Two rows over four keys stand at positions 2 and 3.
    let options = AttentionOptions::causal(1.0);
    let got = attend(&queries(2, 1), &column(&[0, 0, 0, 0]), &column(&[3, 6, 9, 22]), &options);
    assert_eq!(got.positions, [2, 3]);
    assert_answer(&got, 0, 0, 6.0, 3.0_f64.ln());
    assert_answer(&got, 1, 0, 10.0, 4.0_f64.ln());
}

#[test]
fn windows_count_keys_on_each_side_of_the_position() {
    let v = column(&[1, 2, 4, 8, 16]);
    let zeros = column(&[0; 5]);
    let options =
        AttentionOptions { window_left: Some(1), window_right: Some(2), ..AttentionOptions::new(1.0) };
    let got = attend(&queries(5, 1), &zeros, &v, &options);
    assert_answer(&got, 0, 0, 7.0 / 3.0, 3.0_f64.ln());
    assert_answer(&got, 1, 0, 15.0 / 4.0, 4.0_f64.ln());
    assert_answer(&got, 2, 0, 30.0 / 4.0, 4.0_f64.ln());
    assert_answer(&got, 4, 0, 12.0, 2.0_f64.ln());
    let causal = AttentionOptions { causal: true, ..options };
    assert_answer(&attend(&queries(5, 1), &zeros, &v, &causal), 2, 0, 3.0, 2.0_f64.ln());
}

#[test]
fn rows_without_a_key_are_zero_with_lse_of_minus_infinity() {
    // Three rows over one key: only the last stands at a key.
    let got = attend(&queries(3, 1), &column(&[5]), &column(&[9]), &AttentionOptions::causal(1.0));
    assert_answer(&got, 0, 0, 0.0, f64::NEG_INFINITY);
    assert_answer(&got, 1, 0, 0.0, f64::NEG_INFINITY);
    assert_answer(&got, 2, 0, 9.0, 5.0);
    assert!(got.bound.slice(s![..2, .., ..]).iter().all(|&bound| bound == 0.0));
    assert!(got.lse_bound.slice(s![..2, ..]).iter().all(|&bound| bound == 0.0));

    let none = column(&[]);
    let sink = AttentionOptions { sinks: Some(vec![2.5, f32::NEG_INFINITY]), ..AttentionOptions::new(1.0) };
    let got = attend(&queries(1, 2), &none, &none, &sink);
    assert_answer(&got, 0, 0, 0.0, 2.5);
    assert_answer(&got, 0, 1, 0.0, f64::NEG_INFINITY);
}

#[test]
fn a_sink_counts_in_the_denominator_only() {
    // Weights 1, 2, 1 and a sink of 4.
    let sinks = Some(vec![(2.0 * LN_2) as f32]);
    let options = AttentionOptions { sinks, ..AttentionOptions::new(LN_2) };
    let got = attend(&queries(1, 1), &column(&[0, 1, 0]), &column(&[4, 8, 12]), &options);
    // The sink is an f32 and not exactly 2 ln 2.
    assert_close(got.out[[0, 0, 0]], 4.0, 1e-7);
    assert_close(got.lse[[0, 0]], 3.0 * LN_2, 1e-7);
}

#[test]
fn softcap_goes_through_tanh() {
    // tanh(ln 2) = 3/5.
    let options = AttentionOptions { softcap: Some(5.0), ..AttentionOptions::new(LN_2) };
    let got = attend(&queries(1, 1), &column(&[5]), &column(&[1]), &options);
    assert_answer(&got, 0, 0, 1.0, 3.0);
}

#[test]
fn alibi_grows_past_the_position_too() {
    // Slope 1, positions 1 and 2 of four keys: logits −1, 0, 1, 2 and −2, −1, 0, 1.
    let options = AttentionOptions { alibi_slopes: Some(vec![1.0]), ..AttentionOptions::new(1.0) };
    let zeros = column(&[0; 4]);
    let got = attend(&queries(3, 1), &zeros, &column(&[0, 0, 0, 1]), &options);
    let e = std::f64::consts::E;
    let denominator = e.powi(-1) + 1.0 + e + e * e;
    assert_answer(&got, 0, 0, e * e / denominator, denominator.ln());
    assert_answer(&got, 1, 0, e * e / denominator, denominator.ln() - 1.0);
}

#[test]
fn softcap_comes_before_alibi() {
    let options =
        AttentionOptions { softcap: Some(5.0), alibi_slopes: Some(vec![2.0]), ..AttentionOptions::new(LN_2) };
    // Three rows over one key: the first stands at −2, so that key is 2 ahead: 3 + 2·2.
    let got = attend(&queries(3, 1), &column(&[5]), &column(&[1]), &options);
    assert_answer(&got, 0, 0, 1.0, 7.0);
}

#[test]
fn query_heads_share_kv_heads_in_order() {
    let q = queries(1, 6);
    let k = Array3::zeros((1, 3, 1));
    let v = Array3::from_shape_fn((1, 3, 1), |(_, head, _)| 10.0 * head as f32);
    let got = attend(&q, &k, &v, &AttentionOptions::new(1.0));
    assert_eq!(got.out.slice(s![0, .., 0]).to_vec(), [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]);
}

#[test]
fn scales_belong_to_kv_heads() {
    let (q, k, v) = (queries(1, 4), Array3::ones((1, 2, 1)), Array3::ones((1, 2, 1)));
    let options =
        AttentionOptions { k_scale: vec![2.0, 3.0], v_scale: vec![5.0, 7.0], ..AttentionOptions::new(0.5) };
    let got = attend(&q, &k, &v, &options);
    assert_eq!(got.out.slice(s![0, .., 0]).to_vec(), [5.0, 5.0, 7.0, 7.0]);
    assert_eq!(got.lse.row(0).to_vec(), [1.0, 1.0, 1.5, 1.5]);
}

/// The bound of a problem small enough to work out: one row, two equal keys of magnitude 1, values 1 and 3.
#[test]
fn the_bound_term_by_term() {
    let u = 0.5_f64.powi(24);
    let request_arrays = (queries(1, 1), column(&[1, 1]), column(&[1, 3]));
    let request =
        Request { q: request_arrays.0.view(), k: request_arrays.1.view(), v: request_arrays.2.view() };
    let options = AttentionOptions { v_scale: vec![2.0], ..AttentionOptions::new(1.0) };
    let model = BoundModel { key_tile: 1, ..BoundModel::new(Format::F16, 1) };
    let got = attend_f64(&request, &options, &model, Rows::All).expect("valid");
    // D = 1, S = 1, x = 0, T = 2: eta = (2u + 4u) + 2(u + 4u) + 4u = 20u, for both keys.
    assert_close(got.max_eta, 20.0 * u, 1e-15);
    // Σ w|v| = 2 = Σ w·v, |v − mean| = 1 for both, l = 2; L·2^-23 + (B_T + T + 4)u = 4u + 7u.
    let terms = 0.5_f64.powi(11) * 2.0 + 20.0 * u + 11.0 * u * 2.0 + 0.5_f64.powi(25) * 4.0 / 2.0;
    let second_order = 1.0 + 0.5_f64.powi(7);
    assert_close(got.bound[[0, 0, 0]] / (2.0 * terms * second_order), 1.0, 1e-14);
    let lse = 1.0 + LN_2;
    assert_close(got.lse_bound[[0, 0]] / ((20.0 * u + 11.0 * u + u * lse) * second_order), 1.0, 1e-14);

    // |v − mean| is the same for both keys, so the fast path's Cauchy–Schwarz bound is exact.
    let fast = attend_f64_blocked(&request, &options, &model, Rows::All).expect("valid");
    assert_close(fast.bound[[0, 0, 0]] / got.bound[[0, 0, 0]], 1.0, 1e-9);

    // The random-walk form: 8·sqrt(1/4 + 9/4) > 2, so the hard term stays; a softcap of 16 adds 16·2^-21 to eta;
    // on a grid the 2u of the dot product go.
    let soft = BoundModel { sign_symmetric_v: true, ..model };
    assert_eq!(attend_f64(&request, &options, &soft, Rows::All).expect("valid").bound, got.bound);
    let capped = AttentionOptions { softcap: Some(16.0), ..options.clone() };
    let eta = attend_f64(&request, &capped, &model, Rows::All).expect("valid").max_eta;
    assert_close(eta / (20.0 * u + 16.0 * 8.0 * u), 1.0, 1e-14);
    let grid = BoundModel { grid_inputs: true, ..model };
    assert_close(
        attend_f64(&request, &options, &grid, Rows::All).expect("valid").max_eta / (18.0 * u),
        1.0,
        1e-14,
    );
}

/// x and the largest |x| in eta, and the random-walk form where it is the smaller one.
#[test]
fn the_bound_with_unequal_weights_and_many_keys() {
    let u = 0.5_f64.powi(24);
    let logits: Vec<i32> = (0..256).map(|j| if j == 0 { 0 } else { -3 }).collect();
    let (q, k, v) = (queries(1, 1), column(&logits), column(&vec![1; 256]));
    let request = Request { q: q.view(), k: k.view(), v: v.view() };
    let options = AttentionOptions::new(LN_2);
    let model = BoundModel { sign_symmetric_v: true, ..BoundModel::new(Format::Bf16, 64) };
    let got = attend_f64(&request, &options, &model, Rows::All).expect("valid");
    let x = 3.0 * LN_2;
    // Far keys: D = 1, S = x, T = 4, and x once for itself and once as the row's largest.
    let common = 4.0 * 5.0 * u + u * x + 4.0 * u;
    let far = 6.0 * u * x + u * x + common;
    assert_close(got.max_eta / far, 1.0, 1e-14);
    // All values are 1: |v − mean| is 0 up to rounding. Σ w² = (1 + 255/64) / (1 + 255/8)².
    let l = 1.0 + 255.0 / 8.0;
    let soft = 8.0 / 256.0 * (1.0_f64 + 255.0 / 64.0).sqrt() / l;
    let sums = 256.0 * 2.0 * u + (64.0 + 4.0 + 4.0) * u;
    let lost = 0.5_f64.powi(126) * 256.0 / l;
    let bound = (soft.min(1.0 / 256.0) + sums + lost) * (1.0 + 0.5_f64.powi(7));
    assert!(soft < 2.0 / 256.0, "{soft}");
    assert_close(got.bound[[0, 0, 0]] / bound, 1.0, 1e-9);
    let fast = attend_f64_blocked(&request, &options, &model, Rows::All).expect("valid");
    assert_close(fast.bound[[0, 0, 0]] / bound, 1.0, 1e-6);
}

#[test]
fn an_error_of_the_sink_moves_the_output_as_that_of_a_key_without_values_does() {
    // Large logits, so that errors of the exponentials are most of the bound; all weights are a third.
    let logit = 64.0_f32;
    let sink = AttentionOptions { sinks: Some(vec![logit]), ..AttentionOptions::new(1.0) };
    let of_sink = attend(&queries(1, 1), &column(&[64, 64]), &column(&[1, 1]), &sink);
    let of_key =
        attend(&queries(1, 1), &column(&[64, 64, 64]), &column(&[1, 1, 0]), &AttentionOptions::new(1.0));
    let share = of_sink.bound[[0, 0, 0]] / of_key.bound[[0, 0, 0]];
    assert!((0.7..1.0).contains(&share), "{share}");
}
