#!/usr/bin/env python3
"""Records what single functions of ggml's CPU backend return, for the tests of
backend/model/internal/ggml.

  kernels.py LIBDIR > ../../internal/ggml/testdata/kernels.json

LIBDIR is as for record.py; libggml-cpu-x64.so, the portable build, is the one that
is asked. sinf and cosf are those of the C library.

Numbers are base64 of little-endian bytes. products: weights of a type, the
activations, and each row's product with them. gate, softmax, gelu, sincos: what
goes in and what comes out; gelu is the table at every 97th half float.
"""
import base64
import ctypes as C
import json
import math
import os
import random
import struct
import sys

lib = sys.argv[1]
base = C.CDLL(os.path.join(lib, "libggml-base.so"), mode=C.RTLD_GLOBAL)
cpu = C.CDLL(os.path.join(lib, "libggml-cpu-x64.so"))
libm = C.CDLL("libm.so.6")
cpu.ggml_cpu_init()
rnd = random.Random(5)


def b64(raw):
    return base64.b64encode(bytes(raw)).decode()


def floats(values):
    return (C.c_float * len(values))(*values)


def normal(n, spread=1.0):
    return floats([rnd.gauss(0, spread) for _ in range(n)])


def product(name, acts, block, size, cols, rows):
    """rows * cols weights of a type with size bytes a block, times activations that
    ggml quantises to acts. One block of activations is zero."""
    span = 256 if acts == "q8_K" else 32
    x = normal(cols)
    for i in range(span):
        x[i] *= 40
        if cols > 2 * span:
            x[2 * span + i] = 0
    bytes_of = cols // block * size
    plain = name in ("f32", "f16", "bf16")
    weights = (C.c_uint8 * (rows * bytes_of))()
    for r in range(rows):
        w = normal(cols, 0.05)
        if plain:
            convert(name, w, C.byref(weights, r * bytes_of), cols)
        else:
            getattr(base, "quantize_row_%s_ref" % name)(w, C.byref(weights, r * bytes_of), C.c_int64(cols))
    y = (C.c_uint8 * (cols * 8))()
    if plain:
        convert(acts, x, y, cols)
    else:
        getattr(cpu, "quantize_row_" + acts)(x, y, C.c_int64(cols))
    dot = getattr(cpu, "ggml_vec_dot_" + (name if plain else name + "_" + acts))
    out = (C.c_float * rows)()
    for r in range(rows):
        dot(C.c_int(cols), C.byref(out, 4 * r), C.c_size_t(0), C.byref(weights, r * bytes_of), C.c_size_t(0), y, C.c_size_t(0), C.c_int(1))
    return {"type": name, "cols": cols, "rows": rows, "weights": b64(weights), "x": b64(x), "y": b64(out)}


def convert(name, src, dst, n):
    if name == "f32":
        C.memmove(dst, src, 4 * n)
    else:
        getattr(cpu, "ggml_cpu_fp32_to_" + ("fp16" if name == "f16" else "bf16"))(src, dst, C.c_int64(n))


def gate(n):
    x, g, y = normal(n, 3), normal(n), (C.c_float * n)()
    for i in range(0, n, 7):
        x[i] *= 30  # where the exponent needs two factors
    cpu.ggml_vec_swiglu_f32(C.c_int(n), y, x, g)
    return {"x": b64(x), "up": b64(g), "y": b64(y)}


def softmax(n):
    x, y = normal(n, 8), (C.c_float * n)()
    f = cpu.ggml_vec_soft_max_f32
    f.restype = C.c_double
    total = f(C.c_int(n), y, x, C.c_float(max(x)))
    return {"x": b64(x), "y": b64(y), "sum": total}


def gelu():
    table = (C.c_uint16 * (1 << 16)).in_dll(cpu, "ggml_table_gelu_f16")
    return b64((C.c_uint16 * len(range(0, 1 << 16, 97)))(*table[::97]))


def sincos():
    for f in (libm.sinf, libm.cosf):
        f.restype, f.argtypes = C.c_float, [C.c_float]
    x = [0.0, 2.0**-13, 0.78539, 0.7854, 119.99, 120.01]
    x += [math.exp(rnd.uniform(-9, 14)) for _ in range(300)]
    x = floats(x + [float(p) for p in range(1, 400, 7)])
    return {"x": b64(x), "sin": b64(floats([libm.sinf(v) for v in x])), "cos": b64(floats([libm.cosf(v) for v in x]))}


json.dump({
    "products": [
        product("f32", "f32", 1, 4, 33, 2), product("f16", "f16", 1, 2, 33, 2), product("bf16", "bf16", 1, 2, 33, 2),
        product("q4_0", "q8_0", 32, 18, 96, 5), product("q4_1", "q8_1", 32, 20, 96, 5),
        product("q5_0", "q8_0", 32, 22, 96, 5), product("q5_1", "q8_1", 32, 24, 96, 5),
        product("q8_0", "q8_0", 32, 34, 96, 5),
        product("q4_K", "q8_K", 256, 144, 768, 5), product("q5_K", "q8_K", 256, 176, 768, 5),
        product("q6_K", "q8_K", 256, 210, 768, 5),
    ],
    "gate": gate(203), "softmax": softmax(64), "gelu": gelu(), "sincos": sincos(),
}, sys.stdout, separators=(",", ":"))
print()
