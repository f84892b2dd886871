//! Parameter structs as the kernels declare them.

use crate::args::{AttentionArgs, Scale};
use crate::tensor::DeviceTensor;
use crate::validate::AttentionShape;

/// A mirror of a kernel's parameter struct.
///
/// # Safety
/// The type is `repr(C)`, has no padding and consists of plain numbers, so that every byte of it is initialised.
pub(crate) unsafe trait KernelParams: Copy {
    /// The bytes that [`crate::device::Device::launch`] takes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: by the trait's contract all `size_of::<Self>()` bytes are initialised; the borrow keeps them alive.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// Window limits are cut to this, so that kernels can add them to a position in 64 bits. No sequence is as long.
const MAX_WINDOW: i64 = 1 << 40;

/// `AttentionParams` of `attention.cuh`, field by field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionParams {
    pub(crate) q: u64,
    pub(crate) out: u64,
    pub(crate) lse: u64,
    pub(crate) k: u64,
    pub(crate) v: u64,
    pub(crate) block_table: u64,
    pub(crate) seq_lens: u64,
    pub(crate) query_start_loc: u64,
    pub(crate) alibi_slopes: u64,
    pub(crate) sinks: u64,
    pub(crate) k_scales: u64,
    pub(crate) v_scales: u64,
    pub(crate) q_strides: [i64; 2],
    pub(crate) out_strides: [i64; 2],
    pub(crate) lse_strides: [i64; 2],
    /// Page, slot, head.
    pub(crate) k_strides: [i64; 3],
    pub(crate) v_strides: [i64; 3],
    pub(crate) block_table_stride: i64,
    pub(crate) window_left: i64,
    pub(crate) window_right: i64,
    pub(crate) softmax_scale: f32,
    pub(crate) softcap: f32,
    pub(crate) k_scale: f32,
    pub(crate) v_scale: f32,
    pub(crate) num_q_heads: i32,
    pub(crate) num_kv_heads: i32,
    pub(crate) head_dim_k: i32,
    pub(crate) head_dim_v: i32,
    pub(crate) page_size: i32,
    pub(crate) num_requests: i32,
    pub(crate) causal: i32,
    pub(crate) max_query_len: i32,
}

// 12 addresses, 15 strides and limits, 4 floats, 8 integers: no room for padding.
const _: () = assert!(size_of::<AttentionParams>() == 12 * 8 + 15 * 8 + 4 * 4 + 8 * 4);
// SAFETY: `repr(C)`, numbers only, and the size above leaves no padding.
unsafe impl KernelParams for AttentionParams {}

/// A validated extent as a kernel's 32-bit integer.
pub(crate) fn extent(value: u64) -> i32 {
    i32::try_from(value).expect("validation bounds every extent by i32::MAX")
}

fn address(tensor: Option<&DeviceTensor>) -> u64 {
    tensor.map_or(0, |tensor| tensor.ptr().0)
}

/// The per-tensor value and the address of per-head values, either of which stands for the scale.
pub(crate) fn scale_fields(scale: &Scale) -> (f32, u64) {
    match scale {
        Scale::PerTensor(value) => (*value, 0),
        Scale::PerHead(tensor) => (1.0, tensor.ptr().0),
    }
}

impl AttentionParams {
    /// The parameters of a validated call.
    pub(crate) fn new(args: &AttentionArgs, shape: &AttentionShape) -> Self {
        let pair = |tensor: &DeviceTensor| [tensor.strides[0], tensor.strides[1]];
        let page_slot_head =
            |tensor: &DeviceTensor| [tensor.strides[0], tensor.strides[1], tensor.strides[2]];
        let window = |keys: Option<i64>| keys.map_or(-1, |keys| keys.min(MAX_WINDOW));
        let (k_scale, k_scales) = scale_fields(&args.cache.k_scale);
        let (v_scale, v_scales) = scale_fields(&args.cache.v_scale);
        Self {
            q: args.q.ptr().0,
            out: args.out.ptr().0,
            lse: address(args.lse.as_ref()),
            k: args.cache.k.ptr().0,
            v: args.cache.v.ptr().0,
            block_table: args.block_table.ptr().0,
            seq_lens: args.seq_lens.ptr().0,
            query_start_loc: args.query_start_loc.ptr().0,
            alibi_slopes: address(args.alibi_slopes.as_ref()),
            sinks: address(args.sinks.as_ref()),
            k_scales,
            v_scales,
            q_strides: pair(&args.q),
            out_strides: pair(&args.out),
            lse_strides: args.lse.as_ref().map_or([0, 0], pair),
            k_strides: page_slot_head(&args.cache.k),
            v_strides: page_slot_head(&args.cache.v),
            block_table_stride: args.block_table.strides[0],
            window_left: window(args.window_left),
            window_right: window(args.window_right),
            softmax_scale: args.softmax_scale,
            softcap: args.softcap.unwrap_or(0.0),
            k_scale,
            v_scale,
            num_q_heads: extent(shape.num_q_heads),
            num_kv_heads: extent(shape.num_kv_heads),
            head_dim_k: extent(shape.head_dim_k),
            head_dim_v: extent(shape.head_dim_v),
            page_size: extent(shape.page_size),
            num_requests: extent(shape.num_requests),
            causal: i32::from(args.causal),
            max_query_len: extent(shape.max_query_len),
        }
    }
}
