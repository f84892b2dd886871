#!/usr/bin/env python3
"""Times one peer on the bench's problems and prints a JSON line for each.

    scripts/peers/times.py flashinfer-fa2|flashinfer-fa3|torch-flash|torch-cudnn [--modules DIR] [--lock FILE]

Each line has the problem as `attest bench` names it, the cache, the median milliseconds of one call, and the largest error of
sampled rows against PyTorch in f32, on the inputs that were timed. With --lock, processes that compile at the same time take
turns on the card. Decode is timed as the replay of a captured graph over rotating caches, as the bench does it.
"""

import argparse
import contextlib
import fcntl
import json
import math
import os

import torch

# As the presets `prefill` and `decode` of `attest bench`: query heads, KV heads, head_dim, batch, query rows, keys.
PREFILL = [(32, 4, 256, 1, 8192, 8192), (32, 4, 256, 1, 2048, 32768), (32, 8, 128, 1, 8192, 8192), (32, 8, 128, 1, 2048, 32768)]
DECODE = [(32, 8, 128, 1, 1, 32768), (32, 8, 128, 16, 1, 8192), (32, 8, 128, 64, 1, 4096), (24, 4, 256, 64, 1, 4096)]
PAGE = 32
ROUNDS = 15
CACHES = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


class NotServed(Exception):
    """The peer does not serve the problem; the message says what it lacks."""


def size_line(heads, kv_heads, dim, batch, q_len, kv_len):
    return f"h{heads}/{kv_heads} d{dim} page{PAGE} b{batch} q{q_len} kv{kv_len}"


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


class Inputs:
    """Shuffled pages of random numbers, in copies that together are larger than the card's cache."""

    def __init__(self, problem, dtype):
        self.heads, self.kv_heads, self.dim, self.batch, self.q_len, self.kv_len = problem
        pages = self.batch * self.kv_len // PAGE
        torch.manual_seed(1)
        shape = (pages, PAGE, self.kv_heads, self.dim)
        random = lambda: torch.randn(shape, device="cuda", dtype=torch.bfloat16).to(dtype)
        copies = 1 if self.batch * self.kv_len > 100_000 or self.q_len > 1 else 4
        self.caches = [(random(), random()) for _ in range(copies)]
        self.indices = torch.randperm(pages, device="cuda", dtype=torch.int32)
        self.indptr = torch.arange(0, pages + 1, self.kv_len // PAGE, device="cuda", dtype=torch.int32)
        self.last = torch.full((self.batch,), PAGE, device="cuda", dtype=torch.int32)
        self.q = torch.randn(self.batch * self.q_len, self.heads, self.dim, device="cuda", dtype=torch.bfloat16)

    def dense(self):
        """K and V of the first request in order, [kv_len, kv_heads, dim], bf16."""
        pages = self.indices[: self.kv_len // PAGE].long()
        return tuple(t[pages].to(torch.bfloat16).reshape(self.kv_len, self.kv_heads, self.dim) for t in self.caches[0])

    def error(self, out):
        """Largest error of some rows of the first request."""
        group = self.heads // self.kv_heads
        k, v = (t.float().repeat_interleave(group, 1) for t in self.dense())
        worst = 0.0
        for row in {0, 1, self.q_len // 2, self.q_len - 1} & set(range(self.q_len)):
            seen = self.kv_len - self.q_len + row + 1
            scores = torch.einsum("hd,khd->hk", self.q[row].float(), k[:seen]) / math.sqrt(self.dim)
            want = torch.einsum("hk,khd->hd", torch.softmax(scores, -1), v[:seen])
            worst = max(worst, (out[row].float() - want).abs().max().item())
        return worst


def flashinfer(problem, cache, backend):
    import flashinfer as library

    if backend == "fa3" and cache != "bf16":
        raise NotServed("FA3 reads an 8-bit cache under an 8-bit query only")
    inputs = Inputs(problem, CACHES[cache])
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    shape = (inputs.heads, inputs.kv_heads, inputs.dim, PAGE)
    types = {"q_data_type": torch.bfloat16, "kv_data_type": CACHES[cache]}
    if inputs.q_len == 1:
        if backend == "fa3":
            raise NotServed("FA3 has no decode of its own")
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(inputs.indptr, inputs.indices, inputs.last, *shape, **types)
        error = inputs.error(wrapper.run(inputs.q, inputs.caches[0]))
        return graph_ms(lambda i: wrapper.run(inputs.q, inputs.caches[i % len(inputs.caches)])), error
    wrapper = library.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend=backend)
    starts = torch.tensor([0, inputs.q_len], device="cuda", dtype=torch.int32)
    wrapper.plan(starts, inputs.indptr, inputs.indices, inputs.last, *shape, causal=True, **types)
    error = inputs.error(wrapper.run(inputs.q, inputs.caches[0]))
    return median_ms(lambda: wrapper.run(inputs.q, inputs.caches[0])), error


def sdpa(problem, cache, backend):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    chosen = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    if cache != "bf16":
        raise NotServed("SDPA reads no 8-bit cache")
    inputs = Inputs(problem, torch.bfloat16)
    if inputs.q_len == 1:
        raise NotServed("SDPA reads no pages; a batch of decodes would be timed on copied caches")
    if inputs.q_len != inputs.kv_len and backend == "cudnn":
        raise NotServed("cuDNN's causal mask in SDPA is for equal lengths")
    q, (k, v) = inputs.q, inputs.dense()
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    mask = {"is_causal": True} if inputs.q_len == inputs.kv_len else {"attn_mask": causal_lower_right(inputs.q_len, inputs.kv_len)}
    call = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **mask)
    with sdpa_kernel(chosen):
        error = inputs.error(call()[0].transpose(0, 1))
        return median_ms(call), error


PEERS = {
    "flashinfer-fa2": lambda problem, cache: flashinfer(problem, cache, "fa2"),
    "flashinfer-fa3": lambda problem, cache: flashinfer(problem, cache, "fa3"),
    "torch-flash": lambda problem, cache: sdpa(problem, cache, "flash"),
    "torch-cudnn": lambda problem, cache: sdpa(problem, cache, "cudnn"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--modules", help="where FlashInfer keeps what it compiles")
    parser.add_argument("--lock", help="a file whose lock is held while something is timed")
    options = parser.parse_args()
    if options.modules:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = os.path.abspath(options.modules)
    for problem in PREFILL + DECODE:
        for cache in CACHES:
            line = {"peer": options.peer, "problem": size_line(*problem), "cache": cache}
            with open(options.lock, "w") if options.lock else contextlib.nullcontext() as lock:
                if lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                try:
                    line["ms"], line["error"] = PEERS[options.peer](problem, cache)
                except NotServed as why:
                    line["not_served"] = str(why)
                except RuntimeError as error:
                    line["refused"] = str(error).strip().splitlines()[0][:160]
                torch.cuda.empty_cache()
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
