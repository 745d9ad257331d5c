"""Training examples: a runbook's tokens and, for each alert, one row of tokens.

A row is a small tree after the runbook: the alert's turn (segment 0), then one
of the branches (segment 1) and the rest of the trunk (segment 2). Segments 1
and 2 both follow the alert and do not see each other, as when served. `answer`
marks the tokens whose prediction is trained: what the assistant says.
"""

import json
import random

import numpy as np
import torch

from alerts import REASONS, alert, pick
from runbooks import LETTERS, app_name, clause, filler, sections
from tok import END, START, VOCAB, Tok

NOTHING, FINDING, SEVERITY, POD, REASON, OOM, ACTION, FRAME, ECHO, CHOICE, START_POD, START_ACTION = range(12)
KINDS = 12
ANGLES = ("memory", "rollout", "network")
ASK_SEVERITY = "How severe is this: low, high or critical?"
ASK_VERDICT = "Give the verdict as JSON."


def verdict(a, action):
    return json.dumps({"pod": a["pod"], "reason": a["reason"], "oom_killed": a["oom_killed"],
                       "recommended_action": action}, separators=(",", ":"), ensure_ascii=False)


def findings_turn(f):
    return "Findings:\n" + "\n".join(f"{k}: {f[k]}" for k in ANGLES) + "\n" + ASK_SEVERITY


def angle_for(r, a):
    """An angle; more often than not the one that has something to say."""
    if r.random() < 0.45:
        return {"OOMKilled": "memory", "NodeNotReady": "network"}.get(a["reason"], "rollout")
    return pick(r, ANGLES)


class Fillers:
    """A pool of ready-made paragraphs, drawn from at random; renewed slowly."""

    def __init__(self, tok, r, n):
        self.tok, self.r, self.n = tok, r, n
        self.pool = []
        for _ in range(n):
            self.pool.append(self.make())

    def make(self):
        return self.tok.text(filler(self.r) + "\n\n")

    def draw(self):
        i = int(self.r.random() * len(self.pool))
        if self.r.random() < 0.25:
            self.pool[i] = self.make()
        return self.pool[i]


class Maker:
    def __init__(self, seed, test=False, fillers=3000):
        self.r, self.np = random.Random(seed), np.random.default_rng(seed)
        self.tok = Tok()
        self.test = test
        self.head = self.tok.open("system")
        self.fillers = Fillers(self.tok, self.r, fillers)
        self.period = self.tok.text(".\n")

    def runbook(self, length, plain=False):
        """Exactly length tokens, and what the runbook says."""
        r = self.r
        others = 0 if plain else int(r.random() * (3 if length < 700 else 8))
        texts, facts = sections(r, plain=plain, others=others)
        parts = [self.tok.text(x + "\n\n") for x in texts]
        room = length - len(self.head) - 2
        while sum(map(len, parts)) > room:
            # Too long: give up the other kinds, then draw plainer sections.
            texts, facts = sections(r, plain=True)
            parts = [self.tok.text(x + "\n\n") for x in texts]
            if sum(map(len, parts)) > room:
                length = room = sum(map(len, parts)) + 8
        used = sum(map(len, parts))
        while used < room:
            f = self.fillers.draw()
            f = f[:room - used]
            parts.insert(int(r.random() * (len(parts) + 1)), f)
            used += len(f)
        ids = list(self.head)
        for p in parts:
            ids += p
        return ids[:len(self.head) + room] + [END, self.tok.newline], facts

    def row(self, facts, a=None):
        """ids, segment, answer of one alert's tree, and the alert."""
        r, tok = self.r, self.tok
        a = a or alert(r, self.test)
        severity, act = facts[a["reason"]]
        ids, seg, ans = [], [], []

        def add(tokens, s, answer=NOTHING):
            ids.extend(tokens)
            seg.extend([s] * len(tokens))
            ans.extend([answer] * len(tokens))

        add(tok.turn("user", "Alert: " + a["alert"]), 0)
        angle = angle_for(r, a)
        add(tok.turn("user", f"Look only at {angle}."), 1)
        add(tok.open(), 1)
        add(tok.text(a["findings"][angle]) + [END], 1, FINDING)
        ans[ans.index(FINDING)] = CHOICE
        add(tok.turn("user", findings_turn(a["findings"])), 2)
        add(tok.open(), 2)
        add(tok.text(severity), 2, SEVERITY)
        add([END], 2, FRAME)
        add([tok.newline], 2)
        add(tok.turn("user", ASK_VERDICT), 2)
        add(tok.open(), 2)
        whole = tok.text(verdict(a, act))
        # The pieces' tokens are the whole's: each piece ends where the
        # pre-tokenizer cuts.
        pieces = [('{"pod":"', FRAME), (a["pod"], POD), ('","reason":"', FRAME), (a["reason"], REASON),
                  ('","oom_killed":', FRAME), ("true" if a["oom_killed"] else "false", OOM),
                  (',"recommended_action":"', FRAME), (act, ACTION), ('"}', FRAME)]
        start = len(ids)
        for text, what in pieces:
            add(tok.text(text), 2, what)
        assert ids[start:] == whole, a
        # Where a copy ends is part of getting it right.
        ends = [i for i in range(start + 1, len(ids)) if ans[i] == FRAME and ans[i - 1] in (POD, ACTION)]
        for i in ends:
            ans[i] = ans[i - 1]
        # And where it starts is the hard part of it.
        ans[ans.index(POD)], ans[ans.index(ACTION)] = START_POD, START_ACTION
        add([END], 2, FRAME)
        return ids, seg, ans, a

    def look_row(self):
        """Several alerts, each with one branch and nothing else; they do not see
        each other (segments from 10 on). Many findings for few tokens."""
        r, tok = self.r, self.tok
        ids, seg, ans = [], [], []
        for n in range(4):
            a = alert(r, self.test)
            angle = angle_for(r, a)
            ask = tok.turn("user", "Alert: " + a["alert"]) + tok.turn("user", f"Look only at {angle}.") + tok.open()
            say = tok.text(a["findings"][angle]) + [END]
            ids += ask + say
            seg += [10 + n] * (len(ask) + len(say))
            ans += [NOTHING] * len(ask) + [CHOICE] + [FINDING] * (len(say) - 1)
        return ids, seg, ans, None

    def echo_row(self, facts):
        """An exercise in looking up and copying: a name of the text is asked
        for by the word before it. Grows the habit of copying early."""
        r, tok = self.r, self.tok
        ids, seg, ans = [], [], []
        pairs = []
        for _ in range(3 + int(r.random() * 5)):
            key = pick(r, LETTERS) + pick(r, LETTERS) + str(int(r.random() * 100))
            pairs.append((key, app_name(r, False) if r.random() < .6 else clause(r)))
        text = "\n".join(f"{k}: {v}." for k, v in pairs)
        ask = tok.turn("user", text)
        ids += ask
        seg += [0] * len(ask)
        ans += [NOTHING] * len(ask)
        for _ in range(3):
            k, v = pick(r, pairs)
            q = tok.open("user") + tok.text(k) + [END, tok.newline] + tok.open()
            answer = tok.text(v) + [END]
            ids += q + answer + [tok.newline]
            seg += [2] * (len(q) + len(answer) + 1)
            ans += [NOTHING] * len(q) + [ECHO] * len(answer) + [NOTHING]
        return ids, seg, ans, None

    def quiz_row(self, facts):
        """An exercise in reading the runbook: kinds of failure are named, their
        severity or action is asked for, several in one row."""
        r, tok = self.r, self.tok
        ids, seg, ans = [], [], []
        names = list(facts)
        r.shuffle(names)
        for name in names[:6]:
            severity, act = facts[name]
            if r.random() < 0.75:
                q, a, what = pick(r, (f"{name}\n{ASK_SEVERITY}", f"Findings:\n{name}\n{ASK_SEVERITY}")), severity, SEVERITY
            else:
                q, a, what = f"{name}\nWhat is the action?", act, ACTION
            for t, k in ((tok.turn("user", q) + tok.open(), NOTHING), (tok.text(a), what),
                         ([END], what if what == ACTION else FRAME), ([tok.newline], NOTHING)):
                ids += t
                ans += [k] * len(t)
        return ids, [0] * len(ids), ans, None

    def school(self, rows, width):
        """Rows of random words that come again in another order: nothing can
        be learnt from them but to look back and copy."""
        r = self.np
        ids = np.zeros((rows, width), np.int64)
        ans = np.zeros((rows, width), np.int64)
        space = self.tok.text(" ")[0]
        for i in range(rows):
            pool = r.integers(3, VOCAB, r.integers(12, 200))
            words = [r.choice(pool, r.integers(3, 14)) for _ in range(r.integers(2, 9))]
            for w in words:
                if r.random() < 0.4:
                    w[1::2] = space
            marks, seen, at = r.integers(3, VOCAB, 3), set(), 0
            while at < width:
                j = int(r.integers(len(words)))
                s = np.concatenate(([marks[r.integers(3)]], words[j]))[:width - at]
                ids[i, at:at + len(s)] = s
                if j in seen:
                    ans[i, at + 3:at + len(s)] = ECHO
                seen.add(j)
                at += len(s)
        return {"ids": torch.from_numpy(ids), "ans": torch.from_numpy(ans)}

    def batch(self, books, rows, length, plain=False, echo=0.0, quiz=0.0, look=0.0, spread=0):
        """books runbooks of one length, rows alerts each, as arrays.

        spread moves the alerts away from the runbook, and pieces of the runbook
        from each other, by random gaps in the positions up to spread in all: a
        short text then has the distances of a long one."""
        r = self.r
        made = [self.runbook(length, plain) for _ in range(books)]
        length = max(len(b) for b, _ in made)
        book = np.zeros((books, length), np.int64)
        book_pos = np.zeros((books, length), np.int64)
        out = []
        for i, (ids, facts) in enumerate(made):
            pos = np.arange(length)
            if spread and r.random() < 0.8:
                gap = int(r.random() * spread)
                cuts = np.sort(np.array([int(r.random() * length) for _ in range(6)]))
                cuts[-1] = length
                share = np.array([r.random() ** 2 for _ in range(6)])
                jumps = (share / share.sum() * gap).astype(int)
                for c, j in zip(cuts, jumps):
                    pos[c:] += j
                after = pos[-1] + 1 + (jumps[-1] if r.random() < .7 else 0)
            else:
                after = pos[-1] + 1
            book[i, :len(ids)] = ids
            book_pos[i] = pos
            for _ in range(rows):
                x = self.echo_row(facts) if r.random() < echo else \
                    self.quiz_row(facts) if r.random() < quiz else \
                    self.look_row() if r.random() < look else self.row(facts)
                out.append((x, after))
        width = (max(len(x[0]) for x, _ in out) + 7) // 8 * 8
        n = len(out)
        ids = np.zeros((n, width), np.int64)
        seg = np.full((n, width), 3, np.int64)
        pos = np.zeros((n, width), np.int64)
        ans = np.zeros((n, width), np.int64)
        for i, ((t, s, a, _), after) in enumerate(out):
            k = len(t)
            ids[i, :k], seg[i, :k], ans[i, :k] = t, s, a
            s = np.array(s)
            p = np.arange(k)
            first = int((s == 0).sum())
            for x in set(s.tolist()) - {0}:
                # A segment follows the alert, or starts anew without one.
                at = np.flatnonzero(s == x)
                p[at] = np.arange(len(at)) + first
            pos[i, :k] = p + after
        return {"book": book, "book_pos": book_pos, "ids": ids, "seg": seg, "pos": pos,
                "ans": ans, "alerts": [x[3] for x, _ in out], "facts": [f for _, f in made]}


if __name__ == "__main__":
    import time
    m = Maker(0)
    t = time.time()
    b = m.batch(4, 8, 400)
    print(time.time() - t, b["ids"].shape, (b["ans"] > 0).sum(), (b["seg"] != 3).sum())
    print(m.tok.decode(b["book"][0]))
    print(m.tok.decode(b["ids"][0]), b["pos"][0])
    t = time.time()
    b = m.batch(1, 8, 6000)
    print(time.time() - t)
