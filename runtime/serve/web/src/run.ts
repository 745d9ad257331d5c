// A run as its events tell it. apply is the only way that the state changes, so
// the state after event n is the same live, after a drop, and in a replay.

import type { Ask, Cost, Event, Score, Usage } from "./events";

export type Status = "running" | "waiting" | "finished" | "failed" | "cancelled";

/** Where a text came from; "chosen" is an option of a select, "unknown" where only the text is left. */
export type Origin = "sampled" | "forced" | "chosen" | "unknown";

export type Piece = { text: string; origin: Origin; tokens: number };

export type Node = {
  id: string;
  branch: string;
  does: string;
  status: Status; // waiting if it asks something
  ask?: Ask;
  started: number; // ms since the epoch
  prompted: number; // when its prompt was first worked on; 0 if nobody said so
  first: number; // when its first text came; 0 before
  ended: number; // 0 while it runs
  done: number; // tokens of the prompt computed so far
  total: number; // tokens of the prompt
  pieces: Piece[];
  bytes: number; // of the text so far
  forced: number; // tokens so far
  sampled: number;
  finish: string;
  cost?: Cost;
  scores?: Score[];
  value?: unknown;
  error: string;
  tries: string[]; // why it had to begin again, each time
  restored: boolean;
};

export type Branch = {
  id: string; // "" is the trunk
  parent: string;
  label: string;
  status: Status;
  started: number;
  ended: number;
  error: string;
  /** What is in it, in the order it began: nodes and branches. */
  items: ({ node: string } | { branch: string })[];
};

export type Run = {
  id: string;
  program: string;
  status: Status;
  seq: number;
  start: number; // ms since the epoch; 0 before the first event
  now: number; // of the newest event
  branches: Map<string, Branch>;
  nodes: Map<string, Node>;
  usage?: Usage;
  value?: unknown;
  error: string;
  restored: number;
  dropped: number; // events that are no longer to be had
};

export function newRun(id = ""): Run {
  const trunk: Branch = { id: "", parent: "", label: "", status: "running", started: 0, ended: 0, error: "", items: [] };
  return {
    id, program: "", status: "running", seq: 0, start: 0, now: 0,
    branches: new Map([["", trunk]]), nodes: new Map(), error: "", restored: 0, dropped: 0,
  };
}

/** The state after the first n events. */
export function replay(events: readonly Event[], n = events.length, times?: readonly number[]): Run {
  const run = newRun();
  for (let i = 0; i < n; i++) apply(run, events[i], times?.[i]);
  return run;
}

/** Takes one event; t is its time, for those who have it as a number. Events that were taken already are ignored. */
export function apply(run: Run, e: Event, t = e.time ? timeOf(e.time) : run.now): void {
  if (e.seq <= run.seq) return;
  run.seq = e.seq;
  if (!run.start) {
    run.start = t;
    run.branches.get("")!.started = t;
  }
  run.now = Math.max(run.now, t);
  switch (e.kind) {
    case "run_started":
      run.id = e.run ?? run.id;
      run.program = e.program ?? "";
      run.restored = e.restored ?? 0;
      break;
    case "branch_started":
      branch(run, e.branch ?? "", t, e.label);
      break;
    case "branch_finished": {
      const b = branch(run, e.branch ?? "", t, e.label);
      b.status = (e.status as Status) || "finished";
      b.ended = t;
      b.error = e.error ?? "";
      break;
    }
    case "node_started": {
      const n = node(run, e, t);
      if (n.status !== "running") again(n);
      if (e.ask) {
        n.ask = e.ask;
        n.status = "waiting";
      }
      break;
    }
    case "prompt": {
      const n = node(run, e, t);
      n.prompted ||= t;
      n.done = e.done ?? 0;
      n.total = e.total ?? 0;
      break;
    }
    case "delta":
      delta(node(run, e, t), e, t);
      break;
    case "node_retried": {
      const n = node(run, e, t);
      n.tries.push(e.error ?? "");
      again(n);
      break;
    }
    case "node_refused":
      node(run, e, t).tries.push(e.error ?? "");
      break;
    case "node_finished":
      finish(node(run, e, t), e, t);
      break;
    case "node_cancelled": {
      const n = node(run, e, t);
      n.status = "cancelled";
      n.ended = t;
      break;
    }
    case "usage":
      run.usage = e.usage;
      break;
    case "run_finished":
    case "run_failed":
      end(run, e, t);
      break;
    case "dropped":
      run.dropped += e.seq - (e.first ?? e.seq) + 1;
      for (const [id, text] of Object.entries(e.texts ?? {})) {
        const n = run.nodes.get(id);
        if (!n || n.status !== "running") continue;
        const bytes = byteLength(text);
        if (bytes < n.bytes) continue; // older than what is here
        n.pieces = [{ text, origin: "unknown", tokens: 0 }];
        n.bytes = bytes;
        n.first ||= t;
      }
      break;
  }
}

function branch(run: Run, id: string, t: number, label?: string): Branch {
  let b = run.branches.get(id);
  if (!b) {
    const parent = parentOf(run, id);
    b = { id, parent, label: "", status: "running", started: t, ended: 0, error: "", items: [] };
    run.branches.set(id, b);
    run.branches.get(parent)!.items.push({ branch: id });
  }
  if (label) b.label = label;
  return b;
}

/** The branch that a branch began in: the longest known beginning of its id. */
function parentOf(run: Run, id: string): string {
  for (let at = id.lastIndexOf("/"); at > 0; at = id.lastIndexOf("/", at - 1)) {
    const parent = id.slice(0, at);
    if (run.branches.has(parent)) return parent;
  }
  return "";
}

function node(run: Run, e: Event, t: number): Node {
  const id = e.task ?? "";
  let n = run.nodes.get(id);
  if (!n) {
    n = {
      id, branch: e.branch ?? "", does: "", status: "running", started: t, prompted: 0, first: 0, ended: 0, done: 0, total: 0,
      pieces: [], bytes: 0, forced: 0, sampled: 0, finish: "", error: "", tries: [], restored: false,
    };
    run.nodes.set(id, n);
    branch(run, n.branch, t).items.push({ node: id });
  }
  if (e.does) n.does = e.does;
  return n;
}

/** A node begins once more: what it wrote before is void. */
function again(n: Node): void {
  n.status = "running";
  n.ended = n.first = n.bytes = n.forced = n.sampled = 0;
  n.pieces = [];
  n.cost = n.scores = n.value = undefined;
  n.error = "";
}

function delta(n: Node, e: Event, t: number): void {
  let text = e.text ?? "";
  const size = byteLength(text);
  const offset = e.offset ?? 0;
  n.first ||= t;
  const count = e.tokens?.length ?? 0;
  if (e.forced) n.forced += count;
  else n.sampled += count;
  if (offset + size < n.bytes || (text && offset + size === n.bytes)) return; // in a snapshot already
  if (offset < n.bytes) text = cutBytes(text, n.bytes - offset);
  const origin: Origin = e.forced ? "forced" : "sampled";
  const last = n.pieces[n.pieces.length - 1];
  // Tokens in the middle of a character come without text; they belong to the
  // piece that shows it.
  if (last && !last.text && last.origin === origin) {
    last.text = text;
    last.tokens += count;
  } else if (text || count) {
    n.pieces.push({ text, origin, tokens: count });
  }
  n.bytes = offset + size;
}

function finish(n: Node, e: Event, t: number): void {
  n.status = e.error ? "failed" : "finished";
  n.ended = t;
  n.error = e.error ?? "";
  n.finish = e.finish ?? "";
  n.cost = e.cost;
  n.scores = e.scores;
  n.value = e.value;
  n.restored = !!e.restored;
  if (e.cost) {
    n.forced = e.cost.forced_tokens;
    n.sampled = e.cost.sampled_tokens;
    n.total = n.done = e.cost.prompt_tokens;
  }
  const text = e.text ?? "";
  if (!e.scores && text !== n.pieces.map((p) => p.text).join("")) {
    n.pieces = text ? [{ text, origin: "unknown", tokens: 0 }] : [];
    n.bytes = byteLength(text);
  } else if (e.scores) {
    n.pieces = text ? [{ text, origin: "chosen", tokens: 0 }] : [];
  }
}

function end(run: Run, e: Event, t: number): void {
  run.status = e.kind === "run_finished" ? "finished" : "failed";
  run.value = e.value;
  run.error = e.error ?? "";
  if (e.usage) run.usage = e.usage;
  for (const b of run.branches.values()) {
    if (b.status === "running") {
      b.status = b.id === "" ? run.status : "cancelled";
      b.ended = t;
    }
  }
  for (const n of run.nodes.values()) {
    if (n.status === "running" || n.status === "waiting") {
      n.status = "cancelled";
      n.ended = t;
    }
  }
}

export function textOf(n: Node): string {
  return n.pieces.map((p) => p.text).join("");
}

/** Tokens of a node, or of all below a branch, by origin. */
export type Counts = { cached: number; computed: number; forced: number; sampled: number };

export function countNode(n: Node): Counts {
  const cached = n.cost?.cached_tokens ?? 0;
  const prompt = n.cost?.prompt_tokens ?? n.done;
  return { cached, computed: Math.max(0, prompt - cached), forced: n.forced, sampled: n.sampled };
}

/** The nodes that wait for an answer, oldest first. */
export function asked(run: Run): Node[] {
  return [...run.nodes.values()].filter((n) => n.status === "waiting");
}

export function countAll(run: Run): Counts {
  const sum = { cached: 0, computed: 0, forced: 0, sampled: 0 };
  for (const n of run.nodes.values()) add(sum, countNode(n));
  return sum;
}

export function add(sum: Counts, c: Counts): void {
  sum.cached += c.cached;
  sum.computed += c.computed;
  sum.forced += c.forced;
  sum.sampled += c.sampled;
}

/** Milliseconds since the epoch, with the fractions that Date.parse drops. */
export function timeOf(s: string): number {
  const dot = s.indexOf(".");
  if (dot < 0) return Date.parse(s);
  let end = dot + 1;
  while (end < s.length && s[end] >= "0" && s[end] <= "9") end++;
  return Date.parse(s.slice(0, dot) + s.slice(end)) + Number("0" + s.slice(dot, end)) * 1000;
}

const utf8 = new TextEncoder();

export function byteLength(s: string): number {
  for (let i = 0; i < s.length; i++) if (s.charCodeAt(i) > 127) return utf8.encode(s).length;
  return s.length;
}

/** s without its first n bytes; n is at the edge of a character. */
function cutBytes(s: string, n: number): string {
  return new TextDecoder().decode(utf8.encode(s).subarray(n));
}
