#!/usr/bin/env python3
"""torch.nn.functional.scaled_dot_product_attention on exported cases, one backend at a time.

    scripts/peers/torch_sdpa.py SUITE --device cpu --backend math
    scripts/peers/torch_sdpa.py SUITE --device cuda --backend flash

Each request is one dense call on K and V of the query's type. What SDPA cannot express is skipped with the reason: an 8-bit
cache, softcap, sinks, an ALiBi bias (it would be rounded to 16 bits before it is added), and, for backends without masks, a
window or a causal mask that is not aligned as the backend does it. SDPA does not return the lse.
"""

import argparse

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from vectors import DeviceLost, Skip, main, visible, window

BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def mask_of(case, q_len, kv_len, device, backend):
    """The `attn_mask` and `is_causal` of a request, the plainest that say what the case says."""
    _, _, mask = visible(q_len, kv_len, case.about)
    if mask.all():
        return None, False
    windowed = any(window(case.about, side) is not None for side in ("window_left", "window_right"))
    if case.about["causal"] and not windowed:
        if q_len == kv_len:
            return None, True
        # SDPA's own flag aligns the mask with the first key; this subclass aligns it with the last one.
        if backend == "flash" and device == "cuda" and q_len <= kv_len:
            return causal_lower_right(q_len, kv_len), False
    if backend in ("flash", "cudnn") and device == "cuda":
        raise Skip("no mask but the causal one" if backend == "flash" else "no mask but the causal one of equal lengths")
    return torch.from_numpy(mask).to(device), False


def attend(case, device, backend):
    about = case.about
    if about["cache_format"] != about["query_format"]:
        raise Skip("no cache of another type than the query's")
    case.require(softcap=False, sinks=False)
    if "alibi_slopes" in case and about["query_format"] != "f32":
        raise Skip("an ALiBi bias would be rounded to the query's type")
    scale = about["softmax_scale"] * case.one_scale("k_scale")
    if case.one_scale("v_scale") != 1.0:
        raise Skip("no scale of V")
    dtype = TYPES[about["query_format"]]
    tensor = lambda array: torch.from_numpy(np.array(array, np.float32)).to(device, dtype)
    q, k, v = (tensor(case[name]) for name in "qkv")
    out = torch.zeros(len(q), about["num_q_heads"], about["head_dim_v"], dtype=dtype, device=device)
    for rows, keys in case.requests():
        q_len, kv_len = rows.stop - rows.start, keys.stop - keys.start
        if q_len == 0:
            continue
        mask, causal = mask_of(case, q_len, kv_len, device, backend)
        if "alibi_slopes" in case:
            mask, causal = bias_of(case, q_len, kv_len, device), False
        heads_first = lambda x: x.transpose(0, 1)[None]
        call = dict(attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=about["num_q_heads"] != about["num_kv_heads"])
        with sdpa_kernel(BACKENDS[backend]):
            result = torch.nn.functional.scaled_dot_product_attention(
                heads_first(q[rows]), heads_first(k[keys]), heads_first(v[keys]), **call
            )
        out[rows] = result[0].transpose(0, 1)
    out = out.cpu()
    return {"out": out.view(torch.uint16).numpy() if dtype == torch.bfloat16 else out.numpy()}


def bias_of(case, q_len, kv_len, device):
    """ALiBi and the mask as one f32 bias, [heads, q_len, kv_len]."""
    positions, keys, mask = visible(q_len, kv_len, case.about)
    bias = case["alibi_slopes"][:, None, None] * (keys - positions)[None]
    return torch.from_numpy(np.where(mask, bias, -np.inf).astype(np.float32))[None].to(device)


def refusals(compute):
    """A call that PyTorch refuses is a case that it cannot express; a device that is lost is not."""

    def wrapped(case):
        try:
            return compute(case)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            words = str(error).strip().splitlines() or [type(error).__name__]
            if "CUDA error" in words[0] or "CUDNN" in words[0].upper() and "EXECUTION" in words[0].upper():
                raise DeviceLost(words[0]) from error
            raise Skip(f"refused: {words[0][:160]}") from error

    return wrapped


def prepare(options):
    device = options.device
    on = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    versions = f"PyTorch {torch.__version__}" + ("" if device == "cuda" else f", {torch.backends.cpu.get_cpu_capability()}")
    if options.backend == "cudnn":
        versions += f", cuDNN {torch.backends.cudnn.version()}"
    torch.set_num_threads(1)
    made_by = {"by": f"pytorch-sdpa-{options.backend}", "on": on, "versions": versions}
    return refusals(lambda case: attend(case, device, options.backend)), made_by


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--backend", choices=sorted(BACKENDS), default="math")
    main(arguments, prepare)
