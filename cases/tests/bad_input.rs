//! Every bad argument at every entry point: a typed error that names it, nothing launched, no byte changed, no memory kept.

use cases::bad_input::{
    ATTENTION_TENSORS, Access, BadCall, STORE_TENSORS, attention, attention_calls, store, store_calls,
};
use kernels::args::{AttentionArgs, StoreArgs};
use kernels::arm::Arm;
use kernels::device::{DeviceRef, StreamId};
use kernels::error::{ArgumentError, LaunchError};
use kernels::launch::{paged_attention, paged_attention_with};
use kernels::route::Knobs;
use kernels::simt::{Mode, SimtDevice, SimtOptions};
use kernels::source::SourceSet;
use kernels::store::reshape_and_cache;
use kernels::tensor::{Allocation, DType};
use kernels::validate::{validate_attention, validate_store};
use kernels::workspace::Workspace;
use rstest::rstest;

const STREAM: StreamId = StreamId::DEFAULT;

fn device() -> DeviceRef {
    let mut options = SimtOptions::new(SourceSet::load().expect("kernel sources"));
    options.mode = Mode::Fast;
    SimtDevice::new(options).expect("a simt device")
}

/// The memory of one call.
struct Memory {
    device: DeviceRef,
    allocations: Vec<Allocation>,
    before: Vec<Vec<u8>>,
    used: u64,
}

impl Memory {
    /// Gives every tensor of a call memory of its own, filled with bytes that all differ from their neighbours.
    fn of<A>(device: &DeviceRef, args: &mut A, tensors: &[(&'static str, Access<A>)]) -> Self {
        let mut allocations = Vec::new();
        for (_, access) in tensors {
            let Some(tensor) = access(args) else { continue };
            let bytes = tensor.allocation.bytes;
            tensor.allocation.ptr = device.alloc(bytes, STREAM).expect("memory");
            allocations.push(tensor.allocation);
            let contents: Vec<u8> = (0..bytes).map(|i| (i * 37 + i / 251) as u8).collect();
            device.copy_to_device(tensor.allocation.ptr, &contents, STREAM).expect("a copy");
        }
        let mut memory = Self { device: device.clone(), allocations, before: Vec::new(), used: 0 };
        memory.remember();
        memory
    }

    fn remember(&mut self) {
        self.before = self.contents();
        self.used = self.device.pool().expect("figures").used;
    }

    fn contents(&self) -> Vec<Vec<u8>> {
        let read = |allocation: &Allocation| {
            let mut bytes = vec![0; allocation.bytes as usize];
            self.device.copy_to_host(&mut bytes, allocation.ptr, STREAM).expect("a copy");
            bytes
        };
        self.allocations.iter().map(read).collect()
    }

    fn launches(&self) -> u64 {
        self.device.launch_counts().iter().map(|(_, count)| count).sum()
    }

    #[track_caller]
    fn is_untouched(&self, launches: u64, what: &str) {
        assert_eq!(self.launches(), launches, "{what}: a kernel was launched");
        assert_eq!(self.device.pool().expect("figures").used, self.used, "{what}: memory is kept");
        assert!(self.contents() == self.before, "{what}: memory was changed");
    }
}

/// Judges one refusal. `None` if it is as it should be.
fn wrong<A, T: std::fmt::Debug>(
    call: &BadCall<A>,
    entry: &str,
    result: Result<T, LaunchError>,
) -> Option<String> {
    let what = format!("{entry}: {} {}", call.argument, call.how);
    match result {
        Err(LaunchError::Argument(ArgumentError { argument, .. })) if call.is_named_by(&argument) => None,
        Err(LaunchError::Argument(error)) => Some(format!("{what}: refused for another argument: {error}")),
        Err(error) => Some(format!("{what}: not an argument error: {error}")),
        Ok(launched) => Some(format!("{what}: accepted ({launched:?})")),
    }
}

fn none_wrong(wrong: Vec<String>, tried: usize) {
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
}

fn arms(args: &AttentionArgs) -> Vec<Arm> {
    let shape = validate_attention(args).expect("an accepted call");
    Arm::ALL.iter().copied().filter(|arm| arm.supports(&shape).is_ok()).collect()
}

#[rstest]
#[case::bf16(DType::Bf16, DType::Bf16, &[Arm::Scalar, Arm::Mma, Arm::Bf16Dense])]
#[case::fp8(DType::Bf16, DType::E4m3, &[Arm::Scalar, Arm::Fp8Dense, Arm::Fp8StagedSoft, Arm::Fp8StagedHw])]
#[case::f32(DType::F32, DType::F32, &[Arm::Scalar])]
fn attention_refuses_every_bad_argument(
    #[case] q_dtype: DType,
    #[case] kv_dtype: DType,
    #[case] expected: &[Arm],
) {
    let device = device();
    let mut accepted = attention(q_dtype, kv_dtype);
    let memory = Memory::of(&device, &mut accepted, &ATTENTION_TENSORS);
    let arms = arms(&accepted);
    assert_eq!(arms, expected);
    let calls = attention_calls(&accepted);
    let launches = memory.launches();
    let mut found = Vec::new();
    for call in &calls {
        for arm in &arms {
            let result = paged_attention(&device, STREAM, *arm, &call.args);
            found.extend(wrong(call, arm.name(), result));
        }
        let per_read = Knobs { fp8_dense: false, ..Knobs::default() };
        for (entry, knobs) in [("route", Knobs::default()), ("route without dense", per_read)] {
            let mut workspace = Workspace::new(&device, STREAM);
            let result =
                paged_attention_with(&device, STREAM, None, &call.args, &knobs, Some(&mut workspace));
            found.extend(wrong(call, entry, result));
            assert!(workspace.pieces().is_empty(), "{} {}: scratch was taken", call.argument, call.how);
        }
        memory.is_untouched(launches, &format!("{} {}", call.argument, call.how));
    }
    assert!(calls.len() > 240, "{}", calls.len());
    none_wrong(found, calls.len());
}

#[rstest]
fn stores_refuse_every_bad_argument(
    #[values(DType::F32, DType::Bf16)] source: DType,
    #[values(DType::E4m3, DType::F16)] kv_dtype: DType,
) {
    let device = device();
    let mut accepted = store(source, kv_dtype);
    let memory = Memory::of(&device, &mut accepted, &STORE_TENSORS);
    validate_store(&accepted).expect("an accepted call");
    let calls = store_calls(&accepted);
    let launches = memory.launches();
    let mut found = Vec::new();
    for call in &calls {
        found.extend(wrong(call, "reshape_and_cache", reshape_and_cache(&device, STREAM, &call.args)));
        memory.is_untouched(launches, &format!("{} {}", call.argument, call.how));
    }
    assert!(calls.len() > 90, "{}", calls.len());
    none_wrong(found, calls.len());
}

/// What the tests above would see if a bad call got through: the accepted call launches, and writes what it should.
#[test]
fn the_accepted_calls_are_noticed() {
    let device = device();
    let mut args = attention(DType::F32, DType::F32);
    let mut memory = Memory::of(&device, &mut args, &ATTENTION_TENSORS);
    let host = args.host.clone();
    for (tensor, values) in [
        (&args.block_table, host.block_table),
        (&args.seq_lens, host.seq_lens),
        (&args.query_start_loc, host.query_start_loc),
    ] {
        let bytes: Vec<u8> = values.expect("a host copy").into_iter().flat_map(i32::to_le_bytes).collect();
        device.copy_to_device(tensor.ptr(), &bytes, STREAM).expect("a copy");
    }
    memory.remember();
    let launches = memory.launches();
    paged_attention(&device, STREAM, Arm::Scalar, &args).expect("a launch");
    device.synchronize(STREAM).expect("a clean stream");
    assert_eq!(memory.launches(), launches + 1);
    let after = memory.contents();
    let changed = |(index, (name, _)): (usize, &(&'static str, _))| {
        (after[index] != memory.before[index]).then_some(*name)
    };
    let changed: Vec<&str> = ATTENTION_TENSORS.iter().enumerate().filter_map(changed).collect();
    assert_eq!(changed, ["out", "lse"]);
}

/// Every tensor and every kind of number takes part.
#[test]
fn every_argument_is_in_the_matrix() {
    let calls = attention_calls(&attention(DType::Bf16, DType::E4m3));
    for argument in [
        "q",
        "k_cache",
        "v_cache",
        "out",
        "lse",
        "block_table",
        "seq_lens",
        "query_start_loc",
        "alibi_slopes",
        "sinks",
        "k_scale",
        "v_scale",
        "softmax_scale",
        "softcap",
        "window_left",
        "window_right",
        "max_seq_len",
        "max_query_len",
        "num_q_heads",
    ] {
        assert!(calls.iter().any(|call| call.argument == argument), "{argument}");
    }
    let stores: Vec<StoreArgs> =
        store_calls(&store(DType::F32, DType::E5m2)).into_iter().map(|c| c.args).collect();
    assert!(stores.iter().all(|args| validate_store(args).is_err()));
}
