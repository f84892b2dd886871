//! Calls that must be refused: every argument of every entry point, spoiled in every way that its kind allows.
//!
//! The lists are made from an accepted call. Each entry says which argument was spoiled, how, and which arguments the error
//! may name: mostly the same one, sometimes the one that no longer fits it.

mod host;
mod scalars;
mod tensors;

use kernels::args::{AttentionArgs, BatchMetadata, HostMetadata, PagedCache, Scale, StoreArgs};
use kernels::device::DevicePtr;
use kernels::tensor::{Allocation, DType, DeviceTensor};

/// A call that must be refused.
#[derive(Clone, Debug)]
pub struct BadCall<A> {
    /// The argument that was spoiled.
    pub argument: &'static str,
    /// How.
    pub how: String,
    /// Arguments of which the error must name one.
    pub named: Vec<&'static str>,
    /// The call.
    pub args: A,
}

impl<A> BadCall<A> {
    /// Whether an error about `argument` (`seq_lens[2]`, `q.dtype`, `query_start_loc length`) names what it should.
    #[must_use]
    pub fn is_named_by(&self, argument: &str) -> bool {
        let about = |name: &&&str| {
            let rest = argument.strip_prefix(**name);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        self.named.iter().find(about).is_some()
    }
}

/// Requests of the accepted calls.
const REQUESTS: u64 = 2;
const PAGES: u64 = 6;
const PAGE_SIZE: u64 = 16;
const HEADS: [u64; 2] = [4, 2];
/// A head dim that every arm serves.
const DIM: u64 = 64;
const TOTAL_Q: u64 = 5;
const WIDTH: u64 = 3;
const TOKENS: u64 = 6;

/// A tensor at an address that nothing reads.
fn tensor(dtype: DType, shape: &[u64]) -> DeviceTensor {
    let bytes = shape.iter().product::<u64>() * dtype.size_bytes();
    DeviceTensor::contiguous(Allocation { ptr: DevicePtr(0x10_0000), bytes }, dtype, shape)
}

fn cache(dtype: DType) -> PagedCache {
    let shape = [PAGES, PAGE_SIZE, HEADS[1], DIM];
    PagedCache::unscaled(tensor(dtype, &shape), tensor(dtype, &shape))
}

/// An attention call that is accepted, with every optional tensor and host copies of all metadata. Its addresses are
/// invented: move the tensors of [`ATTENTION_TENSORS`] before launching it.
#[must_use]
pub fn attention(q_dtype: DType, kv_dtype: DType) -> AttentionArgs {
    let metadata = BatchMetadata {
        block_table: tensor(DType::I32, &[REQUESTS, WIDTH]),
        seq_lens: tensor(DType::I32, &[REQUESTS]),
        query_start_loc: tensor(DType::I32, &[REQUESTS + 1]),
        max_query_len: 4,
        max_seq_len: 40,
    };
    let rows = [TOTAL_Q, HEADS[0], DIM];
    let per_head = |heads| Scale::PerHead(tensor(DType::F32, &[heads]));
    let cache = PagedCache { k_scale: per_head(HEADS[1]), v_scale: per_head(HEADS[1]), ..cache(kv_dtype) };
    AttentionArgs {
        lse: Some(tensor(DType::F32, &rows[..2])),
        alibi_slopes: Some(tensor(DType::F32, &[HEADS[0]])),
        sinks: Some(tensor(DType::F32, &[HEADS[0]])),
        window_left: Some(30),
        window_right: Some(2),
        softcap: Some(20.0),
        host: HostMetadata {
            block_table: Some(vec![5, 0, 3, 1, 2, -7]),
            seq_lens: Some(vec![40, 17]),
            query_start_loc: Some(vec![0, 4, 5]),
        },
        ..AttentionArgs::causal(tensor(q_dtype, &rows), cache, tensor(q_dtype, &rows), metadata)
    }
}

/// A store that is accepted, with a host copy of the slots.
#[must_use]
pub fn store(source: DType, kv_dtype: DType) -> StoreArgs {
    let rows = [TOKENS, HEADS[1], DIM];
    let scale = |value| if kv_dtype.is_fp8() { Scale::PerTensor(value) } else { Scale::ONE };
    StoreArgs {
        k: tensor(source, &rows),
        v: tensor(source, &rows),
        cache: PagedCache { k_scale: scale(0.25), v_scale: scale(0.5), ..cache(kv_dtype) },
        slot_mapping: tensor(DType::I64, &[TOKENS]),
        host_slot_mapping: Some(vec![0, 5, -1, 37, 2, 95]),
    }
}

/// Every bad attention call that can be made from an accepted one.
#[must_use]
pub fn attention_calls(accepted: &AttentionArgs) -> Vec<BadCall<AttentionArgs>> {
    let mut calls = tensors::attention(accepted);
    calls.extend(scalars::attention(accepted));
    calls.extend(host::attention(accepted));
    calls
}

/// Every bad store that can be made from an accepted one.
#[must_use]
pub fn store_calls(accepted: &StoreArgs) -> Vec<BadCall<StoreArgs>> {
    let mut calls = tensors::store(accepted);
    calls.extend(scalars::store(accepted));
    calls.extend(host::store(accepted));
    calls
}

/// Access to a tensor argument; `None` where the call has none.
pub type Access<A> = fn(&mut A) -> Option<&mut DeviceTensor>;

fn scale_tensor(scale: &mut Scale) -> Option<&mut DeviceTensor> {
    match scale {
        Scale::PerHead(tensor) => Some(tensor),
        Scale::PerTensor(_) => None,
    }
}

/// Every tensor of an attention call, under the name that errors use.
pub const ATTENTION_TENSORS: [(&str, Access<AttentionArgs>); 12] = [
    ("q", |a| Some(&mut a.q)),
    ("k_cache", |a| Some(&mut a.cache.k)),
    ("v_cache", |a| Some(&mut a.cache.v)),
    ("out", |a| Some(&mut a.out)),
    ("lse", |a| a.lse.as_mut()),
    ("block_table", |a| Some(&mut a.block_table)),
    ("seq_lens", |a| Some(&mut a.seq_lens)),
    ("query_start_loc", |a| Some(&mut a.query_start_loc)),
    ("alibi_slopes", |a| a.alibi_slopes.as_mut()),
    ("sinks", |a| a.sinks.as_mut()),
    ("k_scale", |a| scale_tensor(&mut a.cache.k_scale)),
    ("v_scale", |a| scale_tensor(&mut a.cache.v_scale)),
];

/// Every tensor of a store.
pub const STORE_TENSORS: [(&str, Access<StoreArgs>); 7] = [
    ("k", |a| Some(&mut a.k)),
    ("v", |a| Some(&mut a.v)),
    ("k_cache", |a| Some(&mut a.cache.k)),
    ("v_cache", |a| Some(&mut a.cache.v)),
    ("slot_mapping", |a| Some(&mut a.slot_mapping)),
    ("k_scale", |a| scale_tensor(&mut a.cache.k_scale)),
    ("v_scale", |a| scale_tensor(&mut a.cache.v_scale)),
];
