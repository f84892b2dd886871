//! The reference against an answer that another program computed on a real model's activations.

use cases::inputs::recorded::{Layer, layer};
use ndarray::Zip;
use oracle::{AttentionOptions, BoundModel, Format, Request, Rows, attend_f32, attend_f64};
use rstest::rstest;

/// Softmax scale of the recording: 1/sqrt(64), exact in f32.
const SCALE: f64 = 0.125;

fn request(layer: &Layer) -> Request<'_> {
    Request { q: layer.q.view(), k: layer.k.view(), v: layer.v.view() }
}

#[rstest]
fn f64_agrees_with_the_recorded_answer_to_1e_12(#[values(0, 12, 29)] number: u32) {
    let layer = layer(number).expect("the layer was recorded");
    let model = BoundModel::new(Format::F32, 64);
    let reference =
        attend_f64(&request(&layer), &AttentionOptions::causal(SCALE), &model, Rows::All).unwrap();
    assert_eq!(reference.out.dim(), (185, 9, 64));
    let mut largest: f64 = 0.0;
    Zip::from(&reference.out).and(&layer.out).for_each(|a, b| largest = largest.max((a - b).abs()));
    assert!(largest <= 1e-12, "out differs by {largest:e}");
    Zip::from(&reference.lse).and(&layer.lse).for_each(|a, b| largest = largest.max((a - b).abs()));
    assert!(largest <= 1e-12, "lse differs by {largest:e}");
    // The recording is not trivial: outlier channels, and outputs of every size.
    assert!(layer.k.iter().any(|k| k.abs() > 4.0) && layer.out.iter().any(|x| x.abs() > 0.5));
}

#[rstest]
fn f32_agrees_with_the_recorded_answer_within_the_bound(#[values(0, 12, 29)] number: u32) {
    let layer = layer(number).expect("the layer was recorded");
    let options = AttentionOptions::causal(SCALE);
    let single = attend_f32(&request(&layer), &options, Rows::All).unwrap();
    let model = BoundModel::new(Format::F32, 64);
    let mut recorded = attend_f64(&request(&layer), &options, &model, Rows::All).unwrap();
    // The bound belongs to the problem; the values it is held against are the recorded ones.
    recorded.out.assign(&layer.out);
    recorded.lse.assign(&layer.lse);
    let out = oracle::compare(single.out.view(), &recorded, Format::F32).unwrap();
    assert!(out.passes() && out.elements == 185 * 9 * 64, "{out:?}");
    let lse = oracle::compare_lse(single.lse.view(), &recorded).unwrap();
    assert!(lse.passes() && lse.elements == 185 * 9, "{lse:?}");
}

#[test]
fn layers_that_were_not_recorded_are_absent() {
    assert!(layer(1).is_none());
}
