//! Every argument that must be refused is refused by name, with its value and what would be accepted. No device is involved.

use kernels::args::{AttentionArgs, BatchMetadata, HostMetadata, KvStore, PagedCache, Scale, StoreArgs};
use kernels::arm::Arm;
use kernels::device::DevicePtr;
use kernels::error::ArgumentError;
use kernels::tensor::{Allocation, DType, DeviceTensor};
use kernels::validate::{validate_attention, validate_store};
use rstest::rstest;

const REQUESTS: u64 = 2;
const PAGES: u64 = 6;
const PAGE_SIZE: u64 = 4;
const HEADS: [u64; 2] = [4, 2];
const DIM: u64 = 16;
const TOTAL_Q: u64 = 5;
const WIDTH: u64 = 3;

// Addresses that nothing reads: validation looks at numbers only.
fn tensor(dtype: DType, shape: &[u64]) -> DeviceTensor {
    let bytes = shape.iter().product::<u64>() * dtype.size_bytes();
    DeviceTensor::contiguous(Allocation { ptr: DevicePtr(0x10000), bytes }, dtype, shape)
}

fn cache(dtype: DType) -> PagedCache {
    let shape = [PAGES, PAGE_SIZE, HEADS[1], DIM];
    PagedCache::unscaled(tensor(dtype, &shape), tensor(dtype, &shape))
}

fn attention() -> AttentionArgs {
    let metadata = BatchMetadata {
        block_table: tensor(DType::I32, &[REQUESTS, WIDTH]),
        seq_lens: tensor(DType::I32, &[REQUESTS]),
        query_start_loc: tensor(DType::I32, &[REQUESTS + 1]),
        max_query_len: 4,
        max_seq_len: 11,
    };
    let rows = [TOTAL_Q, HEADS[0], DIM];
    let mut args = AttentionArgs::causal(
        tensor(DType::Bf16, &rows),
        cache(DType::Bf16),
        tensor(DType::Bf16, &rows),
        metadata,
    );
    args.lse = Some(tensor(DType::F32, &[TOTAL_Q, HEADS[0]]));
    args.host = HostMetadata {
        block_table: Some(vec![5, 0, 3, 1, 2, -7]),
        seq_lens: Some(vec![11, 5]),
        query_start_loc: Some(vec![0, 4, 5]),
    };
    args
}

fn store() -> StoreArgs {
    let rows = [6, HEADS[1], DIM];
    StoreArgs {
        k: tensor(DType::F32, &rows),
        v: tensor(DType::F32, &rows),
        cache: PagedCache {
            k_scale: Scale::PerTensor(0.004),
            v_scale: Scale::PerTensor(0.011),
            ..cache(DType::E4m3)
        },
        slot_mapping: tensor(DType::I64, &[6]),
        host_slot_mapping: Some(vec![0, 5, -1, 7, 2, 1]),
    }
}

#[track_caller]
fn check(error: Result<impl std::fmt::Debug, ArgumentError>, argument: &str, value: &str, accepted: &str) {
    let error = error.expect_err("must be refused");
    assert_eq!(error.argument, argument, "{error}");
    assert!(error.value.contains(value), "value {:?} should contain {value:?}", error.value);
    assert!(error.accepted.contains(accepted), "accepted {:?} should contain {accepted:?}", error.accepted);
}

#[test]
fn the_unchanged_calls_are_accepted() {
    let shape = validate_attention(&attention()).unwrap();
    assert_eq!((shape.total_q, shape.group(), shape.num_requests), (TOTAL_Q, 2, REQUESTS));
    Arm::Scalar.supports(&shape).unwrap();
    validate_store(&store()).unwrap();
}

#[test]
fn a_call_starts_with_the_usual_softmax_scale() {
    // 1 / sqrt(16), and of 64 dims.
    assert_eq!(attention().softmax_scale, 0.25);
    let args = attention();
    let q = tensor(DType::Bf16, &[TOTAL_Q, HEADS[0], 64]);
    let metadata = BatchMetadata {
        block_table: args.block_table,
        seq_lens: args.seq_lens,
        query_start_loc: args.query_start_loc,
        max_query_len: 4,
        max_seq_len: 11,
    };
    assert_eq!(AttentionArgs::causal(q, args.cache, args.out, metadata).softmax_scale, 0.125);
}

type Change = fn(&mut AttentionArgs);

#[rstest]
#[case::heads_not_a_multiple(|a: &mut AttentionArgs| { for t in [&mut a.q, &mut a.out] { t.shape[1] = 3; } a.lse = None; }, "num_q_heads", "3", "multiple of num_kv_heads, 2")]
#[case::zero_heads(|a: &mut AttentionArgs| a.q.shape[1] = 0, "num_q_heads", "0", "1 or more")]
#[case::zero_page_size(|a: &mut AttentionArgs| a.cache.k.shape[1] = 0, "page_size", "0", "1 or more")]
#[case::zero_head_dim(|a: &mut AttentionArgs| a.cache.v.shape[3] = 0, "head_dim_v", "0", "1 or more")]
#[case::zero_scale(|a: &mut AttentionArgs| a.softmax_scale = 0.0, "softmax_scale", "0", "above 0")]
#[case::negative_scale(|a: &mut AttentionArgs| a.softmax_scale = -0.5, "softmax_scale", "-0.5", "above 0")]
#[case::nan_scale(|a: &mut AttentionArgs| a.softmax_scale = f32::NAN, "softmax_scale", "NaN", "finite")]
#[case::infinite_scale(|a: &mut AttentionArgs| a.softmax_scale = f32::INFINITY, "softmax_scale", "inf", "finite")]
#[case::zero_softcap(|a: &mut AttentionArgs| a.softcap = Some(0.0), "softcap", "0", "above 0, or none")]
#[case::nan_softcap(|a: &mut AttentionArgs| a.softcap = Some(f32::NAN), "softcap", "NaN", "above 0, or none")]
#[case::negative_left_window(|a: &mut AttentionArgs| a.window_left = Some(-1), "window_left", "-1", "0 or more, or none")]
#[case::negative_right_window(|a: &mut AttentionArgs| a.window_right = Some(-2), "window_right", "-2", "0 or more, or none")]
#[case::starts_too_short(|a: &mut AttentionArgs| a.query_start_loc = tensor(DType::I32, &[REQUESTS]), "query_start_loc.shape", "[2]", "[3]")]
#[case::starts_too_long(|a: &mut AttentionArgs| a.query_start_loc = tensor(DType::I32, &[REQUESTS + 2]), "query_start_loc.shape", "[4]", "[3]")]
#[case::lens_i64(|a: &mut AttentionArgs| a.seq_lens = tensor(DType::I64, &[REQUESTS]), "seq_lens.dtype", "i64", "i32")]
#[case::starts_i64(|a: &mut AttentionArgs| a.query_start_loc = tensor(DType::I64, &[REQUESTS + 1]), "query_start_loc.dtype", "i64", "i32")]
#[case::table_i64(|a: &mut AttentionArgs| a.block_table = tensor(DType::I64, &[REQUESTS, WIDTH]), "block_table.dtype", "i64", "i32")]
#[case::table_of_other_batch(|a: &mut AttentionArgs| a.block_table = tensor(DType::I32, &[3, WIDTH]), "block_table.shape", "[3, 3]", "[2, 3]")]
#[case::q_fp8(|a: &mut AttentionArgs| a.q.dtype = DType::E4m3, "q.dtype", "e4m3", "f32, bf16, f16")]
#[case::out_of_other_type(|a: &mut AttentionArgs| a.out.dtype = DType::F16, "out.dtype", "f16", "bf16")]
#[case::v_of_other_type(|a: &mut AttentionArgs| a.cache.v.dtype = DType::E5m2, "v_cache.dtype", "e5m2", "bf16")]
#[case::integer_cache(|a: &mut AttentionArgs| { a.cache.k.dtype = DType::I32; a.cache.v.dtype = DType::I32; }, "k_cache.dtype", "i32", "e5m2")]
#[case::lse_bf16(|a: &mut AttentionArgs| a.lse = Some(tensor(DType::Bf16, &[TOTAL_Q, HEADS[0]])), "lse.dtype", "bf16", "f32")]
#[case::lse_shape(|a: &mut AttentionArgs| a.lse = Some(tensor(DType::F32, &[HEADS[0], TOTAL_Q])), "lse.shape", "[4, 5]", "[5, 4]")]
#[case::q_rank(|a: &mut AttentionArgs| a.q = tensor(DType::Bf16, &[TOTAL_Q, 64]), "q.shape", "[5, 64]", "3 axes")]
#[case::k_rank(|a: &mut AttentionArgs| a.cache.k.shape.truncate(3), "k_cache.shape", "[6, 4, 2]", "4 axes")]
#[case::missing_stride(|a: &mut AttentionArgs| { a.q.strides.pop(); }, "q.strides", "[64, 16]", "3 strides")]
#[case::k_dim_differs_from_q(|a: &mut AttentionArgs| a.cache.k = tensor(DType::Bf16, &[PAGES, PAGE_SIZE, HEADS[1], 8]), "k_cache.shape", "8]", "16]")]
#[case::v_pages(|a: &mut AttentionArgs| a.cache.v = tensor(DType::Bf16, &[PAGES - 1, PAGE_SIZE, HEADS[1], DIM]), "v_cache.shape", "[5,", "[6,")]
#[case::out_rows(|a: &mut AttentionArgs| a.out = tensor(DType::Bf16, &[4, HEADS[0], DIM]), "out.shape", "[4, 4, 16]", "[5, 4, 16]")]
#[case::inner_stride(|a: &mut AttentionArgs| a.q.strides[2] = 2, "q.strides", "[64, 16, 2]", "last stride of 1")]
#[case::negative_stride(|a: &mut AttentionArgs| a.cache.k.strides[0] = -128, "k_cache.strides", "-128", "0 or more")]
#[case::stride_leaves_allocation(|a: &mut AttentionArgs| a.cache.k.strides[0] = 129, "k_cache", "bytes 0..1546", "1536 bytes")]
#[case::offset_leaves_allocation(|a: &mut AttentionArgs| a.cache.v.offset = 2, "v_cache", "bytes 2..1538", "1536 bytes")]
#[case::stride_overflows(|a: &mut AttentionArgs| a.cache.k.strides[0] = i64::MAX, "k_cache.strides", "9223372036854775807", "63 bits")]
#[case::offset_overflows(|a: &mut AttentionArgs| a.q.offset = u64::MAX, "q.offset", "18446744073709551615", "64 bits")]
#[case::address_overflows(|a: &mut AttentionArgs| a.q.allocation.ptr = DevicePtr(u64::MAX - 15), "q.allocation", "18446744073709551600", "64 bits")]
#[case::null(|a: &mut AttentionArgs| a.q.allocation.ptr = DevicePtr::NULL, "q.allocation", "null", "a device address")]
#[case::odd_offset(|a: &mut AttentionArgs| { a.q.offset = 1; a.q.allocation.bytes += 1; }, "q.offset", "1", "multiple of 2")]
#[case::huge_extent(|a: &mut AttentionArgs| { a.q.shape[0] = 1 << 31; a.out.shape[0] = 1 << 31; }, "q.shape", "2147483648", "2147483647")]
#[case::overlapping_out(|a: &mut AttentionArgs| a.out.strides[0] = 32, "out.strides", "[32, 16, 1]", "no two elements")]
#[case::broadcast_lse(|a: &mut AttentionArgs| a.lse.as_mut().unwrap().strides[0] = 0, "lse.strides", "[0, 1]", "no two elements")]
#[case::slopes_per_kv_head(|a: &mut AttentionArgs| a.alibi_slopes = Some(tensor(DType::F32, &[HEADS[1]])), "alibi_slopes.shape", "[2]", "[4]")]
#[case::sinks_bf16(|a: &mut AttentionArgs| a.sinks = Some(tensor(DType::Bf16, &[HEADS[0]])), "sinks.dtype", "bf16", "f32")]
#[case::zero_k_scale(|a: &mut AttentionArgs| a.cache.k_scale = Scale::PerTensor(0.0), "k_scale", "0", "above 0")]
#[case::nan_v_scale(|a: &mut AttentionArgs| a.cache.v_scale = Scale::PerTensor(f32::NAN), "v_scale", "NaN", "finite")]
#[case::scale_per_page(|a: &mut AttentionArgs| a.cache.k_scale = Scale::PerHead(tensor(DType::F32, &[PAGES])), "k_scale.shape", "[6]", "per page is not supported")]
#[case::scale_per_page_and_head(|a: &mut AttentionArgs| a.cache.v_scale = Scale::PerHead(tensor(DType::F32, &[PAGES, HEADS[1]])), "v_scale.shape", "[6, 2]", "per page is not supported")]
#[case::max_query_len(|a: &mut AttentionArgs| a.max_query_len = 3, "max_query_len", "3", "at least 4, the query length of request 0")]
#[case::max_seq_len(|a: &mut AttentionArgs| a.max_seq_len = 10, "max_seq_len", "10", "at least 11, the length of request 0")]
#[case::endless_sequence(|a: &mut AttentionArgs| a.max_seq_len = 1 << 31, "max_seq_len", "2147483648", "at most")]
fn attention_refuses(
    #[case] change: Change,
    #[case] argument: &str,
    #[case] value: &str,
    #[case] accepted: &str,
) {
    let mut args = attention();
    change(&mut args);
    check(validate_attention(&args), argument, value, accepted);
}

type HostChange = fn(&mut HostMetadata);

#[rstest]
#[case::block_beyond_pool(|h: &mut HostMetadata| h.block_table.as_mut().unwrap()[1] = 6, "block_table[0][1]", "6", "below 6")]
#[case::negative_block(|h: &mut HostMetadata| h.block_table.as_mut().unwrap()[3] = -1, "block_table[1][0]", "-1", "0 or more")]
#[case::table_length(|h: &mut HostMetadata| { h.block_table.as_mut().unwrap().pop(); }, "block_table length", "5", "2 x 3")]
#[case::table_without_lens(|h: &mut HostMetadata| h.seq_lens = None, "host.seq_lens", "absent", "present")]
#[case::length_past_table(|h: &mut HostMetadata| h.seq_lens.as_mut().unwrap()[1] = 13, "seq_lens[1]", "13", "at most 12")]
#[case::negative_length(|h: &mut HostMetadata| h.seq_lens.as_mut().unwrap()[0] = -1, "seq_lens[0]", "-1", "0 or more")]
#[case::lens_length(|h: &mut HostMetadata| h.seq_lens.as_mut().unwrap().push(1), "seq_lens length", "3", "2")]
#[case::starts_length(|h: &mut HostMetadata| { h.query_start_loc.as_mut().unwrap().pop(); }, "query_start_loc length", "2", "3")]
#[case::starts_not_at_zero(|h: &mut HostMetadata| h.query_start_loc = Some(vec![1, 4, 5]), "query_start_loc[0]", "1", "0")]
#[case::starts_fall(|h: &mut HostMetadata| h.query_start_loc = Some(vec![0, 4, 3]), "query_start_loc[2]", "3", "at least query_start_loc[1], 4")]
#[case::starts_end_early(|h: &mut HostMetadata| h.query_start_loc = Some(vec![0, 2, 4]), "query_start_loc[2]", "4", "5 (total_q)")]
fn host_copies_are_checked(
    #[case] change: HostChange,
    #[case] argument: &str,
    #[case] value: &str,
    #[case] accepted: &str,
) {
    let mut args = attention();
    change(&mut args.host);
    check(validate_attention(&args), argument, value, accepted);
}

#[test]
fn table_entries_past_a_length_are_not_looked_at() {
    let mut args = attention();
    args.host.block_table = Some(vec![5, 0, 3, 1, 2, i32::MAX]);
    validate_attention(&args).unwrap();
}

#[test]
fn a_call_without_host_copies_is_accepted() {
    let mut args = attention();
    args.host = HostMetadata::default();
    validate_attention(&args).unwrap();
}

#[test]
fn views_of_a_combined_cache_and_padded_strides_are_accepted() {
    let mut args = attention();
    let combined = tensor(DType::Bf16, &[PAGES, 2, PAGE_SIZE, HEADS[1], DIM]).allocation;
    let shape = [PAGES, PAGE_SIZE, HEADS[1], DIM];
    let strides = [2 * 128, 32, 16, 1];
    args.cache = PagedCache::unscaled(
        DeviceTensor::strided(combined, 0, DType::Bf16, &shape, &strides),
        DeviceTensor::strided(combined, 256, DType::Bf16, &shape, &strides),
    );
    args.out.allocation.bytes *= 2;
    args.out.strides = vec![128, 32, 1];
    validate_attention(&args).unwrap();
}

#[rstest]
#[case(20, 16, "head_dim_k 20")]
#[case(16, 520, "head_dim_v 520")]
#[case(4, 16, "head_dim_k 4")]
fn the_scalar_arm_names_a_head_dim_it_does_not_serve(#[case] dk: u64, #[case] dv: u64, #[case] what: &str) {
    let mut args = attention();
    args.q = tensor(DType::Bf16, &[TOTAL_Q, HEADS[0], dk]);
    args.cache.k = tensor(DType::Bf16, &[PAGES, PAGE_SIZE, HEADS[1], dk]);
    args.cache.v = tensor(DType::Bf16, &[PAGES, PAGE_SIZE, HEADS[1], dv]);
    args.out = tensor(DType::Bf16, &[TOTAL_Q, HEADS[0], dv]);
    let unsupported = Arm::Scalar.supports(&validate_attention(&args).unwrap()).unwrap_err();
    assert_eq!((unsupported.arm, unsupported.what.as_str()), (Arm::Scalar, what));
    assert!(unsupported.accepted.contains("multiples of 8 up to 512"), "{unsupported}");
}

/// A call over tensors of other extents: one request of `rows` rows and one page.
fn one_request(rows: u64, heads: u64) -> AttentionArgs {
    let out = tensor(DType::Bf16, &[rows, heads, DIM]);
    let page = tensor(DType::Bf16, &[1, PAGE_SIZE, heads, DIM]);
    let metadata = BatchMetadata {
        block_table: tensor(DType::I32, &[1, WIDTH]),
        seq_lens: tensor(DType::I32, &[1]),
        query_start_loc: tensor(DType::I32, &[2]),
        max_query_len: rows,
        max_seq_len: 4,
    };
    AttentionArgs::causal(out.clone(), PagedCache::unscaled(page.clone(), page), out, metadata)
}

#[test]
fn the_longest_sequence_leaves_a_tile_of_32_bits() {
    let most = i32::MAX as u64 - 1024;
    let mut args = attention();
    args.max_seq_len = most;
    validate_attention(&args).unwrap();
    args.max_seq_len += 1;
    check(validate_attention(&args), "max_seq_len", "2147482624", "at most 2147482623");
    validate_attention(&one_request(most, 1)).unwrap();
    check(validate_attention(&one_request(most + 1, 1)), "max_query_len", "2147482624", "at most 2147482623");
}

#[test]
fn a_full_block_table_and_a_window_of_no_keys_are_accepted() {
    let mut args = attention();
    (args.max_seq_len, args.host.seq_lens) = (12, Some(vec![12, 5]));
    (args.window_left, args.window_right) = (Some(0), Some(0));
    validate_attention(&args).unwrap();
}

#[test]
fn requests_without_rows_and_tensors_without_elements_are_accepted() {
    let mut args = attention();
    (args.max_query_len, args.host.query_start_loc) = (5, Some(vec![0, 5, 5]));
    validate_attention(&args).unwrap();
    let mut args = one_request(0, 2);
    for rows in [&mut args.q, &mut args.out] {
        rows.allocation = Allocation { ptr: DevicePtr::NULL, bytes: 0 };
    }
    assert_eq!(validate_attention(&args).unwrap().total_q, 0);
}

#[test]
fn a_shape_says_which_options_are_on() {
    let options = |change: Change| {
        let mut args = attention();
        args.lse = None;
        change(&mut args);
        let shape = validate_attention(&args).unwrap();
        [shape.causal, shape.windowed, shape.softcap, shape.alibi, shape.sinks, shape.lse]
    };
    let heads = || Some(tensor(DType::F32, &[HEADS[0]]));
    assert_eq!(options(|_| ()), [true, false, false, false, false, false]);
    assert_eq!(options(|a| a.window_left = Some(3)), [true, true, false, false, false, false]);
    assert_eq!(options(|a| a.window_right = Some(3)), [true, true, false, false, false, false]);
    assert_eq!(options(|a| a.softcap = Some(3.0)), [true, false, true, false, false, false]);
    let mut args = attention();
    (args.causal, args.alibi_slopes, args.sinks) = (false, heads(), heads());
    let shape = validate_attention(&args).unwrap();
    assert_eq!((shape.causal, shape.alibi, shape.sinks, shape.lse), (false, true, true, true));
}

#[test]
fn an_axis_of_one_element_may_have_any_stride() {
    let mut args = one_request(1, 1);
    args.seq_lens.strides = vec![7];
    args.out.strides = vec![0, 0, 1];
    validate_attention(&args).unwrap();
    let mut args = attention();
    // Queries are only read: rows may share their elements.
    args.q.strides[0] = 0;
    validate_attention(&args).unwrap();
}

#[test]
fn rows_are_as_aligned_as_their_address_and_every_stride_that_is_stepped() {
    let alignment = |change: Change| {
        let mut args = attention();
        change(&mut args);
        let shape = validate_attention(&args).unwrap();
        (shape.row_alignment, shape.cache_alignment)
    };
    // Two bytes an element.
    assert_eq!(alignment(|_| ()), (16, 16));
    assert_eq!(alignment(|a| a.q.strides = vec![20, 20, 1]), (8, 16));
    assert_eq!(alignment(|a| a.q.strides[0] = 66 - 4), (4, 16));
    assert_eq!(alignment(|a| a.cache.v.strides[1] = 24), (16, 16));
    assert_eq!(alignment(|a| a.cache.v.strides[1] = 17), (16, 2));
    assert_eq!(alignment(|a| (a.cache.k.offset, a.cache.k.allocation.bytes) = (8, 1544)), (16, 8));
    let mut args = one_request(1, 1);
    (args.q.strides[0], args.out.strides[0]) = (17, 19);
    assert_eq!(validate_attention(&args).unwrap().row_alignment, 16, "no stride is stepped");
}

#[test]
fn the_last_element_lies_within_62_bits() {
    // 4 rows and 3 heads on from the first element: 2^62 and one less.
    let with = |strides: [i64; 2]| {
        let mut args = attention();
        args.lse.as_mut().unwrap().strides = strides.to_vec();
        validate_attention(&args)
    };
    check(with([1 << 60, 0]), "lse.strides", "1152921504606846976", "63 bits");
    check(with([(1 << 60) - 1, 1]), "lse.offset", "0", "64 bits");
}

type StoreChange = fn(&mut StoreArgs);

#[rstest]
#[case::slot_beyond_pool(|s: &mut StoreArgs| s.host_slot_mapping.as_mut().unwrap()[1] = 24, "slot_mapping[1]", "24", "below 24")]
#[case::slot_below_minus_one(|s: &mut StoreArgs| s.host_slot_mapping.as_mut().unwrap()[2] = -2, "slot_mapping[2]", "-2", "-1, or 0 or more")]
#[case::slot_twice(|s: &mut StoreArgs| s.host_slot_mapping.as_mut().unwrap()[4] = 5, "slot_mapping[4]", "5", "token 1 has it too")]
#[case::host_copy_length(|s: &mut StoreArgs| { s.host_slot_mapping.as_mut().unwrap().pop(); }, "host_slot_mapping length", "5", "6")]
#[case::slots_i32(|s: &mut StoreArgs| s.slot_mapping.dtype = DType::I32, "slot_mapping.dtype", "i32", "i64")]
#[case::more_slots_than_rows(|s: &mut StoreArgs| s.slot_mapping = tensor(DType::I64, &[7]), "slot_mapping length", "7", "at most 6")]
#[case::fp8_source(|s: &mut StoreArgs| s.k.dtype = DType::E4m3, "k.dtype", "e4m3", "f32, bf16, f16")]
#[case::v_of_other_type(|s: &mut StoreArgs| s.v.dtype = DType::Bf16, "v.dtype", "bf16", "f32")]
#[case::v_heads(|s: &mut StoreArgs| s.v = tensor(DType::F32, &[6, 1, DIM]), "v.shape", "[6, 1, 16]", "[6, 2, 16]")]
#[case::cache_dim(|s: &mut StoreArgs| s.cache.k = tensor(DType::E4m3, &[PAGES, PAGE_SIZE, HEADS[1], 8]), "k_cache.shape", "8]", "16]")]
#[case::overlapping_cache(|s: &mut StoreArgs| s.cache.v.strides[1] = 16, "v_cache.strides", "16", "no two elements")]
#[case::scaled_bf16_cache(|s: &mut StoreArgs| { s.cache.k = cache(DType::Bf16).k; s.cache.v = cache(DType::Bf16).v; }, "k_scale", "0.004", "1 for a cache of bf16")]
#[case::negative_scale(|s: &mut StoreArgs| s.cache.v_scale = Scale::PerTensor(-1.0), "v_scale", "-1", "above 0")]
#[case::k_rank(|s: &mut StoreArgs| s.k.shape.truncate(2), "k.shape", "[6, 2]", "3 axes")]
#[case::zero_dim(|s: &mut StoreArgs| s.v.shape[2] = 0, "head_dim_v", "0", "1 or more")]
fn store_refuses(
    #[case] change: StoreChange,
    #[case] argument: &str,
    #[case] value: &str,
    #[case] accepted: &str,
) {
    let mut args = store();
    change(&mut args);
    check(validate_store(&args), argument, value, accepted);
}

#[test]
fn a_cache_of_one_page_needs_no_stride_of_pages() {
    let mut args = store();
    for side in [&mut args.cache.k, &mut args.cache.v] {
        (side.shape[0], side.strides[0]) = (1, 0);
    }
    args.host_slot_mapping = Some(vec![0, 3, -1, -1, 2, 1]);
    validate_store(&args).unwrap();
}

#[test]
fn padded_rows_without_a_slot_are_accepted() {
    let mut args = store();
    args.k = tensor(DType::F32, &[8, HEADS[1], DIM]);
    args.v = tensor(DType::F32, &[8, HEADS[1], DIM]);
    validate_store(&args).unwrap();
}

#[test]
fn an_fp8_store_presents_bf16_and_others_present_themselves() {
    let presented = DType::CACHE.map(|dtype| KvStore { dtype }.presents());
    assert_eq!(presented, [DType::F32, DType::Bf16, DType::F16, DType::Bf16, DType::Bf16]);
}

#[test]
fn names_parse_back() {
    for dtype in DType::CACHE {
        assert_eq!(dtype.name().parse(), Ok(dtype));
    }
    for arm in Arm::ALL {
        assert_eq!(arm.name().parse(), Ok(*arm));
    }
    check("e4m3fnuz".parse::<DType>(), "dtype", "e4m3fnuz", "e4m3fn");
    check("tensor".parse::<Arm>(), "arm", "tensor", "scalar");
}
