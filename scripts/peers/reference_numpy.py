#!/usr/bin/env python3
"""Times blocked NumPy attention, and PyTorch's SDPA where it is installed, on the shapes of the reference bench.

Prints GFLOP/s with causal attention counted as 4*Hq*D*T^2/2, median of several runs, in the form in which
`cargo bench -p oracle` prints its own.
"""

import statistics
import time

import numpy as np

SHAPES = [(8, 2, 128, 1024), (8, 2, 128, 4096), (32, 4, 256, 1024)]
ROWS = 256
REPEATS = 5


def attend(q, k, v):
    """Causal attention of q [Hq, T, D] over k, v [Hkv, T, D], in blocks of rows; keys past a block are skipped."""
    heads, length, dim = q.shape
    group = heads // k.shape[0]
    scale = q.dtype.type(dim**-0.5)
    out = np.empty_like(q)
    for head in range(heads):
        keys, values = k[head // group], v[head // group]
        for start in range(0, length, ROWS):
            end = min(start + ROWS, length)
            scores = (q[head, start:end] * scale) @ keys[:end].T
            rows = np.arange(start, end)[:, None]
            scores[:, start:end][np.arange(start, end)[None, :] > rows] = -np.inf
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            out[head, start:end] = scores @ values[:end]
            out[head, start:end] /= scores.sum(axis=1, keepdims=True)
    return out


def median_seconds(work):
    work()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def report(shape, what, seconds):
    heads, kv_heads, dim, length = shape
    flop = 4 * heads * dim * length**2 / 2
    print(
        f"{heads}/{kv_heads} d{dim} T {length:<5} {what:<22} {seconds * 1e3:9.1f} ms {flop / seconds / 1e9:7.1f} GFLOP/s",
        flush=True,
    )


def main():
    try:
        import torch
    except ImportError:
        torch = None
        print("PyTorch is not installed: its SDPA is not timed")
    for shape in SHAPES:
        heads, kv_heads, dim, length = shape
        rng = np.random.default_rng(0)
        for dtype in (np.float32, np.float64):
            q = rng.standard_normal((heads, length, dim)).astype(dtype)
            k = rng.standard_normal((kv_heads, length, dim)).astype(dtype)
            v = rng.standard_normal((kv_heads, length, dim)).astype(dtype)
            name = "f32" if dtype is np.float32 else "f64"
            report(shape, f"NumPy {name}", median_seconds(lambda: attend(q, k, v)))
            if torch is not None:
                tensors = [torch.from_numpy(array)[None] for array in (q, k, v)]
                sdpa = torch.nn.functional.scaled_dot_product_attention
                work = lambda: sdpa(*tensors, is_causal=True, enable_gqa=True)
                report(shape, f"PyTorch SDPA {name}", median_seconds(work))


if __name__ == "__main__":
    main()
