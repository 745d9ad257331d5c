#!/usr/bin/env python3
"""Records what Gemma 3 answers in float64, where nothing is rounded.

  exact.py MODEL.gguf GOLDEN.json [half] > golden_gemma3_exact.json

MODEL is the quantised file; its weights are expanded and everything after that is
float64, in PyTorch, straight from the model's description. It shares no code with the
engine and none with llama.cpp. GOLDEN is a file of record.py for the same prompts: the
text, the tokens and the ids of the sample are taken from it. With "half" argument and
result of GELU are rounded to half floats, which is what llama.cpp does.

Needs torch, numpy and gguf.
"""
import hashlib
import json
import math
import sys

import gguf
import numpy as np
import torch

torch.set_default_dtype(torch.float64)


class Gemma3:
    def __init__(self, path, half):
        r = gguf.GGUFReader(path)
        self.half = half
        self.file = {t.name: t for t in r.tensors}
        meta = lambda k: r.fields["gemma3." + k].contents()
        assert r.fields["general.architecture"].contents() == "gemma3"
        self.layers, self.dim = meta("block_count"), meta("embedding_length")
        self.heads, self.kv = meta("attention.head_count"), meta("attention.head_count_kv")
        self.hd, self.window = meta("attention.key_length"), meta("attention.sliding_window")
        self.eps, self.base = meta("attention.layer_norm_rms_epsilon"), meta("rope.freq_base")
        assert not any(k.startswith(("gemma3.rope.scaling", "gemma3.final_logit")) for k in r.fields)
        assert self.layers != 62  # the 27B model scales its queries by another width
        self.embed = self.weight("token_embd")
        self.blocks = [{n: self.weight(f"blk.{i}.{n}") for n in
                        ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_q_norm", "attn_k_norm", "attn_output",
                         "post_attention_norm", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down", "post_ffw_norm")}
                       for i in range(self.layers)]
        self.out_norm = self.weight("output_norm")
        assert "output.weight" not in self.file

    def weight(self, name):
        t = self.file[name + ".weight"]
        return torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float64))

    def norm(self, x, w):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * w

    def rotate(self, x, base):  # [token][head][dimension]
        n = self.hd // 2
        a = torch.arange(x.shape[0])[:, None] * base ** (-torch.arange(n, dtype=torch.float64) / n)
        c, s = torch.cos(a)[:, None], torch.sin(a)[:, None]
        u, v = x[..., :n], x[..., n:]
        return torch.cat([u * c - v * s, u * s + v * c], -1)

    def gelu(self, x):
        if self.half:
            x = torch.where(x >= 10, x, x.clamp(min=-10).half().double())
        y = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
        return torch.where(x >= 10, x, y.half().double()) if self.half else y

    def logits(self, ids, first):
        """of the positions from first"""
        n = len(ids)
        x = self.embed[ids] * math.sqrt(self.dim)
        past = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        for i, b in enumerate(self.blocks):
            h = self.norm(x, b["attn_norm"])
            split = lambda w, heads: (h @ w.T).reshape(n, heads, self.hd)
            q = self.norm(split(b["attn_q"], self.heads), b["attn_q_norm"])
            k = self.norm(split(b["attn_k"], self.kv), b["attn_k_norm"])
            v = split(b["attn_v"], self.kv)
            whole = (i + 1) % 6 == 0
            base = self.base if whole else 10000.0
            q, k = self.rotate(q, base), self.rotate(k, base)
            k, v = (t.repeat_interleave(self.heads // self.kv, 1) for t in (k, v))
            s = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(self.hd)
            s = s.masked_fill(past < 0, -math.inf)
            if not whole:
                s = s.masked_fill(past >= self.window, -math.inf)
            a = torch.einsum("hij,jhd->ihd", torch.softmax(s, -1), v).reshape(n, -1)
            x = x + self.norm(a @ b["attn_output"].T, b["post_attention_norm"])
            h = self.norm(x, b["ffn_norm"])
            h = self.gelu(h @ b["ffn_gate"].T) * (h @ b["ffn_up"].T)
            x = x + self.norm(h @ b["ffn_down"].T, b["post_ffw_norm"])
        return self.norm(x[first:], self.out_norm) @ self.embed.T


def record(m, case):
    ids, n = case["ids"], len(case["ids"])
    # The continuation that GOLDEN has is checked in one pass; from where it is not
    # the greedy one it is made again.
    greedy = list(case["greedy"])
    while True:
        rows = m.logits(ids + greedy[:-1], n - 1)
        best = rows.argmax(-1).tolist()
        wrong = [i for i in range(64) if greedy[i] != best[i]]
        if not wrong:
            break
        greedy[wrong[0]:] = best[wrong[0]:]
    row = rows[0].tolist()
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    two = rows.topk(2).values
    return {
        "text": case["text"], "ids": ids,
        "top": [[i, round(row[i], 5)] for i in order[:50]],
        "sample": [[i, round(row[i], 5)] for i, _ in case["sample"]],
        "mean": sum(row) / len(row), "rms": math.sqrt(sum(x * x for x in row) / len(row)),
        "greedy": greedy, "gap": [round(x, 4) for x in (two[:, 0] - two[:, 1]).tolist()],
    }


def main(path, golden, half=False):
    m = Gemma3(path, half)
    cases = []
    with torch.no_grad():
        for case in json.load(open(golden, encoding="utf8"))["cases"]:
            cases.append(record(m, case))
            sys.stderr.write("%r\n" % case["text"][:60])
    with open(path, "rb") as f:
        sha = hashlib.file_digest(f, "sha256").hexdigest()
    head = {"model": path.split("/")[-1], "sha256": sha, "n_vocab": m.embed.shape[0], "cases": []}
    print(json.dumps(head, separators=(",", ":"))[:-2] + "\n"
          + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["half"]):
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2], len(sys.argv) == 4)
