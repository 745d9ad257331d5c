// What the views share: runs with their events, and who redraws when.

import { useEffect, useState } from "preact/hooks";
import { get, request, Socket } from "./api";
import type { Event } from "./events";
import { apply, newRun, replay, timeOf, type Run } from "./run";

/** Redraws whoever uses it, at most once in a frame and every 80 ms. */
export class Signal {
  private users = new Set<() => void>();
  private due = false;
  private last = 0;

  changed(): void {
    if (this.due) return;
    this.due = true;
    const wait = Math.max(0, 80 - (performance.now() - this.last));
    setTimeout(() => {
      this.due = false;
      this.last = performance.now();
      for (const u of [...this.users]) u();
    }, wait);
  }

  use(): void {
    const [, redraw] = useState(0);
    useEffect(() => {
      const u = () => redraw((n) => n + 1);
      this.users.add(u);
      return () => void this.users.delete(u);
    }, [this]);
  }
}

/** A run with all of its events, live or from a file. */
export class Recording {
  readonly events: Event[] = [];
  private times: number[] = []; // of the events
  readonly live: Run;
  readonly signal = new Signal();
  over = false;
  problem = "";
  private stop?: () => void;
  private shown?: Run; // the state after `at` events
  private at = 0;
  private heard = 0; // when the newest event came, by this page's clock

  constructor(readonly id: string, readonly title = "") {
    this.live = newRun(id);
  }

  take(e: Event): void {
    const t = e.time ? timeOf(e.time) : this.live.now;
    this.events.push(e);
    this.times.push(t);
    apply(this.live, e, t);
    this.heard = performance.now();
    this.signal.changed();
  }

  /** The time of the run now: that of its newest event and what passed since. */
  now(): number {
    const waiting = this.live.status === "running" && !this.over && this.heard > 0;
    return this.live.now + (waiting ? performance.now() - this.heard : 0);
  }

  /** Follows the run on the server. */
  follow(socket: Socket): void {
    if (this.over || this.stop) return;
    this.stop = socket.watch(this.id, this.live.seq, {
      event: (e) => this.take(e),
      end: (status) => {
        this.stop = undefined;
        this.over = true;
        if (status === "lost") this.problem = "The server no longer has this run.";
        else if (status === "cancelled") this.live.status = "cancelled";
        else if (status === "interrupted") this.problem = "The run was interrupted. It goes on when the server starts again, or with POST /v1/runs/" + this.id + "/resume.";
        this.signal.changed();
      },
    });
  }

  leave(): void {
    this.stop?.();
    this.stop = undefined;
  }

  /** The state after n events. */
  stateAt(n: number): Run {
    if (n >= this.events.length) return this.live;
    if (!this.shown || n < this.at) {
      this.shown = replay(this.events, n, this.times);
    } else {
      for (let i = this.at; i < n; i++) apply(this.shown, this.events[i], this.times[i]);
    }
    this.at = n;
    return this.shown;
  }

  /** How many events had happened by a time. */
  countAt(ms: number): number {
    let lo = 0;
    let hi = this.events.length;
    while (lo < hi) {
      const mid = (lo + hi) >> 1;
      if (this.times[mid] <= ms) lo = mid + 1;
      else hi = mid;
    }
    return lo;
  }
}

export const connection = { connected: false, signal: new Signal() };

export const socket = new Socket((connected) => {
  connection.connected = connected;
  connection.signal.changed();
});

const recordings = new Map<string, Recording>();

export function recording(id: string): Recording {
  let r = recordings.get(id);
  if (!r) recordings.set(id, (r = new Recording(id)));
  return r;
}

export function opened(): Recording[] {
  return [...recordings.values()].filter((r) => r.title);
}

/**
 * Makes a recording of a file: events that this page saved, or the journal of a
 * run, which the server turns into events.
 */
export async function openFile(name: string, data: Blob): Promise<Recording> {
  const head = await data.slice(0, 1).text();
  const text = head === "{" ? await data.text() : await (await request("v1/journals/events", { method: "POST", body: data })).text();
  const events: Event[] = [];
  for (const [i, line] of text.split("\n").entries()) {
    if (!line.trim()) continue;
    const e = JSON.parse(line) as Event;
    if (typeof e?.seq !== "number" || typeof e.kind !== "string") throw new Error(`line ${i + 1} is no event`);
    events.push(e);
  }
  if (!events.length) throw new Error("there are no events in it");
  const r = new Recording("file-" + (recordings.size + 1), name);
  for (const e of events) r.take(e);
  r.over = true;
  recordings.set(r.id, r);
  return r;
}

/** Loads something once, and again when asked. */
export function useLoaded<T>(path: string, every = 0): { data?: T; error: string; reload(): void } {
  const [state, set] = useState<{ path?: string; data?: T; error: string }>({ error: "" });
  const [turn, again] = useState(0);
  useEffect(() => {
    let gone = false;
    const load = () =>
      get<T>(path).then(
        (data) => gone || set({ path, data, error: "" }),
        (e) => gone || set((s) => ({ ...s, error: String(e.message) })),
      );
    load();
    const timer = every ? setInterval(() => document.hidden || load(), every) : 0;
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [path, every, turn]);
  return { data: state.path === path ? state.data : undefined, error: state.error, reload: () => again((n) => n + 1) };
}
