// The tree of branches with the time of each node, one row each. Only the rows
// in sight are in the document, so that many branches cost nothing.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { countBranch, nameOf, span, type Row } from "./rows";
import { countNode, textOf, type Counts, type Run } from "./run";

const rowHeight = 28;

type Props = {
  run: Run;
  rows: Row[];
  now: number; // of the state that is shown
  end: number; // of the time that is drawn
  chosen: string;
  choose(key: string): void;
  toggle(key: string, open: boolean): void;
};

export function TreeGrid({ run, rows, now, end, chosen, choose, toggle }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 600 });
  useLayoutEffect(() => {
    const el = box.current!;
    const measure = () => setView({ top: el.scrollTop, height: el.clientHeight });
    const seen = new ResizeObserver(measure);
    seen.observe(el);
    el.addEventListener("scroll", measure, { passive: true });
    return () => {
      seen.disconnect();
      el.removeEventListener("scroll", measure);
    };
  }, []);
  const at = Math.max(0, rows.findIndex((r) => r.key === chosen));
  const reveal = (i: number) => {
    const el = box.current!;
    const top = i * rowHeight;
    const room = el.clientHeight - rowHeight; // less the head
    if (top < el.scrollTop) el.scrollTop = top;
    else if (top + rowHeight > el.scrollTop + room) el.scrollTop = top + rowHeight - room;
  };
  const go = (i: number) => {
    i = Math.max(0, Math.min(rows.length - 1, i));
    choose(rows[i].key);
    reveal(i);
  };
  const parent = (i: number) => {
    for (let p = i - 1; p >= 0; p--) if (rows[p].depth < rows[i].depth) return p;
    return i;
  };
  const page = Math.max(1, Math.floor(view.height / rowHeight) - 2);
  const onKeyDown = (e: KeyboardEvent) => {
    const row = rows[at];
    const moves: Record<string, () => void> = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(rows.length - 1),
      PageDown: () => go(at + page),
      PageUp: () => go(at - page),
      ArrowRight: () => (row.kids && !row.open ? toggle(row.key, true) : row.kids && go(at + 1)),
      ArrowLeft: () => (row.kids && row.open ? toggle(row.key, false) : go(parent(at))),
      Enter: () => row.kids && toggle(row.key, !row.open),
      " ": () => row.kids && toggle(row.key, !row.open),
    };
    if (!moves[e.key] || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    moves[e.key]();
  };
  // While somebody is at the end of a growing tree it stays in sight.
  const count = useRef(rows.length);
  useEffect(() => {
    const el = box.current!;
    const grown = rows.length - count.current;
    count.current = rows.length;
    if (grown > 0 && el.scrollTop > 0 && el.scrollHeight - el.scrollTop - el.clientHeight <= (grown + 2) * rowHeight) el.scrollTop = el.scrollHeight;
  }, [rows.length]);

  const first = Math.max(0, Math.floor(view.top / rowHeight) - 4);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / rowHeight) + 4);
  const scale = { start: run.start, length: Math.max(end - run.start, 0.001), now };
  // A row that is chosen but out of sight must still be there for readers.
  const shown = rows.slice(first, last).map((row, i) => ({ row, i: first + i }));
  if (rows.length && (at < first || at >= last)) shown.push({ row: rows[at], i: at });
  return (
    <div
      class="grid" role="treegrid" aria-label="Branches and nodes" aria-rowcount={rows.length + 1} tabIndex={0}
      aria-activedescendant={rows.length ? "row-" + at : undefined} ref={box} onKeyDown={onKeyDown}
    >
      <div class="grid-head" role="row" aria-rowindex={1}>
        <span role="columnheader" class="c-name">Branch or node</span>
        <span role="columnheader" class="c-tokens">Tokens</span>
        <span role="columnheader" class="c-took">Time</span>
        <span role="columnheader" class="c-bar"><span class="sr">When</span><Axis length={scale.length} /></span>
      </div>
      <div class="grid-body" role="rowgroup" style={{ height: rows.length * rowHeight + "px" }}>
        {shown.map(({ row, i }) => (
          <Line key={row.key} run={run} row={row} i={i} chosen={i === at} scale={scale} pick={() => go(i)} toggle={toggle} />
        ))}
      </div>
    </div>
  );
}

function Axis({ length }: { length: number }) {
  return (
    <span class="axis" aria-hidden="true">
      {[0, 0.25, 0.5, 0.75].map((f) => (
        <span class="tick" style={{ left: f * 100 + "%" }} key={f}>{f ? span(length * f) : "0"}</span>
      ))}
    </span>
  );
}

type Scale = { start: number; length: number; now: number };

type LineProps = {
  run: Run; row: Row; i: number; chosen: boolean; scale: Scale;
  pick(): void; toggle(key: string, open: boolean): void;
};

function Line({ run, row, i, chosen, scale, pick, toggle }: LineProps) {
  const x = row.node ?? row.branch!;
  const end = x.ended || scale.now;
  const counts = row.node ? countNode(row.node) : countBranch(run, row.branch!);
  const name = nameOf(run, row);
  const label = row.branch?.label;
  return (
    <div
      id={"row-" + i} class={"row" + (chosen ? " chosen" : "")} role="row" aria-rowindex={i + 2} aria-level={row.depth} aria-posinset={row.index}
      aria-setsize={row.siblings} aria-expanded={row.kids ? row.open : undefined} aria-selected={chosen}
      style={{ transform: `translateY(${i * rowHeight}px)` }} onClick={pick}
    >
      <span role="gridcell" class="c-name" style={{ paddingLeft: row.depth * 14 - 8 + "px" }}>
        {row.kids > 0 ? (
          <span class={"fold" + (row.open ? " open" : "")} aria-hidden="true" onClick={(e) => { e.stopPropagation(); toggle(row.key, !row.open); }} />
        ) : <span class="fold-gap" aria-hidden="true" />}
        <Mark status={x.status} />
        <span class="name">{name}</span>
        {label && <span class="label">{label}</span>}
        {row.node && <span class="does">{row.node.does}</span>}
        {row.node && <span class="peek">{tail(row.node.error || (row.node.status === "waiting" && row.node.ask?.text) || textOf(row.node))}</span>}
        {row.branch?.error && <span class="peek">{tail(row.branch.error)}</span>}
      </span>
      <span role="gridcell" class="c-tokens"><Strip counts={counts} /></span>
      <span role="gridcell" class="c-took">{span(end - x.started)}</span>
      <span role="gridcell" class="c-bar">
        <Bar row={row} scale={scale} />
      </span>
    </div>
  );
}

const words: Record<string, string> = { running: "running", waiting: "waits for an answer", finished: "finished", failed: "failed", cancelled: "cancelled" };

export function Mark({ status }: { status: string }) {
  return <span class={"mark " + status} role="img" aria-label={words[status] ?? status} />;
}

function tail(s: string): string {
  s = s.trim();
  return s.length > 60 ? "…" + s.slice(-60) : s;
}

/** How many tokens are of which origin, as a bar with its numbers. */
export function Strip({ counts }: { counts: Counts }) {
  const parts: [keyof Counts, string][] = [["cached", "from the cache"], ["computed", "of the prompt computed"], ["forced", "forced"], ["sampled", "sampled"]];
  const total = counts.cached + counts.computed + counts.forced + counts.sampled;
  if (!total) return <span class="strip" />;
  const text = parts.filter(([k]) => counts[k]).map(([k, what]) => `${counts[k]} ${what}`).join(", ");
  return (
    <span class="strip" role="img" aria-label={text} title={text}>
      {parts.map(([k]) => counts[k] > 0 && <span key={k} class={"o-" + k} style={{ flexGrow: String(counts[k]) }} />)}
    </span>
  );
}

function Bar({ row, scale }: { row: Row; scale: Scale }) {
  const x = row.node ?? row.branch!;
  const pos = (t: number) => ((t - scale.start) / scale.length) * 100;
  const end = x.ended || scale.now;
  const part = (cls: string, from: number, to: number) =>
    to >= from && <span class={"bar " + cls} style={{ left: pos(from) + "%", width: pos(to) - pos(from) + "%" }} />;
  if (row.branch) return part("bar-branch", x.started, end);
  const n = row.node!;
  if (n.does === "call") return part("bar-call", x.started, end);
  if (n.does === "wait" || n.does === "sleep") return part("bar-wait", x.started, end);
  const first = n.first || end;
  // Without progress a node may have waited, or read its prompt: nobody knows.
  return (
    <>
      {part("bar-wait", x.started, n.prompted || first)}
      {n.prompted > 0 && part("bar-prompt", n.prompted, first)}
      {n.first > 0 && part("bar-decode", first, end)}
    </>
  );
}

/** What the colours of the bars mean. */
export function BarLegend() {
  return (
    <ul class="legend bars" aria-label="Time of a node">
      <li><span class="swatch bar-wait" aria-hidden="true" />waiting</li>
      <li><span class="swatch bar-prompt" aria-hidden="true" />reading its prompt</li>
      <li><span class="swatch bar-decode" aria-hidden="true" />writing</li>
      <li><span class="swatch bar-call" aria-hidden="true" />a function</li>
    </ul>
  );
}
