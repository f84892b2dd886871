//! Sizes and offsets of the structs: what a test compares with a C and a C++ compiler's.

use std::mem::{offset_of, size_of};

use super::types::{AttentionArgs, KernelInfo, StoreArgs, Tensor};

/// One struct as C sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StructLayout {
    /// Name in the header.
    pub name: &'static str,
    /// Bytes of the struct.
    pub size: usize,
    /// Every field with its offset in bytes, in order.
    pub fields: Vec<(&'static str, usize)>,
}

macro_rules! layout {
    ($name:literal, $type:ident, [$($field:ident),* $(,)?]) => {{
        // A field that the list leaves out does not compile.
        let _complete = |$type { $($field: _),* }: $type| {};
        StructLayout {
            name: $name,
            size: size_of::<$type>(),
            fields: vec![$((stringify!($field), offset_of!($type, $field))),*],
        }
    }};
}

/// Every struct of the header.
#[must_use]
#[rustfmt::skip]
pub fn layouts() -> Vec<StructLayout> {
    vec![
        layout!("attest_tensor", Tensor, [struct_size, version, data, bytes, dtype, rank, shape, strides]),
        layout!("attest_kernel_info", KernelInfo, [
            struct_size, version, name, device, layouts, options, promises, attention_caches, store_caches,
            head_dim_step, head_dim_max, head_dims, page_sizes, cache_alignment, max_group,
        ]),
        layout!("attest_attention_args", AttentionArgs, [
            struct_size, version, q, k_cache, v_cache, out, lse, block_table, seq_lens, query_start_loc,
            k_scales, v_scales, alibi_slopes, sinks, host_block_table, host_seq_lens, host_query_start_loc,
            max_query_len, max_seq_len, window_left, window_right, softmax_scale, softcap, k_scale, v_scale,
            flags, num_splits, workspace, workspace_bytes, stream, error, error_bytes,
        ]),
        layout!("attest_store_args", StoreArgs, [
            struct_size, version, k, v, k_cache, v_cache, slot_mapping, k_scales, v_scales, host_slot_mapping,
            k_scale, v_scale, stream, error, error_bytes,
        ]),
    ]
}

// Version 1 must not move: libraries were built against it.
const _: () = {
    assert!(size_of::<Tensor>() == 96 && offset_of!(Tensor, shape) == 32);
    assert!(size_of::<KernelInfo>() == 384 && offset_of!(KernelInfo, head_dims) == 112);
    assert!(size_of::<AttentionArgs>() == 1280 && offset_of!(AttentionArgs, workspace) == 1240);
    assert!(size_of::<StoreArgs>() == 720 && offset_of!(StoreArgs, error) == 704);
};
