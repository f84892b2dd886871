//! `attest_kernel.h` in Rust: the same structs, bit for bit. It needs nothing but this file.
//!
//! The header says what every field means; here are only types. A test compiles the header and compares every size and
//! offset.

use std::ffi::{c_char, c_void};

/// Version of every struct.
pub const ABI_VERSION: u32 = 1;

/// The call was served.
pub const OK: i32 = 0;
/// The call makes no sense: the message names the argument.
pub const INVALID_ARGUMENT: i32 = 1;
/// The call makes sense, and this kernel does not serve it.
pub const UNSUPPORTED: i32 = 2;
/// The kernel or its device failed.
pub const FAILED: i32 = 3;

/// IEEE binary32.
pub const F32: u32 = 1;
/// bfloat16.
pub const BF16: u32 = 2;
/// IEEE binary16.
pub const F16: u32 = 3;
/// fp8 e4m3fn.
pub const E4M3: u32 = 4;
/// fp8 e5m2.
pub const E5M2: u32 = 5;
/// 32-bit signed integer.
pub const I32: u32 = 6;
/// 64-bit signed integer.
pub const I64: u32 = 7;

/// Tensors lie in host memory.
pub const DEVICE_HOST: u32 = 1;
/// Tensors lie in the memory of the current CUDA context.
pub const DEVICE_CUDA: u32 = 2;

/// Layout bit: slots before heads.
pub const NHD: u32 = 1;
/// Layout bit: heads before slots.
pub const HND: u32 = 2;
/// Layout bit: K and V as views of one tensor.
pub const INTERLEAVED: u32 = 4;
/// Layout bit: strides with gaps.
pub const PADDED: u32 = 8;

/// Option bit: the causal mask.
pub const CAN_CAUSAL: u32 = 1;
/// Option bit: windows.
pub const CAN_WINDOW: u32 = 2;
/// Option bit: soft caps.
pub const CAN_SOFTCAP: u32 = 4;
/// Option bit: ALiBi slopes.
pub const CAN_ALIBI: u32 = 8;
/// Option bit: sinks.
pub const CAN_SINKS: u32 = 16;
/// Option bit: lse.
pub const CAN_LSE: u32 = 32;
/// Option bit: scales other than 1.
pub const CAN_SCALES: u32 = 64;
/// Option bit: one scale per KV head.
pub const CAN_HEAD_SCALES: u32 = 128;
/// Option bit: V of another head_dim than K.
pub const CAN_UNEQUAL_DIMS: u32 = 256;
/// Option bit: requests with more than one query row.
pub const CAN_PREFILL: u32 = 512;
/// Option bit: attention without the causal mask.
pub const CAN_FULL: u32 = 1024;

/// Promise: a request's bits do not depend on the rest of the call.
pub const BATCH_INVARIANT: u32 = 1;

/// Flag of a call: the causal mask.
pub const CAUSAL: u32 = 1;
/// Flag of a call: `softcap` counts.
pub const SOFTCAP: u32 = 2;

/// `attest_tensor`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Tensor {
    pub struct_size: u32,
    pub version: u32,
    pub data: *mut c_void,
    pub bytes: u64,
    pub dtype: u32,
    pub rank: u32,
    pub shape: [i64; 4],
    pub strides: [i64; 4],
}

/// `attest_kernel_info`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct KernelInfo {
    pub struct_size: u32,
    pub version: u32,
    pub name: *const c_char,
    pub device: u32,
    pub layouts: u32,
    pub options: u32,
    pub promises: u32,
    pub attention_caches: [u32; 8],
    pub store_caches: [u32; 8],
    pub head_dim_step: i64,
    pub head_dim_max: i64,
    pub head_dims: [i64; 16],
    pub page_sizes: [i64; 16],
    pub cache_alignment: i64,
    pub max_group: i64,
}

/// `attest_attention_args`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct AttentionArgs {
    pub struct_size: u32,
    pub version: u32,
    pub q: Tensor,
    pub k_cache: Tensor,
    pub v_cache: Tensor,
    pub out: Tensor,
    pub lse: Tensor,
    pub block_table: Tensor,
    pub seq_lens: Tensor,
    pub query_start_loc: Tensor,
    pub k_scales: Tensor,
    pub v_scales: Tensor,
    pub alibi_slopes: Tensor,
    pub sinks: Tensor,
    pub host_block_table: *const i32,
    pub host_seq_lens: *const i32,
    pub host_query_start_loc: *const i32,
    pub max_query_len: i64,
    pub max_seq_len: i64,
    pub window_left: i64,
    pub window_right: i64,
    pub softmax_scale: f32,
    pub softcap: f32,
    pub k_scale: f32,
    pub v_scale: f32,
    pub flags: u32,
    pub num_splits: u32,
    pub workspace: *mut c_void,
    pub workspace_bytes: u64,
    pub stream: *mut c_void,
    pub error: *mut c_char,
    pub error_bytes: u64,
}

/// `attest_store_args`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[allow(missing_docs)]
pub struct StoreArgs {
    pub struct_size: u32,
    pub version: u32,
    pub k: Tensor,
    pub v: Tensor,
    pub k_cache: Tensor,
    pub v_cache: Tensor,
    pub slot_mapping: Tensor,
    pub k_scales: Tensor,
    pub v_scales: Tensor,
    pub host_slot_mapping: *const i64,
    pub k_scale: f32,
    pub v_scale: f32,
    pub stream: *mut c_void,
    pub error: *mut c_char,
    pub error_bytes: u64,
}
