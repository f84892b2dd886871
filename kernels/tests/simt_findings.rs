//! Each kind of fault is found, with its places; the same kernel without the fault is not accused.

mod simt_support;

use kernels::device::{Device, DeviceResult, Finding, FindingKind};
use kernels::simt::{Mode, Schedule, SimtDevice};
use rstest::rstest;
use simt_support::{STREAM, config, device, findings, launch, line, only_finding, options, spec, upload};

const FILE: &str = "faults.cu";

#[repr(C)]
#[derive(Clone, Copy)]
struct FaultParams {
    a: u64,
    b: u64,
    n: i32,
    fault: i32,
}

/// Sizes of a launch, and elements of the two buffers; `a` is filled, `b` is not.
#[derive(Clone, Copy)]
struct Shape {
    grid: u32,
    block: u32,
    shared: u32,
    a: usize,
    b: usize,
    n: i32,
}

const BLOCK: Shape = Shape { grid: 1, block: 64, shared: 256, a: 64, b: 64, n: 64 };
const WARP: Shape = Shape { block: 32, a: 32, b: 32, n: 32, ..BLOCK };

fn run_on(device: &SimtDevice, kernel: &'static str, shape: Shape, fault: i32) -> DeviceResult<()> {
    let values: Vec<f32> = (0..shape.a).map(|i| i as f32).collect();
    let a = upload(device, &values);
    let b = device.alloc(4 * shape.b as u64, STREAM).unwrap();
    let params = FaultParams { a: a.0, b: b.0, n: shape.n, fault };
    launch(device, &spec(FILE, kernel), config(shape.grid, shape.block, shape.shared), &params)
}

/// The findings of this kind in the faulty run under forward order. Every schedule must find one, and must not accuse
/// the correct run. Where an order is missing, some schedules also read what is not written yet.
fn faults(kernel: &'static str, shape: Shape, kind: FindingKind) -> Vec<Finding> {
    let mut forward = vec![];
    for schedule in [Schedule::Forward, Schedule::Reverse, Schedule::Random(3), Schedule::Random(4)] {
        let device = SimtDevice::new(simt_options(schedule)).unwrap();
        run_on(&device, kernel, shape, 0)
            .unwrap_or_else(|e| panic!("{kernel} {schedule:?} without fault: {e}"));
        let mut found = findings(run_on(&device, kernel, shape, 1));
        let expected = |f: &Finding| f.kind == kind || f.kind == FindingKind::Uninitialised;
        assert!(found.iter().all(expected), "{kernel} {schedule:?}: {found:#?}");
        found.retain(|f| f.kind == kind);
        assert!(!found.is_empty(), "{kernel} {schedule:?}");
        run_on(&device, kernel, shape, 0).unwrap_or_else(|e| panic!("{kernel} {schedule:?} afterwards: {e}"));
        if schedule == Schedule::Forward {
            forward = found;
        }
    }
    forward
}

fn fault(kernel: &'static str, shape: Shape, kind: FindingKind) -> Finding {
    let found = faults(kernel, shape, kind);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.into_iter().next().unwrap()
}

/// One of the findings is between these two places; which of them came second depends on the order.
fn assert_between(found: &[Finding], one: &str, other: &str) {
    let (one, other) = (line(FILE, one), line(FILE, other));
    let between =
        |f: &&Finding| (f.site == one && f.other_site == other) || (f.site == other && f.other_site == one);
    assert!(found.iter().any(|f| between(&f)), "{found:#?}");
}

fn simt_options(schedule: Schedule) -> kernels::simt::SimtOptions {
    kernels::simt::SimtOptions { schedule, ..options(Mode::Checked) }
}

fn assert_sites(finding: &Finding, site: &str, other: Option<&str>) {
    assert_eq!(finding.site, line(FILE, site), "{finding:#?}");
    assert_eq!(finding.other_site, other.and_then(|o| line(FILE, o)), "{finding:#?}");
}

#[rstest]
#[case("missing_barrier", BLOCK, "barrier read", "barrier write")]
#[case("missing_syncwarp", WARP, "syncwarp read", "syncwarp write")]
#[case("syncwarp_for_a_block", BLOCK, "block read", "warp write")]
#[case("shuffle_for_a_barrier", WARP, "shuffle read", "shuffle write")]
#[case("missing_second_barrier", BLOCK, "round write", "round read")]
#[case("neighbouring_bytes", WARP, "byte write", "reaches over")]
#[case("write_after_two_reads", BLOCK, "write after reads", "two reads")]
#[case("same_value_writes", BLOCK, "same value", "same value")]
#[case("atomics_then_read", WARP, "read after atomics", "atomic update")]
#[case("half_warp", WARP, "half read", "half write")]
#[case("chain_of_masks", WARP, "chain read", "chain write")]
#[case("copy_without_barrier", Shape { block: 32, a: 128, shared: 512, ..BLOCK }, "others read", "others copy")]
#[case("copy_over_readers", BLOCK, "copy over", "still reading")]
fn a_shared_race_names_both_places(
    #[case] kernel: &'static str,
    #[case] shape: Shape,
    #[case] site: &str,
    #[case] other: &str,
) {
    assert_between(&faults(kernel, shape, FindingKind::SharedRace), site, other);
}

#[rstest]
#[case("unwritten_shared", BLOCK, "unwritten shared", None, "byte 0 of it")]
#[case("left_by_another_block", Shape { grid: 2, block: 1, ..BLOCK }, "left over", None, "in this block")]
#[case("copy_without_wait", Shape { block: 8, shared: 128, ..BLOCK }, "read in flight", Some("unwaited copy"), "in flight")]
#[case("copy_waits_for_the_wrong_group", Shape { block: 8, ..BLOCK }, "staged read", Some("staged copy"), "in flight")]
fn unwritten_shared_memory_is_named(
    #[case] kernel: &'static str,
    #[case] shape: Shape,
    #[case] site: &str,
    #[case] other: Option<&str>,
    #[case] words: &str,
) {
    let finding = fault(kernel, shape, FindingKind::Uninitialised);
    assert_sites(&finding, site, other);
    assert!(finding.message.contains(words), "{}", finding.message);
}

#[rstest]
#[case("two_blocks_write", "block write", "block write", "written by block [0, 0, 0]")]
#[case("block_reads_what_another_writes", "other block write", "other block read", "read by block")]
#[case("blocks_count", "count read", "block count", "updated by an atomic by block")]
fn blocks_that_share_a_byte_are_named(
    #[case] kernel: &'static str,
    #[case] site: &str,
    #[case] other: &str,
    #[case] words: &str,
) {
    let device = device(Mode::Checked);
    let shape = Shape { grid: 4, block: 1, ..BLOCK };
    let found = findings(run_counted(&device, kernel, shape, 1));
    let finding = found.iter().find(|f| f.site == line(FILE, site)).unwrap_or_else(|| panic!("{found:#?}"));
    assert_eq!(finding.kind, FindingKind::GlobalRace);
    assert_sites(finding, site, Some(other));
    assert!(finding.message.contains(words), "{}", finding.message);
    run_counted(&device, kernel, shape, 0).unwrap();
}

/// As `run_on`, with `b` zeroed: counters start somewhere.
fn run_counted(device: &SimtDevice, kernel: &'static str, shape: Shape, fault: i32) -> DeviceResult<()> {
    let values: Vec<f32> = (0..shape.a).map(|i| i as f32).collect();
    let (a, b) = (upload(device, &values), upload(device, &vec![0.0_f32; shape.b]));
    let params = FaultParams { a: a.0, b: b.0, n: shape.n, fault };
    launch(device, &spec(FILE, kernel), config(shape.grid, shape.block, shape.shared), &params)
}

#[test]
fn blocks_may_write_different_bytes_of_one_word() {
    let finding = fault("blocks_share_a_word", Shape { grid: 4, block: 1, ..BLOCK }, FindingKind::GlobalRace);
    assert_eq!(finding.site, line(FILE, "word write"));
    assert!(finding.message.contains("by block [1, 0, 0]"), "{}", finding.message);
}

#[rstest]
#[case("past_the_end", Shape { n: 40, a: 40, b: 64, ..BLOCK }, "past the end", "4-byte read at offset 160 of an allocation of 160 bytes (0 bytes past its end), by lane 40")]
#[case(
    "before_the_start",
    WARP,
    "before the start",
    "4-byte write at offset -4 of an allocation of 128 bytes (4 bytes before its start), by lane 0"
)]
#[case("shared_bounds", Shape { n: 64, ..BLOCK }, "shared bounds", "offset 256 of the 256 bytes of shared memory (0 bytes past its end)")]
#[case("shared_bounds", Shape { n: -1, ..BLOCK }, "shared bounds", "offset -4 of the 256 bytes of shared memory (4 bytes before its start)")]
#[case("null_pointer", WARP, "null", "null plus 4")]
fn an_access_outside_memory_is_measured(
    #[case] kernel: &'static str,
    #[case] shape: Shape,
    #[case] site: &str,
    #[case] words: &str,
) {
    let device = device(Mode::Checked);
    let shape = Shape { block: if kernel == "shared_bounds" { 1 } else { shape.block }, ..shape };
    run_on(&device, kernel, shape, 0).unwrap();
    let finding = only_finding(run_on(&device, kernel, shape, 1), FindingKind::OutOfBounds);
    assert_sites(&finding, site, None);
    assert!(finding.message.contains(words), "{}", finding.message);
    run_on(&device, kernel, shape, 0).unwrap();
}

#[test]
fn an_odd_sized_allocation_is_bounded_to_the_byte() {
    let device = device(Mode::Checked);
    let a = device.alloc(6, STREAM).unwrap();
    device.memset(a, 0, 6, STREAM).unwrap();
    let b = device.alloc(8, STREAM).unwrap();
    let params = FaultParams { a: a.0, b: b.0, n: 2, fault: 0 };
    let result = launch(&*device, &spec(FILE, "past_the_end"), config(1, 2, 0), &params);
    let finding = only_finding(result, FindingKind::OutOfBounds);
    assert!(finding.message.contains("its last 2 bytes are past the end"), "{}", finding.message);
}

#[test]
fn a_misaligned_vector_access_is_named() {
    let finding = fault("misaligned_vector", Shape { block: 1, ..BLOCK }, FindingKind::Misaligned);
    assert_sites(&finding, "misaligned", None);
    assert!(finding.message.contains("4 past a multiple of 16"), "{}", finding.message);
}

#[test]
fn unwritten_and_freed_global_memory_is_named() {
    let device = device(Mode::Checked);
    let a = device.alloc(128, STREAM).unwrap();
    device.memset(a, 0, 77, STREAM).unwrap();
    let b = device.alloc(128, STREAM).unwrap();
    let params = FaultParams { a: a.0, b: b.0, n: 32, fault: 0 };
    let read = || launch(&*device, &spec(FILE, "reads_global"), config(1, 32, 0), &params);
    let finding = only_finding(read(), FindingKind::Uninitialised);
    assert_sites(&finding, "global read", None);
    assert_eq!(finding.count, 13);
    let words = "4-byte read at offset 76 of an allocation of 128 bytes, by lane 19";
    assert!(
        finding.message.contains(words) && finding.message.contains("byte 1 of it"),
        "{}",
        finding.message
    );

    device.memset(a, 0, 128, STREAM).unwrap();
    read().unwrap();
    assert!(device.defined(b, 128, STREAM).unwrap());

    device.free(a, STREAM).unwrap();
    let finding = only_finding(read(), FindingKind::UseAfterFree);
    assert_sites(&finding, "global read", None);
    assert!(finding.message.contains("offset 0 of a freed allocation of 128 bytes"), "{}", finding.message);
}

#[test]
fn copies_carry_what_is_known_of_their_source() {
    let device = device(Mode::Checked);
    let a = device.alloc(64, STREAM).unwrap();
    device.memset(a, 0, 20, STREAM).unwrap();
    let b = upload(&*device, &[1_u8; 64]);
    device.copy_on_device(b, a, 40, STREAM).unwrap();
    assert!(device.defined(b, 20, STREAM).unwrap());
    assert!(!device.defined(b.offset(20), 1, STREAM).unwrap());
    assert!(!device.defined(b.offset(39), 1, STREAM).unwrap());
    assert!(device.defined(b.offset(40), 24, STREAM).unwrap());
}

#[test]
fn a_copy_reads_only_what_it_is_told_and_pads_with_zero() {
    let device = device(Mode::Checked);
    let (a, b) = (upload(&*device, &[3.0_f32]), upload(&*device, &[9.0_f32; 4]));
    let params = |fault| FaultParams { a: a.0, b: b.0, n: 0, fault };
    let run = |fault| launch(&*device, &spec(FILE, "copy_pads_with_zero"), config(1, 1, 16), &params(fault));
    run(0).unwrap();
    assert_eq!(simt_support::download::<f32>(&*device, b, 4), [3.0, 0.0, 0.0, 0.0]);
    let finding = only_finding(run(1), FindingKind::OutOfBounds);
    assert_sites(&finding, "padded copy", None);
    assert!(finding.message.contains("8-byte cp.async read"), "{}", finding.message);
}

#[test]
fn an_index_beyond_a_lanes_own_array_is_named() {
    let finding = fault("beyond_own_array", WARP, FindingKind::OutOfBounds);
    assert_eq!(finding.site, line(FILE, "beyond own"));
    assert!(finding.message.contains("index 4 of an array float [4] by lane"), "{}", finding.message);
}

#[rstest]
#[case("different_barriers", BLOCK, "barrier two", Some("barrier one"), "different __syncthreads")]
#[case(
    "barrier_against_collective",
    WARP,
    "lone barrier",
    Some("collective"),
    "lanes 3 wait at __syncthreads"
)]
#[case("mask_without_self", WARP, "mask without self", None, "leaves out the calling lane 31")]
#[case(
    "masks_differ",
    WARP,
    "masks differ",
    Some("masks differ"),
    "lanes 8-31 wait at __shfl_sync(0xffffffff)"
)]
#[case("odd_width", WARP, "odd width", None, "shuffle of width 12")]
#[case("shuffle_from_a_gone_lane", WARP, "gone lane", None, "reads from lane 5 of its warp")]
fn lanes_that_do_not_meet_are_named(
    #[case] kernel: &'static str,
    #[case] shape: Shape,
    #[case] site: &str,
    #[case] other: Option<&str>,
    #[case] words: &str,
) {
    for mode in [Mode::Checked, Mode::Fast] {
        let device = device(mode);
        run_on(&device, kernel, shape, 0).unwrap();
        let finding = only_finding(run_on(&device, kernel, shape, 1), FindingKind::Divergence);
        assert!(finding.message.contains(words), "{}", finding.message);
        if mode == Mode::Checked {
            let sites = [finding.site.clone(), finding.other_site.clone()];
            let wanted = [line(FILE, site), other.and_then(|o| line(FILE, o))];
            assert!(sites == wanted || sites == [wanted[1].clone(), wanted[0].clone()], "{finding:#?}");
        }
        run_on(&device, kernel, shape, 0).unwrap();
    }
}

#[test]
fn a_cycle_of_partial_masks_is_a_deadlock() {
    let device = device(Mode::Checked);
    run_on(&device, "cycle_of_masks", WARP, 0).unwrap();
    let finding = only_finding(run_on(&device, "cycle_of_masks", WARP, 1), FindingKind::Deadlock);
    assert_sites(&finding, "cycle one", Some("cycle two"));
}

#[test]
fn a_lane_that_spins_lets_the_others_run() {
    for mode in [Mode::Checked, Mode::Fast] {
        for schedule in [Schedule::Forward, Schedule::Reverse, Schedule::Random(1)] {
            let device = SimtDevice::new(kernels::simt::SimtOptions { schedule, ..options(mode) }).unwrap();
            run_on(&device, "spins_on_a_flag", BLOCK, 0).unwrap();
        }
    }
}

#[test]
fn lanes_that_returned_are_not_waited_for() {
    for mode in [Mode::Checked, Mode::Fast] {
        let device = device(mode);
        for n in [1, 31, 32, 33, 47] {
            run_on(&device, "lanes_leave", Shape { n, b: n as usize, ..BLOCK }, 0).unwrap();
        }
    }
}

#[test]
fn a_fast_launch_that_writes_past_its_buffer_is_named_by_the_canary() {
    let device = device(Mode::Fast);
    let shape = Shape { n: 33, a: 36, b: 33, block: 64, ..BLOCK };
    run_on(&device, "past_the_end", shape, 0).unwrap();
    let finding = only_finding(run_on(&device, "past_the_end", shape, 1), FindingKind::Canary);
    assert!(finding.message.contains("0 bytes past the end of a 132-byte allocation"), "{}", finding.message);
    let finding = only_finding(run_on(&device, "before_the_start", WARP, 1), FindingKind::Canary);
    assert!(finding.message.contains("4 bytes before the start"), "{}", finding.message);
    run_on(&device, "past_the_end", shape, 0).unwrap();
}

#[test]
fn the_schedule_decides_what_the_kernel_leaves_open_and_a_seed_repeats_it() {
    let last = |schedule| {
        let device = SimtDevice::new(simt_options(schedule)).unwrap();
        let b = upload(&*device, &[-1.0_f32; 32]);
        let params = FaultParams { a: b.0, b: b.0, n: 0, fault: 0 };
        launch(&*device, &spec(FILE, "last_block_wins"), config(7, 1, 0), &params).unwrap();
        simt_support::download::<f32>(&*device, b, 1)[0]
    };
    assert_eq!(last(Schedule::Forward), 6.0);
    assert_eq!(last(Schedule::Reverse), 0.0);
    let tickets = |schedule| {
        let device = SimtDevice::new(simt_options(schedule)).unwrap();
        let (a, b) = (upload(&*device, &[0_i32]), upload(&*device, &[-1.0_f32; 32]));
        let params = FaultParams { a: a.0, b: b.0, n: 0, fault: 0 };
        launch(&*device, &spec(FILE, "tickets"), config(1, 32, 0), &params).unwrap();
        simt_support::download::<f32>(&*device, b, 32)
    };
    let forward: Vec<f32> = (0..32).map(|i| i as f32).collect();
    assert_eq!(tickets(Schedule::Forward), forward);
    assert_eq!(tickets(Schedule::Reverse), forward.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(tickets(Schedule::Random(5)), tickets(Schedule::Random(5)));
    assert_ne!(tickets(Schedule::Random(5)), tickets(Schedule::Random(6)));
}
