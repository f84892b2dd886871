//! Which kernel serves a call, and scratch that a captured graph can rely on.

#[path = "support/attention.rs"]
mod attention;
mod support;

use std::process::Command;

use attention::{Batch, Problem};
use kernels::arm::Arm;
use kernels::device::{DeviceError, DeviceRef};
use kernels::error::LaunchError;
use kernels::instances::GATE_CAPABILITIES;
use kernels::launch::{Launched, paged_attention_with};
use kernels::route::{Capability, Knobs, plan_arm, route};
use kernels::tensor::DType;
use kernels::validate::AttentionShape;
use kernels::workspace::{Purpose, Workspace};
use rstest::rstest;
use support::{STREAM, checked};

const HOPPER: Capability = GATE_CAPABILITIES[1];

fn shape(kv_dtype: DType, heads: (u64, u64), head_dim: u64, query: u64) -> AttentionShape {
    AttentionShape {
        kv_dtype,
        total_q: 2 * query,
        num_q_heads: heads.0,
        num_kv_heads: heads.1,
        head_dim_k: head_dim,
        head_dim_v: head_dim,
        num_pages: 256,
        block_table_width: 128,
        max_query_len: query,
        max_seq_len: 2048,
        ..support::plain_shape()
    }
}

fn entry(shape: &AttentionShape, knobs: &Knobs) -> String {
    let found = route(shape, &HOPPER, knobs);
    let kernel = found.mma.map_or_else(|| "scalar".to_owned(), |plan| format!("{:?}", plan.kernel));
    format!("{} {}", found.arm, kernel.split('(').next().unwrap_or_default())
}

#[rstest]
#[case(DType::Bf16, 1, None, "mma Decode")]
#[case(DType::Bf16, 9, Some(9), "mma Verify")]
#[case(DType::Bf16, 9, None, "mma Prefill")]
#[case(DType::Bf16, 512, None, "mma Prefill")]
#[case(DType::E4m3, 1, None, "fp8-staged-hw Decode")]
#[case(DType::E4m3, 9, Some(9), "fp8-staged-hw Verify")]
#[case(DType::E4m3, 512, None, "fp8-dense Prefill")]
#[case(DType::F32, 1, None, "scalar scalar")]
fn routes(#[case] kv: DType, #[case] query: u64, #[case] uniform: Option<u64>, #[case] want: &str) {
    let knobs = Knobs { uniform_query_len: uniform, ..Knobs::default() };
    assert_eq!(entry(&shape(kv, (24, 4), 256, query), &knobs), want);
}

#[test]
fn knobs_turn_routes_off() {
    let prefill = shape(DType::E4m3, (32, 4), 256, 512);
    assert_eq!(entry(&prefill, &Knobs { fp8_dense: false, ..Knobs::default() }), "scalar scalar");
    let verify = shape(DType::Bf16, (24, 4), 256, 9);
    let off = Knobs { uniform_query_len: Some(9), verify_as_decode: false, ..Knobs::default() };
    assert_eq!(entry(&verify, &off), "mma Prefill");
    let before_conversion = Capability { major: 8, minor: 0, ..HOPPER };
    let found = route(&shape(DType::E4m3, (32, 4), 256, 1), &before_conversion, &Knobs::default());
    assert_eq!(found.arm, Arm::Fp8StagedSoft);
}

#[test]
fn the_environment_turns_the_dense_route_off() {
    // A process's own environment is shared by all of its tests, so that of a child is changed.
    const CHILD: &str = "ATTEST_TEST_PRINTS_KNOBS";
    if std::env::var_os(CHILD).is_some() {
        let found = Knobs::from_env().map(|knobs| (knobs.fp8_dense, knobs.scratch_budget_bytes));
        println!("<{}>", found.map_or_else(|error| error.to_string(), |found| format!("{found:?}")));
        return;
    }
    let thread = std::thread::current();
    let name = thread.name().expect("tests run in threads of their name");
    for (value, want) in [
        (None, "<(true, 4294967296)>"),
        (Some(""), "<(true, 4294967296)>"),
        (Some("1"), "<(true, 4294967296)>"),
        (Some("0"), "<(false, 4294967296)>"),
        (Some("off"), "<VT_ATTN_FP8_DENSE is off; accepted: 0 or 1>"),
    ] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([name, "--exact", "--nocapture"]).env(CHILD, "1").env_remove("VT_ATTN_FP8_DENSE");
        let output = child.envs(value.map(|value| ("VT_ATTN_FP8_DENSE", value))).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(want), "{value:?}: {text}");
    }
}

#[test]
fn a_fallback_says_why() {
    let why =
        |shape: &AttentionShape, knobs: &Knobs| route(shape, &HOPPER, knobs).fallback.expect("a reason");
    let odd = why(&shape(DType::Bf16, (8, 2), 40, 4), &Knobs::default());
    assert!(odd.contains("mma does not support head_dim 40"), "{odd}");
    let prefill = shape(DType::E4m3, (32, 4), 256, 512);
    let small = why(&prefill, &Knobs { scratch_budget_bytes: 1 << 20, ..Knobs::default() });
    // 2 requests x 2048 keys x 4 heads x 256 dims x K and V x 2 bytes.
    assert!(
        small.contains("16777216 bytes of dense scratch") && small.contains("at most 1048576"),
        "{small}"
    );
    assert_eq!(route(&prefill, &HOPPER, &Knobs::default()).fallback, None);
    let exact = route(&prefill, &HOPPER, &Knobs { scratch_budget_bytes: 1 << 24, ..Knobs::default() });
    assert_eq!((exact.arm, exact.dense_bytes, exact.fallback), (Arm::Fp8Dense, 1 << 24, None));
}

#[test]
fn only_what_runs_on_tensor_cores_needs_a_card_that_has_them() {
    let turing = Capability { major: 7, minor: 5, ..HOPPER };
    let plan = |arm, shape: &AttentionShape| plan_arm(arm, shape, &turing, &Knobs::default());
    let of = |q_dtype, kv| AttentionShape { q_dtype, ..shape(kv, (8, 2), 64, 4) };
    for (arm, shape) in [
        (Arm::Mma, of(DType::Bf16, DType::Bf16)),
        (Arm::Fp8StagedSoft, of(DType::Bf16, DType::E4m3)),
        (Arm::Fp8Dense, of(DType::F16, DType::E4m3)),
    ] {
        let error = plan(arm, &shape).unwrap_err();
        assert_eq!(
            (error.what.as_str(), error.accepted.as_str()),
            ("compute capability 7.5", "8.0 or later")
        );
    }
    // The dense route of an f32 query ends in the scalar kernel.
    let f32_query = plan(Arm::Fp8Dense, &of(DType::F32, DType::E5m2)).unwrap();
    assert_eq!((f32_query.arm, f32_query.mma), (Arm::Fp8Dense, None));
    plan(Arm::Scalar, &of(DType::Bf16, DType::Bf16)).unwrap();
    // The conversion instruction came later than tensor cores of this kind.
    let ampere = Capability { major: 8, minor: 6, ..HOPPER };
    let decode = of(DType::Bf16, DType::E4m3);
    let error = plan_arm(Arm::Fp8StagedHw, &decode, &ampere, &Knobs::default()).unwrap_err();
    assert_eq!(error.accepted, "8.9 or later");
}

fn run(
    device: &DeviceRef,
    batch: &Batch,
    knobs: &Knobs,
    workspace: Option<&mut Workspace>,
) -> Result<Launched, LaunchError> {
    paged_attention_with(device, STREAM, None, &batch.args, knobs, workspace)
}

fn count(device: &DeviceRef, entry: &str) -> u64 {
    device.launch_counts().iter().find(|(name, _)| name == entry).map_or(0, |(_, n)| *n)
}

#[test]
fn launch_counters_prove_which_kernels_ran() {
    let device = checked();
    let decode =
        Batch::new(&device, Problem::new(DType::Bf16, DType::Bf16, (4, 2), 64).lens(&[1, 1], &[40, 9]), 1);
    run(&device, &decode, &Knobs::default(), None).unwrap();
    assert_eq!((count(&device, "decode_attention"), count(&device, "mma_attention")), (1, 0));
    let mixed =
        Batch::new(&device, Problem::new(DType::Bf16, DType::Bf16, (4, 2), 64).lens(&[3, 1], &[40, 9]), 1);
    run(&device, &mixed, &Knobs::default(), None).unwrap();
    assert_eq!((count(&device, "decode_attention"), count(&device, "mma_attention")), (1, 1));
    let odd = Batch::new(&device, Problem::new(DType::Bf16, DType::Bf16, (4, 2), 40).lens(&[1], &[9]), 1);
    let launched = run(&device, &odd, &Knobs::default(), None).unwrap();
    assert_eq!((launched.arm, count(&device, "scalar_attention")), (Arm::Scalar, 1));
    device.synchronize(STREAM).unwrap();
}

#[rstest]
#[case(1)]
#[case(2)]
#[case(5)]
fn a_cap_on_the_split_count_engages_and_stays_right(#[case] splits: u64) {
    let device = checked();
    let batch =
        Batch::new(&device, Problem::new(DType::F16, DType::F16, (8, 2), 64).lens(&[1, 1], &[300, 77]), 1);
    let knobs = Knobs { max_splits: splits, ..Knobs::default() };
    let launched = run(&device, &batch, &knobs, None).unwrap();
    assert_eq!(launched.kernels.contains(&"combine_splits"), splits > 1);
    device.synchronize(STREAM).unwrap();
    let (got, _) = batch.results(&device);
    let (want, _) = batch.expected();
    // P is rounded to f16, 2^-11, and so is the output; values average less than 1.
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 2e-3), "split {splits}");
}

fn set_lengths(device: &DeviceRef, batch: &Batch, lens: &[i32]) {
    let bytes: Vec<u8> = lens.iter().flat_map(|len| len.to_le_bytes()).collect();
    device.copy_to_device(batch.args.seq_lens.ptr(), &bytes, STREAM).unwrap();
}

/// Bits of the output after `work`.
fn output(device: &DeviceRef, batch: &Batch, work: impl FnOnce()) -> Vec<u8> {
    device.memset(batch.args.out.ptr(), 0xff, batch.args.out.allocation.bytes, STREAM).unwrap();
    work();
    support::download(device, batch.args.out.allocation)
}

#[rstest]
#[case(DType::Bf16, None)]
#[case(DType::E4m3, None)]
#[case(DType::E4m3, Some(Arm::Fp8Dense))]
fn a_graph_replays_with_grown_lengths(#[case] kv: DType, #[case] arm: Option<Arm>) {
    let device = checked();
    let mut batch =
        Batch::new(&device, Problem::new(DType::Bf16, kv, (4, 2), 64).lens(&[1, 1], &[211, 187]), 1);
    batch.args.host = kernels::args::HostMetadata::default();
    let knobs = Knobs { splits: Some(3), ..Knobs::default() };
    let mut workspace = Workspace::new(&device, STREAM);
    let call = |workspace: &mut Workspace| {
        paged_attention_with(&device, STREAM, arm, &batch.args, &knobs, Some(workspace))
    };
    let grown = output(&device, &batch, || drop(call(&mut workspace).unwrap()));
    set_lengths(&device, &batch, &[57, 89]);
    let short = output(&device, &batch, || drop(call(&mut workspace).unwrap()));
    assert_ne!(grown, short);
    let used = device.pool().unwrap().used;

    device.begin_capture(STREAM).unwrap();
    call(&mut workspace).unwrap();
    let graph = device.end_capture(STREAM).unwrap();
    assert_eq!(device.pool().unwrap().used, used, "nothing is allocated inside a capture");
    let replay = || output(&device, &batch, || device.launch_graph(graph, STREAM).unwrap());
    assert_eq!(replay(), short);
    set_lengths(&device, &batch, &[211, 187]);
    assert_eq!(replay(), grown);
    assert_eq!(replay(), grown);
    device.destroy_graph(graph).unwrap();
    workspace.release().unwrap();
}

#[test]
fn a_first_call_inside_a_capture_is_refused_and_leaves_nothing() {
    let device = checked();
    let batch = Batch::new(&device, Problem::new(DType::Bf16, DType::Bf16, (4, 2), 64).lens(&[1], &[40]), 1);
    device.synchronize(STREAM).unwrap();
    let used = device.pool().unwrap().used;
    let mut workspace = Workspace::new(&device, STREAM);
    device.begin_capture(STREAM).unwrap();
    let error = run(&device, &batch, &Knobs { splits: Some(2), ..Knobs::default() }, Some(&mut workspace))
        .unwrap_err();
    assert!(matches!(error, LaunchError::Device(DeviceError::Capture { call: "alloc", .. })), "{error}");
    let graph = device.end_capture(STREAM).unwrap();
    device.destroy_graph(graph).unwrap();
    assert_eq!(workspace.pieces(), []);
    assert_eq!(device.pool().unwrap().used, used);
}

#[test]
fn a_wider_call_adds_a_piece_and_keeps_the_first() {
    let device = checked();
    let problem =
        |kv: &[usize]| Problem::new(DType::Bf16, DType::Bf16, (4, 2), 64).lens(&vec![1; kv.len()], kv);
    let (narrow, wide) =
        (Batch::new(&device, problem(&[40]), 1), Batch::new(&device, problem(&[40, 50, 60]), 1));
    let used = device.pool().unwrap().used;
    let knobs = Knobs { splits: Some(2), ..Knobs::default() };
    let mut workspace = Workspace::new(&device, STREAM);
    for batch in [&narrow, &wide, &narrow] {
        run(&device, batch, &knobs, Some(&mut workspace)).unwrap();
    }
    // 2 splits x rows x 4 heads x (64 sums and 2 of state) x 4 bytes.
    assert_eq!(
        workspace.pieces(),
        [(Purpose::Partials, 2 * 4 * 66 * 4), (Purpose::Partials, 2 * 3 * 4 * 66 * 4)]
    );
    workspace.release().unwrap();
    device.synchronize(STREAM).unwrap();
    assert_eq!(device.pool().unwrap().used, used);
}

#[test]
fn the_staged_arms_agree_bit_for_bit_and_the_dense_arm_with_them_in_prefill() {
    let device = checked();
    for kv in [DType::E4m3, DType::E5m2] {
        let mut problem = Problem::new(DType::Bf16, kv, (4, 2), 80).lens(&[5, 2], &[70, 33]);
        (problem.k_scale, problem.v_scale) = (vec![0.5], vec![2.0]);
        let batch = Batch::new(&device, problem, 1);
        let [soft, hard, dense] = [Arm::Fp8StagedSoft, Arm::Fp8StagedHw, Arm::Fp8Dense].map(|arm| {
            output(&device, &batch, || {
                paged_attention_with(&device, STREAM, Some(arm), &batch.args, &Knobs::default(), None)
                    .unwrap();
            })
        });
        assert_eq!(soft, hard, "{kv}");
        assert_eq!(soft, dense, "{kv}: the dense values are the staged ones, tile for tile");
    }
}
