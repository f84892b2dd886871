#!/usr/bin/env python3
"""Attention in NumPy, in float64: the smallest example of a peer, and a second opinion on every exported case.

    attest export 'decode bf16 kv=e4m3 h8/2 d64 page16 NHD q=[1] kv=[40] kscale=0.25 seed=7' -o case.safetensors
    scripts/peers/attention_numpy.py case.safetensors out.safetensors
    attest check case.safetensors --output out.safetensors

With `--wrong` the last key of every request is left out, which `attest check` must notice.
"""

import argparse
import platform

import numpy as np

from vectors import main, visible


def attend_head(q, k, v, mask, distance, sink, slope, about):
    """One head: q [q_len, d], k [kv_len, d], v [kv_len, dv], all scaled. Returns the output and the natural log of the sum."""
    scores = q @ k.T * about["softmax_scale"]
    if about["softcap"] is not None:
        scores = about["softcap"] * np.tanh(scores / about["softcap"])
    scores = np.where(mask, scores + slope * distance, -np.inf)
    largest = np.maximum(scores.max(axis=1, initial=-np.inf), sink)[:, None]
    largest = np.where(np.isneginf(largest), 0.0, largest)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True) + np.exp(sink - largest)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[:, 0]
    # A key that a row does not see must not reach it, whatever its value: 0 times NaN is NaN.
    if np.isfinite(v).all():
        out = weights @ v
    else:
        out = np.stack([weights[row, mask[row]] @ v[mask[row]] for row in range(len(q))])
    return out / np.where(total == 0.0, 1.0, total), lse


def attend(case, wrong):
    about = case.about
    q = case["q"].astype(np.float64)
    k = case["k"] * case["k_scale"][:, None].astype(np.float64)
    v = case["v"] * case["v_scale"][:, None].astype(np.float64)
    heads, group = about["num_q_heads"], about["num_q_heads"] // about["num_kv_heads"]
    sinks = case.tensors.get("sinks", np.full(heads, -np.inf))
    slopes = case.tensors.get("alibi_slopes", np.zeros(heads))
    out = np.zeros((len(q), heads, about["head_dim_v"]))
    lse = np.full((len(q), heads), -np.inf)
    for rows, keys in case.requests():
        positions, index, mask = visible(rows.stop - rows.start, keys.stop - keys.start, about)
        if wrong and mask.shape[1]:
            mask[:, -1] = False
        for head in range(heads):
            kv = head // group
            out[rows, head], lse[rows, head] = attend_head(
                q[rows, head], k[keys, kv], v[keys, kv], mask, index - positions, sinks[head], slopes[head], about
            )
    return {"out": out, "lse": lse}


def prepare(options):
    made_by = {"by": "numpy-f64", "on": "CPU", "versions": f"NumPy {np.__version__}, {platform.machine()}"}
    return lambda case: attend(case, options.wrong), made_by


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--wrong", action="store_true", help="leave out the last key of every request")
    main(arguments, prepare)
