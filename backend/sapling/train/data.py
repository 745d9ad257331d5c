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

import wording
from alerts import REASONS, alert, app_name, pick, pod_name, word
from runbooks import DOCUMENTS, clause, filler, sections
from tok import END, START, VOCAB, Tok

NOTHING, FINDING, SEVERITY, POD, REASON, OOM, ACTION, FRAME, ECHO, CHOICE, START_POD, START_ACTION, KIND = range(13)
KINDS = 13
ANGLES = ("memory", "rollout", "network")
ASK_QUOTE = "Quote the runbook."
ASK_VERDICT = "Give the verdict as JSON."
WIDTH = 256  # of a row, in tokens: all rows are nearly that long, so little is padding


def verdict(a, action):
    return json.dumps({"pod": a["pod"], "reason": a["reason"], "oom_killed": a["oom_killed"],
                       "recommended_action": action}, separators=(",", ":"), ensure_ascii=False)


def findings_turn(f):
    return "Findings:\n" + "\n".join(f"{k}: {f[k]}" for k in ANGLES) + "\n" + ASK_QUOTE


def angle_for(r, a):
    """An angle; more often than not the one that has something to say."""
    if r.random() < 0.45:
        return {"OOMKilled": "memory", "NodeNotReady": "network"}.get(a["reason"], "rollout")
    return pick(r, ANGLES)


def confuse(r, actions):
    """Prose that holds pieces of the actions and goes on in another way, so that
    a copy cannot be led astray by two or three like words."""
    out = []
    for _ in range(2 + int(r.random() * 4)):
        words = pick(r, actions).split(" ")
        i = int(r.random() * len(words))
        piece = words[i:i + 1 + int(r.random() * 4)]
        other = pick(r, (filler, lambda r: clause(r) + "."))(r).split(" ")
        j = int(r.random() * max(1, len(other) - 6))
        more = clause(r).split(" ")
        out.append(" ".join(other[j:j + int(r.random() * 6)] + piece + more[int(r.random() * len(more)):]) + pick(r, (".", ".", ";", ",", ":")))
    return " ".join(out)


class Fillers:
    """A pool of ready-made paragraphs, drawn from at random; renewed slowly."""

    def __init__(self, tok, r, n):
        self.tok, self.r, self.n = tok, r, n
        self.pool = []
        for _ in range(n):
            self.pool.append(self.make())

    def make(self):
        text = pick(self.r, DOCUMENTS) if self.r.random() < 0.3 else filler(self.r)
        return self.tok.text(text + "\n\n")

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
        if length < 40:  # nothing to read: for rows that ask about alerts only
            ids = list(self.head) + self.tok.text(filler(r) + "\n\n" + filler(r))
            return ids[:length - 2] + [END, self.tok.newline], None
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
            f = self.fillers.draw() if r.random() < 0.6 else self.tok.text(confuse(r, [x for _, x in facts.values()]) + "\n\n")
            f = f[:room - used]
            parts.insert(int(r.random() * (len(parts) + 1)), f)
            used += len(f)
        ids = list(self.head)
        for p in parts:
            ids += p
        return ids[:len(self.head) + room] + [END, self.tok.newline], facts

    def quote(self, name, facts):
        """Texts and marks of the assistant's turn that quotes the runbook. The
        program writes all but the kind, the severity and the action."""
        severity, act = facts[name]
        return [("Severity of ", NOTHING), (name, KIND), (": ", NOTHING), (severity, SEVERITY),
                (".\nAction for " + name + ": ", NOTHING), (act + ".", ACTION)]

    def row(self, facts, a=None):
        """ids, segment, answer of one alert's tree, and the alert."""
        while True:
            made = self.any_row(facts, a)
            if len(made[0]) <= WIDTH or a:
                return made

    def any_row(self, facts, a):
        r, tok = self.r, self.tok
        a = a or alert(r, self.test)
        ids, seg, ans = [], [], []

        def add(tokens, s, answer=NOTHING):
            ids.extend(tokens)
            seg.extend([s] * len(tokens))
            ans.extend([answer] * len(tokens))

        def pieces(list_, first):
            """The pieces' tokens are the whole's: each piece ends where the
            pre-tokenizer cuts."""
            start = len(ids)
            for text, what in list_:
                at = len(ids)
                add(tok.text(text), 2, what)
                if what in first:
                    ans[at] = first[what]
            assert ids[start:] == tok.text("".join(t for t, _ in list_)), a

        add(tok.turn("user", "Alert: " + a["alert"]), 0)
        angle = angle_for(r, a)
        add(tok.turn("user", f"Look only at {angle}."), 1)
        add(tok.open(), 1)
        add(tok.text(a["findings"][angle]) + [END], 1, FINDING)
        ans[ans.index(FINDING)] = CHOICE
        add(tok.turn("user", findings_turn(a["findings"])), 2)
        add(tok.open(), 2)
        pieces(self.quote(a["reason"], facts), {ACTION: START_ACTION})
        add([END], 2, ACTION)
        add([tok.newline], 2)
        add(tok.turn("user", ASK_VERDICT), 2)
        add(tok.open(), 2)
        act = facts[a["reason"]][1]
        pieces([('{"pod":"', FRAME), (a["pod"], POD), ('","reason":"', FRAME), (a["reason"], REASON),
                ('","oom_killed":', FRAME), ("true" if a["oom_killed"] else "false", OOM),
                (',"recommended_action":"', FRAME), (act, ACTION), ('"}', FRAME)],
               {POD: START_POD, ACTION: START_ACTION})
        # Where a copy ends is part of getting it right.
        ends = [i for i in range(1, len(ids)) if ans[i] == FRAME and ans[i - 1] in (POD, ACTION, START_POD, START_ACTION)]
        for i in ends:
            ans[i] = POD if ans[i - 1] in (POD, START_POD) else ACTION
        add([END], 2, FRAME)
        return ids, seg, ans, a

    def look_row(self):
        """An alert with all looks and the start of a verdict, each a branch of
        its own: reading and nothing else, many answers for few tokens."""
        r, tok = self.r, self.tok
        a = alert(r, self.test)
        ids = tok.turn("user", "Alert: " + a["alert"])
        seg, ans = [0] * len(ids), [NOTHING] * len(ids)

        def branch(n, ask, answer, first, rest):
            ids.extend(ask + answer)
            seg.extend([n] * len(ask + answer))
            ans.extend([NOTHING] * len(ask) + [first] + [rest] * (len(answer) - 1))

        for n, angle in enumerate(ANGLES):
            branch(4 + n, tok.turn("user", f"Look only at {angle}.") + tok.open(), tok.text(a["findings"][angle]) + [END],
                   CHOICE, FINDING)
        # One token of what follows: where a copy ends is part of it.
        branch(1, tok.turn("user", ASK_VERDICT) + tok.open() + tok.text('{"pod":"'),
               tok.text(a["pod"]) + tok.text('","reason":"')[:1], START_POD, POD)
        return ids, seg, ans, None

    def pod_row(self):
        """An alert, what was found, and the start of a verdict: the pod alone."""
        r, tok = self.r, self.tok
        a = alert(r, self.test)
        ids = tok.turn("user", "Alert: " + a["alert"])
        if r.random() < 0.5:
            ids += tok.turn("user", findings_turn(a["findings"]))
        ids += tok.turn("user", ASK_VERDICT) + tok.open() + tok.text('{"pod":"')
        copy = tok.text(a["pod"]) + tok.text('","reason":"')[:1]
        return ids + copy, [0] * (len(ids) + len(copy)), [NOTHING] * len(ids) + [START_POD] + [POD] * (len(copy) - 1), None

    def name_row(self):
        """An exercise in telling a pod by the form of its name: words, of which
        one has the hyphens and the digits of a pod's name."""
        r, tok = self.r, self.tok
        plain = r.random() < 0.3  # only hyphens tell
        while True:
            pod = pod_name(r, app_name(r, False), False)
            if "-" in pod and (plain or any(c.isdigit() for c in pod)):
                break

        def words(most):
            out = []
            for _ in range(int(r.random() * most)):
                x = r.random()
                out.append(pick(r, wording.FILL) if x < .3 else pick(r, wording.NOUN) if x < .5 else word(r, False) if x < .7
                           else pick(r, wording.KIND) if x < .75 else str(int(10 ** (r.random() * 4))) if x < .8
                           else pick(r, wording.VERB) if x < .85 else pick(r, REASONS) if x < .87
                           else word(r, False) + ":" if x < .9 else pick(r, wording.ADJ) if x < .94 or plain
                           else app_name(r, False).strip("0123456789"))
                out.append(pick(r, (" ", " ", " ", " ", " ", " ", ", ", ": ", " - ", ". ", "=", "/", " | ", "\n")))
            return "".join(out)

        x = pick(r, ("{}", "{}", "{}", "{}", "'{}'", '"{}"', "({})", "[{}]", "{},", "{}:", "{}.", "<{}>", "`{}`", "{};"))
        text = words(16) + x.format(pod) + pick(r, (" ", " ", " ", "\n", " - ", " | ")) + words(12)
        ids = tok.turn("user", "Alert: " + text) + tok.turn("user", ASK_VERDICT) + tok.open() + tok.text('{"pod":"')
        ans = [NOTHING] * len(ids)
        copy = tok.text(pod) + tok.text('","reason":"')[:1]
        return ids + copy, [0] * (len(ids) + len(copy)), ans + [START_POD] + [POD] * (len(copy) - 1), None

    def quiz_row(self, facts):
        """An exercise in reading the runbook: kinds of failure are named and
        quoted, several in one row."""
        r, tok = self.r, self.tok
        ids, seg, ans = [], [], []
        names = list(facts)
        r.shuffle(names)
        for name in names:
            t, k = list(tok.open()), [NOTHING] * len(tok.open())
            for text, what in self.quote(name, facts):
                x = tok.text(text)
                t += x
                # Here the kind is given; nothing tells which one comes next.
                k += [NOTHING if what == KIND else what] * len(x)
                if what == ACTION:
                    k[-len(x)] = START_ACTION
            t += [END, tok.newline]
            k += [ACTION, NOTHING]
            if len(ids) + len(t) > WIDTH:
                break
            ids += t
            ans += k
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

    def batch(self, books, rows, length, plain=False, quiz=0.0, look=0.0, name=0.0, pod=0.0, spread=0):
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
                x = self.name_row() if r.random() < name else \
                    self.pod_row() if r.random() < pod else \
                    self.quiz_row(facts) if r.random() < quiz else \
                    self.look_row() if r.random() < look else self.row(facts)
                out.append((x, after))
        width = (max(len(x[0]) for x, _ in out) + 15) // 16 * 16
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
            for x in set(s.tolist()):
                # A segment follows the root of its tree, each root the runbook.
                at = np.flatnonzero(s == x)
                root = x // 100 * 100
                p[at] = np.arange(len(at)) + (0 if x == root else int((s == root).sum()))
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
