#!/usr/bin/env python3
"""Times FlashInfer on the bench's problems, after comparing its output with PyTorch in f32 on sampled rows.

    flashinfer_times.py HEAD_DIM bf16|e4m3 [--lock FILE]

Prints one line per problem: the problem as `attest bench` names it, the cache, the milliseconds of one call (median),
and the largest absolute error. With --lock, processes that compile at the same time take turns on the card.
"""
import argparse
import contextlib
import fcntl
import math

import flashinfer
import torch

PREFILL = {256: [(32, 4, 8192, 8192), (32, 4, 2048, 32768)], 128: [(32, 8, 8192, 8192), (32, 8, 2048, 32768)]}
DECODE = {256: [(24, 4, 64, 4096)], 128: [(32, 8, 1, 32768), (32, 8, 16, 8192), (32, 8, 64, 4096)]}
PAGE = 32
ROUNDS = 15


def median_ms(call):
    for _ in range(3):
        call()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(ROUNDS)]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in events)[ROUNDS // 2]


def graph_ms(call, calls=16):
    for _ in range(3):
        call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    return median_ms(graph.replay) / calls


def cache(batch, kv_len, heads, dim, dtype, copies):
    pages = batch * kv_len // PAGE
    torch.manual_seed(1)
    made = []
    for _ in range(copies):
        k, v = (torch.randn(pages, PAGE, heads, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        made.append((k.to(dtype), v.to(dtype)))
    indices = torch.randperm(pages, device="cuda", dtype=torch.int32)
    indptr = torch.arange(0, pages + 1, kv_len // PAGE, device="cuda", dtype=torch.int32)
    last = torch.full((batch,), PAGE, device="cuda", dtype=torch.int32)
    return made, indptr, indices, last


def error(q, kv, indices, out, rows, kv_len, first_page, row_offset):
    """Largest error of the rows of one request."""
    group = q.shape[1] // kv[0].shape[2]
    pages = indices[first_page : first_page + kv_len // PAGE].long()
    k, v = (t[pages].to(torch.float32).reshape(kv_len, t.shape[2], t.shape[3]).repeat_interleave(group, 1) for t in kv)
    worst = 0.0
    for row, position in rows:
        scores = torch.einsum("hd,khd->hk", q[row].float(), k[: position + 1]) / math.sqrt(q.shape[2])
        want = torch.einsum("hk,khd->hd", torch.softmax(scores, -1), v[: position + 1])
        worst = max(worst, (out[row].float() - want).abs().max().item())
    return worst


def prefill(dim, dtype, workspace, heads, kv_heads, q_len, kv_len):
    (kv,), indptr, indices, last = cache(1, kv_len, kv_heads, dim, dtype, 1)
    q = torch.randn(q_len, heads, dim, device="cuda", dtype=torch.bfloat16)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    starts = torch.tensor([0, q_len], device="cuda", dtype=torch.int32)
    wrapper.plan(starts, indptr, indices, last, heads, kv_heads, dim, PAGE, causal=True,
                 q_data_type=torch.bfloat16, kv_data_type=dtype)
    out = wrapper.run(q, kv)
    rows = [(r, r + kv_len - q_len) for r in (0, 1, q_len // 2, q_len - 1)]
    return lambda: median_ms(lambda: wrapper.run(q, kv)), error(q, kv, indices, out, rows, kv_len, 0, 0)


def decode(dim, dtype, workspace, heads, kv_heads, batch, kv_len):
    copies = 1 if batch * kv_len > 100_000 else 4
    made, indptr, indices, last = cache(batch, kv_len, kv_heads, dim, dtype, copies)
    q = torch.randn(batch, heads, dim, device="cuda", dtype=torch.bfloat16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(indptr, indices, last, heads, kv_heads, dim, PAGE, q_data_type=torch.bfloat16, kv_data_type=dtype)
    out = wrapper.run(q, made[0])
    worst = error(q, made[0], indices, out, [(0, kv_len - 1)], kv_len, 0, 0)
    return lambda: graph_ms(lambda i: wrapper.run(q, made[i % copies])), worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dim", type=int, choices=(128, 256))
    parser.add_argument("cache", choices=("bf16", "e4m3"))
    parser.add_argument("--lock")
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.cache == "bf16" else torch.float8_e4m3fn
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    decodes = [(f"h{h}/{k} d{options.dim} page{PAGE} b{b} q1 kv{n}", (h, k, b, n)) for h, k, b, n in DECODE[options.dim]]
    prefill(options.dim, dtype, workspace, *PREFILL[options.dim][0])  # compiles
    decode(options.dim, dtype, workspace, *decodes[0][1])
    with open(options.lock, "w") if options.lock else contextlib.nullcontext() as lock:
        if lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        for h, k, q, n in PREFILL[options.dim]:
            time, worst = prefill(options.dim, dtype, workspace, h, k, q, n)
            print(f"h{h}/{k} d{options.dim} page{PAGE} b1 q{q} kv{n} | {options.cache} | {time():.4f} | {worst:.1e}", flush=True)
        for name, shape in decodes:
            time, worst = decode(options.dim, dtype, workspace, *shape)
            print(f"{name} | {options.cache} | {time():.4f} | {worst:.1e}", flush=True)


if __name__ == "__main__":
    main()
