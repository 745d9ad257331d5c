// Two runs side by side.

import { useEffect } from "preact/hooks";
import type { RunInfo } from "./api";
import { opened, recording, socket, useLoaded, type Recording } from "./store";
import { countAll, countNode, textOf, type Node, type Run } from "./run";
import { span } from "./rows";
import { Mark, Strip } from "./treegrid";

export function Compare({ a, b }: { a: string; b: string }) {
  const runs = useLoaded<{ data: RunInfo[] }>("v1/runs", 4000);
  const files = opened();
  const options = [
    ...files.map((r) => ({ id: r.id, text: r.title })),
    ...(runs.data?.data ?? []).map((r) => ({ id: r.id, text: `${r.program} ${r.id} (${r.status})` })),
  ];
  const pick = (side: "A" | "B", value: string, set: (id: string) => void) => (
    <label>
      Run {side}
      <select value={value} onChange={(e) => set(e.currentTarget.value)}>
        <option value="">–</option>
        {options.map((o) => <option key={o.id} value={o.id}>{o.text}</option>)}
      </select>
    </label>
  );
  const go = (x: string, y: string) => (location.hash = `#/compare/${encodeURIComponent(x)}/${encodeURIComponent(y)}`);
  return (
    <section aria-labelledby="compare-title" class="compare">
      <h1 id="compare-title">Compare two runs</h1>
      <div class="pair">{pick("A", a, (id) => go(id, b))}{pick("B", b, (id) => go(a, id))}</div>
      {a && b && a !== b ? <Both a={recording(a)} b={recording(b)} /> : <p class="quiet">Choose two runs.</p>}
    </section>
  );
}

function Both({ a, b }: { a: Recording; b: Recording }) {
  for (const r of [a, b]) r.signal.use();
  useEffect(() => {
    for (const r of [a, b]) r.follow(socket);
    return () => {
      for (const r of [a, b]) r.leave();
    };
  }, [a, b]);
  const ids = [...new Set([...a.live.nodes.keys(), ...b.live.nodes.keys()])];
  const differ = ids.filter((id) => {
    const x = a.live.nodes.get(id);
    const y = b.live.nodes.get(id);
    return !x || !y || outcome(x) !== outcome(y);
  });
  const same = ids.length - differ.length;
  return (
    <>
      <table class="list totals">
        <thead><tr><th scope="col">In all</th><th scope="col">A</th><th scope="col">B</th></tr></thead>
        <tbody>
          <Total what="Status" of={(r) => r.status} a={a.live} b={b.live} />
          <Total what="Time" of={(r) => span(r.now - r.start)} a={a.live} b={b.live} />
          <Total what="Branches" of={(r) => r.branches.size - 1} a={a.live} b={b.live} />
          <Total what="Forward passes" of={(r) => r.usage?.forward_passes ?? "–"} a={a.live} b={b.live} />
          <Total what="Tokens computed" of={(r) => r.usage?.computed_tokens ?? "–"} a={a.live} b={b.live} />
          <Total what="Tokens from the cache" of={(r) => r.usage?.cached_tokens ?? "–"} a={a.live} b={b.live} />
          <tr><th scope="row">Origin</th><td><Strip counts={countAll(a.live)} /></td><td><Strip counts={countAll(b.live)} /></td></tr>
        </tbody>
      </table>
      <p role="status">{same} of {ids.length} nodes gave the same.</p>
      <table class="list nodes">
        <caption class="sr">Nodes of both runs</caption>
        <thead><tr><th scope="col">Node</th><th scope="col">A</th><th scope="col">B</th></tr></thead>
        <tbody>
          {ids.slice(0, 500).map((id) => {
            const x = a.live.nodes.get(id);
            const y = b.live.nodes.get(id);
            const equal = x && y && outcome(x) === outcome(y);
            return (
              <tr key={id} class={equal ? "same" : "differs"}>
                <th scope="row"><code>{id}</code><br /><small>{equal ? "the same" : x && y ? "differs" : "only in " + (x ? "A" : "B")}</small></th>
                <td><Side node={x} other={y} /></td>
                <td><Side node={y} other={x} /></td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {ids.length > 500 && <p class="quiet">The first 500 of {ids.length} nodes are shown.</p>}
    </>
  );
}

function Total({ what, of, a, b }: { what: string; of(r: Run): string | number; a: Run; b: Run }) {
  return <tr><th scope="row">{what}</th><td>{of(a)}</td><td>{of(b)}</td></tr>;
}

/** What a node gave, as text. */
function outcome(n: Node): string {
  return n.error || (n.value === undefined ? textOf(n) : JSON.stringify(n.value));
}

function Side({ node, other }: { node?: Node; other?: Node }) {
  if (!node) return <span class="quiet">not there</span>;
  const text = outcome(node);
  const common = other ? prefix(text, outcome(other)) : 0;
  return (
    <>
      <div class="meta"><Mark status={node.status} /> {span((node.ended || 0) - node.started)} <Strip counts={countNode(node)} /></div>
      <p class="text">
        {other && common < text.length ? <><span class="common">{text.slice(0, common)}</span><mark>{text.slice(common)}</mark></> : text}
      </p>
    </>
  );
}

function prefix(a: string, b: string): number {
  let i = 0;
  while (i < a.length && i < b.length && a[i] === b[i]) i++;
  return i;
}
