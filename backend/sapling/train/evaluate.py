"""Runs the whole program on held-out alerts and counts what is right.

    python evaluate.py MODEL [--runbook F] [--alerts F] [--n N]
    python evaluate.py --make FILE --runbook F      writes the held-out alerts

MODEL is a .gguf or a checkpoint. First every row is run with the expected
answers in place; where the model's own choice agrees at each step, decoding
would give just that. The other rows are decoded token by token, so all figures
are those of plain greedy decoding.
"""

import argparse
import json
import random
import re

import numpy as np
import torch

import export
from alerts import REASONS, alert
from data import ANGLES, ASK_VERDICT, findings_turn, verdict
from model import Sapling, tree_mask
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
            add(tok.text(a["severity"]), 2, "severity")
            add([END, tok.newline] + tok.turn("user", ASK_VERDICT) + tok.open(), 2)
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

    def feed(self, state, ids):
        cache, at = state
        x, cache = self.m.extend(torch.tensor([ids]), torch.arange(at, at + len(ids)).unsqueeze(0), cache)
        return self.m.logits(x[:, -1])[0], (cache, at + len(ids))

    def write(self, logits, state, most):
        out = []
        while len(out) < most:
            t = int(logits.argmax())
            if t == END:
                break
            out.append(t)
            logits, state = self.feed(state, [t])
        return self.tok.decode(out), state

    @torch.no_grad()
    def run(self, text):
        """Greedy decoding of the whole program for one alert."""
        tok = self.tok
        _, trunk = self.feed((self.cache, self.start), tok.turn("user", "Alert: " + text))
        found = {}
        for angle in ANGLES:
            logits, s = self.feed(trunk, tok.turn("user", f"Look only at {angle}.") + tok.open())
            found[angle] = self.write(logits, s, 80)[0]
        logits, s = self.feed(trunk, tok.turn("user", findings_turn(found)) + tok.open())
        severity = max(LEVELS, key=lambda x: logits[tok.text(x)[0]].item())
        _, s = self.feed(s, tok.text(severity) + [END, tok.newline])
        logits, s = self.feed(s, tok.turn("user", ASK_VERDICT) + tok.open())
        return found, severity, self.write(logits, s, 160)[0]


def score(model, book_text=None, rows=None, book_ids=None, verbose=False, group=25):
    tok = Tok()
    p = Program(model, tok, book_ids or tok.turn("system", book_text))
    right = {k: 0 for k in ("pod", "reason", "oom_killed", "severity", "recommended_action", "findings", "json", "all")}
    decoded = 0
    for i in range(0, len(rows), group):
        some = rows[i:i + group]
        for a, ok in zip(some, p.expected(some)):
            if all(ok.values()):
                for k in right:
                    right[k] += 1
                continue
            decoded += 1
            found, severity, text = p.run(a["alert"])
            try:
                got = json.loads(text)
                right["json"] += 1
            except ValueError:
                got = {}
            same = {k: got.get(k) == a[k] for k in ("pod", "reason", "oom_killed", "recommended_action")}
            same["severity"] = severity == a["severity"]
            same["all"] = all(same.values())
            same["findings"] = found == a["findings"]
            for k, v in same.items():
                right[k] += v
            if verbose:
                print(json.dumps(dict(alert=a["alert"], wrong=[k for k in same if not same[k]],
                                      found=found, severity=severity, said=text, pod=a["pod"]), ensure_ascii=False))
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
    p.add_argument("--runbook", default="../../../examples/triage/runbook.md")
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
