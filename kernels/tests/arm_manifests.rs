//! What each arm serves and what it refuses, at the edges of its manifest.

mod support;

use kernels::arm::Arm;
use kernels::instances::GATE_CAPABILITIES;
use kernels::route::{Knobs, plan_arm};
use kernels::tensor::DType::{self, Bf16, E4m3, E5m2, F16, F32};
use kernels::validate::AttentionShape;
use rstest::rstest;

/// A prefill of two requests by the formats of Q and cache, the head dims of K and V, and the alignment of the rows of Q and
/// output and of the cache.
fn shape(
    (q_dtype, kv_dtype): (DType, DType),
    (head_dim_k, head_dim_v): (u64, u64),
    (row_alignment, cache_alignment): (u64, u64),
) -> AttentionShape {
    AttentionShape {
        q_dtype,
        kv_dtype,
        head_dim_k,
        head_dim_v,
        row_alignment,
        cache_alignment,
        ..support::plain_shape()
    }
}

#[rstest]
#[case(Arm::Scalar, (F32, F32), (128, 128), (16, 16))]
#[case(Arm::Scalar, (Bf16, E5m2), (8, 512), (16, 16))]
#[case(Arm::Scalar, (F16, Bf16), (128, 128), (2, 2))]
#[case(Arm::Mma, (Bf16, Bf16), (64, 64), (16, 16))]
#[case(Arm::Mma, (F16, F16), (80, 80), (16, 16))]
#[case(Arm::Mma, (F16, F16), (256, 256), (16, 16))]
#[case(Arm::Fp8StagedSoft, (F16, E4m3), (128, 128), (16, 16))]
#[case(Arm::Fp8StagedHw, (Bf16, E5m2), (128, 128), (16, 16))]
#[case(Arm::Fp8Dense, (Bf16, E4m3), (128, 128), (16, 8))]
#[case(Arm::Fp8Dense, (F32, E5m2), (72, 72), (16, 16))]
#[case(Arm::Bf16Dense, (Bf16, Bf16), (128, 128), (16, 16))]
#[case(Arm::Bf16Dense, (F16, F16), (128, 128), (8, 16))]
fn served(
    #[case] arm: Arm,
    #[case] formats: (DType, DType),
    #[case] head_dims: (u64, u64),
    #[case] alignment: (u64, u64),
) {
    let shape = shape(formats, head_dims, alignment);
    arm.supports(&shape).unwrap();
    let route = plan_arm(arm, &shape, &GATE_CAPABILITIES[1], &Knobs::default()).unwrap();
    // Rows of q and out that 16 bytes do not divide are no rows for tensor cores, nor are f32 and head dims without an instance.
    let on_tensor_cores =
        arm != Arm::Scalar && formats.0 != F32 && shape.row_alignment == 16 && shape.head_dim_k != 72;
    assert_eq!((route.arm, route.mma.is_some()), (arm, on_tensor_cores));
}

#[rstest]
#[case(Arm::Scalar, (F32, F32), (12, 16), (16, 16), "head_dim_k 12", "multiples of 8 up to 512")]
#[case(Arm::Scalar, (F32, F32), (16, 520), (16, 16), "head_dim_v 520", "multiples of 8 up to 512")]
#[case(Arm::Mma, (F32, F32), (128, 128), (16, 16), "q dtype f32", "bf16 or f16")]
#[case(Arm::Mma, (Bf16, F16), (128, 128), (16, 16), "a f16 cache with a bf16 query", "the query's own type")]
#[case(Arm::Mma, (Bf16, Bf16), (128, 64), (16, 16), "head_dim 128/64", "equal head dims of K and V")]
#[case(Arm::Mma, (Bf16, Bf16), (72, 72), (16, 16), "head_dim 72", "64, 80, 96, 112, 128, 192 or 256")]
#[case(Arm::Mma, (Bf16, Bf16), (128, 128), (8, 16), "rows of q or out aligned to 8 bytes", "16 bytes")]
#[case(Arm::Mma, (Bf16, Bf16), (128, 128), (16, 8), "cache rows aligned to 8 bytes", "16 bytes")]
#[case(Arm::Fp8StagedSoft, (Bf16, Bf16), (128, 128), (16, 16), "a bf16 cache", "e4m3 or e5m2")]
#[case(Arm::Fp8StagedHw, (Bf16, E4m3), (128, 128), (16, 8), "cache rows aligned to 8 bytes", "16 bytes")]
#[case(Arm::Fp8StagedHw, (F32, E4m3), (128, 128), (16, 16), "q dtype f32", "bf16 or f16")]
#[case(Arm::Fp8Dense, (Bf16, Bf16), (128, 128), (16, 16), "a bf16 cache", "e4m3 or e5m2")]
#[case(Arm::Fp8Dense, (Bf16, E4m3), (128, 64), (16, 16), "head_dim 128/64", "equal head dims of K and V")]
#[case(Arm::Fp8Dense, (Bf16, E4m3), (20, 20), (16, 16), "head_dim_k 20", "multiples of 8 up to 512")]
#[case(Arm::Fp8Dense, (Bf16, E4m3), (128, 128), (16, 4), "cache rows aligned to 4 bytes", "8 bytes")]
#[case(Arm::Bf16Dense, (Bf16, F16), (128, 128), (16, 16), "a f16 cache with a bf16 query", "bf16 with bf16, or f16 with f16")]
#[case(Arm::Bf16Dense, (F32, F32), (128, 128), (16, 16), "a f32 cache with a f32 query", "bf16 with bf16, or f16 with f16")]
fn refused(
    #[case] arm: Arm,
    #[case] formats: (DType, DType),
    #[case] head_dims: (u64, u64),
    #[case] alignment: (u64, u64),
    #[case] what: &str,
    #[case] accepted: &str,
) {
    let shape = shape(formats, head_dims, alignment);
    let error = arm.supports(&shape).unwrap_err();
    assert_eq!((error.arm, error.what.as_str(), error.accepted.as_str()), (arm, what, accepted));
    assert_eq!(plan_arm(arm, &shape, &GATE_CAPABILITIES[1], &Knobs::default()), Err(error));
}
