// One run: live while it goes on, and at any earlier moment.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { socket, type Recording } from "./store";
import { asked, countAll, type Counts, type Run } from "./run";
import { nameOf, rowsOf, span } from "./rows";
import { BarLegend, Mark, Strip, TreeGrid } from "./treegrid";
import { Detail } from "./detail";
import { Asked } from "./asked";

export function RunView({ rec }: { rec: Recording }) {
  rec.signal.use();
  useEffect(() => {
    rec.follow(socket);
    return () => rec.leave();
  }, [rec]);
  const [moment, setMoment] = useState<number | null>(null); // an event's number; null follows the run
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const [chosen, choose] = useState("b:");
  const [problem, setProblem] = useState("");
  const [, tick] = useState(0);
  const moving = moment === null && !rec.over && rec.live.status === "running";
  useEffect(() => {
    if (!moving) return;
    const timer = setInterval(() => tick((n) => n + 1), 250); // time goes on between events
    return () => clearInterval(timer);
  }, [moving]);
  const run = moment === null ? rec.live : rec.stateAt(moment);
  const rows = useMemo(() => rowsOf(run, closed), [run, run.seq, closed]);
  const row = rows.find((r) => r.key === chosen) ?? rows[0];
  const toggle = (key: string, open: boolean) => {
    const next = new Set(closed);
    if (open) next.delete(key);
    else next.add(key);
    setClosed(next);
  };
  const setAll = (open: boolean) => setClosed(open ? new Set() : new Set([...run.branches.keys()].filter((b) => b).map((b) => "b:" + b)));
  const cancel = () => socket.cancel(rec.id).catch((e) => setProblem(e.message));
  return (
    <section aria-labelledby="run-title" class="run">
      <header class="run-head">
        <h1 id="run-title"><Mark status={run.status} /> {run.program || "run"} <small>{rec.title || rec.id}</small></h1>
        <span role="status" class="state">{stateWords(rec, run)}</span>
        <span class="spread" />
        {!rec.over && !rec.title && <button onClick={cancel}>Cancel</button>}
        <button onClick={() => setAll(true)}>Open all</button>
        <button onClick={() => setAll(false)}>Close all</button>
        <a class="button" href={"#/compare/" + encodeURIComponent(rec.id)}>Compare</a>
        <button onClick={() => save(rec)}>Save events</button>
      </header>
      {(problem || rec.problem) && <p class="problem" role="alert">{problem || rec.problem}</p>}
      {run.error && <p class="problem">{run.error}</p>}
      {!rec.title && <Asked rec={rec} choose={choose} />}
      <Summary run={run} />
      <div class="split">
        <TreeGrid run={run} rows={rows} now={moment === null ? rec.now() : run.now} end={rec.now()} chosen={row.key} choose={choose} toggle={toggle} />
        <Detail run={run} row={row} name={nameOf(run, row)} />
      </div>
      <Slider rec={rec} moment={moment} setMoment={setMoment} />
    </section>
  );
}

function stateWords(rec: Recording, run: Run): string {
  const branches = run.branches.size - 1;
  const end = run.status === "running" ? run.now : run.branches.get("")!.ended;
  if (run === rec.live && !rec.over && asked(run).length) return "waits for an answer";
  if (run.status === "running") return rec.live.status === "running" && !rec.over ? "running" : `as it was after ${span(end - run.start)}`;
  return `${run.status} after ${span(end - run.start)}, ${branches} ${branches === 1 ? "branch" : "branches"}, ${run.nodes.size} nodes`;
}

export function Summary({ run }: { run: Run }) {
  const c = run.usage
    ? { cached: run.usage.cached_tokens, computed: Math.max(0, run.usage.prompt_tokens - run.usage.cached_tokens), forced: run.usage.forced_tokens, sampled: run.usage.sampled_tokens }
    : countAll(run);
  const u = run.usage;
  return (
    <div class="summary">
      <Legend counts={c} />
      <Strip counts={c} />
      <span class="spread" />
      <BarLegend />
      {u && (
        <p class="figures">
          {u.forward_passes} forward passes{u.without && <>; each call alone and without the cache: {u.without.forward_passes}</>}.{" "}
          {u.computed_tokens} tokens computed{u.without && <>, against {u.without.computed_tokens}</>}.
        </p>
      )}
      {run.restored > 0 && <p class="figures">{run.restored} results come from a journal.</p>}
      {run.dropped > 0 && <p class="figures">Some texts are shown as a whole: they came before this page did.</p>}
    </div>
  );
}

export function Legend({ counts }: { counts?: Counts }) {
  const n = (x?: number) => (counts ? <b>{x}</b> : null);
  return (
    <ul class="legend" aria-label="Tokens by origin">
      <li><span class="swatch o-cached" aria-hidden="true" />cached {n(counts?.cached)}</li>
      <li><span class="swatch o-computed" aria-hidden="true" />prompt computed {n(counts?.computed)}</li>
      <li><span class="swatch o-forced" aria-hidden="true" />forced {n(counts?.forced)}</li>
      <li><span class="swatch o-sampled" aria-hidden="true" />sampled {n(counts?.sampled)}</li>
    </ul>
  );
}

function save(rec: Recording): void {
  const blob = new Blob(rec.events.map((e) => JSON.stringify(e) + "\n"), { type: "application/jsonl" });
  const a = document.createElement("a");
  a.href = URL.createObjectURL(blob);
  a.download = rec.id + ".events.jsonl";
  a.click();
  URL.revokeObjectURL(a.href);
}

type SliderProps = { rec: Recording; moment: number | null; setMoment(n: number | null): void };

/** Goes through a run by time, or by event where the events have no times. */
function Slider({ rec, moment, setMoment }: SliderProps) {
  const length = rec.live.now - rec.live.start;
  const timed = length > 0;
  const total = rec.events.length;
  const [playing, play] = useState(false);
  const [speed, setSpeed] = useState(1);
  const [time, setTime] = useState(length); // of the slider, while it is not at the end
  const clock = useRef({ at: 0, time: 0 });
  const seek = (value: number) => {
    if (value >= (timed ? length : total)) {
      setMoment(null);
      play(false);
      return;
    }
    setTime(value);
    setMoment(timed ? rec.countAt(rec.live.start + value) : Math.round(value));
  };
  useEffect(() => {
    if (!playing) return;
    clock.current = { at: performance.now(), time: moment === null ? 0 : time };
    const timer = setInterval(() => {
      const passed = (performance.now() - clock.current.at) * speed;
      seek(clock.current.time + (timed ? passed : passed / 50));
    }, 60);
    return () => clearInterval(timer);
  }, [playing, speed, total]);
  const value = moment === null ? (timed ? length : total) : time;
  const words = (timed ? `${span(value)} of ${span(length)}, ` : "") + `event ${moment ?? total} of ${total}`;
  return (
    <footer class="slider">
      <button onClick={() => { if (!playing && moment === null) seek(0); play(!playing); }} aria-pressed={playing} disabled={!total}>
        {playing ? "Pause" : "Replay"}
      </button>
      <label>
        Speed{" "}
        <select value={String(speed)} onChange={(e) => setSpeed(Number(e.currentTarget.value))}>
          {[0.05, 0.1, 0.25, 0.5, 1, 2, 5].map((s) => <option key={s} value={String(s)}>{s}×</option>)}
        </select>
      </label>
      <input
        type="range" min={0} max={timed ? length : total} step="any" value={value} aria-label="Moment of the run" aria-valuetext={words}
        onInput={(e) => { play(false); seek(Number(e.currentTarget.value)); }}
        onKeyDown={(e) => {
          // One event a key, which a step of time could not promise.
          const by = ({ ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -50, PageUp: 50 } as Record<string, number>)[e.key];
          if (!by) return;
          e.preventDefault();
          play(false);
          const n = Math.max(0, (moment ?? total) + by);
          if (n >= total) return setMoment(null);
          setTime(timed ? Math.max(0, rec.stateAt(n).now - rec.live.start) : n);
          setMoment(n);
        }}
      />
      <output class="moment">{words}</output>
      <button onClick={() => { play(false); setMoment(null); }} disabled={moment === null}>{rec.over ? "End" : "Live"}</button>
      
    </footer>
  );
}

