//! Queries that a decode of an fp8 cache may turn into f16 and those that it must leave alone, against attention from its
//! definition in f64.

#[path = "support/attention.rs"]
mod attention;
mod support;

use attention::{Batch, Problem};
use kernels::arm::Arm;
use kernels::launch::paged_attention;
use kernels::tensor::DType;
use rstest::rstest;
use support::{STREAM, checked};

/// What weights rounded to f16 may move an output: values are of size 1.
const WEIGHTS: f64 = 1.0 / 2048.0;

/// Every row of Q has `first` at dim 0, where K is 0, so that only the other dims decide: they must survive beside it.
#[rstest]
#[case::beside_an_ordinary_value(1.0)]
#[case::within_the_range_of_f16(2_f64.powi(20))]
#[case::far_outside(2_f64.powi(60))]
#[case::the_largest(2_f64.powi(127))]
fn small_dims_survive_beside_a_large_one(
    #[case] first: f64,
    #[values(DType::E4m3, DType::E5m2)] kv: DType,
    #[values(Arm::Fp8StagedSoft, Arm::Fp8StagedHw)] arm: Arm,
) {
    let device = checked();
    let mut problem = Problem::new(DType::Bf16, kv, (4, 2), 64).lens(&[1, 1], &[40, 33]);
    problem.page_size = 16;
    let mut batch = Batch::new(&device, problem, 3);
    // One row keeps its own first dim: rows of a block need not agree.
    batch.q.iter_mut().flatten().skip(1).for_each(|row| row[0] = first);
    batch.k.iter_mut().flatten().flatten().for_each(|row| row[0] = 0.0);
    batch.refresh(&device);
    let launched = paged_attention(&device, STREAM, arm, &batch.args).expect("a launch");
    assert!(launched.kernels.starts_with(&["decode_attention"]), "{:?}", launched.kernels);
    device.synchronize(STREAM).expect("no findings");
    batch.check_within(&device, WEIGHTS);
}

/// Q is 2^`exponent` times as large and the scale as many times smaller: nothing else changes.
#[rstest]
fn extreme_magnitudes_are_undone_by_the_scale(
    #[values(-100, -70, 0, 60, 100)] exponent: i32,
    #[values(Arm::Fp8StagedSoft, Arm::Fp8StagedHw)] arm: Arm,
) {
    let device = checked();
    let mut problem = Problem::new(DType::Bf16, DType::E4m3, (4, 2), 64).lens(&[1, 1], &[40, 33]);
    problem.page_size = 16;
    problem.scale *= 2_f32.powi(-exponent);
    let mut batch = Batch::new(&device, problem, 3);
    batch.q.iter_mut().flatten().flatten().for_each(|dim| *dim *= 2_f64.powi(exponent));
    batch.refresh(&device);
    paged_attention(&device, STREAM, arm, &batch.args).expect("a launch");
    device.synchronize(STREAM).expect("no findings");
    batch.check_within(&device, WEIGHTS);
}
