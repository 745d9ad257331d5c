"""Wording for training put together from parts, so that a reader learns what
matters (a killed for memory, an image not pulled) and what a pod's name looks
like, and not a list of sentences. None of it is in the test."""

from words import ADJ, NOUN, VERB

FILL = """the a of in on at and but so because since while after that it we now just
still then there when for with from by our this his their some all not please see got
today tonight morning again here only also even maybe why how check looking seems
think saw noticed know says told said via per into out up down over under""".split()
# What a pod may be called before its name.
KIND = """pod Pod po container Container replica Replica instance unit job task process
member object resource target entity item thing backend app application service_instance
podname podName pod_id id name Name target_pod k8s_pod component piece server machine_pod
POD statefulset daemonset cronjob affected victim subject source culprit offender""".split()
JOIN = [" {}", " {}", " {}", ": {}", "={}", "/{}", " '{}'", ' "{}"', " `{}`", " ({})", " <{}>", " [{}]", " -> {}",
        " - {}", " named {}", " called {}", " is {}", '="{}"', "='{}'", ' = {}', ": '{}'", ': "{}"', ": {};", " {},",
        " {}:", " {} |", " | {}", "={},", " {} -", " #{}", " {} ({{ns}})", " {{ns}}/{}", " {{ns}}:{}", " {{ns}} / {}",
        "s/{}", " no. {}", ",{}", " {} of {{app}}", " {} from {{app}}", " {} on {{node}}", " {} ({{cont}})",
        " {} in {{ns}}", " {}/{{cont}}", "={} container={{cont}}", " {} [{{cont}}]"]
# Names that are no pod, told from it by the word before them.
DECOY = ["service {other}", "app {other}", "node {node}", "namespace {ns}", "team {team}", "deployment {other}", "svc={other}",
         "app={app}", "image {image}", "container {cont}", "host {node}", "{other} service", "release {other}", "cluster {other}",
         "job label {other}", "host={node}", "ns={ns}", "cont={cont}", "queue {other}", "upstream {other}"]


def pick(r, xs):
    return xs[int(r.random() * len(xs))]


def filler(r, most):
    out = []
    for _ in range(int(r.random() * (most + 1))):
        x = r.random()
        out.append(pick(r, FILL) if x < 0.5 else pick(r, NOUN) if x < 0.7 else pick(r, VERB) if x < 0.8
                   else pick(r, ADJ) if x < 0.9 else "{n}")
    return " ".join(out)


def subject(r):
    """Words, a kind or none, the pod; at times another name before it. Without
    a kind only the form of the name tells what the pod is ({hashed})."""
    before = filler(r, 4)
    if r.random() < 0.35:
        before = (before + " " + pick(r, DECOY) + pick(r, ("", ",", ":", ";", " and", " because", " while", " /"))).strip()
        if r.random() < 0.4:
            before += " " + filler(r, 3)
    x = r.random()
    if x < 0.6:
        kind, join = pick(r, KIND).replace("_", " "), pick(r, JOIN).format("{pod}")
    else:
        kind, join = pick(r, (pick(r, NOUN), pick(r, FILL), "", "")), pick(r, JOIN[:9] + JOIN[27:33]).format("{hashed}")
    text = (before + " " + kind + join).strip()
    if r.random() < 0.25:
        text = text[0].upper() + text[1:] if text[0] != "{" else text
    return text


BY = ["", "", "", " by the kernel", " by the OOM killer", " by cgroup", " by the node", " by memory pressure in its cgroup"]
EXIT = ["", "", ", exit code {code}", " with code {code}", " (exit {code})", " code={code}", ", rc {code}", " exit status {code}",
        ": exitCode {code}", " [{code}]", ", {n} restarts", " x{n}", " {n} times", " for {age}", " again", " every {age}"]
AFTER = ["", "", "", "", " since {age}", " {n} times", " again", " after {age}", ", {n} restarts", " for {age}", " on {node}", " (x{n})"]


def memory(r):
    what = pick(r, ("memory", "memory", "RAM", "mem", "the memory", "all memory", "its memory", "heap memory", "cgroup memory"))
    dead = pick(r, ("killed", "killed", "killed", "terminated", "shot", "stopped", "reaped", "OOMKilled", "oom-killed",
                    "evicted", "ended", "put down"))
    limit = pick(r, ("", " {mem}", " of {mem}", " ({mem})"))
    x = r.random()
    if x < 0.2:
        return pick(r, ("OOMKilled", "oomkilled", "OOM", "OOM kill", "OOMKill", "out of memory", "Out of memory", "oom",
                        "OOMKilling", "oom_kill", "OOM-killed", "memory kill", "OOM event", "OOM killer", "MemoryKill"))
    if x < 0.4:
        return f"{pick(r, ('ran out of', 'is out of', 'used up', 'ate', 'used too much', 'needs too much', 'took all', 'went over its', 'has no'))} {what}{limit} {pick(r, ('and was', 'and got', 'so it was', 'and is', ', was', ', then'))} {dead}{pick(r, BY)}"
    if x < 0.55:
        return f"{what} limit{limit} {pick(r, ('hit', 'reached', 'exceeded', 'crossed', 'passed', 'blown', 'broken', 'too low'))}{pick(r, (', ', ' and ', ': ', '; '))}{pick(r, ('it was', 'container', 'the container was', 'process', 'app', 'it got'))} {dead}"
    if x < 0.7:
        return f"{pick(r, ('was', 'got', 'has been', 'is', 'is being', 'keeps being', 'keeps getting', 'gets'))} {dead}{pick(r, (' for', ' because of', ' due to', ', reason:', ' over', ' on', ' from'))} {what}"
    if x < 0.85:
        return f"{pick(r, ('CrashLoopBackOff', 'crash loop', 'crashed', 'restarted', 'exit 137', 'exit code 137', 'code 137', 'Terminated', 'Error', 'died', 'is down', 'restarts', 'not ready'))}{pick(r, (', ', ' (', ': ', ' because of ', ', reason ', ' due to ', ', last state '))}{pick(r, ('OOMKilled', 'OOM', 'OOM kill', 'out of memory', 'no memory left', 'OOMKilled 137', 'oom killed'))}"
    return f"{pick(r, ('OOM killer', 'the OOM killer', 'the kernel', 'oom-killer', 'cgroup'))} {pick(r, ('killed it', 'got it', 'hit it', 'ended it', 'took it', 'struck', 'shot the container', 'killed the process'))}{pick(r, ('', ' for memory', ', memory was full', ' when memory ran out', ' over {mem}'))}"


def image(r):
    thing = pick(r, ("image", "image", "the image", "its image", "container image", "image {image}", "{image}", "tag", "image tag",
                     "the image {image}", "manifest", "image manifest", "layer", "docker image"))
    x = r.random()
    if x < 0.2:
        return pick(r, ("ImagePullBackOff", "ErrImagePull", "imagepullbackoff", "image pull back-off", "Image pull error",
                        "ImagePull", "PullError", "image pull failure", "ImageNotFound", "ErrImageNeverPull", "RegistryUnavailable"))
    if x < 0.45:
        return f"{thing} {pick(r, ('cannot be', 'could not be', 'can not be', 'will not be', 'was not', 'is not', 'never got'))} {pick(r, ('pulled', 'fetched', 'downloaded', 'found', 'loaded', 'resolved', 'pulled from the registry', 'found in the registry'))}"
    if x < 0.7:
        return f"{pick(r, ('cannot', 'can not', 'could not', 'fails to', 'failed to', 'is unable to', 'tries to', 'never manages to', 'will not', 'waits to', 'still has to', 'is refused to'))} {pick(r, ('pull', 'get', 'fetch', 'download', 'load', 'find', 'resolve'))} {thing}"
    if x < 0.85:
        return f"{pick(r, ('pull', 'pulling', 'download', 'pull request', 'registry', 'the registry', 'registry pull'))} {pick(r, ('of {image} ', 'for {image} ', '', ''))}{pick(r, ('fails', 'failed', 'is denied', 'denied', 'times out', 'refused', 'unauthorized', 'returned 404', 'says not found', 'got 403', 'is forbidden', 'has no such tag', 'is broken', 'rejects the secret'))}"
    return f"{pick(r, ('no', 'wrong', 'missing', 'unknown', 'bad', 'stale'))} {pick(r, ('image', 'image tag', 'image secret', 'pull secret', 'image name', 'registry image', 'image {image}'))}"


def crash(r):
    who = pick(r, ("", "", "", "it ", "container ", "the container ", "the process ", "app ", "main process ", "the binary ", "entrypoint "))
    x = r.random()
    if x < 0.2:
        return pick(r, ("CrashLoopBackOff", "crashloopbackoff", "crash loop", "CrashLoop", "crash-loop", "crashlooping", "BackOff",
                        "Back-off", "restart loop", "is crash-looping", "CLBO", "RunContainerError", "Error")) + pick(r, EXIT)
    if x < 0.65:
        how = pick(r, ("exits", "exited", "crashes", "crashed", "dies", "died", "ends", "quits", "aborts", "fails", "falls over",
                       "stops", "panics", "restarts", "restarted", "keeps crashing", "keeps restarting", "keeps exiting",
                       "throws", "segfaults", "bails out", "blows up", "goes down", "dumps core", "hangs and restarts"))
        when = pick(r, ("", "", " at once", " on boot", " on start", " again and again", " all the time", " in a loop", " right away",
                        " after {age}", " on a bad flag", " with an exception", " at startup", " on config", " since the deploy"))
        return f"{who}{how}{when}{pick(r, EXIT)}"
    if x < 0.8:
        return f"{pick(r, ('back-off', 'backoff', 'Back-off', 'waiting', 'delay'))} {pick(r, ('{age} ', '', ''))}{pick(r, ('restarting', 'before restarting', 'in restart of', 'starting'))} {pick(r, ('failed container', 'container', 'the failed container', 'it', 'crashed container', '{cont}'))}{pick(r, EXIT)}"
    if x < 0.9:
        return f"{pick(r, ('liveness', 'startup', 'health', 'liveness probe', 'startup probe'))} {pick(r, ('check fails', 'failed', 'fails', 'timed out'))}, {pick(r, ('restarted', 'container restarted', 'it is restarted', 'killed and restarted'))}{pick(r, EXIT)}"
    return f"{pick(r, ('exit code', 'exit status', 'exitCode', 'exit', 'code', 'rc', 'status'))}{pick(r, (' ', '=', ': '))}{{code}}{pick(r, AFTER)}"


def node(r):
    who = pick(r, ("node {node}", "node {node}", "the node", "its node", "{node}", "host {node}", "machine {node}", "the host",
                   "kubelet on {node}", "kubelet", "worker {node}", "node", "vm {node}", "server {node}"))
    state = pick(r, ("not ready", "NotReady", "NotReady", "down", "offline", "unreachable", "lost", "dead", "silent", "gone",
                     "Unknown", "away", "not responding", "not reachable", "cut off", "powered off", "out of contact"))
    x = r.random()
    if x < 0.2:
        return pick(r, ("NodeNotReady", "nodenotready", "NodeLost", "node not ready", "node lost", "NodeDown", "NotReady node",
                        "Node NotReady", "NodeUnreachable", "node failure", "NodeStatusUnknown")) + pick(r, ("", " {node}", ": {node}", " on {node}", " ({node})"))
    if x < 0.5:
        return f"{pick(r, ('', '', 'is lost: ', 'unreachable, ', 'stuck, ', 'Unknown: ', 'since ', 'because ', 'down as ', 'gone, '))}{who} {pick(r, ('is', 'went', 'became', 'has been', 'was', 'turned', 'stays'))} {state}"
    if x < 0.75:
        return f"{who} {pick(r, ('stopped answering', 'does not answer', 'dropped out', 'stopped reporting', 'lost its heartbeat', 'sends no status', 'left the cluster', 'lost the network', 'lost power', 'rebooted and never came back', 'missed its lease', 'no longer responds', 'has no contact'))}{pick(r, AFTER)}"
    return f"{pick(r, ('sits on', 'runs on', 'was on', 'is bound to', 'lives on', 'stuck on', 'scheduled to', 'lost with', 'down with', 'hangs with'))} {pick(r, ('node {node}', '{node}', 'host {node}', 'a node'))} {pick(r, ('which is', 'that is', 'that went', ', now', ', which became', 'that is now'))} {state}"


PREDICATES = {"OOMKilled": memory, "ImagePullBackOff": image, "CrashLoopBackOff": crash, "NodeNotReady": node}


def alert(r, reason):
    """A template for one alert."""
    p, s = PREDICATES[reason](r), subject(r)
    x = r.random()
    if x < 0.6:
        text = s + pick(r, (" ", " ", " ", ", ", ": ", " - ", "; ", " => ", ". ")) + p
    elif x < 0.85:
        text = p + pick(r, (" on ", " in ", ", ", ": ", " for ", " at ", " - ", " | ", "; ", " by ", " hit ", ". ", " ")) + s
    else:
        text = p + pick(r, (", ", " | ", "; ", "\n", " / ")) + s + pick(r, (", ", " | ", "; ", "\n", ". ")) + filler(r, 4)
    if r.random() < 0.2:
        text += pick(r, (", ", " | ", "; ", ". ", "\n", " (")) + pick(r, DECOY)
    return text
