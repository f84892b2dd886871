//! Arguments of the two operations: paged attention and storing new keys and values.
//!
//! Both are plain structs; constructors fill in what most calls leave alone. Nothing is checked here:
//! [`crate::validate`] checks everything before a launch.

use crate::tensor::{DType, DeviceTensor};

/// Scale of the stored codes: a value is `code * scale`.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// One scale for the whole tensor; finite and above 0.
    PerTensor(f32),
    /// f32 `[num_kv_heads]` in device memory. Its values are not visible to the host and not checked.
    PerHead(DeviceTensor),
}

impl Scale {
    /// No scaling.
    pub const ONE: Self = Self::PerTensor(1.0);
}

/// Views of the paged cache. Logical shape of each is `[num_pages, page_size, num_kv_heads, head_dim]`: NHD, HND and views
/// of a combined tensor differ in strides only.
#[derive(Clone, Debug, PartialEq)]
pub struct PagedCache {
    /// Keys.
    pub k: DeviceTensor,
    /// Values, of the same element type; head_dim may differ.
    pub v: DeviceTensor,
    /// Scale of the keys.
    pub k_scale: Scale,
    /// Scale of the values.
    pub v_scale: Scale,
}

impl PagedCache {
    /// A cache whose codes are the values.
    #[must_use]
    pub fn unscaled(k: DeviceTensor, v: DeviceTensor) -> Self {
        Self { k, v, k_scale: Scale::ONE, v_scale: Scale::ONE }
    }
}

/// Host copies of metadata that otherwise lies in device memory only. Each that is given is checked; none is required.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMetadata {
    /// `[num_requests, width]`, row-major without padding. Checked together with `seq_lens`, up to each request's length.
    pub block_table: Option<Vec<i32>>,
    /// `[num_requests]`.
    pub seq_lens: Option<Vec<i32>>,
    /// `[num_requests + 1]`.
    pub query_start_loc: Option<Vec<i32>>,
}

/// One call of paged attention over a batch of requests of any lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionArgs {
    /// Queries, `[total_q, num_q_heads, head_dim_k]`; f32, bf16 or f16.
    pub q: DeviceTensor,
    /// The cache to read.
    pub cache: PagedCache,
    /// Output, `[total_q, num_q_heads, head_dim_v]`, of q's type.
    pub out: DeviceTensor,
    /// Natural logarithm of the softmax denominator, f32 `[total_q, num_q_heads]`, if wanted.
    pub lse: Option<DeviceTensor>,
    /// i32 `[num_requests, width]`: the pages of each request.
    pub block_table: DeviceTensor,
    /// i32 `[num_requests]`: number of keys of each request.
    pub seq_lens: DeviceTensor,
    /// i32 `[num_requests + 1]`: first query row of each request, then total_q.
    pub query_start_loc: DeviceTensor,
    /// At least the longest query of the batch. An upper bound changes the launch, never the result.
    pub max_query_len: u64,
    /// At least the longest sequence of the batch. An upper bound changes the launch, never the result.
    pub max_seq_len: u64,
    /// Factor of the dot products, without the key scale.
    pub softmax_scale: f32,
    /// Whether a row sees keys up to its own position only (the last row stands at the last key).
    pub causal: bool,
    /// Number of keys before the row's own position that it sees.
    pub window_left: Option<i64>,
    /// Number of keys after the row's own position that it sees.
    pub window_right: Option<i64>,
    /// Scores s become `c * tanh(s / c)`.
    pub softcap: Option<f32>,
    /// f32 `[num_q_heads]`: `slope * (key - position)` is added to each score, also where the key is ahead of the row.
    pub alibi_slopes: Option<DeviceTensor>,
    /// f32 `[num_q_heads]`: a logit that takes part in the softmax with a value of zero.
    pub sinks: Option<DeviceTensor>,
    /// Host copies of the metadata, to be checked.
    pub host: HostMetadata,
}

impl AttentionArgs {
    /// Causal attention with no window, softcap, ALiBi, sinks or lse, and softmax scale 1 / sqrt(head_dim_k).
    #[must_use]
    pub fn causal(q: DeviceTensor, cache: PagedCache, out: DeviceTensor, metadata: BatchMetadata) -> Self {
        let head_dim = q.shape.last().copied().unwrap_or(1).max(1);
        Self {
            softmax_scale: 1.0 / (head_dim as f32).sqrt(),
            q,
            cache,
            out,
            lse: None,
            block_table: metadata.block_table,
            seq_lens: metadata.seq_lens,
            query_start_loc: metadata.query_start_loc,
            max_query_len: metadata.max_query_len,
            max_seq_len: metadata.max_seq_len,
            causal: true,
            window_left: None,
            window_right: None,
            softcap: None,
            alibi_slopes: None,
            sinks: None,
            host: HostMetadata::default(),
        }
    }
}

/// The part of [`AttentionArgs`] that describes the batch; fields as there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchMetadata {
    /// i32 `[num_requests, width]`.
    pub block_table: DeviceTensor,
    /// i32 `[num_requests]`.
    pub seq_lens: DeviceTensor,
    /// i32 `[num_requests + 1]`.
    pub query_start_loc: DeviceTensor,
    /// At least the longest query.
    pub max_query_len: u64,
    /// At least the longest sequence.
    pub max_seq_len: u64,
}

/// One call of `reshape_and_cache`.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreArgs {
    /// New keys, `[num_tokens, num_kv_heads, head_dim_k]`; f32, bf16 or f16. May have more rows than `slot_mapping` (padding).
    pub k: DeviceTensor,
    /// New values, `[num_tokens, num_kv_heads, head_dim_v]`, of the same type.
    pub v: DeviceTensor,
    /// The cache to write. Codes are `encode(x / scale)`; scales other than 1 belong to fp8 caches only.
    pub cache: PagedCache,
    /// i64 `[num_stored]`: `page * page_size + slot` of each row, or -1 for a row that is not stored.
    pub slot_mapping: DeviceTensor,
    /// A host copy of `slot_mapping`; if given, slots out of range or used twice are refused.
    pub host_slot_mapping: Option<Vec<i64>>,
}

/// How keys and values are kept, and what the model sees of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStore {
    /// Element type of the cache.
    pub dtype: DType,
}

impl KvStore {
    /// The element type that the model computes in: fp8 storage presents bf16, so that the model needs no casts; every
    /// other store presents itself.
    #[must_use]
    pub fn presents(self) -> DType {
        if self.dtype.is_fp8() { DType::Bf16 } else { self.dtype }
    }
}
