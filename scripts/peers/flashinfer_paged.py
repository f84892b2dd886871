#!/usr/bin/env python3
"""FlashInfer's paged attention on exported cases.

    scripts/peers/flashinfer_paged.py SUITE --backend fa2
    scripts/peers/flashinfer_paged.py SUITE --backend fa3 --modules modules/

The cache, its strides and its pages are used as they are: the cases' own bytes, with NaN in everything that no request owns.
Every combination of types, head_dim, window, softcap and ALiBi is a module that FlashInfer compiles at its first use, which takes
a minute or so; `--modules` keeps them. `--list` says which modules a suite needs instead of computing anything, and `--most N`
leaves cases out that need any but the N most wanted modules.

FlashInfer gives its lse in base 2; it is multiplied by ln 2 here, in float64. With `--unowned zero` the NaN in the cache becomes
zero, which tells a kernel that computes something wrong from one that multiplies what it should not have read by zero.
"""

import argparse
import collections
import json
import os
import sys
from pathlib import Path

import numpy as np

from vectors import SIZES, Case, DeviceLost, Skip, main, visible, window

HEAD_DIMS = (64, 128, 192, 256)


def module_of(case, backend):
    """What selects a module; raises Skip for what the library does not serve."""
    about = case.about
    case.require(sinks=False, unequal_dims=False)
    q, kv, dim = about["query_format"], about["cache_format"], about["head_dim"]
    if q == "f32":
        raise Skip("no f32 query")
    if kv == "f32" or (SIZES[kv] == 2 and kv != q):
        raise Skip("no 16-bit cache of another type than the query's")
    if dim not in HEAD_DIMS:
        raise Skip(f"no head_dim {dim}")
    alibi = "alibi_slopes" in case
    if backend == "fa3":
        if kv != q:
            raise Skip("FA3 reads an 8-bit cache under an 8-bit query only")
        case.require(alibi=False, window_right=False)
        if dim == 192:
            raise Skip("FA3 has head_dim 192 for K with 128 for V only")
    windowed = window(about, "window_left") is not None and not needs_mask(about)
    return q, kv, dim, "alibi" if alibi else "", "window" if windowed else "", "softcap" if about["softcap"] is not None else ""


def needs_mask(about):
    """FlashInfer knows causal and a left window; a right window takes a mask of bits."""
    return window(about, "window_right") is not None


def cache_views(case, zeroed, torch):
    """K and V as [pages, page, heads, dim] (or heads before the slots) with the case's strides, over the case's own bytes."""
    about = case.about
    views = []
    packed = "kv_cache" in case
    types = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    buffers = {}
    for side, dim in (("k", about["head_dim"]), ("v", about["head_dim_v"])):
        name = "kv_cache" if packed else f"{side}_cache"
        if name not in buffers:
            raw = without_nan(case[name], about["cache_format"]) if zeroed else np.array(case[name])
            buffers[name] = torch.from_numpy(raw).cuda().view(types[about["cache_format"]])
        view = about[f"{side}_view"]
        shape = [about["num_pages"], about["page_size"], about["num_kv_heads"], dim]
        strides = [view["page_stride"], view["slot_stride"], view["head_stride"], 1]
        if hnd(about):
            shape[1], shape[2] = shape[2], shape[1]
            strides[1], strides[2] = strides[2], strides[1]
        views.append(buffers[name].as_strided(shape, strides, view["offset"]))
    return tuple(views)


def without_nan(raw, kind):
    """The bytes of a cache with zero for every NaN."""
    largest = {"bf16": 0x7F80, "f16": 0x7C00, "e4m3": 0x7E, "e5m2": 0x7C}[kind]
    values = np.array(raw).view(np.uint16 if SIZES[kind] == 2 else np.uint8)
    values[(values & (0x7FFF if SIZES[kind] == 2 else 0x7F)) > largest] = 0
    return values.view(np.uint8)


def hnd(about):
    return " HND" in about["case"]


def page_lists(case):
    """indptr, indices and last_page_len as FlashInfer wants them. A request without keys has no page and a last length of 0."""
    page = case.about["page_size"]
    lens = case["seq_lens"].astype(np.int64)
    counts = -(-lens // page)
    indices = [case["block_table"][r, : counts[r]] for r in range(len(lens))]
    last = np.where(lens > 0, lens - (np.maximum(counts, 1) - 1) * page, 0)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return indptr.astype(np.int32), np.concatenate(indices or [[]]).astype(np.int32), last.astype(np.int32)


def library_slopes(heads):
    """The slopes that FlashInfer takes for ALiBi, which it does not let its caller choose: 2^(-8 i / n) for the largest power of two
    n of heads, and every second one of the next power for the rest."""
    n = 1 << (heads.bit_length() - 1)
    first = 2.0 ** (-8.0 * np.arange(1, n + 1) / n)
    return np.concatenate([first, 2.0 ** (-4.0 * np.arange(1, 2 * (heads - n) + 1, 2) / n)])


def attend(case, options, wanted, workspace, torch, flashinfer):
    about = case.about
    backend = options.backend
    module = module_of(case, backend)
    if options.unowned == "zero" and (np.isnan(case["k"]).any() or np.isnan(case["v"]).any()):
        raise Skip("NaN among the keys")
    if wanted is not None and list(module) not in wanted:
        raise Skip("needs a module that was not compiled for this run: " + " ".join(filter(None, map(str, module))))
    if len(case["q"]) == 0:
        raise Skip("no query row")
    if "alibi" in module and not np.allclose(case["alibi_slopes"], library_slopes(about["num_q_heads"]), rtol=1e-6):
        raise Skip("ALiBi with other slopes than the library's own")
    types = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
    k_scale, v_scale = case.one_scale("k_scale"), case.one_scale("v_scale")
    indptr, indices, last = (torch.from_numpy(array).cuda() for array in page_lists(case))
    q = torch.from_numpy(np.array(case["q"], np.float32)).cuda().to(types[about["query_format"]])
    mask = None
    if needs_mask(about):
        lengths = zip(*case.lengths)
        parts = [visible(int(q_len), int(kv_len), about)[2].reshape(-1) for q_len, kv_len in lengths]
        mask = torch.from_numpy(np.concatenate(parts)).cuda()
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND" if hnd(about) else "NHD", backend=backend)
    wrapper.plan(
        torch.from_numpy(np.array(case["query_start_loc"])).cuda(), indptr, indices, last,
        about["num_q_heads"], about["num_kv_heads"], about["head_dim"], about["page_size"],
        custom_mask=mask,
        causal=about["causal"] and mask is None,
        pos_encoding_mode="ALIBI" if "alibi" in module else "NONE",
        sm_scale=about["softmax_scale"],
        window_left=about["window_left"] if "window" in module else -1,
        logits_soft_cap=about["softcap"],
        q_data_type=q.dtype, kv_data_type=types[about["cache_format"]],
    )
    # What is not written must not look right.
    out = torch.full_like(q, float("nan"))
    lse = torch.full(q.shape[:2], float("nan"), device="cuda")
    scales = {} if k_scale == v_scale == 1.0 else {"k_scale": k_scale, "v_scale": v_scale}
    wrapper.run(q, cache_views(case, options.unowned == "zero", torch), out=out, lse=lse, return_lse=True, **scales)
    torch.cuda.synchronize()
    out = out.cpu()
    result = {"out": out.view(torch.uint16).numpy() if out.dtype == torch.bfloat16 else out.numpy()}
    result["lse"] = lse.cpu().numpy().astype(np.float64) * np.log(2.0)
    return result


def refusals(compute):
    """A call that FlashInfer refuses is a case that it cannot express; a device that is lost is not."""

    def wrapped(case):
        try:
            return compute(case)
        except Skip:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the library raises is its refusal, told apart by its words
            words = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if "CUDA error" in str(error) or "illegal memory access" in str(error):
                raise DeviceLost(words) from error
            raise Skip(f"refused: {words[:160]}") from error

    return wrapped


def wanted_modules(directory, backend):
    """Modules by how many cases of the suite need them, the most wanted first."""
    counts = collections.Counter()
    for entry in json.loads((directory / "suite.json").read_text())["cases"]:
        try:
            counts[module_of(Case(directory / f"{entry['id']}.safetensors"), backend)] += 1
        except Skip:
            pass
    return counts.most_common()


def choose_modules(options):
    """Lists the modules of a suite, or leaves the less wanted ones out."""
    if options.list:
        for module, count in wanted_modules(options.case, options.backend):
            print(count, " ".join(filter(None, map(str, module))))
        sys.exit()
    if options.most:
        most = [module for module, _ in wanted_modules(options.case, options.backend)[: options.most]]
        os.environ["FLASHINFER_WANTED"] = json.dumps(most)


def prepare(options):
    if options.modules:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = str(options.modules.resolve())
    import flashinfer
    import torch

    wanted = json.loads(os.environ["FLASHINFER_WANTED"]) if "FLASHINFER_WANTED" in os.environ else None
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    made_by = {
        "by": f"flashinfer-{options.backend}" + ("-zeroed" if options.unowned == "zero" else ""),
        "on": torch.cuda.get_device_name(),
        "versions": f"FlashInfer {flashinfer.__version__}, PyTorch {torch.__version__}",
    }
    compute = refusals(lambda case: attend(case, options, wanted, workspace, torch, flashinfer))
    return compute, made_by


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--backend", choices=("fa2", "fa3"), default="fa2")
    arguments.add_argument("--unowned", choices=("nan", "zero"), default="nan", help="what the cache holds where no request owns it")
    arguments.add_argument("--modules", type=Path, metavar="DIR", help="where compiled modules are kept")
    arguments.add_argument("--most", type=int, metavar="N", help="only cases of the N most wanted modules")
    arguments.add_argument("--list", action="store_true", help="list the modules that a suite needs")
    main(arguments, prepare, choose_modules)
