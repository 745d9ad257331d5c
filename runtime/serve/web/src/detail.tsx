// What is known of the row that is chosen.

import type { Branch, Node, Origin, Piece, Run } from "./run";
import { countBranch, span, type Row } from "./rows";
import { Mark } from "./treegrid";

export function Detail({ run, row, name }: { run: Run; row: Row; name: string }) {
  return (
    <aside class="detail" aria-label={"Details of " + name} tabIndex={0}>
      {row.node ? <NodeDetail run={run} node={row.node} /> : <BranchDetail run={run} branch={row.branch!} name={name} />}
    </aside>
  );
}

function BranchDetail({ run, branch, name }: { run: Run; branch: Branch; name: string }) {
  const c = countBranch(run, branch);
  const trunk = branch.id === "";
  return (
    <>
      <h2><Mark status={branch.status} /> {name}</h2>
      <dl>
        {!trunk && <><dt>Branch</dt><dd><code>{branch.id}</code></dd></>}
        {branch.label && <><dt>Item</dt><dd>{branch.label}</dd></>}
        <dt>Status</dt><dd>{branch.status}</dd>
        <dt>Began</dt><dd>{span(branch.started - run.start)}</dd>
        <dt>Took</dt><dd>{span((branch.ended || run.now) - branch.started)}</dd>
        <dt>Tokens</dt><dd>{c.cached} cached, {c.computed} of prompts computed, {c.forced} forced, {c.sampled} sampled, with all below it</dd>
      </dl>
      {branch.error && <p class="problem">{branch.error}</p>}
      {trunk && run.value !== undefined && <><h3>Result</h3><pre class="value">{show(run.value)}</pre></>}
    </>
  );
}

function NodeDetail({ run, node: n }: { run: Run; node: Node }) {
  const end = n.ended || run.now;
  return (
    <>
      <h2><Mark status={n.status} /> {n.does} <code>{n.id}</code></h2>
      <dl>
        <dt>Status</dt><dd>{n.status}{n.finish === "length" && ", cut at its length limit"}{n.restored && ", from a journal"}</dd>
        <dt>Began</dt><dd>{span(n.started - run.start)}</dd>
        <dt>Took</dt>
        <dd>
          {span(end - n.started)}
          {n.first > 0 && n.does !== "call" && <> ({span(n.first - n.started)} to its first text, {span(end - n.first)} writing)</>}
        </dd>
        {n.total > 0 && (
          <><dt>Prompt</dt><dd>{n.total} tokens{n.cost ? `, ${n.cost.cached_tokens} of them cached` : n.status === "running" ? `, ${n.done} ready` : ""}</dd></>
        )}
        {(n.forced > 0 || n.sampled > 0) && <><dt>Written</dt><dd>{n.forced + n.sampled} tokens: {n.forced} forced, {n.sampled} sampled</dd></>}
      </dl>
      {n.ask && (
        <><h3>Question</h3>
        <p class="asked">{n.ask.text || "(none)"}</p>
        <dl><dt>Answer</dt><dd>{n.ask.type}</dd></dl></>
      )}
      {n.error && <p class="problem">{n.error}</p>}
      {n.tries.map((why, i) => <p key={i} class="quiet">Try {i + 1}: {why}</p>)}
      {n.pieces.length > 0 && (
        <>
          <h3>Text</h3>
          <Text pieces={n.pieces} />
        </>
      )}
      {n.scores && (
        <>
          <h3>Options</h3>
          <table class="scores">
            <thead><tr><th scope="col">Option</th><th scope="col">Share</th><th scope="col">Log-probability</th></tr></thead>
            <tbody>
              {n.scores.map((s) => (
                <tr key={s.option}>
                  <th scope="row">{s.option}</th>
                  <td><span class="share" style={{ width: s.p * 80 + "px" }} aria-hidden="true" /> {(s.p * 100).toFixed(1)}%</td>
                  <td>{s.logprob.toFixed(2)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
      {n.value !== undefined && <><h3>Value</h3><pre class="value">{show(n.value)}</pre></>}
    </>
  );
}

const titles: Record<Origin, string> = {
  sampled: "sampled",
  forced: "forced: the constraint left no choice",
  chosen: "chosen by its score",
  unknown: "origin not known",
};

/** A text in the colours of its tokens' origins. */
export function Text({ pieces }: { pieces: Piece[] }) {
  const most = 2000;
  const shown = pieces.length > most ? merge(pieces) : pieces;
  return (
    <p class="text">
      {shown.map((p, i) => (
        <span key={i} class={"t-" + p.origin} title={titles[p.origin] + (p.tokens > 1 ? `, ${p.tokens} tokens` : "")}>{p.text}</span>
      ))}
    </p>
  );
}

/** Neighbours of one origin as one piece. */
export function merge(pieces: Piece[]): Piece[] {
  const out: Piece[] = [];
  for (const p of pieces) {
    const last = out[out.length - 1];
    if (last?.origin === p.origin) {
      last.text += p.text;
      last.tokens += p.tokens;
    } else out.push({ ...p });
  }
  return out;
}

export function show(v: unknown): string {
  return typeof v === "string" ? v : JSON.stringify(v, null, 2);
}
