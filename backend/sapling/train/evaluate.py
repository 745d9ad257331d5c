"""Runs the whole program on held-out alerts and counts what is right.

    python evaluate.py MODEL [--runbook F] [--alerts F] [--n N]
    python evaluate.py --make FILE --runbook F      writes the held-out alerts

MODEL is a .gguf or a checkpoint (which is rounded as the file would be). All
rows are decoded greedily, token by token, with no grammar to help; --quick only
asks how often the expected answers are the model's own choice.
"""

import argparse
import json
import os
import random
import re

import numpy as np
import torch

import export
from alerts import REASONS, alert
from data import ANGLES, ASK_VERDICT, findings_turn, verdict
from model import SharedAttention, tree_mask
from tok import END, Tok

LEVELS = ("low", "high", "critical")


def facts_of(text):
    """What the demo's runbook says, by reason."""
    return {r: (re.search(rf"^Severity of {r}: (\w+)\.$", text, re.M)[1],
                re.search(rf"^Action for {r}: (.+)\.$", text, re.M)[1]) for r in REASONS}


def held_out(n, seed, facts):
    r = random.Random(seed)
    out = []
    for i in range(n):
        a = alert(r, test=True, reason=REASONS[i % 4])
        a["severity"], a["recommended_action"] = facts[a["reason"]]
        out.append(a)
    r.shuffle(out)
    return out


class Program:
    """The turns of the demo, after a runbook that is computed once."""

    def __init__(self, model, tok, book_ids):
        self.m, self.tok = model, tok
        self.start = len(book_ids)
        with torch.no_grad():
            ids = torch.tensor([book_ids])
            _, self.cache = model.extend(ids, torch.arange(self.start).unsqueeze(0), None)

    def expected(self, rows):
        """Which answers the model would give unasked: a dict of bools a row."""
        tok, made = self.tok, []
        for a in rows:
            ids, seg, spans = [], [], []

            def add(t, s, name=None):
                if name:
                    spans.append((name, len(ids), len(ids) + len(t)))
                ids.extend(t)
                seg.extend([s] * len(t))

            add(tok.turn("user", "Alert: " + a["alert"]), 0)
            for s, angle in zip((1, 4, 5), ANGLES):
                add(tok.turn("user", f"Look only at {angle}.") + tok.open(), s)
                add(tok.text(a["findings"][angle]) + [END], s, angle)
            add(tok.turn("user", findings_turn(a["findings"])) + tok.open(), 2)
            add(tok.text("Severity of "), 2)
            add(tok.text(a["reason"]), 2, "kind")
            add(tok.text(": "), 2)
            add(tok.text(a["severity"]), 2, "severity")
            add(tok.text(f".\nAction for {a['reason']}: "), 2)
            add(tok.text(a["recommended_action"] + ".") + [END], 2, "quote")
            add([tok.newline] + tok.turn("user", ASK_VERDICT) + tok.open(), 2)
            at = len(ids)
            add(tok.text(verdict(a, a["recommended_action"])) + [END], 2, "verdict")
            at += len(tok.text('{"pod":"'))
            spans.append(("pod", at, at + len(tok.text(a["pod"])) + 1))
            at += len(tok.text(a["pod"] + '","reason":"'))
            spans.append(("reason", at, at + len(tok.text(a["reason"]))))
            spans.append(("action", len(ids) - 2 - len(tok.text(a["recommended_action"])), len(ids)))
            made.append((ids, seg, spans))
        width = max(len(x[0]) for x in made)
        ids = np.zeros((len(made), width), np.int64)
        seg = np.full((len(made), width), 3, np.int64)
        pos = np.zeros((len(made), width), np.int64)
        for i, (t, s, _) in enumerate(made):
            s = np.array(s)
            ids[i, :len(t)], seg[i, :len(t)] = t, s
            first = int((s == 0).sum())
            for k in set(s.tolist()):
                at = np.flatnonzero(s == k)
                pos[i, at] = np.arange(len(at)) + self.start + (first if k else 0)
        ids, seg, pos = map(torch.from_numpy, (ids, seg, pos))
        with torch.no_grad():
            best = self.m.logits(self.m.rows(self.cache, ids, pos, tree_mask(seg))).argmax(-1)
        return [{name: bool((best[i, lo - 1:hi - 1] == ids[i, lo:hi]).all()) for name, lo, hi in spans}
                for i, (_, _, spans) in enumerate(made)]

    def feed(self, state, texts):
        """One text of ids a row (an empty one feeds nothing). Rows keep their
        places in step by padding, which a mask hides. Returns the logits after
        each row's last token, and the new state."""
        cache, seen, at = state
        n, t = len(texts), max(map(len, texts))
        g = self.m.c["heads"] // self.m.c["kv_heads"]
        ids, ok, pos = np.zeros((n, t), np.int64), np.zeros((n, t), bool), np.zeros((n, t), np.int64)
        for i, x in enumerate(texts):
            ids[i, :len(x)], ok[i, :len(x)] = x, True
            pos[i] = at[i] + np.arange(t)
        ok = torch.from_numpy(ok)
        own = torch.eye(t, dtype=torch.bool) | (torch.ones(t, t).tril().bool() & ok.unsqueeze(1))
        seen_by = torch.cat((seen.unsqueeze(1).expand(n, t, -1), own), 2)
        mask = torch.zeros(seen_by.shape).masked_fill_(~seen_by, float("-inf")).unsqueeze(1)
        cos, sin = self.m.angles(torch.from_numpy(pos))
        y = torch.nn.functional.embedding(torch.from_numpy(ids), self.m.embed)
        new = []
        for i, blk in enumerate(self.m.blocks):
            q, k, v = blk.qkv(y, cos, sin)
            if cache:
                k, v = torch.cat((cache[i][0], k), 2), torch.cat((cache[i][1], v), 2)
            new.append((k, v))
            o = SharedAttention.apply(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), *self.cache[i], mask)
            y = blk.finish(y, o)
        size = [len(x) for x in texts]
        last = y[torch.arange(n), torch.tensor([max(k - 1, 0) for k in size])]
        state = new, torch.cat((seen, ok), 1), [a + k for a, k in zip(at, size)]
        return self.m.logits(last), state

    def write(self, logits, state, most, ends=None):
        """Greedy decoding of all rows until each has said <|im_end|>. ends
        receives the state after it."""
        out = [[] for _ in state[2]]
        open_rows = set(range(len(out)))
        while open_rows and most:
            most -= 1
            best = logits.argmax(-1).tolist()
            open_rows = {i for i in open_rows if best[i] != END}
            for i in open_rows:
                out[i].append(best[i])
            if open_rows:
                logits, state = self.feed(state, [[best[i]] if i in open_rows else [] for i in range(len(out))])
        if ends is not None:
            ends["state"] = state
        return [self.tok.decode(x) for x in out]

    @torch.no_grad()
    def run(self, texts):
        """The whole program for some alerts: findings, severity, verdict of each."""
        tok, n = self.tok, len(texts)
        start = [], torch.zeros(n, 0, dtype=torch.bool), [self.start] * n
        _, trunk = self.feed(start, [tok.turn("user", "Alert: " + x) for x in texts])
        found = [{} for _ in texts]
        for angle in ANGLES:
            logits, s = self.feed(trunk, [tok.turn("user", f"Look only at {angle}.") + tok.open()] * n)
            for f, x in zip(found, self.write(logits, s, 80)):
                f[angle] = x
        logits, s = self.feed(trunk, [tok.turn("user", findings_turn(f)) + tok.open() for f in found])
        def choose(logits, options):
            # Each is one token.
            return [options[i] for i in logits[:, [tok.text(x)[0] for x in options]].argmax(-1).tolist()]

        logits, s = self.feed(s, [tok.text("Severity of ")] * n)
        kind = choose(logits, REASONS)
        logits, s = self.feed(s, [tok.text(k + ": ") for k in kind])
        severity = choose(logits, LEVELS)
        logits, s = self.feed(s, [tok.text(f"{x}.\nAction for {k}: ") for x, k in zip(severity, kind)])
        ends = {}
        quoted = self.write(logits, s, 64, ends)
        ask = [END, tok.newline] + tok.turn("user", ASK_VERDICT) + tok.open()
        # What was written is fed already, up to where it ended.
        logits, s = self.feed(ends["state"], [ask] * n)
        return list(zip(found, severity, quoted, self.write(logits, s, 160)))


def score(model, book_text=None, rows=None, book_ids=None, verbose=False, group=50):
    tok = Tok()
    p = Program(model, tok, book_ids or tok.turn("system", book_text))
    right = {k: 0 for k in ("pod", "reason", "oom_killed", "severity", "quote", "recommended_action", "findings", "json", "all")}
    for i in range(0, len(rows), group):
        some = rows[i:i + group]
        for a, (found, severity, quoted, text) in zip(some, p.run([x["alert"] for x in some])):
            try:
                got = json.loads(text)
                right["json"] += 1
            except ValueError:
                got = {}
            same = {k: got.get(k) == a[k] for k in ("pod", "reason", "oom_killed", "recommended_action")}
            same["severity"] = severity == a["severity"]
            same["quote"] = quoted == a["recommended_action"] + "."
            same["all"] = all(same.values())
            same["findings"] = found == a["findings"]
            for k, v in same.items():
                right[k] += v
            if verbose:
                print(json.dumps(dict(alert=a["alert"], wrong=[k for k in same if not same[k]],
                                      found=found, severity=severity, quoted=quoted, said=text, pod=a["pod"]), ensure_ascii=False))
    return {k: round(v / len(rows), 4) for k, v in right.items()} | {"n": len(rows), "tokens": p.start}


def quick(model, book_text, rows, group=25):
    """Shares of answers that need no correction, with the earlier ones given."""
    tok = Tok()
    p = Program(model, tok, tok.turn("system", book_text))
    sums = {}
    for i in range(0, len(rows), group):
        for ok in p.expected(rows[i:i + group]):
            for k, v in ok.items():
                sums[k] = sums.get(k, 0) + v
    return {k: round(v / len(rows), 3) for k, v in sums.items()} | {"tokens": p.start}


def load(path):
    if path.endswith(".gguf"):
        return export.read(path)
    tmp = path + ".eval.gguf"
    export.write(torch.load(path, weights_only=False, map_location="cpu"), tmp)
    return export.read(tmp)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model", nargs="?")
    p.add_argument("--runbook", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/triage/runbook.md"))
    p.add_argument("--alerts")
    p.add_argument("--n", type=int, default=200)
    p.add_argument("--seed", type=int, default=20260)
    p.add_argument("--make")
    p.add_argument("--verbose", action="store_true")
    p.add_argument("--quick", action="store_true", help="no decoding")
    p.add_argument("--short", action="store_true", help="only the eight lines of the runbook")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    text = open(a.runbook).read()
    rows = held_out(a.n, a.seed, facts_of(text))
    if a.make:
        with open(a.make, "w") as f:
            for x in rows:
                keys = ("alert", "pod", "reason", "oom_killed", "severity", "recommended_action", "findings")
                f.write(json.dumps({k: x[k] for k in keys}, ensure_ascii=False) + "\n")
        return
    if a.alerts:
        rows = [json.loads(x) for x in open(a.alerts)][:a.n]
    if a.short:
        text = "\n\n".join("\n".join(x for x in text.split("\n") if r in x and x.startswith(("Severity", "Action")))
                           for r in REASONS) + "\n"
    if a.quick:
        print(json.dumps(quick(load(a.model), text, rows)))
        return
    print(json.dumps(score(load(a.model), text, rows, verbose=a.verbose)))


if __name__ == "__main__":
    main()
