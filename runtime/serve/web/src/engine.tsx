// What the engine does now: its device, its queue, its pages, its cache.

import { hierarchy, partition, type HierarchyNode } from "d3-hierarchy";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { useLoaded } from "./store";
import { span } from "./rows";

type Stats = {
  steps: number; computed: number; cached: number; forced: number; sampled: number; preempted: number;
  running: number; waiting: number; pages: number; free: number; held: number; evictable: number; nodes: number;
};
type Pass = { pass: number; start_us: number; end_us: number; rows: number; prompt: number; decode: number };
type Work = { now_us: number; page_tokens: number; stats: Stats; passes: Pass[] };
type TreeNode = { id: number; parent: number; start: number; tokens: number; pages: number; pinned: boolean; text?: string };

const windowUs = 10_000_000;

export function Engine() {
  const [work, setWork] = useState<Work>();
  const [error, setError] = useState("");
  const kept = useRef({ passes: [] as Pass[], history: [] as Stats[] });
  useEffect(() => {
    let gone = false;
    let timer = 0;
    const turn = async () => {
      const k = kept.current;
      if (!document.hidden) {
        try {
          const after = k.passes.length ? k.passes[k.passes.length - 1].pass : 0;
          const w = await get<Work>("v1/engine?after=" + after);
          if (gone) return;
          k.passes.push(...w.passes);
          const oldest = k.passes.findIndex((p) => p.end_us > w.now_us - windowUs);
          k.passes.splice(0, oldest < 0 ? k.passes.length - 1 : oldest);
          k.history = [...k.history.slice(-119), w.stats];
          setWork(w);
          setError("");
        } catch (e) {
          if (!gone) setError((e as Error).message);
        }
      }
      if (!gone) timer = window.setTimeout(turn, 500);
    };
    void turn();
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, []);
  return (
    <section aria-labelledby="engine-title" class="engine">
      <h1 id="engine-title">Engine</h1>
      {error && <p class="problem" role="alert">{error}</p>}
      {work && (
        <>
          <Lanes passes={kept.current.passes} now={work.now_us} />
          <Pool stats={work.stats} history={kept.current.history} pageTokens={work.page_tokens} />
          <Counters s={work.stats} />
          <CacheTree version={work.stats.steps} />
        </>
      )}
    </section>
  );
}

/** When the device computed and when it was idle, over the last seconds. */
function Lanes({ passes, now }: { passes: Pass[]; now: number }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const from = now - windowUs;
  const inside = passes.filter((p) => p.end_us > from);
  const busy = inside.reduce((sum, p) => sum + p.end_us - Math.max(p.start_us, from), 0) / windowUs;
  const rows = Math.max(1, ...inside.map((p) => p.rows));
  useEffect(() => {
    const c = canvas.current!;
    const css = getComputedStyle(c);
    const ratio = window.devicePixelRatio || 1;
    const width = (c.width = Math.round(c.clientWidth * ratio));
    const height = (c.height = Math.round(c.clientHeight * ratio));
    const g = c.getContext("2d")!;
    const lane = height / 2;
    const x = (t: number) => ((t - from) / windowUs) * width;
    for (const p of inside) {
      const left = x(Math.max(p.start_us, from));
      const wide = Math.max(1, x(p.end_us) - left);
      g.fillStyle = css.getPropertyValue(p.prompt > p.decode ? "--computed" : "--sampled");
      g.fillRect(left, 2, wide, lane - 4);
      const tall = (p.rows / rows) * (lane - 4);
      g.fillStyle = css.getPropertyValue("--accent");
      g.fillRect(left, height - 2 - tall, wide, tall);
    }
  });
  const words = `Of the last 10 seconds the device was busy for ${(busy * 100).toFixed(0)}%, with at most ${rows} sequences in a pass.`;
  return (
    <section aria-labelledby="lanes-title">
      <h2 id="lanes-title">Lanes</h2>
      <p>{words}</p>
      <div class="lanes">
        <div class="lane-names" aria-hidden="true"><span>device</span><span>sequences</span></div>
        <canvas ref={canvas} role="img" aria-label={words} />
      </div>
      <ul class="legend">
        <li><span class="swatch o-computed" aria-hidden="true" />mostly prompts</li>
        <li><span class="swatch o-sampled" aria-hidden="true" />mostly writing</li>
        <li><span class="swatch rows" aria-hidden="true" />sequences in a pass</li>
        <li>empty: idle</li>
      </ul>
      <details>
        <summary>The newest passes as a table</summary>
        <table class="list">
          <thead><tr><th scope="col">Pass</th><th scope="col">Took</th><th scope="col">Sequences</th><th scope="col">Prompt tokens</th><th scope="col">Others</th></tr></thead>
          <tbody>
            {inside.slice(-20).reverse().map((p) => (
              <tr key={p.pass}><th scope="row">{p.pass}</th><td>{span((p.end_us - p.start_us) / 1000)}</td><td>{p.rows}</td><td>{p.prompt}</td><td>{p.decode}</td></tr>
            ))}
          </tbody>
        </table>
      </details>
    </section>
  );
}

function Pool({ stats: s, history, pageTokens }: { stats: Stats; history: Stats[]; pageTokens: number }) {
  const words = `${s.held} pages held, ${s.evictable} cached and free to be reused, ${s.free} empty, of ${s.pages}`;
  const line = (of: (s: Stats) => number) => history.map((h, i) => `${i},${(1 - (h.pages ? of(h) / h.pages : 0)) * 40}`).join(" ");
  return (
    <section aria-labelledby="pool-title">
      <h2 id="pool-title">Page pool</h2>
      <p>{words}; a page holds {pageTokens} tokens.</p>
      <span class="strip pool" role="img" aria-label={words}>
        <span class="p-held" style={{ flexGrow: String(s.held) }} />
        <span class="p-evictable" style={{ flexGrow: String(s.evictable) }} />
        <span class="p-free" style={{ flexGrow: String(s.free) }} />
      </span>
      <ul class="legend">
        <li><span class="swatch p-held" aria-hidden="true" />held <b>{s.held}</b></li>
        <li><span class="swatch p-evictable" aria-hidden="true" />cached <b>{s.evictable}</b></li>
        <li><span class="swatch p-free" aria-hidden="true" />empty <b>{s.free}</b></li>
      </ul>
      <svg class="history" viewBox="0 0 120 40" preserveAspectRatio="none" role="img" aria-label="Share of pages held, and held or cached, in the last minute">
        <polyline class="h-used" points={line((h) => h.held + h.evictable)} />
        <polyline class="h-held" points={line((h) => h.held)} />
      </svg>
    </section>
  );
}

function Counters({ s }: { s: Stats }) {
  const rows: [string, number][] = [
    ["Sequences at work", s.running], ["Sequences waiting", s.waiting], ["Forward passes", s.steps], ["Tokens computed", s.computed],
    ["Tokens read from the cache", s.cached], ["Tokens forced", s.forced], ["Tokens sampled", s.sampled], ["Sequences put off", s.preempted],
  ];
  return (
    <section aria-labelledby="counters-title">
      <h2 id="counters-title">Since the start</h2>
      <dl class="counters">{rows.map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}</dl>
    </section>
  );
}

type Tree = TreeNode & { children: Tree[] };

/** The prefixes in the cache: width is pages, depth is what continues what. */
function CacheTree({ version }: { version: number }) {
  const loaded = useLoaded<{ nodes: TreeNode[]; all: number }>("v1/engine/cache");
  const [chosen, choose] = useState<TreeNode>();
  const last = useRef({ version: -1, at: 0 });
  useEffect(() => {
    if (version === last.current.version || performance.now() - last.current.at < 1000) return;
    last.current = { version, at: performance.now() };
    loaded.reload();
  });
  const data = loaded.data;
  const boxes = useMemo(() => {
    if (!data?.nodes.length) return undefined;
    const root: Tree = { id: 0, parent: 0, start: 0, tokens: 0, pages: 0, pinned: false, children: [] };
    const byId = new Map<number, Tree>([[0, root]]);
    for (const n of data.nodes) byId.set(n.id, { ...n, children: [] });
    for (const n of data.nodes) (byId.get(n.parent) ?? root).children.push(byId.get(n.id)!);
    // A box is as wide as all that hangs below it together, or as its own tokens
    // ask for; the root of their number keeps short ones in sight.
    const h: HierarchyNode<Tree> & { value?: number } = hierarchy(root, (n) => n.children);
    h.eachAfter((n: HierarchyNode<Tree> & { value?: number }) => {
      const below = (n.children ?? []).reduce((sum, k) => sum + k.value!, 0);
      n.value = Math.max(below, Math.sqrt(n.data.tokens + 1));
    });
    const depth = h.height + 1;
    return { depth, list: partition<Tree>().size([100, depth])(h).descendants().filter((n) => n.data.id) };
  }, [data]);
  return (
    <section aria-labelledby="cache-title">
      <h2 id="cache-title">Cache tree</h2>
      {loaded.error && <p class="problem">{loaded.error}</p>}
      {data && !data.nodes.length && <p class="quiet">The cache is empty.</p>}
      {data && data.all > data.nodes.length && <p class="quiet">{data.nodes.length} of {data.all} nodes are shown, from the roots on.</p>}
      {boxes && (
        <>
          <div class="icicle" style={{ height: (boxes.depth - 1) * 26 + 4 + "px" }} role="group" aria-label="Cached prefixes; a box continues the one above it">
            {boxes.list.map((n) => (
              <button
                key={n.data.id} class={"box" + (n.data.pinned ? " pinned" : "")} onClick={() => choose(n.data)}
                aria-label={`${n.data.tokens} tokens from position ${n.data.start}${n.data.pinned ? ", in use" : ""}`} title={n.data.text}
                style={{ left: n.x0 + "%", width: n.x1 - n.x0 + "%", top: (n.y0 - 1) * 26 + "px" }}
              >
                {n.x1 - n.x0 > 4 ? n.data.tokens : ""}
              </button>
            ))}
          </div>
          <p class="figures" role="status">
            {chosen
              ? <>{chosen.tokens} tokens from position {chosen.start}, {chosen.pages} pages{chosen.pinned && ", in use"}{chosen.text && <>: <q>{chosen.text}</q></>}</>
              : `${data!.all} nodes. Choose one to see its text.`}
          </p>
        </>
      )}
    </section>
  );
}
