"""Alerts with their answers: pod, reason, whether memory killed it, findings.

The rule of the labels. reason is the root cause that the alert names:
  OOMKilled         the text says that memory killed the container, whatever
                    state the pod is in now
  ImagePullBackOff  the image cannot be pulled
  NodeNotReady      the node is not ready, lost or unreachable
  CrashLoopBackOff  the container keeps ending for any other reason
oom_killed is true exactly when reason is OOMKilled. The pod is its bare name,
without a namespace or a kind before it.

Each alert is put together from pieces (subject, predicate, asides) or from one
whole template; every fifth piece is kept for the test, and so are the names.
"""

import json
import os

import wording
from words import (ADJ, APP, NAMESPACE, NODE, NOUN, PERSON_GREETING, REGISTRY,
                   TEAM, VERB, part)

REASONS = ("OOMKilled", "ImagePullBackOff", "CrashLoopBackOff", "NodeNotReady")
HASH = "bcdfghjklmnpqrstvwxz2456789"
HEX = "0123456789abcdef"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
ONSET = "b c d f g h j k l m n p r s t v w z br cr dr fl gr pl pr sh sl st th tr qu ch".split()
VOWEL = "a e i o u ai ea ee io ou y".split()
CODA = ["", "", "", "n", "r", "l", "s", "t", "x", "m", "nd", "rk", "st", "ck"]


def pick(r, xs):
    return xs[int(r.random() * len(xs))]


def text_of(r, alphabet, n):
    return "".join(pick(r, alphabet) for _ in range(n))


def syllables(r, n):
    return "".join(pick(r, ONSET) + pick(r, VOWEL) + pick(r, CODA) for _ in range(n))


def _letter_tokens():
    """The texts of all tokens of lower-case letters: names built of them teach
    that any token can be copied, not only those of the pool's words."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer.json")
    if not os.path.exists(path):  # the tokenizer itself is still to be learnt
        return ["a"]
    with open(path) as f:
        vocab = json.load(f)["model"]["vocab"]
    return sorted(t for t in vocab if t.isascii() and t.isalpha() and t.islower())


TOKENS = _letter_tokens()


def word(r, test):
    """A word of a name: from the pool, of any tokens, of syllables, or letters."""
    x = r.random()
    if not test and r.random() < 0.5:
        return "".join(pick(r, TOKENS) for _ in range(1 + int(r.random() * 3)))
    if x < (0.85 if test else 0.5):
        return pick(r, APPS[test])
    if x < (0.9 if test else 0.7):
        return syllables(r, 1 + int(r.random() * 3))
    return text_of(r, LETTERS, 2 + int(r.random() * 6))


def app_name(r, test):
    x = r.random()
    n = 1 if x < 0.25 else 2 if x < 0.8 else 3
    parts = [word(r, test) for _ in range(n)]
    x = r.random()
    if x < 0.06:
        parts.append("v" + str(1 + int(r.random() * 9)))
    elif x < 0.1:
        parts[-1] += str(1 + int(r.random() * 99))
    elif x < 0.13:
        parts.append(pick(r, ("eu", "us", "a", "b", "blue", "green", "canary", "west", "east1")))
    return "-".join(parts)


def pod_name(r, app, test):
    if not test and r.random() < 0.08:  # what looks like the end of a name need not be it
        app += "-" + text_of(r, HASH, 5 + int(r.random() * 5))
    x = r.random()
    if x < 0.34:
        n = 8 + int(r.random() * 3)
        return f"{app}-{text_of(r, HASH, n)}-{text_of(r, HASH, 5)}"
    if x < 0.56:
        n = 5 + int(r.random() * 6)
        return f"{app}-{text_of(r, HEX, n)}-{text_of(r, HASH, 5)}"
    if x < 0.74:
        return f"{app}-{int(r.random() * (5 if r.random() < .6 else 40))}"
    if x < 0.82:
        return f"{app}-{text_of(r, HASH, 5)}"
    if x < 0.88:
        return f"{app}-{28000000 + int(r.random() * 2000000)}-{text_of(r, HASH, 5)}"
    if x < 0.91:
        return f"{app}-{text_of(r, LETTERS + '0123456789', 3 + int(r.random() * 9))}"
    return app


def node_name(r, test):
    base = pick(r, NODES[test])
    x = r.random()
    if x < 0.4:
        return f"{base}-{int(r.random() * 40)}"
    if x < 0.7:
        return f"{base}-{int(r.random() * 256)}-{int(r.random() * 256)}"
    return f"{base}-{text_of(r, HASH, 4)}"


SUBJECT = [
    "Pod {pod}", "pod {pod}", "{pod}", "{ns}/{pod}", "pod/{pod}", "Pod {ns}/{pod}",
    'Pod "{pod}"', "The pod {pod}", "container {cont} in pod {pod}", "our {pod}",
    "'{pod}'", "po/{pod}", '"{pod}"', "Pod: {pod},", "replica {pod}", "`{pod}`",
    "the pod {pod} in namespace {ns}", "{pod} ({ns})", "Container {cont} of {pod}",
    "job pod {pod}", "{pod} from deployment {app}", "Pod {pod} of {app}",
    "[{ns}] {pod}", "workload {pod}", "Pod '{pod}'", "pod {ns}/{pod} on {node}",
    "Pod {pod} on node {node}", "one pod, {pod},", "service {other} is slow because {pod}",
    "instance {pod}", "{ns}: pod {pod}",
]

# What happened to the subject, by reason. {code} puts an exit code in the text.
PREDICATE = {
    "OOMKilled": [
        "is in CrashLoopBackOff with exit code 137 (OOMKilled)",
        "was OOMKilled", "was killed for memory", "ran out of memory and was killed",
        "has been OOM killed", "exceeded its memory limit of {mem} and was killed",
        "keeps getting OOMKilled", "terminated with reason OOMKilled, exit code 137",
        "got killed by the OOM killer", "died, out of memory",
        "last state: terminated, OOMKilled", "is restarting after an OOM kill",
        "hit its memory limit and the kernel killed it", "OOMKilled (exit 137)",
        "exited 137, OOMKilled", "was terminated because it used too much memory",
        "went over {mem} of memory and got killed", "shows OOMKilled in describe",
        "keeps dying, it runs out of memory every time", "is down: OOMKilled",
        "CrashLoopBackOff, last exit code 137, reason OOMKilled",
        "crashed with OOMKilled after {age}", "restarted {n} times because of OOMKilled",
        "was killed by the kernel: memory cgroup out of memory",
        "container killed, memory limit {mem} exceeded", "memory limit reached, process killed",
        "got oomkilled again", "oom-killed {n} times in {age}", "died from OOM, exit code 137",
        "is crash looping because memory runs out and it is killed",
        "was evicted by the OOM killer, code 137", "fails with OOMKilled on start",
        "uses more than {mem} and is killed for it", "is being OOM-killed",
    ],
    "ImagePullBackOff": [
        "is in ImagePullBackOff", "cannot pull its image", "is stuck in ImagePullBackOff",
        "fails with ErrImagePull", "cannot pull image {image}",
        "Back-off pulling image {image}", "is waiting: ImagePullBackOff",
        "never starts, the image cannot be pulled", "has status ErrImagePull",
        "failed to pull image {image}: not found", "got ImagePullBackOff after the release",
        "image pull failed with unauthorized", "cannot start, registry says manifest unknown",
        "is pending because image {image} does not exist", "image pull error, access denied",
        "has been in ImagePullBackOff for {age}", "wants an image tag that is not in the registry",
        "is not starting, pull of {image} is denied", "keeps failing to pull its image",
        "ErrImagePull then ImagePullBackOff", "0/1 ImagePullBackOff",
        "pull access denied for {image}", "stuck on pulling the image, registry times out",
        "can't get its image from the registry", "waiting with reason ImagePullBackOff",
        "image pull backoff, tag is missing", "container image could not be pulled",
        "is failing because the image pull secret is wrong", "shows ImagePullBackOff since the deploy",
        "cannot fetch {image}, rpc error code NotFound",
    ],
    "CrashLoopBackOff": [
        "is in CrashLoopBackOff", "is crash looping", "keeps dying, exit {code}",
        "is in CrashLoopBackOff with exit code {code}", "restarts every minute with exit code {code}",
        "Back-off restarting failed container", "keeps crashing on start",
        "exits with code {code} and restarts", "has restarted {n} times, exit code {code}",
        "is stuck in CrashLoopBackOff after {n} restarts", "crashes with exit code {code}",
        "terminated with Error, exit code {code}", "panics on start and restarts",
        "crashloops since the deploy, exit code {code}", "restarted {n} times in {age}",
        "dies right after start with code {code}", "will not stay up, last exit code {code}",
        "is restarting again and again", "CrashLoopBackOff (exit {code})",
        "fails on a bad config and restarts, exit code {code}", "0/1 CrashLoopBackOff {n}",
        "segfaults, exit code 139", "killed by the liveness probe, exit code 137, CrashLoopBackOff",
        "crash loop, exit {code}, memory is fine", "container exits {code} with an exception",
        "waiting with reason CrashLoopBackOff", "keeps falling over with exit status {code}",
        "liveness probe failed, container restarted {n} times", "went into a crash loop {age} ago",
        "shows CrashLoopBackOff, no OOM, exit code {code}", "is flapping: exit code {code}",
        "can't connect to its database and exits {code}", "loops on start: missing variable, exit code {code}",
        "keeps restarting, exit code {code}",
    ],
    "NodeNotReady": [
        "is Unknown because node {node} is NotReady", "is on {node} which is NotReady",
        "lost its node: {node} is not ready", "is stuck Terminating, node {node} is NotReady",
        "NodeNotReady on {node}", "is unreachable, kubelet on {node} stopped posting status",
        "cannot be reached, node {node} is down", "is not running since {node} went NotReady",
        "evicted because node {node} is not ready", "marked for deletion, node {node} is unreachable",
        "down with its node, NodeNotReady", "is gone with the node, node not ready",
        "Node is not ready", "status Unknown, the node does not answer",
        "was on node {node} when it stopped reporting", "is affected by NodeNotReady on {node}",
        "has taint node.kubernetes.io/not-ready from {node}", "not ready: node {node} lost contact",
        "fails, its node {node} is NotReady for {age}", "lost, node {node} has no heartbeat",
        "is waiting, host {node} is NotReady", "stopped when node {node} became NotReady",
        "cannot be rescheduled yet, node {node} NotReady", "went away, {node} reports NotReady",
        "is dead because the node {node} went offline", "hangs: node {node} unreachable",
        "NodeNotReady for {age}", "can't be deleted, its node {node} is not responding",
        "got stuck when {node} dropped off the network", "is on a node that is NotReady",
    ],
}

# Whole alerts in the shapes that tools print.
WHOLE = {
    "OOMKilled": [
        "Warning OOMKilled {ns}/{pod} Container {cont} was OOMKilled, exit code 137",
        'KubePodOOMKilled namespace="{ns}" pod="{pod}" container="{cont}" reason="OOMKilled"',
        "Name: {pod} Namespace: {ns} Last State: Terminated Reason: OOMKilled Exit Code: 137 Restart Count: {n}",
        "FIRING ContainerOOM pod={pod} node={node} limit={mem}",
        "{age} Warning OOMKilling pod/{pod} Memory cgroup out of memory: Killed process {n} ({cont})",
        "{pod} 0/1 OOMKilled {n} {age}",
        "kernel: Out of memory: Killed process {n} ({cont}) in pod {pod} on {node}",
        "State: Waiting Reason: CrashLoopBackOff Last State: Terminated Reason: OOMKilled Exit Code: 137 Pod: {pod}",
        "alertname=OomKilled, pod={pod}, namespace={ns}, severity=warning, value={n}",
        "[FIRING:1] PodOutOfMemory ({ns} {pod} {cont}) container was killed for memory",
        "Problem: out of memory kill. Pod: {pod}. Host: {node}. Limit: {mem}.",
        "memory usage of {pod} reached {mem}, limit {mem}, container OOMKilled",
        '{{"pod":"{pod}","lastState":"OOMKilled","exitCode":137,"restarts":{n}}}',
        "OOM kill detected: {ns}/{pod} ({n} in {age})",
        "exit code 137 and OOMKilled on {pod}, {n} restarts, image {image}",
        "A container of {app} was killed for memory. Pod {pod}, container {cont}.",
    ],
    "ImagePullBackOff": [
        "Warning Failed {ns}/{pod} Failed to pull image {image}: not found",
        'KubePodNotStarting namespace="{ns}" pod="{pod}" reason="ImagePullBackOff"',
        "Name: {pod} Namespace: {ns} State: Waiting Reason: ImagePullBackOff Image: {image}",
        "FIRING ImagePullFailing pod={pod} image={image}",
        "{age} Warning Failed pod/{pod} Error: ErrImagePull",
        "{pod} 0/1 ImagePullBackOff 0 {age}",
        "Back-off pulling image {image} for pod {pod} on {node}",
        "rpc error: code = NotFound desc = failed to pull {image}, pod {pod}",
        "alertname=ImagePullBackOff, pod={pod}, namespace={ns}, severity=warning",
        "[FIRING:1] KubeImagePull ({ns} {pod} {cont}) image cannot be pulled",
        "Problem: image pull. Pod: {pod}. Image: {image}. Error: unauthorized.",
        "release of {app} is stuck, {pod} waits for image {image} that the registry does not have",
        '{{"pod":"{pod}","state":"waiting","reason":"ErrImagePull","image":"{image}"}}',
        "Error: ImagePullBackOff, {ns}/{pod}, tried {n} times in {age}",
        "registry refused {image}, so {pod} has no image",
        "Image {image} not found, pod {pod} of {app} is waiting",
    ],
    "CrashLoopBackOff": [
        "Warning BackOff {ns}/{pod} Back-off restarting failed container {cont}",
        'KubePodCrashLooping namespace="{ns}" pod="{pod}" container="{cont}" reason="CrashLoopBackOff"',
        "Name: {pod} Namespace: {ns} State: Waiting Reason: CrashLoopBackOff Last State: Terminated Reason: Error Exit Code: {code} Restart Count: {n}",
        "FIRING PodCrashLooping pod={pod} node={node} restarts={n}",
        "{age} Warning BackOff pod/{pod} Back-off restarting failed container {cont} in pod {pod}",
        "{pod} 0/1 CrashLoopBackOff {n} {age}",
        "container {cont} exited with {code}, pod {pod}, restart {n} on {node}",
        "panic: runtime error in {cont}, pod {pod}, exit code 2",
        "alertname=CrashLooping, pod={pod}, namespace={ns}, severity=critical, value={n}",
        "[FIRING:1] KubePodCrashLooping ({ns} {pod} {cont}) restarted {n} times",
        "Problem: crash loop. Pod: {pod}. Host: {node}. Exit code: {code}.",
        "memory of {pod} is only {mem} but it exits with code {code} all the time",
        '{{"pod":"{pod}","reason":"Error","exitCode":{code},"restarts":{n}}}',
        "Crash loop detected: {ns}/{pod} ({n} restarts in {age})",
        "exit code {code} on {pod}, {n} restarts, image {image}",
        "Container {cont} of {app} exits with {code}. Pod {pod}, {n} restarts.",
    ],
    "NodeNotReady": [
        "Warning NodeNotReady {ns}/{pod} Node is not ready",
        'KubeNodeNotReady node="{node}" pod="{pod}" condition="Ready" status="false"',
        "Node: {node} Ready: Unknown Reason: NodeStatusUnknown Message: Kubelet stopped posting node status. Pod: {pod}",
        "FIRING NodeDown node={node} pod={pod}",
        "{age} Warning NodeNotReady pod/{pod} Node is not ready",
        "{node} NotReady {age}, pod {pod} is Unknown",
        "kubelet on {node} stopped posting node status, {pod} is Terminating",
        "Node {node} is NotReady, pod {pod} must move",
        "alertname=KubeNodeNotReady, node={node}, pod={pod}, severity=critical",
        "[FIRING:1] KubeNodeUnreachable ({node}) affected pod {ns}/{pod}",
        "Problem: node not ready. Pod: {pod}. Host: {node}. Since: {age}.",
        "{node} went down, MemoryPressure False, Ready Unknown, {pod} with it",
        '{{"node":"{node}","ready":"False","pod":"{pod}","since":"{age}"}}',
        "Node lost: {node} NotReady for {age}, {ns}/{pod} unreachable",
        "node {node} condition Ready=False, {pod} is not reachable",
        "The node {node} does not answer. Pod {pod} of {app} is Unknown.",
    ],
}

ASIDE = [
    ", {n} restarts", " on node {node}", ", image {image}", ", age {age}", " in namespace {ns}",
    " (x{n} over {age})", ", owner team {team}", ". Started {age} ago", ", restart count {n}",
    ". Deployment {app}, replicas {n}", ", requests {mem}", ". Cluster {other}", " since {age}",
    ", seen on {node}", ". {other} looks fine", ". Also {other} is slow", " after the {adj} {noun}",
    ". Please look", "!", ".", " again", ", ticket {n}", ". Version {image}", ", severity=warning",
    ". CPU {n}%", ". Memory request {mem}", ", memory usage {n}%", ", can someone look?",
    ". The {noun} is {adj} and the {noun} is {adj}", ", {team} team is informed",
    ". We did {verb} the {noun} before", ". Not sure about the {noun}", ", container {cont}",
    ". Labels: app={app} team={team}", ". Value: {n}", ", first seen {age} ago",
    ". {n} of {n} replicas are up", ", port {n}", ". Last deploy was {age} ago by {team}",
    ". MemoryPressure=False", " :(", ", every {age}", ". Priority {n}", ", uptime {age}",
]

BEFORE = [
    "", "", "", "", "", "", "{greet}, ", "{greet} ", "URGENT: ", "Alert! ", "[{ns}] ", "{age}: ",
    "Heads up, ", "FIRING: ", "#{n} ", "prod: ", "{team}: ", "Since the {adj} {noun}, ",
    "customers complain, ", "Warning: ", "page {n}: ", "I see that ", "It seems ",
    "From {team}: ", "monitoring says ", "kubectl says ", "{node} reports: ",
]

NO_POD = {
    "NodeNotReady": ["Node {node} is NotReady", "kubelet on {node} stopped posting status",
                     "node {node} went NotReady {age} ago", "{node} is not ready"],
    "OOMKilled": ["something was OOMKilled on {node}", "OOM kill on node {node}"],
    "ImagePullBackOff": ["cannot pull image {image}", "image {image} not found, ImagePullBackOff"],
    "CrashLoopBackOff": ["something is crash looping in {ns}", "a pod restarts with exit code {code} in {ns}"],
}

# More wording for training only, so that the fifths kept for the test stay put.
MORE_SUBJECT = [
    "container {cont} (pod {pod})", "{ns}/{pod} container {cont}", "Pod {pod}, container {cont},",
    "the container {cont} of pod {pod}", "pod={pod} container={cont}", "{cont} in {pod}",
    "pod: {pod}", "Pod {pod}:", "pod ({pod})", "<{pod}>", "*{pod}*", "{pod},", "{pod}:", "namespace {ns}, pod {pod},",
    "container {cont} inside {pod}", "main container of {pod}", "{ns}/{pod}:", "pods/{pod}", "{ns} / {pod}",
    "a pod named {pod}", "pod called {pod}", "Pod/{pod}", "pod \"{pod}\"", "this pod: {pod}", "({pod})",
    "deployment {app}: pod {pod}", "sidecar {cont} of pod {pod}", "init container {cont} in {pod}",
    "on {node} pod {pod}", "Some pod ({pod})", "unit {pod}", "our job {pod}", "name={pod}", "pod_name={pod}",
]
MORE_PREDICATE = {
    "OOMKilled": [
        "needs too much memory and was killed", "OOM", "OOM!", "out of memory, killed", "killed because of memory",
        "reason=OOMKilled", "state OOMKilled", "was OOM-killed by the kernel", "killed: memory limit", "oom killer hit it",
        "Terminated: OOMKilled", "CrashLoopBackOff because of OOMKilled", "(OOMKilled)", "137 OOMKilled",
        "blew its memory limit and got killed", "eats all memory until it is killed", "has an OOM again",
        "terminated by OOM", "memory ran out, the container was killed", "lastState reason OOMKilled exitCode 137",
    ],
    "ImagePullBackOff": [
        "reason=ImagePullBackOff", "reason=ErrImagePull", "image not found", "no such image {image}", "ImagePullBackOff!",
        "cannot get image", "pull failed", "Failed to pull image", "image pull: permission denied", "(ImagePullBackOff)",
        "registry does not have the image", "bad image tag", "image {image} missing in the registry", "ErrImagePull",
        "waits for an image that cannot be pulled", "Error response: manifest for {image} not found",
        "status ImagePullBackOff", "pull of the image is refused", "image download fails", "InvalidImageName {image}",
    ],
    "CrashLoopBackOff": [
        "reason=CrashLoopBackOff", "CrashLoopBackOff!", "crash", "crashed again, exit code {code}", "restarts all the time",
        "exit {code}", "exited ({code})", "back-off {age} restarting failed container", "(CrashLoopBackOff)",
        "reason Error exitCode {code}", "fails at once with {code}", "dies on boot", "keeps dying", "keeps crashing, {n} times",
        "died {n} times in {age}, exit code {code}", "status CrashLoopBackOff", "loops", "throws an exception and exits {code}",
        "container died with exit code {code}", "restart loop, last code {code}",
    ],
    "NodeNotReady": [
        "reason=NodeNotReady", "NodeNotReady!", "node down", "node {node} NotReady", "its node is gone", "node {node} is lost",
        "(NodeNotReady)", "host {node} does not answer", "kubelet not responding on {node}", "node lost", "node unreachable",
        "status NodeNotReady", "node {node} has status NotReady", "was on a node that died", "node {node} not ready",
        "cannot be contacted, {node} is offline", "tainted not-ready, node {node}", "Node {node} stopped responding",
        "suffers: node {node} is not ready", "node condition Ready is Unknown on {node}",
    ],
}

CODES = (1, 1, 1, 2, 3, 126, 127, 128, 134, 139, 143, 255, 64, 78)


def _pools(pool):
    return {True: part(pool, True), False: part(pool, False)}


APPS, NODES, SPACES = _pools(APP), _pools(NODE), _pools(NAMESPACE)
REGISTRIES, TEAMS = _pools(REGISTRY), _pools(TEAM)
SUBJECTS, ASIDES, BEFORES = _pools(SUBJECT), _pools(ASIDE), _pools(BEFORE)
PREDICATES = {k: _pools(v) for k, v in PREDICATE.items()}
SUBJECTS[False] += MORE_SUBJECT
for _k, _v in MORE_PREDICATE.items():
    PREDICATES[_k][False].extend(_v)
WHOLES = {k: _pools(v) for k, v in WHOLE.items()}


# Whatever is put together must not be what the test asks.
TESTED = [x for x in SUBJECTS[True] if x != "{pod}"] + [x for v in PREDICATES.values() for x in v[True]]


def age(r):
    n = 1 + int(r.random() * 59)
    return pick(r, ("{}m", "{}s", "{}h", "{}m", "{} minutes", "{}d", "{} min", "2m{}s")).format(n)


def fields(r, test):
    app = app_name(r, test)
    image = f"{pick(r, REGISTRIES[test])}/{app if r.random() < .6 else word(r, test)}:" + (
        f"{int(r.random()*9)}.{int(r.random()*30)}.{int(r.random()*30)}" if r.random() < .7
        else text_of(r, HEX, 7))
    return {
        "app": app, "pod": pod_name(r, app, test), "ns": pick(r, SPACES[test]),
        "node": node_name(r, test), "image": image, "age": age(r),
        "n": int(10 ** (r.random() * 3.5)), "code": pick(r, CODES),
        "mem": f"{pick(r, (64, 128, 200, 256, 300, 512, 750, 900, 1, 2, 4, 8))}{pick(r, ('Mi', 'Mi', 'Gi', 'MB', 'G'))}",
        "cont": app.split("-")[0] if r.random() < .4 else word(r, test),
        "other": app_name(r, test), "team": pick(r, TEAMS[test]), "adj": pick(r, ADJ),
        "noun": pick(r, NOUN), "verb": pick(r, VERB), "greet": pick(r, PERSON_GREETING),
    }


def alert(r, test=False, reason=None):
    """One alert as a dict: alert, pod, reason, oom_killed, findings."""
    reason = reason or pick(r, REASONS)
    f = fields(r, test)
    pod = f["pod"]
    x = r.random()
    if not test and x < 0.002:
        core, pod = pick(r, NO_POD[reason]), "unknown"
    elif not test and r.random() < 0.55:
        core = wording.alert(r, reason)
        if "{hashed}" in core:
            while "-" not in pod or not any(c.isdigit() for c in pod):
                f["pod"] = pod = pod_name(r, f["app"], test)
            core = core.replace("{hashed}", "{pod}")
        if any(p in core for p in TESTED):
            core = pick(r, SUBJECTS[test]) + " " + pick(r, PREDICATES[reason][test])
    elif x < 0.65:
        core = pick(r, SUBJECTS[test]) + " " + pick(r, PREDICATES[reason][test])
    else:
        core = pick(r, WHOLES[reason][test])
    template = (pick(r, BEFORES[test]) if r.random() < .7 else "") + core
    k = r.random()
    for _ in range(0 if k < .45 else 1 if k < .85 else 2):
        template += pick(r, ASIDES[test])
    text = template.format(**f)
    x = r.random()
    if x < 0.08:
        text = text[0].upper() + text[1:] if not text.startswith(pod) else text
    elif x < 0.12 and reason != "NodeNotReady":
        # All lower case, as people type; the pod's name is lower case already.
        text = text.lower()
    return {"alert": text, "pod": pod, "reason": reason,
            "oom_killed": reason == "OOMKilled",
            "findings": findings(reason, core, f)}


def findings(reason, core, f):
    memory = "nothing"
    rollout = "nothing"
    network = "nothing"
    if reason == "OOMKilled":
        memory = "OOMKilled, killed for memory"
        if "137" in core:
            memory += ", exit code 137"
        if "CrashLoopBackOff" in core:
            rollout = "the container restarts after the kill"
    elif reason == "ImagePullBackOff":
        rollout = "ImagePullBackOff, the image cannot be pulled"
    elif reason == "CrashLoopBackOff":
        rollout = "CrashLoopBackOff, the container keeps restarting"
        code = f["code"] if "{code}" in core else 139 if "139" in core else \
            137 if "137" in core else 2 if "exit code 2" in core else None
        if code is not None:
            rollout += f", exit code {code}"
    else:
        network = "NodeNotReady, the node is not ready"
        if "{node}" in core:
            network = f"NodeNotReady, node {f['node']} is not ready"
    return {"memory": memory, "rollout": rollout, "network": network}


if __name__ == "__main__":
    import random
    rng = random.Random(0)
    for i in range(40):
        a = alert(rng, test=i % 2 == 1)
        print(a["reason"], "|", a["pod"], "|", a["alert"], "|", a["findings"])
