//! Inputs on which a careless bound condemns a correct kernel or lets a wrong one pass. The bound is trusted only
//! because it survives these.

mod common;

use common::{Flash, Inputs, Shape, mean_of_v, zeros};
use ndarray::{Array3, s};
use oracle::{
    AttentionOptions, BoundModel, Comparison, Format, Reference, Rows, attend_f64, compare, compare_lse,
};
use rstest::rstest;

const KEY_TILE: usize = 64;

fn flash(p_format: Format, out_format: Format) -> Flash {
    Flash { p_format, out_format, key_tile: KEY_TILE, folds_log2e: true }
}

fn reference(inputs: &Inputs, options: &AttentionOptions, model: &BoundModel) -> Reference {
    attend_f64(&inputs.request(), options, model, Rows::All).expect("valid inputs")
}

fn judge(
    kernel: Flash,
    inputs: &Inputs,
    options: &AttentionOptions,
    model: &BoundModel,
) -> (Comparison, Comparison) {
    let reference = reference(inputs, options, model);
    let answer = kernel.run(inputs, options);
    let out = compare(answer.out.view(), &reference, kernel.out_format).expect("values of the format");
    (out, compare_lse(answer.lse.view(), &reference).expect("one lse per row and head"))
}

#[track_caller]
fn assert_accepted((out, lse): (Comparison, Comparison)) {
    assert!(out.passes(), "{} of {}: {}", out.mismatches, out.elements, out.worst.expect("a worst"));
    assert!(lse.passes(), "lse, {} of {}: {}", lse.mismatches, lse.elements, lse.worst.expect("a worst"));
}

/// One query with one feature per key, so that the logits are whatever is asked for.
fn with_logits(logits: &[f32], v: impl Fn(usize) -> f32) -> Inputs {
    Inputs {
        q: Array3::ones((1, 1, 8)),
        k: Array3::from_shape_fn((logits.len(), 1, 8), |(j, _, d)| if d == 0 { logits[j] } else { 0.0 }),
        v: Array3::from_shape_fn((logits.len(), 1, 8), |(j, _, _)| v(j)),
    }
}

/// A weight below half of the smallest f16 is lost altogether, and with a needle whose V is 0 nothing hides it.
#[rstest]
#[case(13.0)]
#[case(15.0)]
#[case(17.5)]
fn f16_weights_far_below_a_needle_may_be_lost(#[case] below: f32) {
    let logits: Vec<f32> = (0..64).map(|j| if j == 5 { 20.0 } else { 20.0 - below }).collect();
    let inputs = with_logits(&logits, |j| if j == 5 { 0.0 } else { 1.0 });
    let options = AttentionOptions::new(1.0);
    let kernel = flash(Format::F16, Format::F32);
    let model = BoundModel::new(Format::F16, KEY_TILE);
    assert_accepted(judge(kernel, &inputs, &options, &model));

    // Were the weights' underflow not allowed for, the correct kernel would be condemned.
    let strict = BoundModel { p_underflow: 0.0, ..model };
    let (out, _) = judge(kernel, &inputs, &options, &strict);
    assert_eq!(out.mismatches, out.elements, "share {}", out.worst_share);
}

/// The sink dwarfs every key: all weights are about exp(-200), below anything that f32 holds.
#[rstest]
fn a_sink_far_above_the_logits(#[values(Format::F32, Format::Bf16, Format::F16)] p_format: Format) {
    let inputs = Inputs::normal(Shape::new(4, 100, 2, 1, 64), 1);
    let options = AttentionOptions { sinks: Some(vec![200.0, 3.0]), ..AttentionOptions::causal(0.125) };
    let model = BoundModel::new(p_format, KEY_TILE);
    assert_accepted(judge(flash(p_format, Format::F32), &inputs, &options, &model));
    let reference = reference(&inputs, &options, &model);
    assert!(reference.lse.column(0).iter().all(|&lse| lse == 200.0), "the sink is the lse of head 0");
    let without = AttentionOptions { sinks: None, ..options };
    let dropped = flash(p_format, Format::F32).run(&inputs, &without);
    let comparison = compare(dropped.out.view(), &reference, Format::F32).expect("values of the format");
    assert!(comparison.mismatches > comparison.elements / 2, "dropping the sink: {}", comparison.mismatches);
}

/// tanh through exp has an error relative to 1, not to its value: times the cap it is an error of the logit. Few
/// keys and inputs on a grid, so that no other term of the bound hides it.
#[rstest]
fn a_wide_softcap_with_tanh_by_exp(#[values(Format::F32, Format::F16)] p_format: Format) {
    let inputs = Inputs::grid(Shape::new(8, 16, 2, 1, 64), 2);
    let options = AttentionOptions { softcap: Some(1000.0), ..AttentionOptions::new(0.125) };
    let kernel = Flash { key_tile: 16, ..flash(p_format, Format::F32) };
    let model = BoundModel { grid_inputs: true, ..BoundModel::new(p_format, 16) };
    assert_accepted(judge(kernel, &inputs, &options, &model));
}

/// ALiBi adds a large number to a small one, and the score is rounded to the place of the sum. Where more rows than keys
/// put every key far from the row, the logits hardly differ and nothing else in the bound grows with the distance.
#[rstest]
fn alibi_with_every_key_far_from_the_row(#[values(1.0, -1.0, 0.05)] slope: f32) {
    let shape = Shape::new(900, 8, 1, 1, 8);
    let mut inputs = Inputs::grid(shape, 5);
    inputs.v = Array3::from_shape_fn((8, 1, 8), |(j, _, _)| if j % 2 == 0 { 1.0 } else { -1.0 });
    let options = AttentionOptions { alibi_slopes: Some(vec![slope]), ..AttentionOptions::new(0.125) };
    let kernel = flash(Format::F32, Format::F32);
    assert_accepted(judge(kernel, &inputs, &options, &BoundModel::new(Format::F32, KEY_TILE)));
}

/// Nearly equal weights over values of mean 1.
#[rstest]
fn nearly_uniform_weights_over_values_of_mean_one(
    #[values(Format::Bf16, Format::F16)] p_format: Format,
    #[values(Format::F32, Format::F16)] out_format: Format,
) {
    let mut rng = common::Rng(3);
    let logits: Vec<f32> = (0..4096).map(|_| (5e-4 * rng.unit()) as f32).collect();
    let inputs = with_logits(&logits, |j| 1.0 + (j % 7) as f32 / 64.0);
    let model = BoundModel::new(p_format, KEY_TILE);
    assert_accepted(judge(flash(p_format, out_format), &inputs, &AttentionOptions::new(1.0), &model));
}

/// One key is ahead by a little less than half a step of P below 1: every other weight is rounded up to 1, so the
/// rounding errors all have one sign and do not average out over keys.
#[test]
fn rounding_errors_of_p_with_one_sign() {
    let logits: Vec<f32> = (0..4096).map(|j| if j == 0 { 1.9e-3 } else { 0.0 }).collect();
    let inputs = with_logits(&logits, |_| 1.0);
    let options = AttentionOptions::new(1.0);
    let kernel = flash(Format::Bf16, Format::F32);
    let model = BoundModel::new(Format::Bf16, KEY_TILE);
    assert_accepted(judge(kernel, &inputs, &options, &model));

    // The random-walk form of the term is for V of symmetric sign only; here it would condemn the kernel.
    let soft = BoundModel { sign_symmetric_v: true, ..model };
    let (out, _) = judge(kernel, &inputs, &options, &soft);
    assert_eq!(out.mismatches, out.elements, "share {}", out.worst_share);
}

/// Softmax scales from nearly uniform weights to one-hot ones, and constants added to all logits.
///
/// The last dim of q and k carries the constant; the others lie on a grid, so that q·k is exact in f32 and its
/// rounding, which would drown everything at 6e4, is no excuse.
#[rstest]
fn impostors_die_at_every_magnitude_and_shift(
    #[values(1.0 / 16.0, 1.0, 16.0, 1024.0)] scale: f64,
    #[values(0.0, 1e3, -1e3, 6e4, -6e4)] shift: f64,
    #[values(Format::F32, Format::Bf16, Format::F16)] p_format: Format,
) {
    let shape = Shape::new(6, 192, 2, 1, 64);
    let mut inputs = Inputs::grid(shape, 4);
    let last = shape.k_dim - 1;
    inputs.q.slice_mut(s![.., .., last]).fill((shift / scale) as f32);
    inputs.k.slice_mut(s![.., .., last]).fill(1.0);
    let options = AttentionOptions::causal(scale);
    let model = BoundModel { grid_inputs: true, ..BoundModel::new(p_format, KEY_TILE) };
    let reference = reference(&inputs, &options, &model);
    assert!(reference.max_eta < 0.1, "eta {}", reference.max_eta);
    for out_format in [Format::F32, p_format] {
        assert_accepted(judge(flash(p_format, out_format), &inputs, &options, &model));
        let impostors = [("zeros", zeros(&inputs)), ("mean of V", mean_of_v(&inputs, &options, out_format))];
        for (name, out) in impostors {
            let comparison = compare(out.view(), &reference, out_format).expect("values of the format");
            let share = comparison.mismatches as f64 / comparison.elements as f64;
            assert!(share > 0.5, "{name} passes {:.0}% of the elements", 100.0 * (1.0 - share));
        }
    }
}

/// The largest share of the bound that correct kernels use, over dims, lengths, tiles and precisions of P.
#[rstest]
fn correct_kernels_pass_on_random_inputs(
    #[values(64, 128, 256)] dim: usize,
    #[values(16, 256, 4096)] kv_len: usize,
    #[values(Format::F32, Format::Bf16, Format::F16)] p_format: Format,
) {
    let inputs = Inputs::normal(Shape::new(4, kv_len, 2, 1, dim), kv_len as u64);
    let options = AttentionOptions::causal(1.0 / (dim as f64).sqrt());
    for key_tile in [16, 128] {
        for folds_log2e in [false, true] {
            let kernel = Flash { p_format, out_format: Format::F32, key_tile, folds_log2e };
            for sign_symmetric_v in [false, true] {
                let model = BoundModel { sign_symmetric_v, ..BoundModel::new(p_format, key_tile) };
                let (out, lse) = judge(kernel, &inputs, &options, &model);
                assert_accepted((out, lse));
            }
        }
    }
}

/// Every option at once, drawn at random: what each adds to the logits it also adds to the bound.
#[rstest]
fn correct_kernels_pass_with_every_option(
    #[values(Format::F32, Format::Bf16, Format::F16)] p_format: Format,
    #[values(1, 2, 3, 4)] seed: u64,
) {
    let mut rng = common::Rng(seed);
    for _ in 0..10 {
        let chance = |rng: &mut common::Rng| rng.next().is_multiple_of(2);
        let kv_len = 1 + (rng.next() % 400) as usize;
        let inputs = Inputs::normal(Shape::new(1 + (rng.next() % 6) as usize, kv_len, 4, 2, 64), rng.next());
        let per_head =
            |rng: &mut common::Rng, size: f64| (0..4).map(|_| (size * rng.normal()) as f32).collect();
        let options = AttentionOptions {
            causal: chance(&mut rng),
            window_left: chance(&mut rng).then(|| rng.integer(100).abs()),
            window_right: chance(&mut rng).then(|| rng.integer(100).abs()),
            softcap: chance(&mut rng).then(|| 2.0 + 60.0 * rng.unit()),
            alibi_slopes: chance(&mut rng).then(|| per_head(&mut rng, 0.3)),
            sinks: chance(&mut rng).then(|| per_head(&mut rng, 8.0)),
            k_scale: vec![0.25, 1.7],
            v_scale: vec![0.011, 9.0],
            ..AttentionOptions::new(f64::from(rng.unit() as f32 + 0.01))
        };
        let model = BoundModel::new(p_format, KEY_TILE);
        let (out, lse) = judge(flash(p_format, Format::F32), &inputs, &options, &model);
        assert_accepted((out, lse));
    }
}

/// What the grid is for: at these magnitudes random inputs get a bound that excuses anything.
#[test]
fn the_bound_says_when_it_means_nothing() {
    let inputs = Inputs::normal(Shape::new(2, 64, 1, 1, 128), 5);
    let options = AttentionOptions::causal(1e3);
    let reference = reference(&inputs, &options, &BoundModel::new(Format::F32, KEY_TILE));
    assert!(reference.max_eta > 0.1, "eta {}", reference.max_eta);
}
