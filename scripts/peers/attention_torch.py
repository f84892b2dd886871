#!/usr/bin/env python3
"""Attention in PyTorch, on the CPU, for a case that `attest export` wrote; used like attention_numpy.py.

Reads and writes with the reader of attention_numpy.py, so that it needs nothing but PyTorch and NumPy. The scores, the softmax
and the second product are PyTorch's, in f32.
"""

import sys

import numpy as np
import torch

from attention_numpy import load, save, visible


def main():
    case, about = load(sys.argv[1])
    tensor = lambda name: torch.from_numpy(np.array(case[name], np.float32))
    q, k_scale, v_scale = tensor("q"), tensor("k_scale"), tensor("v_scale")
    k, v = tensor("k") * k_scale[:, None], tensor("v") * v_scale[:, None]
    heads, group = about["num_q_heads"], about["num_q_heads"] // about["num_kv_heads"]
    out = torch.zeros(len(q), heads, about["head_dim_v"])
    lse = torch.full((len(q), heads), float("-inf"))
    for request, kv_len in enumerate(case["seq_lens"]):
        rows = slice(*case["query_start_loc"][request : request + 2])
        keys = slice(*case["kv_start_loc"][request : request + 2])
        if rows.start == rows.stop:
            continue
        positions, index, mask = visible(rows.stop - rows.start, kv_len, about)
        of_heads = lambda x: x[keys].transpose(0, 1).repeat_interleave(group, dim=0)
        scores = torch.matmul(q[rows].transpose(0, 1), of_heads(k).transpose(1, 2)) * about["softmax_scale"]
        if about["softcap"] is not None:
            scores = about["softcap"] * torch.tanh(scores / about["softcap"])
        if "alibi_slopes" in case:
            scores = scores + tensor("alibi_slopes")[:, None, None] * torch.from_numpy(index - positions).float()
        scores = scores.masked_fill(~torch.from_numpy(mask), float("-inf"))
        values = of_heads(v)
        if "sinks" in case:
            # A sink is one more key with a value of zero.
            sinks = tensor("sinks")[:, None, None].expand(heads, scores.shape[1], 1)
            scores = torch.cat([scores, sinks], dim=2)
            values = torch.cat([values, torch.zeros(heads, 1, values.shape[2])], dim=1)
        # A row that sees nothing gives 0. NaN in a key that is seen must stay NaN.
        blind = torch.isneginf(scores).all(dim=2, keepdim=True)
        weights = torch.softmax(scores, dim=2).masked_fill(blind, 0.0)
        out[rows] = torch.matmul(weights, values).transpose(0, 1)
        lse[rows] = torch.logsumexp(scores, dim=2).transpose(0, 1)
    save(sys.argv[2], {"out": out.numpy(), "lse": lse.numpy()})


if __name__ == "__main__":
    main()
