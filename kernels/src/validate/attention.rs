//! Checks of one attention call, and its shape as every arm and the route see it.

use serde::{Deserialize, Serialize};

use super::host::check_host;
use super::tensor::{Checked, check_scale, check_vector};
use crate::args::AttentionArgs;
use crate::error::ArgumentError;
use crate::tensor::DType;

/// Longest sequence that a kernel's 32-bit key index reaches with a tile to spare.
const MAX_SEQ_LEN: u64 = i32::MAX as u64 - 1024;

/// What a validated call asks for, without its addresses: enough to choose an arm and its launch geometry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AttentionShape {
    /// Type of q and out.
    pub q_dtype: DType,
    /// Type of the cache.
    pub kv_dtype: DType,
    /// Rows of q.
    pub total_q: u64,
    /// Query heads.
    pub num_q_heads: u64,
    /// KV heads; divides `num_q_heads`.
    pub num_kv_heads: u64,
    /// Elements of a query and of a key.
    pub head_dim_k: u64,
    /// Elements of a value and of an output.
    pub head_dim_v: u64,
    /// Pages of the cache.
    pub num_pages: u64,
    /// Slots of a page.
    pub page_size: u64,
    /// Requests of the batch.
    pub num_requests: u64,
    /// Columns of the block table.
    pub block_table_width: u64,
    /// Upper bound of the query lengths, cut to `total_q`.
    pub max_query_len: u64,
    /// Upper bound of the sequence lengths.
    pub max_seq_len: u64,
    /// Whether keys ahead of a row are hidden.
    pub causal: bool,
    /// Whether the window is limited on either side.
    pub windowed: bool,
    /// Whether scores are capped.
    pub softcap: bool,
    /// Whether ALiBi slopes are given.
    pub alibi: bool,
    /// Whether sinks are given.
    pub sinks: bool,
    /// Whether lse is wanted.
    pub lse: bool,
    /// Bytes, at most 16, of which the addresses of all rows of q and out are multiples.
    pub row_alignment: u64,
    /// The same for the rows of both cache tensors.
    pub cache_alignment: u64,
}

impl AttentionShape {
    /// Query heads that share a KV head.
    #[must_use]
    pub fn group(&self) -> u64 {
        self.num_q_heads / self.num_kv_heads
    }
}

#[cfg(test)]
impl AttentionShape {
    /// A plain decode batch, for tests that vary one field.
    pub(crate) fn example() -> Self {
        Self {
            q_dtype: DType::Bf16,
            kv_dtype: DType::Bf16,
            total_q: 2,
            num_q_heads: 8,
            num_kv_heads: 2,
            head_dim_k: 64,
            head_dim_v: 64,
            num_pages: 8,
            page_size: 16,
            num_requests: 2,
            block_table_width: 4,
            max_query_len: 1,
            max_seq_len: 64,
            causal: true,
            windowed: false,
            softcap: false,
            alibi: false,
            sinks: false,
            lse: false,
            row_alignment: 16,
            cache_alignment: 16,
        }
    }
}

/// Checks every argument of a call.
///
/// # Errors
/// The first argument that is not acceptable to any arm.
pub fn validate_attention(args: &AttentionArgs) -> Result<AttentionShape, ArgumentError> {
    let shape = check_shapes(args)?;
    check_tensors(args, &shape)?;
    check_options(args, &shape)?;
    check_host(&args.host, &shape)?;
    Ok(shape)
}

fn positive(name: &str, value: u64) -> Result<u64, ArgumentError> {
    if value == 0 { Err(ArgumentError::new(name, value, "1 or more")) } else { Ok(value) }
}

// Ranks first, so that the rest may index; then sizes that define the others.
fn check_shapes(args: &AttentionArgs) -> Result<AttentionShape, ArgumentError> {
    let cache_axes = "[num_pages, page_size, num_kv_heads, head_dim]";
    Checked::new("q", &args.q).rank(3, "[total_q, num_q_heads, head_dim_k]")?;
    Checked::new("k_cache", &args.cache.k).rank(4, cache_axes)?;
    Checked::new("v_cache", &args.cache.v).rank(4, cache_axes)?;
    Checked::new("block_table", &args.block_table).rank(2, "[num_requests, width]")?;
    Checked::new("seq_lens", &args.seq_lens).rank(1, "[num_requests]")?;
    let (q, k, v) = (&args.q.shape, &args.cache.k.shape, &args.cache.v.shape);
    let shape = AttentionShape {
        q_dtype: args.q.dtype,
        kv_dtype: args.cache.k.dtype,
        total_q: q[0],
        num_q_heads: positive("num_q_heads", q[1])?,
        num_kv_heads: positive("num_kv_heads", k[2])?,
        head_dim_k: positive("head_dim_k", q[2])?,
        head_dim_v: positive("head_dim_v", v[3])?,
        num_pages: k[0],
        page_size: positive("page_size", k[1])?,
        num_requests: args.seq_lens.shape[0],
        block_table_width: args.block_table.shape[1],
        max_query_len: args.max_query_len.min(q[0]),
        max_seq_len: args.max_seq_len,
        causal: args.causal,
        windowed: args.window_left.is_some() || args.window_right.is_some(),
        softcap: args.softcap.is_some(),
        alibi: args.alibi_slopes.is_some(),
        sinks: args.sinks.is_some(),
        lse: args.lse.is_some(),
        row_alignment: args.q.row_alignment().min(args.out.row_alignment()),
        cache_alignment: args.cache.k.row_alignment().min(args.cache.v.row_alignment()),
    };
    if !shape.num_q_heads.is_multiple_of(shape.num_kv_heads) {
        let accepted = format!("a multiple of num_kv_heads, {}", shape.num_kv_heads);
        return Err(ArgumentError::new("num_q_heads", shape.num_q_heads, accepted));
    }
    Ok(shape)
}

fn check_tensors(args: &AttentionArgs, shape: &AttentionShape) -> Result<(), ArgumentError> {
    let rows = [shape.total_q, shape.num_q_heads];
    let q = Checked::new("q", &args.q);
    q.dtype(&DType::MODEL)?;
    q.extent()?;

    let k = Checked::new("k_cache", &args.cache.k);
    k.dtype(&DType::CACHE)?;
    let axes = "[num_pages, page_size, num_kv_heads, head_dim_k of q]";
    k.shape(&[shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim_k], axes)?;
    k.extent()?;
    let v = Checked::new("v_cache", &args.cache.v);
    v.dtype(&[shape.kv_dtype])?;
    let axes = "[num_pages, page_size, num_kv_heads] of k_cache, then head_dim_v";
    v.shape(&[shape.num_pages, shape.page_size, shape.num_kv_heads, shape.head_dim_v], axes)?;
    v.extent()?;

    let out = Checked::new("out", &args.out);
    out.dtype(&[shape.q_dtype])?;
    out.shape(&[rows[0], rows[1], shape.head_dim_v], "[total_q, num_q_heads, head_dim_v]")?;
    out.extent()?;
    out.distinct()?;
    if let Some(lse) = &args.lse {
        let lse = Checked::new("lse", lse);
        lse.dtype(&[DType::F32])?;
        lse.shape(&rows, "[total_q, num_q_heads]")?;
        lse.extent_strided()?;
        lse.distinct()?;
    }
    let requests = shape.num_requests;
    check_vector("seq_lens", &args.seq_lens, DType::I32, &[requests], "[num_requests]")?;
    let starts = &args.query_start_loc;
    check_vector("query_start_loc", starts, DType::I32, &[requests + 1], "[num_requests + 1]")?;
    let table = [requests, shape.block_table_width];
    check_vector("block_table", &args.block_table, DType::I32, &table, "[num_requests, width]")
}

fn check_options(args: &AttentionArgs, shape: &AttentionShape) -> Result<(), ArgumentError> {
    let above_zero = |value: f32| value.is_finite() && value > 0.0;
    if !above_zero(args.softmax_scale) {
        return Err(ArgumentError::new("softmax_scale", args.softmax_scale, "a finite number above 0"));
    }
    if let Some(cap) = args.softcap.filter(|cap| !above_zero(*cap)) {
        return Err(ArgumentError::new("softcap", cap, "a finite number above 0, or none"));
    }
    for (name, window) in [("window_left", args.window_left), ("window_right", args.window_right)] {
        if let Some(keys) = window.filter(|keys| *keys < 0) {
            return Err(ArgumentError::new(name, keys, "0 or more, or none"));
        }
    }
    let heads = [shape.num_q_heads];
    if let Some(slopes) = &args.alibi_slopes {
        check_vector("alibi_slopes", slopes, DType::F32, &heads, "[num_q_heads]")?;
    }
    if let Some(sinks) = &args.sinks {
        check_vector("sinks", sinks, DType::F32, &heads, "[num_q_heads]")?;
    }
    check_scale("k_scale", &args.cache.k_scale, shape.num_kv_heads)?;
    check_scale("v_scale", &args.cache.v_scale, shape.num_kv_heads)?;
    if shape.max_seq_len > MAX_SEQ_LEN {
        return Err(ArgumentError::new("max_seq_len", shape.max_seq_len, format!("at most {MAX_SEQ_LEN}")));
    }
    // Query rows and the heads that share a KV head are counted together in 32 bits.
    let packed = shape.max_query_len.saturating_mul(shape.group());
    if packed > MAX_SEQ_LEN {
        let accepted =
            format!("at most {}, for {} query heads per KV head", MAX_SEQ_LEN / shape.group(), shape.group());
        return Err(ArgumentError::new("max_query_len", shape.max_query_len, accepted));
    }
    Ok(())
}
