// The tree of a run as the rows that are shown.

import { add, countNode, type Branch, type Counts, type Node, type Run } from "./run";

export type Row = {
  key: string;
  depth: number; // 1 is the trunk
  branch?: Branch;
  node?: Node;
  open: boolean;
  kids: number;
  index: number; // among its siblings, from 1
  siblings: number;
};

/** Rows in the order of the program, without what lies in closed branches. */
export function rowsOf(run: Run, closed: ReadonlySet<string>): Row[] {
  const rows: Row[] = [];
  const walk = (b: Branch, depth: number, index: number, siblings: number) => {
    const open = !closed.has("b:" + b.id);
    rows.push({ key: "b:" + b.id, depth, branch: b, open, kids: b.items.length, index, siblings });
    if (!open) return;
    b.items.forEach((item, i) => {
      if ("branch" in item) return walk(run.branches.get(item.branch)!, depth + 1, i + 1, b.items.length);
      const n = run.nodes.get(item.node)!;
      rows.push({ key: "n:" + n.id, depth: depth + 1, node: n, open: false, kids: 0, index: i + 1, siblings: b.items.length });
    });
  };
  walk(run.branches.get("")!, 1, 1, 1);
  return rows;
}

/** The tokens of all nodes in and below a branch. */
export function countBranch(run: Run, b: Branch): Counts {
  const sum = { cached: 0, computed: 0, forced: 0, sampled: 0 };
  for (const item of b.items) {
    if ("branch" in item) add(sum, countBranch(run, run.branches.get(item.branch)!));
    else add(sum, countNode(run.nodes.get(item.node)!));
  }
  return sum;
}

/** The last part of an id: what a row is called in its place. */
export function shortName(id: string): string {
  return id.slice(id.lastIndexOf("/") + 1);
}

export function nameOf(run: Run, row: Row): string {
  if (row.node) return shortName(row.node.id);
  if (row.branch!.id === "") return run.program || "run";
  return shortName(row.branch!.id);
}

/** A span of time for people. */
export function span(ms: number): string {
  if (!(ms >= 0)) return "–";
  if (ms < 1) return ms.toFixed(2) + " ms";
  if (ms < 100) return ms.toFixed(1) + " ms";
  if (ms < 1000) return ms.toFixed(0) + " ms";
  if (ms < 60_000) return (ms / 1000).toFixed(2) + " s";
  return Math.floor(ms / 60_000) + " min " + Math.round((ms % 60_000) / 1000) + " s";
}
