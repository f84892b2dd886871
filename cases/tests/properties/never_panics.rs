//! Whatever numbers a call has, validation answers; it never panics and never overflows.

use cases::bad_input::{ATTENTION_TENSORS, STORE_TENSORS, attention, store};
use cases::case::Case;
use kernels::arm::Arm;
use kernels::device::DevicePtr;
use kernels::tensor::{DType, DeviceTensor};
use kernels::validate::{validate_attention, validate_store};
use proptest::prelude::*;
use proptest::sample::select;

fn extent() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..8_u64,
        Just(64_u64),
        Just(i32::MAX as u64),
        Just(1_u64 << 31),
        Just(u64::MAX),
        any::<u64>()
    ]
}

fn stride() -> impl Strategy<Value = i64> {
    prop_oneof![-2..9_i64, Just(i64::MAX), Just(i64::MIN), any::<i64>()]
}

/// One change of a tensor.
#[derive(Clone, Debug)]
enum Change {
    Extent(usize, u64),
    Stride(usize, i64),
    Offset(u64),
    Bytes(u64),
    Address(u64),
    Type(DType),
    Shape(Vec<u64>, Vec<i64>),
}

fn change() -> impl Strategy<Value = Change> {
    let all = vec![DType::F32, DType::Bf16, DType::F16, DType::E4m3, DType::E5m2, DType::I32, DType::I64];
    let shape = (prop::collection::vec(extent(), 0..6), prop::collection::vec(stride(), 0..6));
    prop_oneof![
        (0..4_usize, extent()).prop_map(|(axis, extent)| Change::Extent(axis, extent)),
        (0..4_usize, stride()).prop_map(|(axis, stride)| Change::Stride(axis, stride)),
        extent().prop_map(Change::Offset),
        extent().prop_map(Change::Bytes),
        extent().prop_map(Change::Address),
        select(all).prop_map(Change::Type),
        shape.prop_map(|(shape, strides)| Change::Shape(shape, strides)),
    ]
}

fn apply(tensor: &mut DeviceTensor, change: &Change) {
    match change {
        Change::Extent(axis, extent) => {
            if let Some(slot) = tensor.shape.get_mut(*axis) {
                *slot = *extent;
            }
        }
        Change::Stride(axis, stride) => {
            if let Some(slot) = tensor.strides.get_mut(*axis) {
                *slot = *stride;
            }
        }
        Change::Offset(offset) => tensor.offset = *offset,
        Change::Bytes(bytes) => tensor.allocation.bytes = *bytes,
        Change::Address(address) => tensor.allocation.ptr = DevicePtr(*address),
        Change::Type(dtype) => tensor.dtype = *dtype,
        Change::Shape(shape, strides) => (tensor.shape, tensor.strides) = (shape.clone(), strides.clone()),
    }
}

fn ints() -> impl Strategy<Value = Option<Vec<i32>>> {
    let int = prop_oneof![-2..50_i32, Just(i32::MAX), Just(i32::MIN), any::<i32>()];
    prop::option::of(prop::collection::vec(int, 0..8))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn attention_validation_answers(
        changes in prop::collection::vec((0..ATTENTION_TENSORS.len(), change()), 0..4),
        lengths in (extent(), extent(), any::<f32>(), stride(), stride()),
        host in (ints(), ints(), ints()),
        keeps_host in any::<bool>(),
    ) {
        let mut args = attention(DType::Bf16, DType::E4m3);
        for (tensor, change) in &changes {
            if let Some(tensor) = ATTENTION_TENSORS[*tensor].1(&mut args) {
                apply(tensor, change);
            }
        }
        if !keeps_host {
            (args.max_query_len, args.max_seq_len, args.softmax_scale) = (lengths.0, lengths.1, lengths.2);
            (args.window_left, args.window_right) = (Some(lengths.3), Some(lengths.4));
            (args.host.block_table, args.host.seq_lens, args.host.query_start_loc) = host;
        }
        if let Ok(shape) = validate_attention(&args) {
            prop_assert!(shape.num_q_heads % shape.num_kv_heads == 0);
            for arm in Arm::ALL {
                let _ = arm.supports(&shape);
            }
        }
    }

    #[test]
    fn store_validation_answers(
        changes in prop::collection::vec((0..STORE_TENSORS.len(), change()), 0..4),
        slots in prop::option::of(prop::collection::vec(stride(), 0..8)),
        keeps_host in any::<bool>(),
    ) {
        let mut args = store(DType::F32, DType::E4m3);
        for (tensor, change) in &changes {
            if let Some(tensor) = STORE_TENSORS[*tensor].1(&mut args) {
                apply(tensor, change);
            }
        }
        if !keeps_host {
            args.host_slot_mapping = slots;
        }
        let _ = validate_store(&args);
    }

    #[test]
    fn the_case_parser_answers_and_what_it_accepts_prints_back(
        at in 0..120_usize,
        with in "[ -~]{0,6}",
        cut in 0..6_usize,
    ) {
        const LINE: &str = "mixed bf16 kv=e4m3 h8/2 d64/32 page16 HND pad=3,0,0,5 causal win=5,- softcap=30 sinks=2 scale=0.1 q=[3,1x4] kv=[9,5x4] kscale=[0.5,1] data=grid shift=10 seed=7";
        let start = at.min(LINE.len());
        let end = (start + cut).min(LINE.len());
        let line = format!("{}{with}{}", &LINE[..start], &LINE[end..]);
        if let Ok(case) = line.parse::<Case>() {
            let printed = case.to_string();
            let again = printed.parse::<Case>();
            prop_assert!(again.is_ok(), "{line} prints as {printed}: {again:?}");
            prop_assert_eq!(again.map(|case| case.to_string()), Ok(printed));
        }
    }
}
