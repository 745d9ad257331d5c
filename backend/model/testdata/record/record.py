#!/usr/bin/env python3
"""Records what llama.cpp answers for a GGUF file, as golden files for the Go tests.

It drives the shared libraries of llama.cpp 0.5.0 (CPU) through ctypes, so it
needs nothing but Python 3 and those libraries. The two structs below are those
of that version's llama.h; check_layout() fails on another version instead of
recording nonsense.

  record.py tokens LIBDIR MODEL LINES.jsonl   > golden_NAME.jsonl
  record.py hashed LIBDIR MODEL LINES.txt     > golden_NAME.jsonl   (ids by hash of the line, text left out)
  record.py vocab  LIBDIR MODEL -             > vocab_NAME.json     (end tokens and the like)
  record.py model  LIBDIR MODEL PROMPTS.json  > golden_NAME.json

See README.md beside this file for the commands that made each golden file.
"""
import ctypes as C
import glob
import hashlib
import json
import math
import os
import random
import sys

i8, i32, u32, f32, b1, ptr = C.c_int8, C.c_int32, C.c_uint32, C.c_float, C.c_bool, C.c_void_p


class ModelParams(C.Structure):
    _fields_ = [
        ("devices", ptr), ("tensor_buft_overrides", ptr), ("n_gpu_layers", i32), ("split_mode", i32),
        ("load_mode", i32), ("lazy_mode", i32), ("main_gpu", i32), ("tensor_split", ptr),
        ("progress_callback", ptr), ("progress_callback_user_data", ptr), ("kv_overrides", ptr),
        ("vocab_only", b1), ("check_tensors", b1), ("use_extra_bufts", b1), ("no_host", b1),
        ("no_alloc", b1), ("load_mtp", b1),
    ]


class ContextParams(C.Structure):
    _fields_ = [
        ("n_ctx", u32), ("n_batch", u32), ("n_ubatch", u32), ("n_seq_max", u32), ("n_rs_seq", u32),
        ("n_outputs_max", u32), ("n_outputs_max_per_seq", u32), ("n_threads", i32), ("n_threads_batch", i32),
        ("ctx_type", i32), ("rope_scaling_type", i32), ("pooling_type", i32), ("attention_type", i32),
        ("flash_attn_type", i32),
        ("rope_freq_base", f32), ("rope_freq_scale", f32), ("yarn_ext_factor", f32), ("yarn_attn_factor", f32),
        ("yarn_beta_fast", f32), ("yarn_beta_slow", f32), ("yarn_orig_ctx", u32), ("defrag_thold", f32),
        ("cb_eval", ptr), ("cb_eval_user_data", ptr), ("type_k", i32), ("type_v", i32),
        ("abort_callback", ptr), ("abort_callback_data", ptr),
        ("embeddings", b1), ("offload_kqv", b1), ("no_perf", b1), ("op_offload", b1), ("swa_full", b1),
        ("kv_unified", b1), ("samplers", ptr), ("n_samplers", C.c_size_t), ("ctx_other", ptr),
    ]


class Batch(C.Structure):
    _fields_ = [
        ("n_tokens", i32), ("token", ptr), ("embd", ptr), ("pos", ptr), ("n_seq_id", ptr), ("seq_id", ptr),
        ("logits", ptr),
    ]


def load(libdir):
    for pattern in ("libggml-base.so*", "libggml.*so*", "libllama.*so*"):
        for path in sorted(glob.glob(os.path.join(libdir, pattern))):
            lib = C.CDLL(path, mode=C.RTLD_GLOBAL)
            if "ggml." in os.path.basename(path):
                lib.ggml_backend_load_all_from_path.argtypes = [C.c_char_p]
                lib.ggml_backend_load_all_from_path(libdir.encode())
    sig = {
        "llama_model_default_params": (ModelParams, []),
        "llama_context_default_params": (ContextParams, []),
        "llama_model_load_from_file": (ptr, [C.c_char_p, ModelParams]),
        "llama_init_from_model": (ptr, [ptr, ContextParams]),
        "llama_model_get_vocab": (ptr, [ptr]),
        "llama_vocab_n_tokens": (i32, [ptr]),
        "llama_vocab_is_eog": (b1, [ptr, i32]),
        "llama_vocab_is_control": (b1, [ptr, i32]),
        "llama_vocab_get_add_bos": (b1, [ptr]),
        "llama_vocab_bos": (i32, [ptr]),
        "llama_vocab_eos": (i32, [ptr]),
        "llama_tokenize": (i32, [ptr, C.c_char_p, i32, ptr, i32, b1, b1]),
        "llama_token_to_piece": (i32, [ptr, i32, ptr, i32, i32, b1]),
        "llama_batch_get_one": (Batch, [ptr, i32]),
        "llama_decode": (i32, [ptr, Batch]),
        "llama_get_logits_ith": (C.POINTER(f32), [ptr, i32]),
        "llama_get_memory": (ptr, [ptr]),
        "llama_memory_clear": (None, [ptr, b1]),
        "llama_log_set": (None, [ptr, ptr]),
        "llama_backend_init": (None, []),
    }
    for name, (res, args) in sig.items():
        f = getattr(lib, name)
        f.restype, f.argtypes = res, args
    return lib


LOG = C.CFUNCTYPE(None, C.c_int, C.c_char_p, ptr)


@LOG
def quiet(level, text, _):
    if level >= 4:  # errors
        sys.stderr.write(text.decode("utf8", "replace"))


def check_layout(lib):
    c, m = lib.llama_context_default_params(), lib.llama_model_default_params()
    ok = (c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max) == (512, 2048, 512, 1)
    ok = ok and (c.type_k, c.type_v) == (1, 1) and c.yarn_beta_fast in (-1.0, 32.0) and c.n_samplers == 0
    ok = ok and not c.embeddings and c.offload_kqv and not c.ctx_other
    ok = ok and not m.vocab_only and m.use_extra_bufts and not m.no_alloc
    if not ok:
        raise SystemExit("record.py: this llama.cpp has other parameter structs than 0.5.0; update ModelParams and ContextParams from its llama.h")


class Model:
    def __init__(self, libdir, path, vocab_only):
        self.lib = lib = load(libdir)
        check_layout(lib)
        lib.llama_log_set(C.cast(quiet, ptr), None)
        lib.llama_backend_init()
        p = lib.llama_model_default_params()
        p.vocab_only = vocab_only
        p.n_gpu_layers = 0
        p.use_extra_bufts = False  # no repacked weights: the plain kernels
        self.model = lib.llama_model_load_from_file(path.encode(), p)
        if not self.model:
            raise SystemExit("record.py: cannot load " + path)
        self.vocab = lib.llama_model_get_vocab(self.model)
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocab)

    def tokenize(self, text, add_special, parse_special):
        raw = text.encode("utf8")
        cap = len(raw) + 16
        out = (i32 * cap)()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), out, cap, add_special, parse_special)
        if n < 0:
            raise SystemExit("record.py: more tokens than bytes in %r" % text)
        return list(out[:n])

    def context(self, n_ctx):
        p = self.lib.llama_context_default_params()
        threads = int(os.environ.get("THREADS", "2"))  # how work is shared does not change results
        p.n_ctx, p.n_batch, p.n_threads, p.n_threads_batch = n_ctx, n_ctx, threads, threads
        p.type_k = p.type_v = 1 if os.environ.get("KV") == "f16" else 0  # else F32
        p.flash_attn_type = 0  # off
        p.swa_full = True
        self.ctx = self.lib.llama_init_from_model(self.model, p)
        if not self.ctx:
            raise SystemExit("record.py: no context")

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)

    def logits(self, ids):
        arr = (i32 * len(ids))(*ids)
        if self.lib.llama_decode(self.ctx, self.lib.llama_batch_get_one(arr, len(ids))) != 0:
            raise SystemExit("record.py: decode failed")
        return self.lib.llama_get_logits_ith(self.ctx, -1)[: self.n_vocab]


def jline(o):
    print(json.dumps(o, separators=(",", ":")))


def tokens(libdir, path, lines):
    m = Model(libdir, path, True)
    for line in open(lines, encoding="utf8"):
        text = json.loads(line)
        jline({"text": text, "special": m.tokenize(text, False, True), "plain": m.tokenize(text, False, False)})


def hashed(libdir, path, lines):
    m = Model(libdir, path, True)
    for line in open(lines, encoding="utf8"):
        line = line.rstrip("\n")
        # Escapes in the file stand for the characters; both readings are recorded.
        for text in dict.fromkeys([line, unescape(line)]):
            jline({"sha256": hashlib.sha256(text.encode("utf8")).hexdigest(),
                   "special": m.tokenize(text, False, True), "plain": m.tokenize(text, False, False)})


def vocab(libdir, path, _):
    """Facts of the vocabulary; pieces is a hash over what every token stands for (a
    little-endian 32-bit length and the bytes, control tokens left out)."""
    m = Model(libdir, path, True)
    lib, v = m.lib, m.vocab
    h, buf = hashlib.sha256(), C.create_string_buffer(4096)
    for i in range(m.n_vocab):
        n = lib.llama_token_to_piece(v, i, buf, len(buf), 0, False)
        h.update(n.to_bytes(4, "little") + buf.raw[:n])
    jline({
        "size": m.n_vocab, "bos": lib.llama_vocab_bos(v), "eos": lib.llama_vocab_eos(v),
        "add_bos": lib.llama_vocab_get_add_bos(v),
        "ends": [i for i in range(m.n_vocab) if lib.llama_vocab_is_eog(v, i)],
        "control": sum(lib.llama_vocab_is_control(v, i) for i in range(m.n_vocab)),
        "pieces": h.hexdigest(),
    })


def unescape(s):
    out, i = "", 0
    while i < len(s):
        if s[i] == "\\" and i + 1 < len(s):
            c = s[i + 1]
            if c in "ntr":
                out += {"n": "\n", "t": "\t", "r": "\r"}[c]
                i += 2
                continue
            if c == "u":
                out += chr(int(s[i + 2 : i + 6], 16))
                i += 6
                continue
        out += s[i]
        i += 1
    return out


def model(libdir, path, prompts):
    m = Model(libdir, path, False)
    texts = json.load(open(prompts, encoding="utf8"))
    tokenised = [m.tokenize(text, True, True) for text in texts]
    m.context(max(1024, max(map(len, tokenised)) + 64))
    sample = sorted(random.Random(1).sample(range(m.n_vocab), 200))
    cases = []
    for text, ids in zip(texts, tokenised):
        m.clear()
        row = m.logits(ids)
        order = sorted(range(m.n_vocab), key=lambda i: (-row[i], i))
        case = {
            "text": text,
            "ids": ids,
            "top": [[i, round(row[i], 5)] for i in order[:50]],
            "sample": [[i, round(row[i], 5)] for i in sample],
            "mean": sum(row) / len(row),
            "rms": math.sqrt(sum(x * x for x in row) / len(row)),
        }
        out, gaps = [], []
        for _ in range(64):
            a, b = two(row)
            out.append(a)
            gaps.append(round(row[a] - row[b], 4))
            row = m.logits([a])
        case["greedy"], case["gap"] = out, gaps
        cases.append(case)
        sys.stderr.write("%r\n" % text[:60])
    head = {"model": os.path.basename(path), "sha256": sha(path), "n_vocab": m.n_vocab, "cases": []}
    s = json.dumps(head, separators=(",", ":"))[:-2]
    print(s + "\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}")


def two(row):
    """The ids of the largest and second largest logit; the lower id first on a tie."""
    keep = max(row)
    a = row.index(keep)
    row[a] = -math.inf
    b = row.index(max(row))
    row[a] = keep
    return a, b


def sha(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        for block in iter(lambda: f.read(1 << 20), b""):
            h.update(block)
    return h.hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("tokens", "hashed", "vocab", "model"):
        raise SystemExit(__doc__)
    {"tokens": tokens, "hashed": hashed, "vocab": vocab, "model": model}[sys.argv[1]](*sys.argv[2:])
