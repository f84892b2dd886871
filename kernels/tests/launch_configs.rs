//! What a call puts on its stream: kernels, blocks and shared memory, up to the largest grid. Nothing is run, so extents may be
//! larger than any memory.

mod support;

use std::sync::{Arc, Mutex};

use kernels::args::{AttentionArgs, BatchMetadata, PagedCache};
use kernels::arm::Arm;
use kernels::device::{
    Device, DeviceInfo, DevicePtr, DeviceRef, DeviceResult, KernelId, LaunchConfig, StreamId,
};
use kernels::error::LaunchError;
use kernels::launch::{Launched, paged_attention_with};
use kernels::route::Knobs;
use kernels::source::KernelSpec;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use rstest::rstest;
use support::{STREAM, checked};

/// Remembers what is loaded and launched, and hands out addresses that nothing lies behind.
struct Recorder {
    inner: DeviceRef,
    loaded: Mutex<Vec<KernelSpec>>,
    launched: Mutex<Vec<(String, LaunchConfig)>>,
    allocated: Mutex<Vec<u64>>,
}

impl Recorder {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: checked(),
            loaded: Mutex::default(),
            launched: Mutex::default(),
            allocated: Mutex::default(),
        })
    }

    fn launched(&self) -> Vec<(String, LaunchConfig)> {
        self.launched.lock().unwrap().clone()
    }
}

impl Device for Recorder {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { multiprocessors: 132, max_shared_bytes: 232_448, ..self.inner.info() }
    }

    fn alloc(&self, bytes: u64, _stream: StreamId) -> DeviceResult<DevicePtr> {
        self.allocated.lock().unwrap().push(bytes);
        Ok(DevicePtr(1 << 40))
    }

    fn free(&self, _ptr: DevicePtr, _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }

    fn copy_to_device(&self, _dst: DevicePtr, _src: &[u8], _stream: StreamId) -> DeviceResult<()> {
        Ok(())
    }

    fn load_kernel(&self, spec: &KernelSpec) -> DeviceResult<KernelId> {
        let mut loaded = self.loaded.lock().unwrap();
        loaded.push(spec.clone());
        Ok(KernelId(loaded.len() as u64 - 1))
    }

    fn launch(
        &self,
        kernel: KernelId,
        config: LaunchConfig,
        _params: &[u8],
        _stream: StreamId,
    ) -> DeviceResult<()> {
        let entry = self.loaded.lock().unwrap()[kernel.0 as usize].entry.to_owned();
        self.launched.lock().unwrap().push((entry, config));
        Ok(())
    }

    kernels::forward_device! { inner:
        create_stream destroy_stream copy_to_host copy_on_device memset launch_counts create_event destroy_event
        record_event wait_event elapsed_ms begin_capture end_capture launch_graph destroy_graph pool reset_high_water
        synchronize
    }
}

/// A call by its extents. Addresses are never followed.
#[derive(Clone, Copy)]
struct Call {
    kv_dtype: DType,
    requests: u64,
    total_q: u64,
    query: u64,
    keys: u64,
    heads: (u64, u64),
    head_dim: u64,
}

/// One row for each of two requests, 100 keys, four heads over two.
const CALL: Call =
    Call { kv_dtype: DType::Bf16, requests: 2, total_q: 2, query: 1, keys: 100, heads: (4, 2), head_dim: 64 };

fn tensor(dtype: DType, shape: &[u64]) -> DeviceTensor {
    let bytes = shape.iter().product::<u64>() * dtype.size_bytes();
    DeviceTensor::contiguous(Allocation { ptr: DevicePtr(0x10000), bytes }, dtype, shape)
}

impl Call {
    fn args(&self) -> AttentionArgs {
        let rows = tensor(DType::Bf16, &[self.total_q, self.heads.0, self.head_dim]);
        let cache = tensor(self.kv_dtype, &[1, 16, self.heads.1, self.head_dim]);
        let metadata = BatchMetadata {
            block_table: tensor(DType::I32, &[self.requests, 7]),
            seq_lens: tensor(DType::I32, &[self.requests]),
            query_start_loc: tensor(DType::I32, &[self.requests + 1]),
            max_query_len: self.query,
            max_seq_len: self.keys,
        };
        AttentionArgs::causal(rows.clone(), PagedCache::unscaled(cache.clone(), cache), rows, metadata)
    }

    fn launch(&self, device: &Arc<Recorder>, arm: Arm, knobs: &Knobs) -> Result<Launched, LaunchError> {
        let device = device.clone() as DeviceRef;
        paged_attention_with(&device, STREAM, Some(arm), &self.args(), knobs, None)
    }
}

const fn config(grid: [u32; 3], threads: u32, shared_bytes: u32) -> LaunchConfig {
    LaunchConfig { grid, block: [threads, 1, 1], shared_bytes }
}

#[test]
fn a_decode_splits_the_keys_and_merges() {
    let device = Recorder::new();
    CALL.launch(&device, Arm::Mma, &Knobs::default()).unwrap();
    // Two requests in two splits, by KV heads. 8 rows of two numbers for each of 4 warps; rings of 3 steps of 16 rows of K and V,
    // 128 bytes each. Merged by rows and heads, with four sums of each thread.
    let (walk, merge) = (256 + 4 * 3 * 2 * 16 * 128, 256 * 16);
    assert_eq!(
        device.launched(),
        [
            ("decode_attention".to_owned(), config([4, 2, 1], 128, walk)),
            ("combine_splits".to_owned(), config([8, 1, 1], 256, merge))
        ]
    );
    // 2 splits x 2 rows x 4 heads, 64 sums and two numbers of state each.
    assert_eq!(*device.allocated.lock().unwrap(), [2 * 2 * 4 * 66 * 4]);
}

#[rstest]
#[case::sixteen_heads_of_a_row(1, None, (32, 2), 64, "decode_attention")]
#[case::more_heads_than_its_rows(1, None, (34, 2), 64, "mma_verify")]
#[case::a_head_dim_that_it_does_not_have(1, None, (4, 2), 80, "mma_verify")]
#[case::sixteen_rows_of_one_head(16, Some(16), (2, 2), 128, "decode_attention")]
#[case::sixteen_rows_of_two_heads(16, Some(16), (4, 2), 128, "mma_verify")]
#[case::more_rows_than_a_decode(17, Some(17), (2, 2), 64, "mma_attention")]
#[case::rows_of_another_count(9, Some(8), (2, 2), 64, "mma_attention")]
#[case::rows_of_no_count(2, None, (2, 2), 64, "mma_attention")]
fn short_queries_have_kernels_of_their_own(
    #[case] query: u64,
    #[case] uniform_query_len: Option<u64>,
    #[case] heads: (u64, u64),
    #[case] head_dim: u64,
    #[case] want: &str,
) {
    let device = Recorder::new();
    let call = Call { total_q: 2 * query, query, heads, head_dim, ..CALL };
    let knobs = Knobs { uniform_query_len, splits: Some(1), ..Knobs::default() };
    call.launch(&device, Arm::Mma, &knobs).unwrap();
    let launched = device.launched();
    assert_eq!(launched.len(), 1);
    assert_eq!(launched[0].0, want);
}

#[test]
fn a_long_decode_fills_two_blocks_of_every_multiprocessor() {
    let device = Recorder::new();
    let call = Call { requests: 1, total_q: 1, keys: 32_768, ..CALL };
    call.launch(&device, Arm::Mma, &Knobs::default()).unwrap();
    // 512 steps of four warps in 128 parts by two KV heads: 256 of 264 places. Less than 128 leaves a part five steps long.
    assert_eq!(device.launched()[0].1.grid, [128, 2, 1]);
    let device = Recorder::new();
    call.launch(&device, Arm::Mma, &Knobs { max_splits: 40, ..Knobs::default() }).unwrap();
    assert!(device.launched()[0].1.grid[0] <= 40);
}

/// Whether the attention kernel of a call is compiled with a definition.
fn is_defined(definition: &str, call: Call, arm: Arm) -> bool {
    let device = Recorder::new();
    call.launch(&device, arm, &Knobs { splits: Some(1), ..Knobs::default() }).unwrap();
    let loaded = device.loaded.lock().unwrap();
    loaded.last().unwrap().defines.iter().any(|(name, _)| *name == definition)
}

#[test]
fn only_the_arm_of_that_name_casts_in_hardware() {
    let codes = Call { kv_dtype: DType::E5m2, ..CALL };
    let casts = |call, arm| is_defined("CAST_HARDWARE", call, arm);
    assert!(casts(codes, Arm::Fp8StagedHw) && !casts(codes, Arm::Fp8StagedSoft));
    assert!(!casts(codes, Arm::Fp8Dense) && !casts(CALL, Arm::Mma));
}

#[test]
fn only_a_prefill_on_dense_scratch_is_compiled_for_it() {
    let is_dense = |call, arm| is_defined("DENSE", call, arm);
    let prefill = Call { total_q: 200, query: 150, ..CALL };
    let codes = |call| Call { kv_dtype: DType::E4m3, ..call };
    assert!(is_dense(codes(prefill), Arm::Fp8Dense) && is_dense(prefill, Arm::Bf16Dense));
    assert!(!is_dense(codes(CALL), Arm::Fp8Dense) && !is_dense(CALL, Arm::Bf16Dense));
    assert!(!is_dense(prefill, Arm::Mma) && !is_dense(codes(prefill), Arm::Fp8StagedHw));
}

#[test]
fn a_decode_warp_keeps_room_for_its_sums_and_narrowed_queries() {
    let device = Recorder::new();
    let call = Call { kv_dtype: DType::E4m3, heads: (32, 2), head_dim: 256, ..CALL };
    call.launch(&device, Arm::Fp8StagedHw, &Knobs { splits: Some(1), ..Knobs::default() }).unwrap();
    // Two steps of codes, 16384 bytes, do not hold 16 rows of 260 sums: three. 16 rows of 256 narrowed queries, 16 bytes of padding
    // and a factor each come first, and 16 rows of two numbers for each warp; 9024 bytes, rounded up to 128.
    assert_eq!(
        device.launched(),
        [("decode_attention".to_owned(), config([2, 2, 1], 128, 9088 + 4 * 3 * 2 * 16 * 256))]
    );
}

#[test]
fn a_verify_packs_rows_and_heads_and_splits_by_its_own_key_tiles() {
    let device = Recorder::new();
    let call = Call { total_q: 18, query: 9, ..CALL };
    call.launch(&device, Arm::Mma, &Knobs { uniform_query_len: Some(9), ..Knobs::default() }).unwrap();
    // Places of keys and their pages, 64 rows of Q, and two buffers of 64 rows of K and of V, 144 bytes each.
    let shared = 3072 + 64 * 144 + 2 * 2 * 64 * 144;
    assert_eq!(
        device.launched(),
        [
            ("mma_verify".to_owned(), config([4, 2, 1], 128, shared)),
            ("combine_splits".to_owned(), config([72, 1, 1], 256, 4096))
        ]
    );
}

#[rstest]
// 128 rows of Q, two buffers of 64 rows of K and of V.
#[case(64, 128, 3072 + 128 * 144 + 4 * 64 * 144)]
// The same with rows of 528 bytes, the weights of 128 rows and two maxima of each: pairs of warps.
#[case(256, 256, 3072 + 128 * 528 + 4 * 64 * 528 + 128 * (128 + 16 + 8))]
fn a_prefill_has_blocks_of_128_rows(#[case] head_dim: u64, #[case] threads: u32, #[case] shared: u32) {
    let device = Recorder::new();
    let call = Call { total_q: 200, query: 150, head_dim, ..CALL };
    call.launch(&device, Arm::Mma, &Knobs::default()).unwrap();
    // 150 rows of two heads each are three blocks.
    assert_eq!(device.launched(), [("mma_attention".to_owned(), config([6, 2, 1], threads, shared))]);
    assert_eq!(*device.allocated.lock().unwrap(), []);
}

#[test]
fn the_dense_route_allocates_keys_and_values_of_all_requests_and_a_table() {
    let device = Recorder::new();
    let call = Call { kv_dtype: DType::E4m3, total_q: 200, query: 150, ..CALL };
    let launched = call.launch(&device, Arm::Fp8Dense, &Knobs::default()).unwrap();
    assert_eq!(launched.kernels, ["dequantise_dense", "mma_attention"]);
    // For each of two requests and two heads, 100 rows of four accesses of 16 codes: two blocks of 256 threads.
    let dequantise = ("dequantise_dense".to_owned(), config([8, 1, 1], 256, 0));
    assert_eq!(device.launched()[0], dequantise);
    assert_eq!(*device.allocated.lock().unwrap(), [2 * 100 * 2 * 64 * 2 * 2, 2 * 4]);
}

#[test]
fn a_call_without_keys_has_nothing_to_dequantise() {
    let device = Recorder::new();
    let call = Call { kv_dtype: DType::E4m3, keys: 0, ..CALL };
    let launched = call.launch(&device, Arm::Fp8Dense, &Knobs::default()).unwrap();
    let queued: Vec<String> = device.launched().into_iter().map(|(entry, _)| entry).collect();
    assert_eq!((queued, launched.kernels), (vec!["decode_attention".to_owned()], vec!["decode_attention"]));
    // Zero bytes cannot be allocated.
    assert_eq!(*device.allocated.lock().unwrap(), [16, 2 * 4]);
}

#[rstest]
// 16 rows of Q in f32, 64 x 16 weights, two numbers for each row, 64 rows of V; then 8 groups' sums, more than 64 rows of K.
#[case(DType::Bf16, 64, 16 * 256 + 64 * 64 + 128 + 64 * 128 + 8 * 16 * 256)]
// Tiles of 64 and 32 keys would not fit 99 KiB. 16 rows of K, spread by 16 bytes each, are more than one group's sums.
#[case(DType::F32, 512, 16 * 2048 + 16 * 64 + 128 + 16 * 2048 + 16 * 2064)]
// 128 threads are 64 groups of 8 dims; 32 are used.
#[case(DType::E4m3, 8, 16 * 32 + 64 * 64 + 128 + 64 * 16 + 32 * 16 * 32)]
fn the_scalar_kernel_takes_the_longest_tile_that_fits(
    #[case] kv_dtype: DType,
    #[case] head_dim: u64,
    #[case] shared: u32,
) {
    let device = Recorder::new();
    let call = Call { kv_dtype, total_q: 200, query: 150, head_dim, ..CALL };
    call.launch(&device, Arm::Scalar, &Knobs::default()).unwrap();
    // 150 rows of two heads each are 19 tiles of 16.
    assert_eq!(device.launched(), [("scalar_attention".to_owned(), config([19 * 2 * 2, 1, 1], 128, shared))]);
}

#[rstest]
#[case(2, "head_dim_k 2")]
#[case(20, "head_dim_k 20")]
#[case(520, "head_dim_k 520")]
fn a_call_that_no_arm_serves_is_refused_when_the_route_is_free(#[case] head_dim: u64, #[case] what: &str) {
    let device = Recorder::new();
    let args = Call { head_dim, ..CALL }.args();
    let shared = device.clone() as DeviceRef;
    let error = paged_attention_with(&shared, STREAM, None, &args, &Knobs::default(), None).unwrap_err();
    match error {
        LaunchError::Unsupported(error) => assert_eq!((error.arm, error.what.as_str()), (Arm::Scalar, what)),
        other => panic!("{other}"),
    }
    assert_eq!(device.launched(), []);
}

const MOST: u64 = i32::MAX as u64;

/// The largest grid is launched; a call with one more is refused by name.
#[track_caller]
fn last_that_fits(arm: Arm, (fits, grid): (Call, [u32; 3]), beyond: Call, knobs: [Knobs; 2], argument: &str) {
    let device = Recorder::new();
    fits.launch(&device, arm, &knobs[0]).unwrap();
    assert_eq!(device.launched()[0].1.grid, grid);
    let device = Recorder::new();
    match beyond.launch(&device, arm, &knobs[1]).unwrap_err() {
        LaunchError::Argument(error) => assert_eq!(error.argument, argument, "{error}"),
        other => panic!("{other}"),
    }
    assert_eq!((device.launched(), device.allocated.lock().unwrap().len()), (vec![], 0));
}

#[test]
fn a_grid_has_at_most_2147483647_blocks_along_x() {
    let scalar = Call { requests: 1, total_q: 1, heads: (MOST, MOST), head_dim: 8, ..CALL };
    let grid = [i32::MAX as u32, 1, 1];
    let beyond = Call { requests: 2, ..scalar };
    last_that_fits(Arm::Scalar, (scalar, grid), beyond, [Knobs::default(); 2], "max_query_len");
    let mma = Call { requests: 1, total_q: 1, heads: (1, 1), ..CALL };
    let knobs = [MOST, MOST + 1].map(|splits| Knobs { splits: Some(splits), ..Knobs::default() });
    last_that_fits(Arm::Mma, (mma, grid), mma, knobs, "max_query_len");
}

#[test]
fn a_decode_counts_its_blocks_in_32_bits() {
    let fits = Call { requests: u64::from(u32::MAX / 3), heads: (3, 3), ..CALL };
    let beyond = Call { requests: fits.requests + 1, ..fits };
    let knobs = Knobs { splits: Some(1), ..Knobs::default() };
    last_that_fits(Arm::Mma, (fits, [u32::MAX / 3, 3, 1]), beyond, [knobs; 2], "max_query_len");
}

#[test]
fn a_grid_has_at_most_65535_blocks_along_y() {
    let of = |heads| Call { heads: (heads, heads), ..CALL };
    let knobs = Knobs { splits: Some(1), ..Knobs::default() };
    last_that_fits(Arm::Mma, (of(65_535), [2, 65_535, 1]), of(65_536), [knobs; 2], "num_kv_heads");
}

#[rstest]
#[case::ten_times_its_blocks(Call { requests: MOST - 1, total_q: 1, heads: (MOST, MOST), ..CALL })]
#[case::its_blocks(Call { requests: MOST - 1, total_q: 1 << 20, query: 1 << 20, heads: (1 << 30, 1 << 30), ..CALL })]
fn a_call_with_more_blocks_than_64_bits_count_is_refused_like_any_other(#[case] call: Call) {
    let error = call.launch(&Recorder::new(), Arm::Mma, &Knobs::default()).unwrap_err();
    assert!(
        matches!(&error, LaunchError::Argument(refused) if refused.argument == "max_query_len"),
        "{error}"
    );
}

/// Two pages, 2^36 elements apart, of a cache whose strides share no more than 16 bytes.
fn far_apart(cache: &mut DeviceTensor) {
    cache.shape[0] = 2;
    cache.strides[0] = (1 << 36) + 8;
    cache.strides[1] = 2 * 64 + 8;
    cache.allocation.bytes = 1 << 38;
}

#[rstest]
#[case::prefill_on_pages(Arm::Mma, 150, Some("k_cache.strides"))]
#[case::prefill_on_dense_keys(Arm::Bf16Dense, 150, None)]
#[case::decode(Arm::Mma, 1, None)]
fn only_kernels_that_count_rows_in_32_bits_refuse_a_cache_that_reaches_farther(
    #[case] arm: Arm,
    #[case] query: u64,
    #[case] refused: Option<&str>,
) {
    let call = Call { total_q: 2 * query, query, keys: 100, ..CALL };
    let mut args = call.args();
    far_apart(&mut args.cache.k);
    far_apart(&mut args.cache.v);
    let device = Recorder::new();
    let as_device = device.clone() as DeviceRef;
    let found = paged_attention_with(&as_device, STREAM, Some(arm), &args, &Knobs::default(), None);
    match refused {
        Some(argument) => assert!(found.unwrap_err().to_string().contains(argument)),
        None => assert!(!found.unwrap().kernels.is_empty()),
    }
    assert_eq!(device.launched().is_empty(), refused.is_some());
}
