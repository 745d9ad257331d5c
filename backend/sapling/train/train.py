"""Trains sapling; stops and goes on at will.

    python train.py --dir RUN [--minutes M]     starts, or goes on from RUN/last.pt

Progress is counted in minutes of training, kept in the checkpoint; the schedule
below says what is learnt when. Sittings add up.
"""

import argparse
import json
import math
import os
import queue
import threading
import time

import torch
import torch.nn.functional as F

from data import ACTION, ECHO, FINDING, FRAME, OOM, POD, REASON, SEVERITY, Maker
from model import Sapling, fuse, tree_mask

# until: minute at which the stage ends. length: of the runbook, in tokens.
# rows: alerts per runbook. spread: random gaps in the positions, in all.
# lm: weight of plain language modelling on the runbook.
STAGES = [
    dict(until=6, length=(150, 260), books=8, rows=4, plain=0.9, echo=0.5, spread=0, lm=0.3),
    dict(until=16, length=(160, 400), books=8, rows=4, plain=0.5, echo=0.25, spread=2000, lm=0.2),
    dict(until=36, length=(250, 800), books=6, rows=5, plain=0.2, echo=0.1, spread=6500, lm=0.1),
    dict(until=56, length=(500, 1600), books=3, rows=10, plain=0.1, echo=0.05, spread=6000, lm=0.0),
    dict(until=76, length=(1500, 4000), books=1, rows=20, plain=0.05, echo=0.03, spread=3500, lm=0.0),
    dict(until=100, length=(4000, 6500), books=1, rows=16, plain=0.0, echo=0.0, spread=800, lm=0.0),
]
WARMUP, DECAY_FROM, END = 1.0, 60.0, 100.0
LR_MATRIX, LR_VECTOR = 0.02, 3e-3
WEIGHT = torch.ones(9)
WEIGHT[SEVERITY] = 4.0
WEIGHT[FRAME] = 0.3
WEIGHT[FINDING] = 0.7
NAMES = {FINDING: "finding", SEVERITY: "severity", POD: "pod", REASON: "reason", OOM: "oom",
         ACTION: "action", FRAME: "frame", ECHO: "echo"}


class Muon:
    """Momentum, then the nearest orthogonal matrix, for the blocks' matrices."""

    def __init__(self, params, momentum=0.95, decay=0.02):
        self.params, self.momentum, self.decay = list(params), momentum, decay
        self.buf = [torch.zeros_like(p) for p in self.params]

    @torch.no_grad()
    def step(self, lr):
        shapes = {}
        for i, p in enumerate(self.params):
            self.buf[i].lerp_(p.grad, 1 - self.momentum)
            g = p.grad.lerp(self.buf[i], self.momentum)
            shapes.setdefault(p.shape, []).append((p, g))
        for shape, some in shapes.items():
            x = torch.stack([g for _, g in some])
            flip = shape[0] > shape[1]
            if flip:
                x = x.transpose(1, 2)
            x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
            for _ in range(5):
                a = x @ x.transpose(1, 2)
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            x = x.float()
            if flip:
                x = x.transpose(1, 2)
            scale = max(1, shape[0] / shape[1]) ** 0.5
            for (p, _), u in zip(some, x):
                p.mul_(1 - lr * self.decay).add_(u, alpha=-lr * scale)


def lr_at(minute):
    if minute < WARMUP:
        return 0.1 + 0.9 * minute / WARMUP
    if minute < DECAY_FROM:
        return 1.0
    left = max(0.0, (END - minute) / (END - DECAY_FROM))
    return 0.03 + 0.97 * left


def feeder(maker, minute, out, stop):
    """Makes batches ahead of time in a thread of its own."""
    while not stop.is_set():
        now = minute()
        st = next((s for s in STAGES if now < s["until"]), STAGES[-1])
        r = maker.r
        length = int(math.exp(r.uniform(*map(math.log, st["length"]))))
        b = maker.batch(st["books"], st["rows"], length, plain=r.random() < st["plain"],
                        echo=st["echo"], spread=st["spread"])
        t = {k: torch.from_numpy(v) for k, v in b.items() if hasattr(v, "shape")}
        t["mask"], t["lm"] = tree_mask(t["seg"]), st["lm"]
        while not stop.is_set():
            try:
                out.put(t, timeout=1)
                break
            except queue.Full:
                pass


def loss_of(model, t):
    hidden, book = model(t["book"], t["book_pos"], t["ids"], t["pos"], t["mask"], book_out=t["lm"] > 0)
    ans = t["ans"][:, 1:]
    at = ans > 0
    logits = model.logits(hidden[:, :-1][at])
    want, kind = t["ids"][:, 1:][at], ans[at]
    each = F.cross_entropy(logits, want, reduction="none")
    w = WEIGHT[kind]
    loss = (each * w).sum() / w.sum()
    total = loss
    if t["lm"] > 0:
        total = loss + t["lm"] * F.cross_entropy(
            model.logits(book[:, :-1]).flatten(0, 1), t["book"][:, 1:].flatten())
    return total, loss, (logits.argmax(-1) == want).float(), kind


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dir", required=True)
    p.add_argument("--minutes", type=float, default=1e9)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--until", type=float, default=END, help="minute of the schedule at which to stop")
    a = p.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    torch.set_num_threads(a.threads)
    fuse()
    torch.manual_seed(a.seed)
    model = Sapling()
    matrices = [q for b in model.blocks for q in b.parameters() if q.dim() == 2]
    others = [q for q in model.parameters() if not any(q is m for m in matrices)]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=LR_VECTOR, betas=(0.9, 0.98), weight_decay=0.0)
    done, step, last = 0.0, 0, os.path.join(a.dir, "last.pt")
    if os.path.exists(last):
        c = torch.load(last, weights_only=False)
        model.load_state_dict(c["model"])
        adam.load_state_dict(c["adam"])
        muon.buf = c["muon"]
        done, step = c["minutes"], c["step"]
    print("parameters", sum(q.numel() for q in model.parameters()), "from minute", round(done, 2), flush=True)
    began = time.time()

    def minute():
        return done + (time.time() - began) / 60

    def save():
        c = dict(model=model.state_dict(), adam=adam.state_dict(), muon=muon.buf, minutes=minute(),
                 step=step, config=model.c)
        torch.save(c, last + ".tmp")
        os.replace(last + ".tmp", last)

    stop, batches = threading.Event(), queue.Queue(4)
    maker = Maker(1000003 * a.seed + step + 1)
    threading.Thread(target=feeder, args=(maker, minute, batches, stop), daemon=True).start()
    right, seen, tot, tokens, mark, saved = torch.zeros(9), torch.zeros(9), 0.0, 0, time.time(), time.time()
    log = open(os.path.join(a.dir, "log.jsonl"), "a")
    while minute() < a.until and (time.time() - began) / 60 < a.minutes:
        t = batches.get()
        f = lr_at(minute())
        total, loss, ok, kind = loss_of(model, t)
        total.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(LR_MATRIX * f)
        for g in adam.param_groups:
            g["lr"] = LR_VECTOR * f
        adam.step()
        for q in model.parameters():
            q.grad = None
        step += 1
        right.index_add_(0, kind, ok)
        seen.index_add_(0, kind, torch.ones_like(ok))
        tot += loss.item()
        tokens += t["ids"].numel() + t["book"].numel()
        if step % 20 == 0:
            acc = {NAMES[k]: round((right[k] / seen[k]).item(), 4) for k in NAMES if seen[k] > 0}
            row = dict(minute=round(minute(), 2), step=step, loss=round(tot / 20, 4), lr=round(f, 3),
                       tok_s=int(tokens / (time.time() - mark)), length=t["book"].shape[1], **acc)
            print(json.dumps(row), flush=True)
            log.write(json.dumps(row) + "\n")
            log.flush()
            right.zero_(), seen.zero_()
            tot, tokens, mark = 0.0, 0, time.time()
        if time.time() - saved > 120:
            save()
            saved = time.time()
    save()
    stop.set()
    print("stopped at minute", round(minute(), 2))


if __name__ == "__main__":
    main()
