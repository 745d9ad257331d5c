// Requests to the server that the page came from.

import type { Event } from "./events";

export type ProgramInput = { name: string; type: string; default?: unknown; doc?: string };
export type Program = { name: string; doc?: string; inputs: ProgramInput[]; output: string; built_in: boolean; graph?: unknown };
export type RunInfo = {
  id: string;
  program: string;
  status: string;
  created_at: number;
  finished_at?: number;
  error?: { message: string };
};

const keyName = "coppice.key";
let key = sessionStorage.getItem(keyName) ?? "";

/** The key is kept for this tab only. */
export function setKey(k: string): void {
  key = k;
  if (k) sessionStorage.setItem(keyName, k);
  else sessionStorage.removeItem(keyName);
}

export class ApiError extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
  }
}

export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key) headers.set("Authorization", "Bearer " + key);
  const resp = await fetch(path, { ...init, headers });
  if (!resp.ok) {
    let message = resp.status + " " + resp.statusText;
    try {
      message = (await resp.json()).error.message;
    } catch {
      // not one of the server's own errors
    }
    throw new ApiError(resp.status, message);
  }
  return resp;
}

export async function get<T>(path: string): Promise<T> {
  return (await request(path)).json();
}

export async function post<T>(path: string, body: BodyInit): Promise<T> {
  return (await request(path, { method: "POST", body })).json();
}

/** The data of a stream of server-sent events, until it ends. */
export async function* sse(resp: Response): AsyncGenerator<string> {
  const reader = resp.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop()!;
    for (const block of blocks) {
      for (const line of block.split("\n")) if (line.startsWith("data: ")) yield line.slice(6);
    }
  }
}

type Message = {
  type: "started" | "event" | "end" | "ok" | "error";
  ref?: string;
  run?: string;
  event?: Event;
  status?: string;
  error?: { message: string };
};

export type Watcher = { event(e: Event): void; end(status: string): void };

type Watch = { seq: number; watcher: Watcher };

/**
 * One websocket for all runs. After a drop it comes again by itself and goes on
 * with each run where it was.
 */
export class Socket {
  private ws?: WebSocket;
  private watches = new Map<string, Watch>();
  private asked = new Map<string, { ok(m: Message): void; fail(e: Error): void }>();
  private ref = 0;
  private wait = 250; // ms before the next try

  constructor(private readonly state: (connected: boolean) => void) {}

  /** Starts a run, which goes on when the page is closed. */
  async start(program: string, inputs: unknown, seed: number): Promise<string> {
    const m = await this.ask({ type: "start", program, inputs, seed, watch: false });
    return m.run!;
  }

  async cancel(run: string): Promise<void> {
    await this.ask({ type: "cancel", run });
  }

  /** Gives a node that waits its answer; it is refused if it does not fit, or came too late. */
  async approve(run: string, task: string, answer: unknown): Promise<void> {
    await this.ask({ type: "approve", run, task, answer });
  }

  /** Follows a run from the event after the one numbered seq; the result ends that. */
  watch(run: string, seq: number, watcher: Watcher): () => void {
    const w = { seq, watcher };
    this.watches.set(run, w);
    if (this.ws?.readyState === WebSocket.OPEN) this.send(watchMessage(run, seq));
    else this.connect();
    return () => {
      if (this.watches.get(run) !== w) return;
      this.watches.delete(run);
      if (this.ws?.readyState === WebSocket.OPEN) this.send({ type: "unwatch", run });
    };
  }

  private send(m: object): void {
    this.ws!.send(JSON.stringify(m));
  }

  private ask(m: object): Promise<Message> {
    return new Promise((ok, fail) => {
      const ref = "r" + ++this.ref;
      this.asked.set(ref, { ok, fail });
      const go = () => this.send({ ...m, ref });
      if (this.ws?.readyState === WebSocket.OPEN) go();
      else this.connect().addEventListener("open", go, { once: true });
    });
  }

  private connect(): WebSocket {
    if (this.ws && this.ws.readyState <= WebSocket.OPEN) return this.ws;
    const url = new URL("v1/ws", location.href);
    url.protocol = url.protocol.replace("http", "ws");
    // A page cannot set headers of a websocket, so the key goes as a protocol.
    const protocols = ["coppice.v1"];
    if (key) protocols.push("coppice.key." + hex(key));
    const ws = new WebSocket(url, protocols);
    this.ws = ws;
    ws.onopen = () => {
      this.wait = 250;
      this.state(true);
      for (const [run, w] of this.watches) this.send(watchMessage(run, w.seq));
    };
    ws.onmessage = (m) => this.take(JSON.parse(m.data));
    ws.onclose = () => {
      this.state(false);
      for (const a of this.asked.values()) a.fail(new Error("the connection to the server was lost"));
      this.asked.clear();
      if (!this.watches.size) return;
      setTimeout(() => this.connect(), this.wait);
      this.wait = Math.min(this.wait * 2, 10_000);
    };
    return ws;
  }

  private take(m: Message): void {
    const asked = m.ref !== undefined && this.asked.get(m.ref);
    if (asked) {
      this.asked.delete(m.ref!);
      if (m.type === "error") asked.fail(new Error(m.error!.message));
      else asked.ok(m);
      return;
    }
    if (m.type === "error" && m.ref?.startsWith("w:")) {
      const run = m.ref.slice(2);
      const lost = this.watches.get(run);
      this.watches.delete(run);
      lost?.watcher.end("lost");
      return;
    }
    const w = m.run !== undefined && this.watches.get(m.run);
    if (!w) return;
    if (m.type === "event") {
      w.seq = m.event!.seq;
      w.watcher.event(m.event!);
    } else if (m.type === "end") {
      this.watches.delete(m.run!);
      w.watcher.end(m.status!);
    }
  }
}

function watchMessage(run: string, after: number): object {
  return { type: "watch", ref: "w:" + run, run, after };
}

function hex(s: string): string {
  return Array.from(new TextEncoder().encode(s), (b) => b.toString(16).padStart(2, "0")).join("");
}
