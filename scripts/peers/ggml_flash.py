#!/usr/bin/env python3
"""ggml's flash attention on the CPU (`ggml_flash_attn_ext`) on exported cases, through the libraries of the package
`libggml-python`.

    pip install libggml-python
    scripts/peers/ggml_flash.py SUITE                 K and V in the case's own 16- or 32-bit type
    scripts/peers/ggml_flash.py SUITE --cache q8_0    K and V as q8_0, where that is exact

A request is one call with a query in f32, which is what ggml takes, and the mask that says what the case says. ggml has no fp8.
With `--cache q8_0` a case is expressed only if every block of 32 values of K and V is a power of two times integers up to 127:
then its q8_0 is the case's own numbers, and what is judged is the attention. ggml gives no lse.
"""

import argparse
import ctypes
import importlib.util
from pathlib import Path

import numpy as np

from vectors import Skip, main, visible

F32, F16, Q8_0, BF16 = 0, 1, 8, 30
TYPES = {"f32": F32, "f16": F16, "bf16": BF16}
BLOCK = 32


class InitParams(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """The few functions that are needed."""

    def __init__(self):
        spec = importlib.util.find_spec("libggml")
        if spec is None:
            raise SystemExit("the package libggml-python is not installed")
        folder = next(Path(spec.submodule_search_locations[0]).glob("lib*/libggml-base.so.0")).parent
        self.base = ctypes.CDLL(str(folder / "libggml-base.so.0"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so.0"), mode=ctypes.RTLD_GLOBAL)
        pointer, i64, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
        for name, result, arguments in (
            ("ggml_init", pointer, [InitParams]),
            ("ggml_free", None, [pointer]),
            ("ggml_new_tensor_4d", pointer, [pointer, ctypes.c_int, i64, i64, i64, i64]),
            ("ggml_get_data", pointer, [pointer]),
            ("ggml_nbytes", ctypes.c_size_t, [pointer]),
            ("ggml_flash_attn_ext", pointer, [pointer] * 5 + [f32] * 3),
            ("ggml_flash_attn_ext_add_sinks", None, [pointer, pointer]),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
            ("ggml_version", ctypes.c_char_p, []),
            ("ggml_commit", ctypes.c_char_p, []),
        ):
            function = getattr(self.base, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.compute = self.cpu.ggml_graph_compute_with_ctx
        self.compute.restype, self.compute.argtypes = ctypes.c_int, [pointer, pointer, ctypes.c_int]
        self.cpu.ggml_cpu_init()

    def tensor(self, context, kind, shape, data):
        """A tensor of up to four dims, the fastest first, filled with bytes."""
        tensor = self.ggml_new_tensor_4d(context, kind, *(list(shape) + [1] * (4 - len(shape))))
        data = np.ascontiguousarray(data)
        assert self.ggml_nbytes(tensor) == data.nbytes, (shape, data.nbytes)
        ctypes.memmove(self.ggml_get_data(tensor), data.ctypes.data, data.nbytes)
        return tensor

    def attention(self, q, k, v, kind, mask, scale, max_bias, softcap, sinks):
        """q [rows, heads, d] f32; k and v of `kind`, heads first; mask [rows, keys] f16. Returns [rows, heads, dv] f32."""
        rows, heads, dim = q.shape
        (k, k_shape), (v, v_shape) = k, v
        size = 2 * (q.nbytes + k.nbytes + v.nbytes + mask.nbytes + rows * heads * v_shape[0] * 4) + (64 << 20)
        context = self.ggml_init(InitParams(size, None, False))
        try:
            tensors = [
                self.tensor(context, F32, (dim, rows, heads), q.transpose(1, 0, 2).astype(np.float32)),
                self.tensor(context, kind, k_shape, k),
                self.tensor(context, kind, v_shape, v),
                self.tensor(context, F16, mask.shape[::-1], mask),
            ]
            out = self.ggml_flash_attn_ext(context, *tensors, scale, max_bias, softcap)
            if sinks is not None:
                self.ggml_flash_attn_ext_add_sinks(out, self.tensor(context, F32, (heads,), sinks.astype(np.float32)))
            graph = self.ggml_new_graph(context)
            self.ggml_build_forward_expand(graph, out)
            status = self.compute(context, graph, 1)
            if status != 0:
                raise Skip(f"refused: status {status}")
            values = ctypes.string_at(self.ggml_get_data(out), rows * heads * v_shape[0] * 4)
            return np.frombuffer(values, np.float32).reshape(rows, heads, v_shape[0])
        finally:
            self.ggml_free(context)


def in_type(array, kind):
    """[keys, heads, dim] as ggml wants it: heads first, in the type; and the shape, fastest first."""
    array = np.ascontiguousarray(array.transpose(1, 0, 2), np.float32)
    heads, keys, dim = array.shape
    if kind == Q8_0:
        return exact_q8_0(array), (dim, keys, heads)
    if kind == BF16:
        return (array.view(np.uint32) >> 16).astype(np.uint16), (dim, keys, heads)
    return array.astype(np.float16 if kind == F16 else np.float32), (dim, keys, heads)


def exact_q8_0(array):
    """Blocks of an f16 scale and 32 codes that mean exactly these values, with a power of two for the scale."""
    if array.shape[-1] % BLOCK:
        raise Skip("q8_0 has blocks of 32: no such head_dim")
    blocks = array.reshape(-1, BLOCK)
    largest = np.abs(blocks).max(axis=1)
    if not np.isfinite(largest).all():
        raise Skip("q8_0 has no NaN and no infinity")
    _, exponent = np.frexp(largest / np.float32(127))
    scale = np.where(largest > 0, np.ldexp(np.float32(1), exponent), np.float32(1)).astype(np.float32)
    scale = np.where(np.ldexp(scale, -1) * 127 >= largest, np.ldexp(scale, -1), scale).astype(np.float32)
    codes = blocks / scale[:, None]
    narrow = scale.astype(np.float16)
    if (codes != np.rint(codes)).any() or (np.abs(codes) > 127).any() or (narrow.astype(np.float32) != scale).any():
        raise Skip("K or V is not exact in q8_0")
    packed = np.zeros((len(blocks), 2 + BLOCK), np.uint8)
    packed[:, :2] = narrow[:, None].view(np.uint8)
    packed[:, 2:] = codes.astype(np.int8).view(np.uint8)
    return packed


def mask_of(case, q_len, kv_len):
    """The mask as f16. With ALiBi it carries the distances, which ggml multiplies by a slope per head."""
    positions, keys, mask = visible(q_len, kv_len, case.about)
    values = np.zeros(mask.shape)
    if "alibi_slopes" in case:
        values = np.broadcast_to(keys - positions, mask.shape)
        if np.abs(values[mask]).max(initial=0) > 2048:
            raise Skip("ALiBi distances that f16, the mask's type, does not hold")
    return np.where(mask, values, -np.inf).astype(np.float16)


def attend(case, ggml, cache):
    about = case.about
    heads = about["num_q_heads"]
    if cache == "own" and about["cache_format"] not in TYPES:
        raise Skip("no fp8 cache")
    if "alibi_slopes" in case and heads & (heads - 1):
        raise Skip("ALiBi slopes of another formula where the heads are no power of two")
    kind = Q8_0 if cache == "q8_0" else TYPES[about["cache_format"]]
    scale = about["softmax_scale"] * case.one_scale("k_scale")
    v_scale = case.one_scale("v_scale")
    if v_scale != 1.0 and cache != "q8_0":
        raise Skip("no scale of V")
    # A power of two times V is exact in q8_0: the block's own scale takes it.
    if np.log2(v_scale) % 1:
        raise Skip("no scale of V but what q8_0 holds")
    out = np.zeros((len(case["q"]), heads, about["head_dim_v"]), np.float32)
    for rows, keys in case.requests():
        q_len, kv_len = rows.stop - rows.start, keys.stop - keys.start
        if q_len == 0:
            continue
        if kv_len == 0:
            raise Skip("no empty tensor of keys")
        out[rows] = ggml.attention(
            case["q"][rows].astype(np.float32),
            in_type(case["k"][keys], kind),
            in_type(case["v"][keys] * np.float32(v_scale), kind),
            kind,
            mask_of(case, q_len, kv_len),
            scale,
            8.0 if "alibi_slopes" in case else 0.0,
            about["softcap"] or 0.0,
            case.tensors.get("sinks"),
        )
    return {"out": out}


def prepare(options):
    ggml = Ggml()
    version = f"ggml {ggml.ggml_version().decode()} ({ggml.ggml_commit().decode()})"
    name = "ggml-flash" if options.cache == "own" else "ggml-flash-q8_0"
    return lambda case: attend(case, ggml, options.cache), {"by": name, "on": "CPU", "versions": version}


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cache", choices=("own", "q8_0"), default="own", help="the type of K and V")
    main(arguments, prepare)
