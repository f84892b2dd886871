//! The scalar arm on the checked device against attention from its definition in f64.

#[path = "support/attention.rs"]
mod attention;
mod support;

use attention::{Batch, Layout, Problem};
use kernels::arm::Arm;
use kernels::device::DeviceRef;
use kernels::launch::paged_attention;
use kernels::simt::{Fill, Mode, Schedule};
use kernels::tensor::DType;
use rstest::rstest;
use support::{STREAM, checked, device_as, upload_i32};

fn run(device: &DeviceRef, batch: &Batch) {
    paged_attention(device, STREAM, Arm::Scalar, &batch.args).expect("a launch");
    device.synchronize(STREAM).expect("no findings");
}

#[track_caller]
fn check(problem: Problem) {
    let device = checked();
    let batch = Batch::new(&device, problem, 1);
    run(&device, &batch);
    batch.check(&device);
}

const BF16: DType = DType::Bf16;
const F32: DType = DType::F32;

#[rstest]
fn every_pair_of_formats(
    #[values(DType::F32, DType::Bf16, DType::F16)] q: DType,
    #[values(DType::F32, DType::Bf16, DType::F16, DType::E4m3, DType::E5m2)] kv: DType,
) {
    let mut problem = Problem::new(q, kv, (4, 2), 16).lens(&[4, 1, 3], &[4, 6, 40]);
    (problem.k_scale, problem.v_scale) = (vec![0.5], vec![2.0]);
    check(problem);
}

#[rstest]
fn every_layout(
    #[values(Layout::Nhd, Layout::Hnd, Layout::Interleaved, Layout::Ragged)] layout: Layout,
    #[values(DType::F32, DType::Bf16, DType::E4m3)] kv: DType,
) {
    let mut problem = Problem::new(F32, kv, (4, 2), 24).lens(&[4, 1], &[9, 38]);
    problem.layout = layout;
    check(problem);
}

#[rstest]
#[case(8, 8)]
#[case(8, 64)]
#[case(64, 8)]
#[case(40, 72)]
#[case(96, 96)]
#[case(120, 128)]
#[case(264, 256)]
#[case(512, 512)]
fn head_dims(#[case] dk: usize, #[case] dv: usize, #[values(DType::F32, DType::E5m2)] kv: DType) {
    let mut problem = Problem::new(F32, kv, (2, 1), dk).lens(&[3, 1], &[35, 17]);
    problem.dims = (dk, dv);
    check(problem);
}

#[rstest]
fn group_ratios(#[values(1, 2, 3, 5, 7, 8, 12, 20)] ratio: usize) {
    check(Problem::new(BF16, BF16, (2 * ratio, 2), 16).lens(&[3, 1], &[7, 34]));
}

#[rstest]
fn page_sizes(#[values(1, 2, 3, 16, 33)] page_size: usize) {
    let mut problem = Problem::new(F32, DType::E4m3, (2, 2), 32).lens(&[2, 9], &[70, 33]);
    problem.page_size = page_size;
    check(problem);
}

#[rstest]
fn windows(
    #[values(None, Some(0), Some(5), Some(31), Some(32), Some(i64::MAX))] left: Option<i64>,
    #[values(None, Some(0), Some(2), Some(i64::MAX))] right: Option<i64>,
    #[values(false, true)] causal: bool,
) {
    let mut problem = Problem::new(F32, F32, (2, 1), 8).lens(&[7, 1, 5], &[70, 66, 5]);
    problem.window = (left, right);
    problem.causal = causal;
    check(problem);
}

#[test]
fn empty_requests_and_rows_that_see_nothing() {
    for causal in [false, true] {
        let mut problem = Problem::new(F32, BF16, (4, 2), 16).lens(&[0, 3, 6, 0, 1], &[5, 0, 2, 0, 9]);
        problem.causal = causal;
        check(problem);
    }
}

#[test]
fn a_row_that_sees_nothing_is_zero_with_lse_minus_infinity_or_the_sink() {
    let device = checked();
    let mut batch = Batch::new(&device, Problem::new(F32, F32, (2, 1), 8).lens(&[3], &[1]), 1);
    run(&device, &batch);
    let (out, lse) = batch.results(&device);
    assert!(out[..32].iter().all(|x| *x == 0.0 && x.is_sign_positive()), "{out:?}");
    assert!(lse[..4].iter().all(|x| *x == f64::NEG_INFINITY), "{lse:?}");
    batch.problem.sinks = Some(vec![1.5, f32::NEG_INFINITY]);
    batch.refresh(&device);
    run(&device, &batch);
    let (out, lse) = batch.results(&device);
    assert!(out[..32].iter().all(|x| *x == 0.0), "{out:?}");
    assert_eq!(lse[..4], [1.5, f64::NEG_INFINITY, 1.5, f64::NEG_INFINITY]);
}

#[rstest]
fn options(
    #[values(None, Some(0.75), Some(30.0))] softcap: Option<f32>,
    #[values(false, true)] slopes: bool,
    #[values(false, true)] sinks: bool,
    #[values(false, true)] causal: bool,
) {
    let mut problem = Problem::new(F32, BF16, (4, 2), 16).lens(&[5, 1], &[40, 33]);
    problem.softcap = softcap;
    problem.slopes = slopes.then(|| vec![0.5, 0.25, 0.125, 0.0625]);
    problem.sinks = sinks.then(|| vec![1.0, -2.0, 4.0, 0.5]);
    problem.causal = causal;
    check(problem);
}

#[test]
fn scales_per_head() {
    let mut problem = Problem::new(BF16, DType::E4m3, (6, 3), 16).lens(&[2, 1], &[9, 37]);
    (problem.k_scale, problem.v_scale) = (vec![0.25, 1.5, 0.0625], vec![3.0, 0.011, 0.5]);
    check(problem);
}

#[rstest]
fn no_byte_that_nobody_owns_reaches_a_result(
    #[values(f64::NAN, f64::INFINITY, 1.2676506002282294e30)] poison: f64,
    #[values(DType::F32, DType::Bf16)] kv: DType,
) {
    let device = checked();
    let results = [0.0, poison].map(|poison| {
        let mut problem = Problem::new(F32, kv, (2, 1), 16).lens(&[4, 1], &[5, 34]);
        problem.poison = Some(poison);
        problem.window = (Some(6), None);
        let batch = Batch::new(&device, problem, 3);
        run(&device, &batch);
        batch.results(&device)
    });
    assert_eq!(results[0], results[1]);
}

#[test]
fn pages_left_of_the_window_are_not_looked_up() {
    let device = checked();
    let mut problem = Problem::new(F32, BF16, (4, 2), 16).lens(&[3, 1], &[150, 37]);
    problem.window = (Some(9), None);
    let mut batch = Batch::new(&device, problem, 17);
    // The first rows stand at keys 147 and 36, so keys from 138 and from 27 are visible: pages 34 and 6 on.
    let mut table = batch.args.host.block_table.take().unwrap();
    let width = table.len() / 2;
    table[..34].fill(0x0070_0000);
    table[width..width + 6].fill(-1);
    batch.args.block_table = upload_i32(&device, &[2, width as u64], &table);
    run(&device, &batch);
    batch.check(&device);
}

#[test]
fn nan_reaches_the_rows_that_see_it_and_no_other() {
    let device = checked();
    for (in_k, key) in [(true, 35), (false, 35), (true, 2), (false, 2)] {
        let mut batch = Batch::new(&device, Problem::new(F32, BF16, (2, 1), 16).lens(&[6], &[38]), 5);
        batch.problem.window = (Some(32), None);
        let side = if in_k { &mut batch.k } else { &mut batch.v };
        side[0][key][0][3] = f64::NAN;
        batch.refresh(&device);
        run(&device, &batch);
        batch.check(&device);
        let (out, _) = batch.results(&device);
        let nan_rows: Vec<usize> = (0..6).filter(|row| out[row * 32 + 3].is_nan()).collect();
        assert_eq!(nan_rows, if key == 35 { vec![3, 4, 5] } else { vec![0, 1, 2] });
    }
}

#[test]
fn a_key_that_a_row_does_not_see_leaves_it_alone_however_large() {
    // The last key outweighs all others by more than f32 can hold; only the last row sees it.
    let device = checked();
    let mut batch = Batch::new(&device, Problem::new(F32, F32, (2, 1), 16).lens(&[4], &[40]), 19);
    for row in batch.q.iter_mut().flatten() {
        row[0] = 16.0;
    }
    batch.k[0][39][0][0] = 64.0;
    batch.refresh(&device);
    run(&device, &batch);
    batch.check(&device);
}

#[test]
fn a_constant_on_all_logits_changes_lse_only() {
    // Integer inputs and a power-of-two scale: products and sums are exact, so the outputs are equal to the bit.
    let device = checked();
    let mut outputs = Vec::new();
    for shift in [0.0, 1024.0, -1024.0, 65536.0, -65536.0] {
        let mut batch = Batch::new(&device, Problem::new(F32, F32, (1, 1), 16).lens(&[2], &[40]), 7);
        batch.problem.scale = 0.25;
        for row in batch.q.iter_mut().flatten().chain(batch.k.iter_mut().flatten().flatten()) {
            row.iter_mut().for_each(|x| *x = (*x * 4.0).round());
        }
        for row in batch.q.iter_mut().flatten() {
            row[0] = 16.0;
        }
        for row in batch.k[0].iter_mut().flatten() {
            row[0] = shift / 4.0;
        }
        batch.refresh(&device);
        run(&device, &batch);
        let (out, lse) = batch.results(&device);
        let (want, want_lse) = batch.expected();
        assert!(out.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "shift {shift}");
        assert!(lse.iter().zip(&want_lse).all(|(a, b)| (a - b).abs() <= 1e-2), "{lse:?} {want_lse:?}");
        outputs.push(out);
    }
    assert!(outputs.iter().all(|out| *out == outputs[0]));
}

#[rstest]
fn a_row_alone_in_a_batch_and_in_chunks_gives_the_same_bits(#[values(None, Some(70))] window: Option<i64>) {
    let device = checked();
    let bits = |batch: &Batch| {
        run(&device, batch);
        batch.results(&device)
    };
    // f32 out, which shows every bit of the sums.
    let mut problem = Problem::new(F32, DType::E4m3, (6, 2), 32).lens(&[21], &[165]);
    problem.window = (window, None);
    let whole = Batch::new(&device, problem, 9);
    let (out, lse) = bits(&whole);
    for (first, rows) in [(0, 21), (5, 3), (20, 1)] {
        // The chunk ends at the key its last row stands at.
        let keys = 144 + first + rows;
        let mut part = Batch::new(&device, whole.problem.clone().lens(&[rows], &[keys]), 9);
        part.problem.page_size = 3;
        part.q = whole.q[first..first + rows].to_vec();
        part.k = vec![whole.k[0][..keys].to_vec()];
        part.v = vec![whole.v[0][..keys].to_vec()];
        part.refresh(&device);
        let (part_out, part_lse) = bits(&part);
        assert_eq!(part_out, out[first * 192..(first + rows) * 192]);
        assert_eq!(part_lse, lse[first * 6..(first + rows) * 6]);
    }
}

#[test]
fn upper_bounds_and_missing_host_copies_change_nothing() {
    let device = checked();
    let mut batch =
        Batch::new(&device, Problem::new(BF16, BF16, (4, 2), 16).lens(&[3, 1, 4], &[9, 33, 12]), 11);
    run(&device, &batch);
    let exact = batch.results(&device);
    batch.refresh(&device);
    batch.args.max_query_len = 7;
    batch.args.max_seq_len = 160;
    batch.args.host = kernels::args::HostMetadata::default();
    run(&device, &batch);
    assert_eq!(batch.results(&device), exact);
}

#[test]
fn a_batch_without_rows_launches_nothing() {
    let device = checked();
    let batch = Batch::new(&device, Problem::new(BF16, BF16, (4, 2), 16).lens(&[0, 0], &[9, 0]), 1);
    let launched = paged_attention(&device, STREAM, Arm::Scalar, &batch.args).unwrap();
    assert_eq!(launched.kernels, Vec::<&str>::new());
    assert!(device.launch_counts().iter().all(|(_, count)| *count == 0));
}

#[test]
fn no_order_of_lanes_and_blocks_and_no_stale_memory_changes_a_bit() {
    let results: Vec<_> = [
        (Schedule::Forward, Fill::Nan),
        (Schedule::Forward, Fill::Large),
        (Schedule::Reverse, Fill::Nan),
        (Schedule::Random(1), Fill::Nan),
        (Schedule::Random(2), Fill::Large),
    ]
    .into_iter()
    .map(|(schedule, fill)| {
        let device = device_as(|options| (options.schedule, options.fill) = (schedule, fill));
        let batch =
            Batch::new(&device, Problem::new(BF16, DType::E4m3, (6, 2), 40).lens(&[9, 1], &[77, 66]), 13);
        run(&device, &batch);
        batch.results(&device)
    })
    .collect();
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn checked_and_fast_mode_give_the_same_bits() {
    let results = [Mode::Checked, Mode::Fast].map(|mode| {
        let device = device_as(|options| options.mode = mode);
        let mut problem = Problem::new(DType::F16, DType::E5m2, (4, 1), 72).lens(&[5, 1], &[130, 31]);
        problem.softcap = Some(20.0);
        problem.slopes = Some(vec![0.5, 0.25, 0.125, 0.0625]);
        let batch = Batch::new(&device, problem, 15);
        run(&device, &batch);
        batch.results(&device)
    });
    assert_eq!(results[0], results[1]);
}
