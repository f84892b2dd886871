//! Dequantising ahead gives the bits of the dense route, in whatever order the two streams get their turns.
//!
//! `simt` runs a stream only when somebody waits for it. Waiting for one stream first runs everything there that depends on
//! nothing else, so a missing dependency in either direction shows as wrong bits.

#[path = "support/attention.rs"]
mod attention;
mod support;

use attention::{Batch, Problem};
use kernels::ahead::DenseAhead;
use kernels::args::AttentionArgs;
use kernels::arm::Arm;
use kernels::device::{DeviceError, DeviceRef};
use kernels::error::LaunchError;
use kernels::launch::paged_attention;
use kernels::route::Knobs;
use kernels::tensor::{Allocation, DType};
use rstest::rstest;
use support::{RefusesFrees, STREAM, checked, download};

/// One token of the cache: 2 heads of 64 dims, one byte each; pages hold 4.
const PAGE_BYTES: u64 = 4 * 2 * 64;
const NAN_CODE: u8 = 0x7f;

fn problem(kv: DType, q_lens: &[usize], kv_lens: &[usize]) -> Problem {
    Problem::new(DType::Bf16, kv, (4, 2), 64).lens(q_lens, kv_lens)
}

/// A prompt's second chunk: 8 tokens in two pages, then 4 of this call in a third.
fn chunk(seed: u64, device: &DeviceRef) -> Batch {
    Batch::new(device, problem(DType::E4m3, &[4], &[12]), seed)
}

/// What the dense route gives for a batch: output and lse.
fn plain(device: &DeviceRef, batch: &Batch) -> (Vec<u8>, Vec<u8>) {
    let arm = if batch.problem.kv_dtype.is_fp8() { Arm::Fp8Dense } else { Arm::Bf16Dense };
    clear(device, batch);
    paged_attention(device, STREAM, arm, &batch.args).unwrap();
    results(device, batch)
}

fn places(batch: &Batch) -> [Allocation; 2] {
    [batch.args.out.allocation, batch.args.lse.as_ref().expect("lse is always asked for").allocation]
}

fn clear(device: &DeviceRef, batch: &Batch) {
    for place in places(batch) {
        device.memset(place.ptr, 0xff, place.bytes, STREAM).unwrap();
    }
}

fn results(device: &DeviceRef, batch: &Batch) -> (Vec<u8>, Vec<u8>) {
    let [out, lse] = places(batch).map(|place| download(device, place));
    (out, lse)
}

/// Attends all batches in turn, each told of the one after it.
fn queue(ahead: &mut DenseAhead, device: &DeviceRef, batches: &[Batch]) {
    batches.iter().for_each(|batch| clear(device, batch));
    for (i, batch) in batches.iter().enumerate() {
        let next = batches.get(i + 1).map(|next| &next.args);
        let launched = ahead.attend(&batch.args, &Knobs::default(), next).unwrap();
        assert!(launched.kernels.starts_with(&["dequantise_dense"]), "{launched:?}");
    }
}

#[rstest]
#[case::the_callers_stream_first(false)]
#[case::the_background_stream_first(true)]
fn layers_in_turn_give_the_bits_of_single_calls(#[case] background_first: bool) {
    let device = checked();
    let batches: Vec<Batch> = (0..5).map(|seed| chunk(seed, &device)).collect();
    let want: Vec<_> = batches.iter().map(|batch| plain(&device, batch)).collect();
    let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
    queue(&mut ahead, &device, &batches);
    if background_first {
        device.synchronize(ahead.background_stream()).unwrap();
    }
    for (layer, (batch, want)) in batches.iter().zip(&want).enumerate() {
        assert_eq!(results(&device, batch), *want, "layer {layer}");
    }
    ahead.release().unwrap();
}

#[test]
fn batches_of_every_kind_may_follow_each_other() {
    let device = checked();
    let of = |kv, q: &[usize], k: &[usize]| Batch::new(&device, problem(kv, q, k), 7);
    let mut square = problem(DType::E5m2, &[9, 3], &[5, 30]);
    square.causal = false;
    let batches = [
        of(DType::E4m3, &[4, 1, 0], &[40, 1, 8]),
        // More rows than keys: all tokens are the call's own.
        Batch::new(&device, square, 3),
        of(DType::Bf16, &[6], &[17]),
        of(DType::E4m3, &[1, 1, 1, 1], &[3, 70, 1, 12]),
        // Nothing to compute, and nothing to announce.
        of(DType::E4m3, &[0], &[8]),
        of(DType::E4m3, &[5], &[5]),
    ];
    let want: Vec<_> = batches.iter().map(|batch| plain(&device, batch)).collect();
    let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
    batches.iter().for_each(|batch| clear(&device, batch));
    for (i, batch) in batches.iter().enumerate() {
        let next = batches.get(i + 1).map(|next| &next.args);
        ahead.attend(&batch.args, &Knobs::default(), next).unwrap();
    }
    for (i, (batch, want)) in batches.iter().zip(&want).enumerate() {
        assert_eq!(results(&device, batch), *want, "batch {i}");
    }
    ahead.release().unwrap();
}

/// Fills one page of K and V.
fn fill_page(device: &DeviceRef, batch: &Batch, column: usize, bytes: Option<&[Vec<u8>; 2]>) {
    let table = download(device, batch.args.block_table.allocation);
    let page = i32::from_le_bytes(table[column * 4..][..4].try_into().unwrap()) as u64;
    for (side, cache) in [&batch.args.cache.k, &batch.args.cache.v].into_iter().enumerate() {
        let at = cache.allocation.ptr.offset(page * PAGE_BYTES);
        match bytes {
            Some(all) => {
                let bytes = &all[side][(page * PAGE_BYTES) as usize..][..PAGE_BYTES as usize];
                device.copy_to_device(at, bytes, STREAM).unwrap();
            }
            None => device.memset(at, NAN_CODE, PAGE_BYTES, STREAM).unwrap(),
        }
    }
}

#[test]
fn tokens_of_the_call_itself_may_be_stored_after_the_announcement() {
    let device = checked();
    let (before, batch) = (chunk(1, &device), chunk(2, &device));
    let want = plain(&device, &batch);
    let stored = [&batch.args.cache.k, &batch.args.cache.v].map(|side| download(&device, side.allocation));
    let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
    fill_page(&device, &batch, 2, None);
    ahead.attend(&before.args, &Knobs::default(), Some(&batch.args)).unwrap();
    device.synchronize(ahead.background_stream()).unwrap();
    fill_page(&device, &batch, 2, Some(&stored));
    // That pages of earlier tokens may not change shows that they are not read again.
    fill_page(&device, &batch, 0, None);
    fill_page(&device, &batch, 1, None);
    clear(&device, &batch);
    ahead.attend(&batch.args, &Knobs::default(), None).unwrap();
    assert_eq!(results(&device, &batch), want);
}

#[rstest]
#[case::another_cache(|_: &DeviceRef, args: &mut AttentionArgs, other: &AttentionArgs| args.cache = other.cache.clone())]
#[case::another_block_table(|_: &DeviceRef, args: &mut AttentionArgs, other: &AttentionArgs| {
    args.block_table = other.block_table.clone();
})]
#[case::a_longer_bound(|_: &DeviceRef, args: &mut AttentionArgs, _: &AttentionArgs| args.max_seq_len += 4)]
#[case::a_grown_sequence(|device: &DeviceRef, args: &mut AttentionArgs, _: &AttentionArgs| {
    set_first_length(device, args, 16);
})]
fn a_call_that_was_not_announced_is_dequantised_whole(
    #[case] change: fn(&DeviceRef, &mut AttentionArgs, &AttentionArgs),
) {
    let device = checked();
    // Two requests, so that a page of scratch has a neighbour; room for what grows.
    let of = |seed| Batch::new(&device, problem(DType::E4m3, &[4, 2], &[16, 9]), seed);
    let (before, mut batch, other) = (of(1), of(2), of(3));
    set_first_length(&device, &mut batch.args, 12);
    let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
    ahead.attend(&before.args, &Knobs::default(), Some(&batch.args)).unwrap();
    device.synchronize(ahead.background_stream()).unwrap();
    change(&device, &mut batch.args, &other.args);
    clear(&device, &batch);
    ahead.attend(&batch.args, &Knobs::default(), None).unwrap();
    let got = results(&device, &batch);
    assert_eq!(got, plain(&device, &batch));
}

fn set_first_length(device: &DeviceRef, args: &mut AttentionArgs, length: i32) {
    device.copy_to_device(args.seq_lens.ptr(), &length.to_le_bytes(), STREAM).unwrap();
    args.host.seq_lens = Some(vec![length, 9]);
}

#[test]
fn an_announcement_serves_one_call() {
    let device = checked();
    let (before, batch) = (chunk(1, &device), chunk(2, &device));
    let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
    ahead.attend(&before.args, &Knobs::default(), Some(&batch.args)).unwrap();
    ahead.attend(&batch.args, &Knobs::default(), None).unwrap();
    // The request was preempted and came back with other tokens.
    let page = batch.args.cache.k.ptr();
    device.memset(page, 0x38, batch.args.cache.k.allocation.bytes, STREAM).unwrap();
    clear(&device, &batch);
    ahead.attend(&batch.args, &Knobs::default(), None).unwrap();
    let got = results(&device, &batch);
    assert_eq!(got, plain(&device, &batch));
}

#[test]
fn scratch_is_two_areas_of_the_largest_call_and_goes_back() {
    let device = checked();
    let small = chunk(1, &device);
    let large = Batch::new(&device, problem(DType::E4m3, &[4, 2], &[100, 20]), 2);
    device.synchronize(STREAM).unwrap();
    let used = device.pool().unwrap().used;
    for released in [true, false] {
        let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
        let calls = [(&small, &large), (&large, &small), (&small, &large), (&large, &large)];
        for (batch, next) in calls {
            ahead.attend(&batch.args, &Knobs::default(), Some(&next.args)).unwrap();
        }
        // 2 requests x 100 tokens x 2 heads x 64 dims x K and V x 2 bytes, and 4 bytes of table each.
        assert_eq!(ahead.bytes(), 2 * (102_400 + 8));
        if released {
            ahead.release().unwrap();
        } else {
            drop(ahead);
        }
        device.synchronize(STREAM).unwrap();
        assert_eq!(device.pool().unwrap().used, used, "released: {released}");
    }
}

#[test]
fn a_release_tries_everything_and_reports_memory_that_was_not_taken_back() {
    let refused = || DeviceError::Driver {
        call: "free",
        code: "CODE".to_owned(),
        message: String::new(),
        sticky: true,
    };
    let device = RefusesFrees::new(checked(), refused);
    let shared = device.clone() as DeviceRef;
    let (batch, next) = (chunk(1, &shared), chunk(2, &shared));
    let mut ahead = DenseAhead::new(&shared, STREAM).unwrap();
    ahead.attend(&batch.args, &Knobs::default(), Some(&next.args)).unwrap();
    assert_eq!(device.asked(), []);
    assert_eq!(ahead.release().expect_err("a refused free").to_string(), refused().to_string());
    // Pages and table of two areas.
    assert_eq!(device.asked(), [STREAM; 4]);
}

#[test]
fn bad_arguments_of_either_call_are_refused_before_anything_is_queued() {
    let device = checked();
    let (good, mut bad) = (chunk(1, &device), chunk(2, &device));
    bad.args.softmax_scale = f32::NAN;
    let used = device.pool().unwrap().used;
    let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
    for (args, next) in [(&good.args, Some(&bad.args)), (&bad.args, Some(&good.args)), (&bad.args, None)] {
        let error = ahead.attend(args, &Knobs::default(), next).unwrap_err();
        assert!(matches!(error, LaunchError::Argument(_)), "{error}");
    }
    assert_eq!((ahead.bytes(), device.pool().unwrap().used), (0, used));
    assert_eq!(device.launch_counts(), []);
}

#[test]
fn a_capturing_stream_is_refused() {
    let device = checked();
    let batch = chunk(1, &device);
    let mut ahead = DenseAhead::new(&device, STREAM).unwrap();
    device.begin_capture(STREAM).unwrap();
    let error = ahead.attend(&batch.args, &Knobs::default(), None).unwrap_err();
    assert!(matches!(error, LaunchError::Device(DeviceError::Capture { call: "alloc", .. })), "{error}");
    let graph = device.end_capture(STREAM).unwrap();
    device.destroy_graph(graph).unwrap();
}
