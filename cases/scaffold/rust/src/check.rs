//! Checks of a call, to be made before anything is touched: what is refused, with the name of the argument.

use std::collections::HashSet;

use crate::attest_kernel::{
    ABI_VERSION, AttentionArgs, BF16, CAUSAL, E4M3, E5M2, F16, F32, I32, I64, INVALID_ARGUMENT, SOFTCAP,
    StoreArgs, Tensor,
};
use crate::formats::size;

/// A call that is refused.
pub struct Refusal {
    pub code: i32,
    pub message: String,
}

pub type Checked = Result<(), Refusal>;

pub fn bad<T>(argument: &str, why: &str) -> Result<T, Refusal> {
    Err(Refusal { code: INVALID_ARGUMENT, message: format!("{argument} {why}") })
}

const MODEL: [u32; 3] = [F32, BF16, F16];
pub const CACHES: [u32; 5] = [F32, BF16, F16, E4M3, E5M2];

/// A tensor of one of these types and of this shape, whose rows are contiguous, inside its memory.
fn tensor(name: &str, tensor: &Tensor, dtypes: &[u32], shape: &[i64]) -> Checked {
    if (tensor.struct_size as usize, tensor.version) != (size_of::<Tensor>(), ABI_VERSION) {
        return bad(name, "has a struct of another version");
    }
    if !dtypes.contains(&tensor.dtype) {
        return bad(name, "has a type that is not accepted here");
    }
    if tensor.rank as usize != shape.len() {
        return bad(name, "has another number of axes");
    }
    if tensor.shape[..shape.len()] != *shape {
        return bad(name, "has a shape that does not fit the other tensors");
    }
    if shape.iter().any(|extent| *extent > i64::from(i32::MAX)) {
        return bad(name, "has an extent past 2147483647");
    }
    if shape.contains(&0) {
        return Ok(());
    }
    if shape[shape.len() - 1] > 1 && tensor.strides[shape.len() - 1] != 1 {
        return bad(name, "has a last stride other than 1");
    }
    let mut last = 0_i64;
    for (extent, stride) in shape.iter().zip(tensor.strides) {
        let span = stride.checked_mul(extent - 1).and_then(|span| last.checked_add(span));
        match span.filter(|_| stride >= 0) {
            Some(span) => last = span,
            None => return bad(name, "has strides that leave its memory"),
        }
    }
    if tensor.data.is_null() {
        return bad(name, "is NULL");
    }
    let end = last.checked_add(1).and_then(|elements| elements.checked_mul(size(tensor.dtype)));
    match end.and_then(|end| u64::try_from(end).ok()) {
        Some(end) if end <= tensor.bytes => Ok(()),
        _ => bad(name, "leaves its memory"),
    }
}

fn vector(name: &str, vector: &Tensor, length: i64) -> Checked {
    if vector.data.is_null() && vector.rank == 0 {
        return Ok(());
    }
    tensor(name, vector, &[F32], &[length])
}

fn rank(name: &str, tensor: &Tensor, rank: u32) -> Checked {
    if tensor.rank == rank { Ok(()) } else { bad(name, "has another number of axes") }
}

fn above_zero(name: &str, x: f32) -> Checked {
    if x.is_finite() && x > 0.0 { Ok(()) } else { bad(name, "is not a finite number above 0") }
}

/// Every argument of an attention call. The kernel serves whatever passes.
///
/// # Safety
/// Host copies are as long as the tensors say.
pub unsafe fn attention(args: &AttentionArgs) -> Checked {
    rank("q", &args.q, 3)?;
    rank("k_cache", &args.k_cache, 4)?;
    rank("v_cache", &args.v_cache, 4)?;
    rank("seq_lens", &args.seq_lens, 1)?;
    rank("block_table", &args.block_table, 2)?;
    let [total_q, heads, head_dim, _] = args.q.shape;
    let [pages, page_size, kv_heads, _] = args.k_cache.shape;
    let head_dim_v = args.v_cache.shape[3];
    if kv_heads < 1 {
        return bad("num_kv_heads", "is below 1");
    }
    if heads < 1 || heads % kv_heads != 0 {
        return bad("num_q_heads", "is no multiple of num_kv_heads");
    }
    if head_dim < 1 || head_dim_v < 1 {
        return bad("head_dim", "is below 1");
    }
    if page_size < 1 {
        return bad("page_size", "is below 1");
    }
    tensor("q", &args.q, &MODEL, &[total_q, heads, head_dim])?;
    tensor("k_cache", &args.k_cache, &CACHES, &[pages, page_size, kv_heads, head_dim])?;
    tensor("v_cache", &args.v_cache, &[args.k_cache.dtype], &[pages, page_size, kv_heads, head_dim_v])?;
    tensor("out", &args.out, &[args.q.dtype], &[total_q, heads, head_dim_v])?;
    if args.lse.rank != 0 {
        tensor("lse", &args.lse, &[F32], &[total_q, heads])?;
    }
    let requests = args.seq_lens.shape[0];
    tensor("seq_lens", &args.seq_lens, &[I32], &[requests])?;
    tensor("query_start_loc", &args.query_start_loc, &[I32], &[requests + 1])?;
    tensor("block_table", &args.block_table, &[I32], &[requests, args.block_table.shape[1]])?;
    vector("k_scales", &args.k_scales, kv_heads)?;
    vector("v_scales", &args.v_scales, kv_heads)?;
    vector("alibi_slopes", &args.alibi_slopes, heads)?;
    vector("sinks", &args.sinks, heads)?;

    above_zero("softmax_scale", args.softmax_scale)?;
    if args.flags & SOFTCAP != 0 {
        above_zero("softcap", args.softcap)?;
    }
    above_zero("k_scale", args.k_scale)?;
    above_zero("v_scale", args.v_scale)?;
    if args.window_left < -1 {
        return bad("window_left", "is below -1");
    }
    if args.window_right < -1 {
        return bad("window_right", "is below -1");
    }
    if args.flags & !(CAUSAL | SOFTCAP) != 0 {
        return bad("flags", "has bits that are not known");
    }
    if !(0..=i64::from(i32::MAX)).contains(&args.max_seq_len) {
        return bad("max_seq_len", "is outside 0..2147483647");
    }
    unsafe { metadata(args) }
}

/// Values of the metadata, where the host has a copy.
unsafe fn metadata(args: &AttentionArgs) -> Checked {
    let (requests, width) = (args.seq_lens.shape[0] as usize, args.block_table.shape[1]);
    let [pages, page_size, ..] = args.k_cache.shape;
    if !args.host_query_start_loc.is_null() {
        let starts = unsafe { std::slice::from_raw_parts(args.host_query_start_loc, requests + 1) };
        if starts[0] != 0 {
            return bad("query_start_loc", "does not start at 0");
        }
        for pair in starts.windows(2) {
            if pair[1] < pair[0] {
                return bad("query_start_loc", "decreases");
            }
            if i64::from(pair[1]) - i64::from(pair[0]) > args.max_query_len {
                return bad("max_query_len", "is too small");
            }
        }
        if i64::from(starts[requests]) != args.q.shape[0] {
            return bad("query_start_loc", "does not end at total_q");
        }
    }
    if args.host_seq_lens.is_null() {
        return Ok(());
    }
    for request in 0..requests {
        let len = i64::from(unsafe { args.host_seq_lens.add(request).read() });
        if len < 0 {
            return bad("seq_lens", "has a negative length");
        }
        if len > width * page_size {
            return bad("seq_lens", "has a length past the block table");
        }
        if len > args.max_seq_len {
            return bad("max_seq_len", "is too small");
        }
        let used = (len + page_size - 1) / page_size;
        for column in (0..used as usize).filter(|_| !args.host_block_table.is_null()) {
            let page = unsafe { args.host_block_table.add(request * width as usize + column).read() };
            if !(0..pages).contains(&i64::from(page)) {
                return bad("block_table", "has a page outside the cache");
            }
        }
    }
    Ok(())
}

/// Every argument of a store.
///
/// # Safety
/// Host copies are as long as the tensors say.
pub unsafe fn store(args: &StoreArgs) -> Checked {
    rank("k", &args.k, 3)?;
    rank("v", &args.v, 3)?;
    rank("k_cache", &args.k_cache, 4)?;
    let ([tokens, kv_heads, head_dim, _], head_dim_v) = (args.k.shape, args.v.shape[2]);
    let [pages, page_size, ..] = args.k_cache.shape;
    if page_size < 1 {
        return bad("page_size", "is below 1");
    }
    if kv_heads < 1 {
        return bad("num_kv_heads", "is below 1");
    }
    if head_dim < 1 || head_dim_v < 1 {
        return bad("head_dim", "is below 1");
    }
    tensor("k", &args.k, &MODEL, &[tokens, kv_heads, head_dim])?;
    tensor("v", &args.v, &[args.k.dtype], &[tokens, kv_heads, head_dim_v])?;
    tensor("slot_mapping", &args.slot_mapping, &[I64], &[tokens])?;
    tensor("k_cache", &args.k_cache, &CACHES, &[pages, page_size, kv_heads, head_dim])?;
    tensor("v_cache", &args.v_cache, &[args.k_cache.dtype], &[pages, page_size, kv_heads, head_dim_v])?;
    let fp8 = [E4M3, E5M2].contains(&args.k_cache.dtype);
    let scales = [("k_scale", args.k_scale, &args.k_scales), ("v_scale", args.v_scale, &args.v_scales)];
    for (name, scale, per_head) in scales {
        vector(name, per_head, kv_heads)?;
        above_zero(name, scale)?;
        if !fp8 && (scale != 1.0 || per_head.rank != 0) {
            return bad(name, "is not 1 for a cache that is not fp8");
        }
    }
    if args.host_slot_mapping.is_null() {
        return Ok(());
    }
    let mut used = HashSet::new();
    for slot in unsafe { std::slice::from_raw_parts(args.host_slot_mapping, tokens as usize) } {
        if *slot != -1 && !(0..pages * page_size).contains(slot) {
            return bad("slot_mapping", "has a slot outside the cache");
        }
        if *slot != -1 && !used.insert(*slot) {
            return bad("slot_mapping", "has one slot twice");
        }
    }
    Ok(())
}
