//! Every refusal names the argument, its value and what would be accepted, on every path.

mod common;

use common::{Inputs, Shape};
use ndarray::{Array2, Array3};
use oracle::{
    AttentionOptions, BoundModel, Format, OracleError, PartialState, Request, Rows, attend, attend_f32,
    attend_f64, attend_f64_blocked, attend_f64_values, merge_states,
};
use rstest::rstest;

fn valid() -> (Inputs, AttentionOptions, BoundModel) {
    let inputs = Inputs::normal(Shape::new(2, 3, 4, 2, 8), 1);
    (inputs, AttentionOptions::new(0.5), BoundModel::new(Format::F32, 64))
}

/// The error of each path that checks requests, which must be the same.
#[track_caller]
fn refusal(request: &Request<'_>, options: &AttentionOptions, rows: Rows<'_>) -> String {
    let model = BoundModel::new(Format::F32, 64);
    let errors: [Option<OracleError>; 5] = [
        attend_f64(request, options, &model, rows).err(),
        attend_f64_blocked(request, options, &model, rows).err(),
        attend(request, options, &model, rows).err(),
        attend_f64_values(request, options, rows).err(),
        attend_f32(request, options, rows).err(),
    ];
    for error in &errors {
        assert_eq!(error, &errors[0]);
    }
    errors[0].as_ref().expect("a refusal").to_string()
}

#[rstest]
#[case(|o: &mut AttentionOptions| o.softmax_scale = 0.0, "softmax_scale is 0; accepted: a finite value greater than 0")]
#[case(|o: &mut AttentionOptions| o.softmax_scale = -1.5, "softmax_scale is -1.5; accepted: a finite value greater than 0")]
#[case(|o: &mut AttentionOptions| o.softmax_scale = f64::NAN, "softmax_scale is NaN; accepted: a finite value greater than 0")]
#[case(|o: &mut AttentionOptions| o.softcap = Some(0.0), "softcap is 0; accepted: a finite value greater than 0")]
#[case(|o: &mut AttentionOptions| o.softcap = Some(f64::INFINITY), "softcap is inf; accepted: a finite value greater than 0")]
#[case(|o: &mut AttentionOptions| o.window_left = Some(-1), "window_left is -1; accepted: 0 or more, or None for no limit")]
#[case(|o: &mut AttentionOptions| o.window_right = Some(-7), "window_right is -7; accepted: 0 or more, or None for no limit")]
#[case(|o: &mut AttentionOptions| o.k_scale = vec![1.0, 0.0], "k_scale[1] is 0; accepted: a finite value greater than 0")]
#[case(|o: &mut AttentionOptions| o.v_scale = vec![f32::INFINITY], "v_scale[0] is inf; accepted: a finite value greater than 0")]
#[case(
    |o: &mut AttentionOptions| o.k_scale = vec![1.0; 3],
    "k_scale has shape [3]; accepted: 1 scale for the tensor or 2, one per KV head (never one per page)"
)]
#[case(
    |o: &mut AttentionOptions| o.v_scale = vec![],
    "v_scale has shape [0]; accepted: 1 scale for the tensor or 2, one per KV head (never one per page)"
)]
#[case(
    |o: &mut AttentionOptions| o.alibi_slopes = Some(vec![0.5; 2]),
    "alibi_slopes has shape [2]; accepted: [4], one per query head"
)]
#[case(
    |o: &mut AttentionOptions| o.alibi_slopes = Some(vec![0.5, 0.5, f32::INFINITY, 0.5]),
    "alibi_slopes[2] is inf; accepted: finite"
)]
#[case(|o: &mut AttentionOptions| o.sinks = Some(vec![0.0; 5]), "sinks has shape [5]; accepted: [4], one per query head")]
#[case(
    |o: &mut AttentionOptions| o.sinks = Some(vec![0.0, f32::NAN, 0.0, 0.0]),
    "sinks[1] is NaN; accepted: finite or -inf"
)]
fn options(#[case] change: fn(&mut AttentionOptions), #[case] words: &str) {
    let (inputs, mut options, _) = valid();
    change(&mut options);
    assert_eq!(refusal(&inputs.request(), &options, Rows::All), words);
}

#[rstest]
#[case([2, 5, 8], [3, 2, 8], [3, 2, 8], "q has shape [2, 5, 8]; accepted: [q_len, a multiple of the 2 KV heads, 8]")]
#[case([2, 0, 8], [3, 2, 8], [3, 2, 8], "q has shape [2, 0, 8]; accepted: [q_len, a multiple of the 2 KV heads, 8]")]
#[case([2, 4, 9], [3, 2, 8], [3, 2, 8], "q has shape [2, 4, 9]; accepted: [q_len, a multiple of the 2 KV heads, 8]")]
#[case([2, 4, 8], [3, 2, 8], [4, 2, 8], "v has shape [4, 2, 8]; accepted: [3, 2, v_dim] with v_dim at least 1, as k has it")]
#[case([2, 4, 8], [3, 2, 8], [3, 1, 8], "v has shape [3, 1, 8]; accepted: [3, 2, v_dim] with v_dim at least 1, as k has it")]
#[case([2, 4, 8], [3, 2, 8], [3, 2, 0], "v has shape [3, 2, 0]; accepted: [3, 2, v_dim] with v_dim at least 1, as k has it")]
#[case(
    [2, 4, 8], [3, 0, 8], [3, 0, 8],
    "k has shape [3, 0, 8]; accepted: [kv_len, num_kv_heads, head_dim] with at least one head and one dim"
)]
#[case(
    [2, 4, 0], [3, 2, 0], [3, 2, 8],
    "k has shape [3, 2, 0]; accepted: [kv_len, num_kv_heads, head_dim] with at least one head and one dim"
)]
fn shapes(#[case] q: [usize; 3], #[case] k: [usize; 3], #[case] v: [usize; 3], #[case] words: &str) {
    let (q, k, v) = (Array3::zeros(q), Array3::zeros(k), Array3::zeros(v));
    let request = Request { q: q.view(), k: k.view(), v: v.view() };
    assert_eq!(refusal(&request, &AttentionOptions::new(0.5), Rows::All), words);
}

#[test]
fn rows() {
    let (inputs, options, _) = valid();
    let words = refusal(&inputs.request(), &options, Rows::Sample(&[1, 2]));
    assert_eq!(words, "rows[1] is 2; accepted: below the q_len of 2");
}

#[rstest]
#[case(BoundModel { key_tile: 0, ..BoundModel::new(Format::F32, 64) }, "key_tile is 0; accepted: at least 1")]
#[case(
    BoundModel { p_unit_roundoff: -0.5, ..BoundModel::new(Format::F32, 64) },
    "p_unit_roundoff is -0.5; accepted: at least 0 and below 1"
)]
#[case(
    BoundModel { p_underflow: f64::NAN, ..BoundModel::new(Format::F32, 64) },
    "p_underflow is NaN; accepted: at least 0 and below 1"
)]
fn bound_models(#[case] model: BoundModel, #[case] words: &str) {
    let (inputs, options, _) = valid();
    for path in [attend_f64, attend_f64_blocked, attend] {
        let error = path(&inputs.request(), &options, &model, Rows::All).expect_err("a refusal");
        assert_eq!(error.to_string(), words);
    }
}

#[test]
fn parts_of_a_merge() {
    let (out, lse) = (Array3::zeros((1, 2, 3)), Array2::zeros((1, 2)));
    let (other_out, other_lse) = (Array3::zeros((1, 2, 4)), Array2::zeros((2, 2)));
    let part = PartialState { out: out.view(), lse: lse.view() };
    let words = |parts: &[PartialState<'_>]| merge_states(parts).expect_err("a refusal").to_string();
    assert_eq!(words(&[]), "parts is empty; accepted: at least one part");
    let wrong = PartialState { out: other_out.view(), ..part };
    assert_eq!(words(&[part, wrong]), "out has shape [1, 2, 4]; accepted: [1, 2, 3], as the first part");
    let wrong = PartialState { lse: other_lse.view(), ..part };
    assert_eq!(words(&[part, wrong]), "lse has shape [2, 2]; accepted: [1, 2], as out has it");
}

/// Scales per tensor and per KV head, sinks of −∞ and a window of 0 are all accepted.
#[test]
fn the_edges_of_what_is_accepted() {
    let (inputs, options, model) = valid();
    let options = AttentionOptions {
        window_left: Some(0),
        window_right: Some(0),
        sinks: Some(vec![f32::NEG_INFINITY; 4]),
        k_scale: vec![1.0, 2.0],
        alibi_slopes: Some(vec![0.0, -1.0, 1.0, 0.5]),
        ..options
    };
    let answer = attend(&inputs.request(), &options, &model, Rows::All).expect("accepted");
    assert!(answer.out.iter().all(|out| out.is_finite()));
}
