//! Paged attention and store in plain Rust: right before fast. Make it yours.
//!
//! Scores of one query row at a time go into a vector; then come the maximum, the weights and the sum over V, all in f32.
//! Only keys that the row sees are read.

#[allow(dead_code)]
mod attest_kernel;
mod check;
mod formats;

use std::ffi::c_char;

use attest_kernel::*;
use check::{Checked, Refusal};
use formats::{load, save};

/// Says what the kernel is and serves.
///
/// # Safety
/// `info` points to a struct of the header.
#[no_mangle]
pub unsafe extern "C" fn attest_info(info: *mut KernelInfo) -> i32 {
    let caches = check::CACHES.iter().map(|dtype| 1 << dtype).sum();
    let mut served = [0; 8];
    for dtype in [F32, BF16, F16] {
        served[dtype as usize] = caches;
    }
    let description = KernelInfo {
        struct_size: size_of::<KernelInfo>() as u32,
        version: ABI_VERSION,
        name: c"plain Rust".as_ptr(),
        device: DEVICE_HOST,
        layouts: NHD | HND | INTERLEAVED | PADDED,
        options: CAN_CAUSAL
            | CAN_FULL
            | CAN_WINDOW
            | CAN_SOFTCAP
            | CAN_ALIBI
            | CAN_SINKS
            | CAN_LSE
            | CAN_SCALES
            | CAN_HEAD_SCALES
            | CAN_UNEQUAL_DIMS
            | CAN_PREFILL,
        promises: BATCH_INVARIANT,
        attention_caches: served,
        store_caches: served,
        head_dim_step: 1,
        head_dim_max: 1024,
        head_dims: [0; 16],
        page_sizes: [0; 16],
        cache_alignment: 1,
        max_group: 0,
    };
    unsafe { info.write(description) };
    OK
}

/// This kernel needs no workspace.
///
/// # Safety
/// Both point to what the header says.
#[no_mangle]
pub unsafe extern "C" fn attest_workspace_size(args: *const AttentionArgs, bytes: *mut u64) -> i32 {
    if !is_known(unsafe { ((*args).struct_size, (*args).version) }, size_of::<AttentionArgs>()) {
        return INVALID_ARGUMENT;
    }
    unsafe { bytes.write(0) };
    OK
}

/// Attention.
///
/// # Safety
/// `args` points to a struct whose tensors lie where it says.
#[no_mangle]
pub unsafe extern "C" fn attest_paged_attention(args: *const AttentionArgs) -> i32 {
    if !is_known(unsafe { ((*args).struct_size, (*args).version) }, size_of::<AttentionArgs>()) {
        return INVALID_ARGUMENT;
    }
    let args = unsafe { &*args };
    let served = unsafe { check::attention(args) }.map(|()| unsafe { attention(args) });
    answer(served, args.error, args.error_bytes)
}

/// Store.
///
/// # Safety
/// `args` points to a struct whose tensors lie where it says.
#[no_mangle]
pub unsafe extern "C" fn attest_store(args: *const StoreArgs) -> i32 {
    if !is_known(unsafe { ((*args).struct_size, (*args).version) }, size_of::<StoreArgs>()) {
        return INVALID_ARGUMENT;
    }
    let args = unsafe { &*args };
    let served = unsafe { check::store(args) }.map(|()| unsafe { store(args) });
    answer(served, args.error, args.error_bytes)
}

/// Whether a struct is one of this version, before anything else in it is believed.
fn is_known((size, version): (u32, u32), expected: usize) -> bool {
    size as usize == expected && version == ABI_VERSION
}

/// The code of an outcome; a refusal's message goes to its place, cut to fit.
fn answer(served: Checked, place: *mut c_char, bytes: u64) -> i32 {
    let Err(Refusal { code, message }) = served else { return OK };
    if !place.is_null() && bytes > 0 {
        let length = message.len().min(bytes as usize - 1);
        unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), place.cast(), length);
            place.add(length).write(0);
        }
    }
    code
}

/// Element `index` of a vector.
unsafe fn at<T: Copy>(tensor: &Tensor, index: i64) -> T {
    unsafe { tensor.data.cast::<T>().offset(index as isize).read() }
}

/// A row of elements as floats.
unsafe fn row(tensor: &Tensor, first: i64, to: &mut [f32]) {
    for (index, x) in to.iter_mut().enumerate() {
        *x = unsafe { load(tensor.dtype, tensor.data.cast(), first + index as i64) };
    }
}

unsafe fn attention(args: &AttentionArgs) {
    for request in 0..args.seq_lens.shape[0] {
        let keys = i64::from(unsafe { at::<i32>(&args.seq_lens, request) });
        let [first, end] = [request, request + 1].map(|r| i64::from(unsafe { at::<i32>(&args.query_start_loc, r) }));
        for row in first..end {
            for head in 0..args.q.shape[1] {
                unsafe { attend(args, (row, head), keys - end + row, keys, request) };
            }
        }
    }
}

/// Keys that a row at `position` sees.
fn visible(args: &AttentionArgs, position: i64, keys: i64) -> std::ops::Range<i64> {
    let mut range = 0..keys;
    if args.flags & CAUSAL != 0 {
        range.end = range.end.min(position + 1);
    }
    if args.window_left >= 0 {
        range.start = position.saturating_sub(args.window_left).max(0);
    }
    if args.window_right >= 0 {
        range.end = range.end.min(position.saturating_add(args.window_right).saturating_add(1));
    }
    range
}

/// One query row of one head.
unsafe fn attend(args: &AttentionArgs, (row_index, head): (i64, i64), position: i64, keys: i64, request: i64) {
    let kv_head = head / (args.q.shape[1] / args.k_cache.shape[2]);
    let scale_of = |scales: &Tensor, scale| if scales.rank == 0 { scale } else { unsafe { at(scales, kv_head) } };
    let scale = args.softmax_scale * scale_of(&args.k_scales, args.k_scale);
    let v_scale = scale_of(&args.v_scales, args.v_scale);
    let locate = |cache: &Tensor, key: i64| {
        let page_size = cache.shape[1];
        let entry = request * args.block_table.strides[0] + key / page_size;
        let page = i64::from(unsafe { at::<i32>(&args.block_table, entry) });
        page * cache.strides[0] + key % page_size * cache.strides[1] + kv_head * cache.strides[2]
    };
    let range = visible(args, position, keys);
    let (mut q, mut k) = (vec![0.0; args.q.shape[2] as usize], vec![0.0; args.q.shape[2] as usize]);
    let mut v = vec![0.0; args.v_cache.shape[3] as usize];
    unsafe { row(&args.q, row_index * args.q.strides[0] + head * args.q.strides[1], &mut q) };

    let mut scores: Vec<f32> = Vec::with_capacity(range.clone().count());
    for key in range.clone() {
        unsafe { row(&args.k_cache, locate(&args.k_cache, key), &mut k) };
        let mut s = scale * q.iter().zip(&k).map(|(q, k)| q * k).sum::<f32>();
        if args.flags & SOFTCAP != 0 {
            s = args.softcap * (s / args.softcap).tanh();
        }
        if args.alibi_slopes.rank != 0 {
            s += unsafe { at::<f32>(&args.alibi_slopes, head) } * (key - position) as f32;
        }
        scores.push(s);
    }
    let sink = (args.sinks.rank != 0).then(|| unsafe { at::<f32>(&args.sinks, head) });
    // A NaN must survive the comparison.
    let larger = |max: f32, s: f32| if s <= max { max } else { s };
    let max = scores.iter().copied().chain(sink).fold(f32::NEG_INFINITY, larger);
    let mut total = sink.map_or(0.0, |sink| (sink - max).exp());
    let mut sums = vec![0.0; v.len()];
    for (key, s) in range.clone().zip(&scores) {
        let weight = (s - max).exp();
        total += weight;
        unsafe { row(&args.v_cache, locate(&args.v_cache, key), &mut v) };
        for (sum, v) in sums.iter_mut().zip(&v) {
            *sum += weight * v;
        }
    }
    let out = row_index * args.out.strides[0] + head * args.out.strides[1];
    for (dim, sum) in sums.iter().enumerate() {
        let x = if scores.is_empty() { 0.0 } else { sum / total * v_scale };
        unsafe { save(args.out.dtype, args.out.data.cast(), out + dim as i64, x) };
    }
    if args.lse.rank != 0 {
        let lse = if total == 0.0 { f32::NEG_INFINITY } else { max + total.ln() };
        let index = row_index * args.lse.strides[0] + head * args.lse.strides[1];
        unsafe { args.lse.data.cast::<f32>().offset(index as isize).write(lse) };
    }
}

unsafe fn store(args: &StoreArgs) {
    for token in 0..args.slot_mapping.shape[0] {
        let slot = unsafe { at::<i64>(&args.slot_mapping, token) };
        if slot != -1 {
            unsafe { store_row(&args.k, &args.k_cache, (&args.k_scales, args.k_scale), token, slot) };
            unsafe { store_row(&args.v, &args.v_cache, (&args.v_scales, args.v_scale), token, slot) };
        }
    }
}

unsafe fn store_row(rows: &Tensor, cache: &Tensor, (scales, scale): (&Tensor, f32), token: i64, slot: i64) {
    let page_size = cache.shape[1];
    for head in 0..rows.shape[1] {
        let from = token * rows.strides[0] + head * rows.strides[1];
        let to = slot / page_size * cache.strides[0] + slot % page_size * cache.strides[1] + head * cache.strides[2];
        let scale = if scales.rank == 0 { scale } else { unsafe { at(scales, head) } };
        for dim in 0..rows.shape[2] {
            unsafe {
                let x = load(rows.dtype, rows.data.cast(), from + dim) / scale;
                save(cache.dtype, cache.data.cast(), to + dim, x);
            }
        }
    }
}
