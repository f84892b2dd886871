//! From a job to the structs of the header.

use std::ffi::c_void;
use std::ptr::null;

use kernels::abi::tag_of_dtype;
use kernels::abi::types::{self as abi, AttentionArgs, StoreArgs, Tensor};

use super::Text;
use crate::executor::protocol::{AttentionCall, ScaleSpec, StoreCall, TensorSpec};
use crate::executor::{Job, Operation};

/// Where a job's buffers lie.
pub(super) struct Addresses<'a> {
    /// Address of each buffer's first byte.
    pub buffers: &'a [u64],
    /// The stream; null for host memory.
    pub stream: *mut c_void,
}

fn absent() -> Tensor {
    Tensor {
        struct_size: size_of::<Tensor>() as u32,
        version: abi::ABI_VERSION,
        data: std::ptr::null_mut(),
        bytes: 0,
        dtype: 0,
        rank: 0,
        shape: [0; 4],
        strides: [0; 4],
    }
}

fn tensor(spec: &TensorSpec, job: &Job, at: &Addresses<'_>) -> Tensor {
    let mut tensor = absent();
    let bytes = job.buffers[spec.buffer].bytes.len() as u64;
    tensor.data = (at.buffers[spec.buffer] + spec.offset) as *mut c_void;
    tensor.bytes = bytes.saturating_sub(spec.offset);
    tensor.dtype = tag_of_dtype(spec.dtype);
    tensor.rank = spec.shape.len() as u32;
    for (axis, (extent, stride)) in spec.shape.iter().zip(&spec.strides).take(4).enumerate() {
        tensor.shape[axis] = i64::try_from(*extent).unwrap_or(i64::MAX);
        tensor.strides[axis] = *stride;
    }
    tensor
}

fn optional(spec: Option<&TensorSpec>, job: &Job, at: &Addresses<'_>) -> Tensor {
    spec.map_or_else(absent, |spec| tensor(spec, job, at))
}

/// A scale as the header has it: a number, and a tensor that takes its place.
fn scale(spec: &ScaleSpec, job: &Job, at: &Addresses<'_>) -> (f32, Tensor) {
    match spec {
        ScaleSpec::PerTensor(value) => (value.0, absent()),
        ScaleSpec::PerHead(spec) => (1.0, tensor(spec, job, at)),
    }
}

/// The struct of a job's call, but for workspace and message.
pub(super) fn call(job: &Job, at: &Addresses<'_>) -> super::Call {
    match &job.operation {
        Operation::Attention { call, .. } => super::Call::Attention(Box::new(attention(call, job, at))),
        Operation::Store(call) => super::Call::Store(Box::new(store(call, job, at))),
    }
}

/// An attention struct with no tensor.
pub(in crate::foreign) fn empty_attention(text: &mut Text) -> AttentionArgs {
    let none = absent();
    let (error, error_bytes) = text.place();
    AttentionArgs {
        struct_size: size_of::<AttentionArgs>() as u32,
        version: abi::ABI_VERSION,
        q: none,
        k_cache: none,
        v_cache: none,
        out: none,
        lse: none,
        block_table: none,
        seq_lens: none,
        query_start_loc: none,
        k_scales: none,
        v_scales: none,
        alibi_slopes: none,
        sinks: none,
        host_block_table: null(),
        host_seq_lens: null(),
        host_query_start_loc: null(),
        max_query_len: 0,
        max_seq_len: 0,
        window_left: -1,
        window_right: -1,
        softmax_scale: 1.0,
        softcap: 0.0,
        k_scale: 1.0,
        v_scale: 1.0,
        flags: 0,
        num_splits: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        stream: std::ptr::null_mut(),
        error,
        error_bytes,
    }
}

/// A store struct with no tensor.
pub(in crate::foreign) fn empty_store(text: &mut Text) -> StoreArgs {
    let none = absent();
    let (error, error_bytes) = text.place();
    StoreArgs {
        struct_size: size_of::<StoreArgs>() as u32,
        version: abi::ABI_VERSION,
        k: none,
        v: none,
        k_cache: none,
        v_cache: none,
        slot_mapping: none,
        k_scales: none,
        v_scales: none,
        host_slot_mapping: null(),
        k_scale: 1.0,
        v_scale: 1.0,
        stream: std::ptr::null_mut(),
        error,
        error_bytes,
    }
}

fn length(extent: u64) -> i64 {
    i64::try_from(extent).unwrap_or(i64::MAX)
}

fn attention(call: &AttentionCall, job: &Job, at: &Addresses<'_>) -> AttentionArgs {
    let host = |spec: &TensorSpec| match call.host_metadata {
        true => job.buffers[spec.buffer].bytes.as_ptr().cast::<i32>(),
        false => null(),
    };
    let (k_scale, k_scales) = scale(&call.cache.k_scale, job, at);
    let (v_scale, v_scales) = scale(&call.cache.v_scale, job, at);
    let causal = if call.causal { abi::CAUSAL } else { 0 };
    let softcap = if call.softcap.is_some() { abi::SOFTCAP } else { 0 };
    AttentionArgs {
        q: tensor(&call.q, job, at),
        k_cache: tensor(&call.cache.k, job, at),
        v_cache: tensor(&call.cache.v, job, at),
        out: tensor(&call.out, job, at),
        lse: optional(call.lse.as_ref(), job, at),
        block_table: tensor(&call.block_table, job, at),
        seq_lens: tensor(&call.seq_lens, job, at),
        query_start_loc: tensor(&call.query_start_loc, job, at),
        k_scales,
        v_scales,
        alibi_slopes: optional(call.alibi_slopes.as_ref(), job, at),
        sinks: optional(call.sinks.as_ref(), job, at),
        host_block_table: host(&call.block_table),
        host_seq_lens: host(&call.seq_lens),
        host_query_start_loc: host(&call.query_start_loc),
        max_query_len: length(call.max_query_len),
        max_seq_len: length(call.max_seq_len),
        window_left: call.window_left.unwrap_or(-1),
        window_right: call.window_right.unwrap_or(-1),
        softmax_scale: call.softmax_scale.0,
        softcap: call.softcap.map_or(0.0, |cap| cap.0),
        k_scale,
        v_scale,
        flags: causal | softcap,
        num_splits: call.splits.map_or(0, |splits| u32::try_from(splits).unwrap_or(u32::MAX)),
        stream: at.stream,
        ..empty_attention(&mut Text::default())
    }
}

fn store(call: &StoreCall, job: &Job, at: &Addresses<'_>) -> StoreArgs {
    let slots = &job.buffers[call.slot_mapping.buffer].bytes;
    let (k_scale, k_scales) = scale(&call.cache.k_scale, job, at);
    let (v_scale, v_scales) = scale(&call.cache.v_scale, job, at);
    StoreArgs {
        k: tensor(&call.k, job, at),
        v: tensor(&call.v, job, at),
        k_cache: tensor(&call.cache.k, job, at),
        v_cache: tensor(&call.cache.v, job, at),
        slot_mapping: tensor(&call.slot_mapping, job, at),
        k_scales,
        v_scales,
        host_slot_mapping: if call.host_slots { slots.as_ptr().cast() } else { null() },
        k_scale,
        v_scale,
        stream: at.stream,
        ..empty_store(&mut Text::default())
    }
}
