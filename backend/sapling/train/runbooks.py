"""Runbooks: four sections to be looked up, among prose that is to be skipped.

A runbook is a list of paragraphs. For each reason one paragraph holds the line
with its severity and the line with its action; both lines name the reason. The
severity is drawn anew for every runbook and the action is put together from
many pieces, so neither can be learnt by heart: they must be read.
"""

import glob
import os

from alerts import HASH, HEX, LETTERS, REASONS, app_name, node_name, pick, pod_name, syllables, text_of, word
from wording import FILL
from words import ADJ, NOUN, OTHER_KIND, PREP, TEAM, VERB

SEVERITIES = ("low", "high", "critical")

SEVERITY_LINE = "Severity of {r}: {s}."
ACTION_LINE = "Action for {r}: {a}."
HEADING = ["## {r}", "### {r}", "{r}", "# {r}", "## When {r} fires", "## Kind: {r}",
           "## {n}. {r}", "**{r}**", "## {r} alerts", "= {r} ="]

# Actions, first the plausible ones with slots, then free combinations.
ACTION = [
    "raise the memory limit to {n}Mi and restart the pod",
    "roll back to the last good revision and tell the {team} team",
    "drain the node and let the pods move to {adj} nodes",
    "check the image tag in the {noun} and push it again",
    "restart the {noun} and watch it for {n} minutes",
    "capture a heap dump, then raise the limit by {n} percent",
    "call the {team} team and hold all releases for {n} hours",
    "scale the deployment to {n} replicas and open a ticket",
    "fix the pull secret and delete the pod so that it starts again",
    "read the previous logs and roll the change back",
    "cordon the node, then reboot it through the {team} console",
    "ask the {team} team to rebuild the image",
    "compare the {noun} with the {adj} one and undo the last change",
    "wait {n} minutes, then replace the node",
    "move the {noun} to a {adj} pool and page the {team} lead",
    "lower the cache size to {n} and restart one replica at a time",
    "pin the image by digest and redeploy",
    "open a ticket for the {team} team and close the page",
    "double the memory request and limit",
    "copy the image to the {adj} registry and retry the rollout",
    "turn off the {noun} flag and restart with a clean {noun}",
    "stop the rollout and restore revision {n}",
]

PROSE = [
    "The {team} team owns the {noun} and keeps its {noun} in the {adj} {noun}.",
    "Before you {verb} the {noun}, {verb} the {adj} {noun} and write it down.",
    "Every {noun} has an owner; if the {noun} is {adj}, ask in the channel of {team}.",
    "A {adj} {noun} is no reason to {verb} the {noun} {prep} the {noun}.",
    "If the {noun} stays {adj} for more than {n} minutes, {verb} it and tell {team}.",
    "We {verb} the {noun} once a week and {verb} the {noun} after each release.",
    "Do not {verb} a {noun} {prep} business hours unless the {noun} is {adj}.",
    "The {noun} of {app} runs {prep} {node} and uses {n} percent of its {noun}.",
    "Last year the {adj} {noun} was lost because nobody could {verb} the {noun}.",
    "Use the {noun} dashboard to {verb} the {noun}; the {adj} panel shows the {noun}.",
    "Most pages come from {app}; its {noun} needs a {adj} {noun} to {verb}.",
    "When in doubt, {verb} the {noun} first and {verb} the {noun} later.",
    "The {noun} must be {adj} before the {noun} can {verb} a {noun}.",
    "People who {verb} the {noun} at night should {verb} {n} hours the next day.",
    "A severity is about customers, not about how {adj} the {noun} looks.",
    "Low traffic at night makes the {noun} look {adj}; it is not.",
    "High load on the {noun} is {adj} and needs no page.",
    "A critical {noun} is one that the {team} team cannot {verb}.",
    "The memory of a {noun} grows {prep} the {noun}; look at the {adj} graph.",
    "A rollout of {app} takes {n} minutes and changes {n} pods at a time.",
    "Network trouble shows as a {adj} {noun} {prep} the {noun}.",
    "After {n} restarts the wait between two tries is five minutes.",
    "Keep the {noun} short: what you saw, what you did, what is {adj}.",
    "The second person on call may {verb} the {noun} if the first does not answer in {n} minutes.",
    "Write the time in UTC and the name of the {noun} in full.",
    "An image is built once and moves from the {adj} registry to the {adj} one.",
    "The node pool {node} has {n} nodes; two may be {adj} at the same time.",
    "Hand over every {adj} {noun} with a link to its {noun}.",
]

MENTION = [
    "{r} is seen about {n} times a month, mostly {prep} the {noun}.",
    "An alert of kind {r} names the pod; look at the {noun} as well.",
    "{r} and {r2} often come together.",
    "If you see {r} {prep} a {noun}, do not {verb} the {noun} yet.",
    "The {team} team gets a copy of every {r} page.",
    "Last month {app} had {r} for {n} minutes; the {noun} was {adj}.",
    "Do not mix up {r} with {r2}.",
]


def clause(r):
    """Words put together freely; sense does not matter, variety does."""
    x = r.random()
    n = (lambda: noun(r))
    if x < 0.3:
        return f"{pick(r, VERB)} the {pick(r, ADJ)} {n()}"
    if x < 0.5:
        return f"{pick(r, VERB)} the {n()} {pick(r, PREP)} the {n()}"
    if x < 0.7:
        return f"{pick(r, VERB)} {n()} {int(r.random() * 100)} {pick(r, PREP)} {n()}"
    if x < 0.85:
        return f"{pick(r, VERB)} every {pick(r, ADJ)} {n()} and {pick(r, VERB)} it"
    return f"{pick(r, VERB)} {n()} {pick(r, PREP)} {app_name(r, False)}"


def noun(r):
    x = r.random()
    if x < 0.8:
        return pick(r, NOUN)
    if x < 0.9:
        return syllables(r, 1 + int(r.random() * 3))
    return pick(r, NOUN) + " " + pick(r, NOUN)


def documents():
    """Paragraphs of this repository's documents, text as people write it, but none
    with lines of the demo's runbook, which is for the test."""
    top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
    out = []
    for path in sorted(glob.glob(os.path.join(top, "docs", "*.md"))) + [os.path.join(top, "README.md")]:
        with open(path) as f:
            out += [p for p in f.read().split("\n\n") if 60 < len(p) < 900 and not p.lstrip().startswith(("```", "|"))
                    and "Action for" not in p and "Severity of" not in p and "replica at" not in p]
    return out


DOCUMENTS = documents()


def borrowed(r):
    """Some words in a row of a document, or words of no sense: no habit of
    speech can tell how they go on, they must be read."""
    n = 4 + int(r.random() * 9)
    if r.random() < 0.35:
        words = [word(r, False) if r.random() < .5 else pick(r, FILL + NOUN + VERB + ADJ) for _ in range(n)]
        return " ".join(w + ("," if r.random() < .08 else "") for w in words).strip(",")
    while True:
        words = pick(r, DOCUMENTS).split()
        i = int(r.random() * len(words))
        text = " ".join(words[i:i + n]).rstrip(".,;:")
        if len(text) > 12 and not set(text) & set('"\\`|{}[]<>*#.') and text.isascii():
            return text


def action(r):
    if r.random() < 0.5:
        return borrowed(r)
    x = r.random()
    if x < 0.4:
        text = fill(r, pick(r, ACTION))
    elif x < 0.7:
        text = clause(r) + pick(r, (" and ", ", then ", ", ", " or ")) + clause(r)
    elif x < 0.85:
        text = clause(r)
    else:
        text = fill(r, pick(r, ACTION)) + pick(r, (" and ", ", then ")) + clause(r)
    return text if r.random() < 0.7 else text[0].upper() + text[1:]


def fill(r, template):
    # Each slot is filled on its own, so two {noun} of one line differ.
    out = []
    for piece in template.split("{"):
        head, close, tail = piece.partition("}")
        out.append(VALUE[head](r) + tail if close else piece)
    return "".join(out)


VALUE = {
    "team": lambda r: pick(r, TEAM), "noun": noun, "adj": lambda r: pick(r, ADJ),
    "verb": lambda r: pick(r, VERB), "prep": lambda r: pick(r, PREP),
    "n": lambda r: str(int(10 ** (r.random() * 3))), "app": lambda r: app_name(r, False),
    "node": lambda r: node_name(r, False), "r": lambda r: kind(r), "r2": lambda r: kind(r),
}


def kind(r):
    """The name of some kind of failure, at times one made up."""
    x = r.random()
    if x < 0.4:
        return pick(r, REASONS)
    if x < 0.85:
        return pick(r, OTHER_KIND)
    return syllables(r, 2).capitalize() + syllables(r, 1).capitalize()


def prose(r, n):
    return " ".join(fill(r, pick(r, PROSE if r.random() < .75 else MENTION)) for _ in range(n))


def kubectl(r):
    rows = ["NAME READY STATUS RESTARTS AGE"]
    for _ in range(2 + int(r.random() * 4)):
        app = app_name(r, False)
        status = pick(r, ("Running", "Running", "Pending", "Error", "Completed") + REASONS[:3])
        rows.append(f"{pod_name(r, app, False)} {pick(r, ('1/1', '0/1', '2/2'))} {status} "
                    f"{int(r.random() * 40)} {int(r.random() * 90)}{pick(r, 'mhd')}")
    return "\n".join(["```"] + rows + ["```"])


def table(r):
    rows = ["| team | first call | second call |", "|---|---|---|"]
    for _ in range(2 + int(r.random() * 4)):
        rows.append(f"| {pick(r, TEAM)} | {noun(r)} | {int(r.random() * 60)} minutes |")
    return "\n".join(rows)


def items(r):
    mark = pick(r, ("- ", "* ", "{}. "))
    return "\n".join(mark.format(i + 1) + clause(r) + pick(r, ("", ".", ", then " + clause(r)))
                     for i in range(2 + int(r.random() * 4)))


def command(r):
    return "kubectl " + pick(r, (
        f"-n {pick(r, TEAM)} logs {app_name(r, False)} --previous", f"describe node {node_name(r, False)}",
        f"rollout undo deployment/{app_name(r, False)}", f"get events --sort-by=.lastTimestamp",
        f"set resources deployment {app_name(r, False)} --limits=memory={int(r.random() * 900)}Mi"))


def noise(r):
    """Text without sense, so that no style of prose can mislead the reader."""
    words = []
    for _ in range(8 + int(r.random() * 30)):
        x = r.random()
        words.append(syllables(r, 1 + int(r.random() * 3)) if x < .4 else pick(r, NOUN) if x < .6
                     else text_of(r, LETTERS + HEX, 1 + int(r.random() * 8)) if x < .8
                     else pick(r, VERB + ADJ + PREP))
    return " ".join(words) + "."


def filler(r):
    """One paragraph that answers nothing."""
    x = r.random()
    if x < 0.5:
        body = prose(r, 1 + int(r.random() * 4))
    elif x < 0.62:
        body = items(r)
    elif x < 0.72:
        body = kubectl(r)
    elif x < 0.78:
        body = table(r)
    elif x < 0.84:
        body = "Run " + command(r) + " and " + clause(r) + "."
    else:
        body = noise(r)
    if r.random() < 0.3:
        body = pick(r, ("## ", "### ", "# ")) + " ".join(
            [noun(r).capitalize()] + [noun(r) for _ in range(int(r.random() * 3))]) + "\n" + body
    return body


def lines(r, name, severity, act, plain):
    """The two lines of a section, with prose around them unless plain."""
    sev = SEVERITY_LINE.format(r=name, s=severity)
    todo = ACTION_LINE.format(r=name, a=act)
    pair = [sev, todo] if r.random() < 0.7 else [todo, sev]
    if plain:
        return "\n".join(pair)
    out = []
    if r.random() < 0.6:
        out.append(prose(r, 1 + int(r.random() * 2)))
    out.append(pair[0])
    if r.random() < 0.3:
        out.append(prose(r, 1))
    out.append(pair[1])
    if r.random() < 0.4:
        out.append(prose(r, 1))
    return "\n".join(out)


def sections(r, plain=False, others=0):
    """The sections in random order, and what they say: {reason: (severity, action)}."""
    heading = pick(r, HEADING) if r.random() < 0.9 else None
    facts, out = {}, []
    names = list(REASONS) + [x for x in {kind(r) for _ in range(others)} if x not in REASONS]
    for i, name in enumerate(names):
        facts[name] = (pick(r, SEVERITIES), action(r))
        text = lines(r, name, *facts[name], plain)
        if heading and not plain:
            text = heading.format(r=name, n=i + 1) + "\n" + text
        out.append(text)
    r.shuffle(out)
    return out, facts


if __name__ == "__main__":
    import random
    rng = random.Random(0)
    got, said = sections(rng, others=3)
    print("\n\n".join(x + "\n\n" + filler(rng) for x in got))
    print(said)
