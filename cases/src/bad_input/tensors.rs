//! Tensors of a wrong type, rank, length, stride or alignment, and tensors that leave their memory.

use kernels::args::{AttentionArgs, StoreArgs};
use kernels::device::DevicePtr;
use kernels::tensor::{DType, DeviceTensor};

use super::{ATTENTION_TENSORS, Access, BadCall, STORE_TENSORS};

/// A way to spoil a tensor; `false` where this tensor cannot be spoiled so.
type Spoil = fn(&mut DeviceTensor) -> bool;

const SPOILS: [(&str, Spoil); 17] = [
    ("of i64 or i32", |t| {
        t.dtype = if t.dtype == DType::I64 { DType::I32 } else { DType::I64 };
        true
    }),
    ("one axis fewer", |t| {
        t.shape.pop();
        t.strides.pop();
        true
    }),
    ("one axis more", |t| {
        t.shape.push(1);
        t.strides.push(1);
        true
    }),
    ("one stride fewer", |t| t.strides.pop().is_some()),
    ("one longer", |t| {
        t.shape[0] += 1;
        t.allocation.bytes *= 2;
        true
    }),
    ("one shorter", |t| {
        t.shape[0] -= 1;
        true
    }),
    ("of more elements than 32 bits count", |t| {
        t.shape[0] = 1 << 31;
        true
    }),
    ("a last stride of 2", |t| {
        t.strides[t.shape.len() - 1] = 2;
        true
    }),
    ("a negative first stride", |t| {
        t.strides[0] = -t.strides[0];
        true
    }),
    ("a stride past 63 bits", |t| {
        t.strides[0] = i64::MAX;
        true
    }),
    ("a stride that leaves the allocation", |t| {
        t.strides[0] += 1;
        true
    }),
    ("an unaligned offset", |t| {
        t.offset += 1;
        t.allocation.bytes += t.dtype.size_bytes();
        t.dtype.size_bytes() > 1
    }),
    ("an offset that leaves the allocation", |t| {
        t.offset += t.dtype.size_bytes();
        true
    }),
    ("an offset past 64 bits", |t| {
        t.offset = u64::MAX - 7;
        true
    }),
    ("an allocation one byte short", |t| {
        t.allocation.bytes -= 1;
        true
    }),
    ("a null allocation", |t| {
        t.allocation.ptr = DevicePtr::NULL;
        true
    }),
    ("an address past 64 bits", |t| {
        t.allocation.ptr = DevicePtr(u64::MAX - 3);
        true
    }),
];

/// Tensors that two elements of an output may not share; only outputs are spoiled so.
const OVERLAP: (&str, Spoil) = ("a first stride of 0", |t| {
    t.strides[0] = 0;
    t.shape[0] > 1
});

/// An extent of 0 where there must be something: argument, axis, and the name under which it is refused.
const ATTENTION_ZEROS: [(&str, usize, &str); 8] = [
    ("q", 1, "num_q_heads"),
    ("q", 2, "head_dim_k"),
    ("k_cache", 1, "page_size"),
    ("k_cache", 2, "num_kv_heads"),
    ("k_cache", 3, "k_cache"),
    ("v_cache", 3, "head_dim_v"),
    ("out", 2, "out"),
    ("sinks", 0, "sinks"),
];
const STORE_ZEROS: [(&str, usize, &str); 4] =
    [("k", 1, "num_kv_heads"), ("k", 2, "head_dim_k"), ("v", 2, "head_dim_v"), ("k_cache", 1, "page_size")];

pub(super) fn attention(accepted: &AttentionArgs) -> Vec<BadCall<AttentionArgs>> {
    // Sizes that define others: the tensor that no longer fits is named in their place.
    let also = |argument: &str| match argument {
        "q" => vec!["out", "lse"],
        "k_cache" => vec!["v_cache"],
        "seq_lens" => vec!["query_start_loc", "block_table"],
        _ => Vec::new(),
    };
    let mut calls = spoiled(accepted, &ATTENTION_TENSORS, also);
    calls.extend(overlapping(accepted, &ATTENTION_TENSORS, &["out", "lse"]));
    calls.extend(empty(accepted, &ATTENTION_TENSORS, &ATTENTION_ZEROS));
    calls
}

pub(super) fn store(accepted: &StoreArgs) -> Vec<BadCall<StoreArgs>> {
    let also = |argument: &str| match argument {
        // Fewer rows than slots: the slots are too many.
        "k" => vec!["v", "slot_mapping", "k_cache"],
        "k_cache" => vec!["v_cache"],
        "slot_mapping" => vec!["host_slot_mapping"],
        _ => Vec::new(),
    };
    let mut calls = spoiled(accepted, &STORE_TENSORS, also);
    calls.extend(overlapping(accepted, &STORE_TENSORS, &["k_cache", "v_cache"]));
    calls.extend(empty(accepted, &STORE_TENSORS, &STORE_ZEROS));
    calls
}

fn spoiled<A: Clone>(
    accepted: &A,
    tensors: &[(&'static str, Access<A>)],
    also: impl Fn(&str) -> Vec<&'static str>,
) -> Vec<BadCall<A>> {
    let mut calls = Vec::new();
    for (argument, access) in tensors {
        for (how, spoil) in SPOILS {
            let mut args = accepted.clone();
            if access(&mut args).is_some_and(spoil) {
                let mut named = vec![*argument];
                named.extend(also(argument));
                calls.push(BadCall { argument, how: how.to_owned(), named, args });
            }
        }
    }
    calls
}

fn overlapping<A: Clone>(
    accepted: &A,
    tensors: &[(&'static str, Access<A>)],
    outputs: &[&str],
) -> Vec<BadCall<A>> {
    let (how, spoil) = OVERLAP;
    let written = tensors.iter().filter(|(argument, _)| outputs.contains(argument));
    let spoiled = written.filter_map(|(argument, access)| {
        let mut args = accepted.clone();
        let applies = access(&mut args).is_some_and(spoil);
        applies.then(|| BadCall { argument, how: how.to_owned(), named: vec![*argument], args })
    });
    spoiled.collect()
}

fn empty<A: Clone>(
    accepted: &A,
    tensors: &[(&'static str, Access<A>)],
    zeros: &[(&'static str, usize, &'static str)],
) -> Vec<BadCall<A>> {
    let mut calls = Vec::new();
    for (argument, axis, named) in zeros {
        let access = tensors.iter().find(|(name, _)| name == argument).expect("a tensor of the call").1;
        let mut args = accepted.clone();
        if let Some(tensor) = access(&mut args) {
            tensor.shape[*axis] = 0;
            calls.push(BadCall {
                argument,
                how: format!("axis {axis} of extent 0"),
                named: vec![*named],
                args,
            });
        }
    }
    calls
}
