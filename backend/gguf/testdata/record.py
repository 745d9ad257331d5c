#!/usr/bin/env python3
"""Records how ggml decodes and encodes random blocks: record.py LIBGGML-BASE.so > blocks.json"""
import base64
import ctypes as C
import json
import random
import struct
import sys

lib = C.CDLL(sys.argv[1])
rng = random.Random(7)
b64 = lambda b: base64.b64encode(b).decode()

# name: (values, bytes, offsets of half-precision scales)
FORMATS = {
    "Q4_0": (32, 18, [0]), "Q4_1": (32, 20, [0, 2]), "Q5_0": (32, 22, [0]), "Q5_1": (32, 24, [0, 2]),
    "Q8_0": (32, 34, [0]), "Q4_K": (256, 144, [0, 2]), "Q5_K": (256, 176, [0, 2]), "Q6_K": (256, 210, [208]),
}


def scale():
    return struct.pack("<e", rng.choice([rng.uniform(-2, 2), rng.uniform(-0.01, 0.01), rng.uniform(-1e-6, 1e-6), 0.0, 1000.0]))


out = {"decode": {}, "encode": {}}
for name, (values, size, scales) in FORMATS.items():
    blocks = b""
    for _ in range(6):
        b = bytearray(rng.randbytes(size))
        for at in scales:
            b[at : at + 2] = scale()
        blocks += bytes(b)
    n = 6 * values
    dst = (C.c_float * n)()
    f = getattr(lib, "dequantize_row_" + name.lower().replace("_k", "_K"))
    f.argtypes = [C.c_char_p, C.c_void_p, C.c_int64]
    f(blocks, dst, n)
    out["decode"][name] = {"blocks": b64(blocks), "values": b64(bytes(dst))}
for name in ("Q4_0", "Q4_1", "Q8_0"):
    values, size, _ = FORMATS[name]
    src = []
    for k in range(8):
        width = rng.choice([1, 1e-3, 30])
        src += [rng.gauss(0, width) for _ in range(values)] if k else [0.0] * values
    arr = (C.c_float * len(src))(*src)
    dst = C.create_string_buffer(8 * size)
    f = getattr(lib, "quantize_row_%s_ref" % name.lower())
    f.argtypes = [C.c_void_p, C.c_void_p, C.c_int64]
    f(arr, dst, len(src))
    out["encode"][name] = {"values": b64(bytes(arr)), "blocks": b64(dst.raw)}
json.dump(out, sys.stdout, indent=1)
