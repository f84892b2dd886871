#!/usr/bin/env python3
"""Attention in NumPy for a case that `attest export` wrote: the smallest example of a peer.

    attest export 'decode bf16 kv=e4m3 h8/2 d64 page16 NHD q=[1] kv=[40] kscale=0.25 seed=7' -o case.safetensors
    scripts/peers/attention_numpy.py case.safetensors out.safetensors
    attest check case.safetensors --output out.safetensors

Needs NumPy only; a safetensors file is eight bytes of length, a JSON header and raw data. With `--wrong` the last key of every
request is left out, which `attest check` must notice.
"""

import argparse
import json

import numpy as np

PLAIN = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I32": np.int32, "U8": np.uint8}


def load(path):
    """The tensors of a safetensors file as arrays (bf16 widened to f32), and its description."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    description = json.loads(header.pop("__metadata__")["attest"])
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, PLAIN[entry["dtype"]])
        tensors[name] = values.reshape(entry["shape"])
    return tensors, description


def save(path, tensors):
    """Writes f32 arrays."""
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array, np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


def visible(q_len, kv_len, about):
    """Position of each row, and a mask [q_len, kv_len] of the keys that it sees. The last row stands at the last key."""
    positions = kv_len - q_len + np.arange(q_len)[:, None]
    keys = np.arange(kv_len)[None, :]
    mask = np.ones((q_len, kv_len), bool)
    if about["causal"]:
        mask &= keys <= positions
    if about["window_left"] is not None:
        mask &= keys >= positions - about["window_left"]
    if about["window_right"] is not None:
        mask &= keys <= positions + about["window_right"]
    return positions, keys, mask


def attend(q, k, v, mask, distance, sink, slope, about):
    """One head: q [q_len, d], k [kv_len, d], v [kv_len, dv], all scaled. Returns the output and the natural log of the sum."""
    scores = q @ k.T * about["softmax_scale"]
    if about["softcap"] is not None:
        scores = about["softcap"] * np.tanh(scores / about["softcap"])
    scores = np.where(mask, scores + slope * distance, -np.inf)
    largest = np.maximum(scores.max(axis=1, initial=-np.inf), sink)[:, None]
    largest = np.where(np.isfinite(largest), largest, 0.0)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True) + np.exp(sink - largest)
    with np.errstate(divide="ignore"):
        lse = (largest + np.log(total))[:, 0]
    return weights @ v / np.where(total == 0.0, 1.0, total), lse


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("case")
    arguments.add_argument("output")
    arguments.add_argument("--wrong", action="store_true", help="leave out the last key of every request")
    arguments = arguments.parse_args()
    case, about = load(arguments.case)
    q = case["q"].astype(np.float64)
    k = case["k"] * case["k_scale"][:, None].astype(np.float64)
    v = case["v"] * case["v_scale"][:, None].astype(np.float64)
    heads, group = about["num_q_heads"], about["num_q_heads"] // about["num_kv_heads"]
    sinks = case.get("sinks", np.full(heads, -np.inf))
    slopes = case.get("alibi_slopes", np.zeros(heads))
    out = np.zeros((len(q), heads, about["head_dim_v"]))
    lse = np.full((len(q), heads), -np.inf)
    for request, kv_len in enumerate(case["seq_lens"]):
        rows = slice(*case["query_start_loc"][request : request + 2])
        keys = slice(*case["kv_start_loc"][request : request + 2])
        positions, index, mask = visible(rows.stop - rows.start, kv_len, about)
        if arguments.wrong and kv_len:
            mask[:, -1] = False
        for head in range(heads):
            kv = head // group
            out[rows, head], lse[rows, head] = attend(
                q[rows, head], k[keys, kv], v[keys, kv], mask, index - positions, sinks[head], slopes[head], about
            )
    save(arguments.output, {"out": out, "lse": lse})


if __name__ == "__main__":
    main()
