"""Trains sapling; stops and goes on at will.

    python train.py --dir RUN [--minutes M]     starts, or goes on from RUN/last.pt

Progress is counted in minutes of processor time, kept in the checkpoint; the
schedule below says what is learnt when. Sittings add up.
"""

import argparse
import json
import math
import os
import random
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from data import (ACTION, CHOICE, ECHO, FINDING, FRAME, KIND, KINDS, OOM, POD, REASON, SEVERITY, START_ACTION,
                  START_POD, Maker)
from model import CONFIG, Sapling, tree_mask

# until: minute at which the stage ends. length: of the runbook, in tokens.
# rows: alerts per runbook (books and rows are for each process). spread: random gaps in the positions, in all.
# school: rows of random words to be copied, before any text. lm: weight of plain language modelling on the runbook.
# name: share of the steps that have only names to be found by their form.
# read: share of the steps without a runbook, on alerts alone.
# pods: share of the steps that have alerts and the names of their pods alone, without a runbook.
# quote: of the rows after a long runbook that ask for all, the share that quote it only.
# long: share of the steps that have a runbook of nearly real length instead, which passes on no gradient.
STAGES = [
    dict(until=1.5, school=24),
    dict(until=6, length=(130, 260), books=4, rows=6, plain=0.8, quiz=0.2, look=0.1, spread=1000, lm=0.0, long=0.0),
    dict(until=35, length=(150, 300), books=2, rows=14, plain=0.6, quiz=0.06, look=0.2, spread=4000, lm=0.0, long=0.01, read=0.4),
    dict(until=60, length=(200, 800), books=2, rows=14, plain=0.2, quiz=0.06, look=0.2, spread=6500, lm=0.0, long=0.06, read=0.25, name=0.2),
    dict(until=94, length=(400, 1200), books=2, rows=14, plain=0.0, quiz=0.05, look=0.3, spread=6500, lm=0.0, long=0.55, read=0.08, name=0.12),
    dict(until=176, length=(400, 1200), books=2, rows=14, plain=0.0, quiz=0.06, look=0.3, spread=6500, lm=0.0, long=0.62, read=0.05, name=0.12),
    dict(until=188, length=(400, 1200), books=2, rows=14, plain=0.0, quiz=0.3, look=0.3, spread=6500, lm=0.0, long=0.8, read=0.03, name=0.05, quote=0.6),
    dict(until=212, length=(400, 1200), books=2, rows=14, plain=0.0, quiz=0.1, look=0.4, spread=6500, lm=0.0, long=0.8, read=0.03, name=0.08, quote=0.25),
    dict(until=244, length=(400, 1200), books=2, rows=14, plain=0.0, quiz=0.1, look=0.25, spread=6500, lm=0.0, long=0.8, read=0.03, name=0.06, quote=0.5, pods=0.12),
    dict(until=288, length=(400, 1200), books=2, rows=14, plain=0.0, quiz=0.1, look=0.25, spread=6500, lm=0.0, long=0.8, read=0.03, name=0.06, quote=0.5, pods=0.2),
]
# The rate falls from DECAY_FROM to END; each of RESTARTS, latest first, begins again at a part of the first rate.
WARMUP, DECAY_FROM, END = 0.3, 30.0, 94.0
RESTARTS = [(244.0, 288.0, 0.3), (212.0, 244.0, 0.35), (188.0, 212.0, 0.3), (176.0, 188.0, 0.3), (160.0, 176.0, 0.35), (94.0, 160.0, 0.45)]
LR_MATRIX, LR_VECTOR = 0.02, 3e-3
WEIGHT = torch.ones(KINDS)
WEIGHT[SEVERITY] = 2.0
WEIGHT[ACTION] = 1.0
WEIGHT[CHOICE] = 8.0
WEIGHT[START_ACTION] = 2.0
WEIGHT[KIND] = 3.0
WEIGHT[START_POD] = 6.0
WEIGHT[POD] = 4.0
WEIGHT[FRAME] = 0.2
WEIGHT[FINDING] = 0.5
NAMES = {FINDING: "finding", SEVERITY: "severity", POD: "pod", REASON: "reason", OOM: "oom",
         ACTION: "action", KIND: "kind", FRAME: "frame", ECHO: "echo", CHOICE: "choice", START_POD: "pod_start", START_ACTION: "action_start"}


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
    for begin, end, most in RESTARTS:
        if minute >= begin:
            rise = min(1.0, 0.2 + (minute - begin) / 2)
            return 0.03 + (most - 0.03) * rise * max(0.0, (end - minute) / (end - begin))
    left = max(0.0, (END - minute) / (END - DECAY_FROM))
    return 0.03 + 0.97 * left


def stage_at(minute):
    return next((s for s in STAGES if minute < s["until"]), STAGES[-1])


def make(maker, st, step):
    """One batch. The runbook's length is drawn from the step alone, so that all
    processes have the same work to do."""
    if "school" in st:
        return maker.school(st["school"], 128)
    even = random.Random(step)
    if even.random() < st.get("name", 0):
        st = dict(st, length=(24, 32), books=1, rows=56, name=1.0)
    elif even.random() < st.get("read", 0):
        st = dict(st, length=(24, 32), books=1, rows=40, look=1.0, quiz=0.0)
    elif even.random() < st.get("pods", 0):
        st = dict(st, length=(24, 32), books=1, rows=56, quiz=0.0, look=0.0, pod=1.0)
    elif even.random() < st["long"]:
        # A short row costs little after a long runbook: most ask for one thing only.
        rows, look, pod = even.choice(((14, 0.2, 0.0), (26, 1.0, 0.0), (48, 0.0, 0.85)))
        st = dict(st, length=(1000, 6500), books=1, rows=rows, spread=1500, plain=0.0, still=True, quiz=st.get("quote", 0.1) if rows == 14 else 0.0,
                  look=look, pod=pod)
    length = int(math.exp(even.uniform(*map(math.log, st["length"]))))
    b = maker.batch(st["books"], st["rows"], length, plain=even.random() < st["plain"],
                    quiz=st["quiz"], look=st["look"], name=st["name"] if st.get("name") == 1 else 0.15 if st.get("pod") else 0,
                   pod=st.get("pod", 0), spread=st["spread"])
    t = {k: torch.from_numpy(v) for k, v in b.items() if hasattr(v, "shape")}
    t["mask"], t["lm"] = tree_mask(t["seg"]), st["lm"]
    t["still"] = st.get("still", False)
    return t


def loss_of(model, t):
    if "book" not in t:
        t["lm"] = 0
        pos = torch.arange(t["ids"].shape[1]).unsqueeze(0)
        hidden, _ = model.extend(t["ids"], pos, None)
    else:
        hidden, book = model(t["book"], t["book_pos"], t["ids"], t["pos"], t["mask"], book_out=t["lm"] > 0,
                             still=t["still"])
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
    return total, each.detach(), (logits.argmax(-1) == want).float(), kind


def work(rank, a):
    """One of the processes: its own share of each batch, gradients averaged.
    Processes with one thread each wait for one another once a step, not once
    an operation, which matters much on a machine that is busy otherwise."""
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    dist.init_process_group("gloo", init_method=f"file://{os.path.abspath(a.dir)}/meet-{a.token}",
                            rank=rank, world_size=a.processes)
    last = os.path.join(a.dir, "last.pt")
    c = torch.load(last, weights_only=False) if os.path.exists(last) else None
    model = Sapling(c["config"] if c else CONFIG)
    matrices = [q for b in model.blocks for q in b.parameters() if q.dim() == 2]
    others = [q for q in model.parameters() if not any(q is m for m in matrices)]
    every = matrices + others
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=LR_VECTOR, betas=(0.9, 0.98), weight_decay=0.0)
    minute, step = 0.0, 0
    if c:
        model.load_state_dict(c["model"])
        adam.load_state_dict(c["adam"])
        muon.buf = c["muon"]
        minute, step = c["minutes"], c["step"]
    if a.at is not None:
        minute = a.at
    say = print if rank == 0 else (lambda *x, **k: None)
    say("parameters", sum(q.numel() for q in every), "from minute", round(minute, 2), flush=True)

    def save():
        c = dict(model=model.state_dict(), adam=adam.state_dict(), muon=muon.buf, minutes=minute,
                 step=step, config=model.c)
        torch.save(c, last + ".tmp")
        os.replace(last + ".tmp", last)

    maker = Maker(1000003 * a.seed + 7919 * step + rank, fillers=300)
    sizes = [q.numel() for q in every]
    flat = torch.zeros(sum(sizes) + 1 + 3 * KINDS)
    sums = torch.zeros(3 * KINDS)                       # right, seen, loss by kind
    tokens, mark, saved, cpu, began = 0, time.time(), time.time(), time.process_time(), time.time()
    log = open(os.path.join(a.dir, "log.jsonl"), "a") if rank == 0 else None
    while minute < a.until and (time.time() - began) / 60 < a.minutes:
        st = stage_at(minute)
        t = make(maker, st, step)
        f = lr_at(minute)
        total, each, ok, kind = loss_of(model, t)
        total.backward()
        new = torch.zeros(3 * KINDS)
        new.index_add_(0, kind, ok)
        new.index_add_(0, kind + KINDS, torch.ones_like(ok))
        new.index_add_(0, kind + 2 * KINDS, each)
        now = time.process_time()
        torch.cat([q.grad.flatten() for q in every] + [torch.tensor([(now - cpu) / 60]), new], out=flat)
        cpu = now
        dist.all_reduce(flat)
        flat /= a.processes
        for q, g in zip(every, flat.split(sizes + [1 + 3 * KINDS])):
            q.grad = g.view_as(q)
        minute += flat[-1 - 3 * KINDS].item()
        sums += flat[-3 * KINDS:]
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(LR_MATRIX * f)
        for g in adam.param_groups:
            g["lr"] = LR_VECTOR * f
        adam.step()
        for q in every:
            q.grad = None
        step += 1
        tokens += (t["ids"].numel() + (t["book"].numel() if "book" in t else 0)) * a.processes
        if step % (100 if "school" in st else 20) == 0:
            right, seen, loss = sums.view(3, KINDS)
            acc = {NAMES[k]: round((right[k] / seen[k]).item(), 4) for k in NAMES if seen[k] > 0}
            row = dict(minute=round(minute, 2), wall=round((time.time() - began) / 60, 1), step=step,
                       loss=round((loss.sum() / seen.sum()).item(), 4), lr=round(f, 3),
                       tok_s=int(tokens / (time.time() - mark)),
                       length=t["book"].shape[1] if "book" in t else 0, **acc)
            sums.zero_()
            tokens, mark = 0, time.time()
            say(json.dumps(row), flush=True)
            if log:
                log.write(json.dumps(row) + "\n")
                log.flush()
        if rank == 0 and time.time() - saved > 60:
            save()
            saved = time.time()
    if rank == 0:
        save()
    say("stopped at minute", round(minute, 2))
    dist.barrier()
    # The compiler's helper threads need not be waited for.
    os._exit(0)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--dir", required=True)
    p.add_argument("--minutes", type=float, default=1e9, help="wall time of this sitting")
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--until", type=float, default=RESTARTS[0][1], help="minute of the schedule at which to stop")
    p.add_argument("--at", type=float, help="go on at this minute of the schedule")
    a = p.parse_args()
    os.makedirs(a.dir, exist_ok=True)
    a.token = f"{os.getpid()}-{time.time_ns()}"
    mp.spawn(work, (a,), nprocs=a.processes)


if __name__ == "__main__":
    main()
