//! Numbers out of range.

use kernels::args::{AttentionArgs, Scale, StoreArgs};

use super::BadCall;

/// Values that are no scale, cap or factor.
const NOT_POSITIVE: [f32; 6] = [0.0, -0.0, -0.125, f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

fn bad<A: Clone>(
    accepted: &A,
    argument: &'static str,
    how: String,
    change: impl FnOnce(&mut A),
) -> BadCall<A> {
    let mut args = accepted.clone();
    change(&mut args);
    BadCall { argument, how, named: vec![argument], args }
}

pub(super) fn attention(accepted: &AttentionArgs) -> Vec<BadCall<AttentionArgs>> {
    let mut calls = Vec::new();
    for value in NOT_POSITIVE {
        let how = || format!("{value:?}");
        calls.push(bad(accepted, "softmax_scale", how(), |a| a.softmax_scale = value));
        calls.push(bad(accepted, "softcap", how(), |a| a.softcap = Some(value)));
        calls.push(bad(accepted, "k_scale", how(), |a| a.cache.k_scale = Scale::PerTensor(value)));
        calls.push(bad(accepted, "v_scale", how(), |a| a.cache.v_scale = Scale::PerTensor(value)));
    }
    for keys in [-1, -2, i64::MIN] {
        calls.push(bad(accepted, "window_left", keys.to_string(), |a| a.window_left = Some(keys)));
        calls.push(bad(accepted, "window_right", keys.to_string(), |a| a.window_right = Some(keys)));
    }
    for keys in [39, 0, 1 << 31, u64::MAX] {
        calls.push(bad(accepted, "max_seq_len", keys.to_string(), |a| a.max_seq_len = keys));
    }
    for rows in [3, 0] {
        calls.push(bad(accepted, "max_query_len", rows.to_string(), |a| a.max_query_len = rows));
    }
    calls.push(bad(accepted, "num_q_heads", "3 over 2 KV heads".to_owned(), |a| {
        (a.q.shape[1], a.out.shape[1]) = (3, 3);
    }));
    calls.push(bad(accepted, "num_q_heads", "1 over 2 KV heads".to_owned(), |a| {
        (a.q.shape[1], a.out.shape[1]) = (1, 1);
    }));
    calls
}

pub(super) fn store(accepted: &StoreArgs) -> Vec<BadCall<StoreArgs>> {
    let mut calls = Vec::new();
    for value in NOT_POSITIVE {
        let how = || format!("{value:?}");
        calls.push(bad(accepted, "k_scale", how(), |a| a.cache.k_scale = Scale::PerTensor(value)));
        calls.push(bad(accepted, "v_scale", how(), |a| a.cache.v_scale = Scale::PerTensor(value)));
    }
    if !accepted.cache.k.dtype.is_fp8() {
        let how = || "0.5 for a cache that is not fp8".to_owned();
        calls.push(bad(accepted, "k_scale", how(), |a| a.cache.k_scale = Scale::PerTensor(0.5)));
        calls.push(bad(accepted, "v_scale", how(), |a| a.cache.v_scale = Scale::PerTensor(0.5)));
    }
    calls
}
