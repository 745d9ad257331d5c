// Start a program, find a run, open a file.

import { useEffect, useState } from "preact/hooks";
import type { Program, ProgramInput, RunInfo } from "./api";
import { opened, openFile, socket, useLoaded } from "./store";
import { show } from "./detail";
import { Mark } from "./treegrid";

export function Runs() {
  const runs = useLoaded<{ data: RunInfo[] }>("v1/runs", 2000);
  return (
    <div class="columns">
      <Start />
      <section aria-labelledby="runs-title">
        <h1 id="runs-title">Runs</h1>
        {runs.error && <p class="problem" role="alert">{runs.error}</p>}
        <OpenFile />
        <table class="list">
          <thead><tr><th scope="col">Run</th><th scope="col">Program</th><th scope="col">Status</th><th scope="col">Began</th></tr></thead>
          <tbody>
            {opened().map((r) => (
              <tr key={r.id}><th scope="row"><a href={"#/run/" + r.id}>{r.title}</a></th><td>{r.live.program}</td><td><Mark status={r.live.status} /> {r.live.status}</td><td>from a file</td></tr>
            ))}
            {runs.data?.data.map((r) => (
              <tr key={r.id}>
                <th scope="row"><a href={"#/run/" + r.id}>{r.id}</a></th>
                <td>{r.program}</td>
                <td><Mark status={r.status} /> {r.status}</td>
                <td>{new Date(r.created_at * 1000).toLocaleTimeString()}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {runs.data && !runs.data.data.length && !opened().length && <p class="quiet">There are none yet.</p>}
      </section>
    </div>
  );
}

function OpenFile() {
  const [problem, setProblem] = useState("");
  const pick = async (input: HTMLInputElement) => {
    const f = input.files?.[0];
    if (!f) return;
    try {
      location.hash = "#/run/" + (await openFile(f.name, f)).id;
    } catch (e) {
      setProblem(`${f.name}: ${(e as Error).message}`);
    }
    input.value = "";
  };
  return (
    <p>
      <label class="file">
        Open a journal or saved events{" "}
        <input type="file" accept=".journal,.jsonl,.log,*/*" onChange={(e) => pick(e.currentTarget)} />
      </label>
      {problem && <span class="problem" role="alert">{problem}</span>}
    </p>
  );
}

function Start() {
  const programs = useLoaded<{ data: Program[] }>("v1/programs");
  const [name, setName] = useState("");
  const [values, setValues] = useState<Record<string, string>>({});
  const [seed, setSeed] = useState("0");
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const list = programs.data?.data ?? [];
  const program = list.find((p) => p.name === name) ?? list[0];
  useEffect(() => setValues({}), [program?.name]);
  const start = async (e: Event) => {
    e.preventDefault();
    setProblem("");
    setBusy(true);
    try {
      const inputs: Record<string, unknown> = {};
      for (const i of program.inputs) {
        const text = values[i.name];
        if (text !== undefined) inputs[i.name] = valueOf(i, text);
        else if (i.default === undefined && i.type === "string") inputs[i.name] = "";
      }
      location.hash = "#/run/" + (await socket.start(program.name, inputs, Number(seed)));
    } catch (err) {
      setProblem((err as Error).message);
    }
    setBusy(false);
  };
  return (
    <section aria-labelledby="start-title">
      <h1 id="start-title">Start a program</h1>
      {programs.error && <p class="problem" role="alert">{programs.error}</p>}
      {programs.data && !list.length && <p class="quiet">The server has no programs. POST one to /v1/programs.</p>}
      {program && (
        <form onSubmit={start}>
          <label>
            Program
            <select value={program.name} onChange={(e) => setName(e.currentTarget.value)}>
              {list.map((p) => <option key={p.name}>{p.name}</option>)}
            </select>
          </label>
          {program.doc && <p class="quiet">{program.doc}</p>}
          {program.inputs.map((i) => (
            <label key={program.name + " " + i.name}>
              <span>{i.name} <small>{i.type}{i.doc && ": " + i.doc}</small></span>
              <textarea
                rows={i.type === "string" ? 3 : 1} value={values[i.name] ?? (i.default === undefined ? "" : show(i.default))}
                onInput={(e) => setValues({ ...values, [i.name]: e.currentTarget.value })}
              />
            </label>
          ))}
          <label>
            Seed
            <input type="number" value={seed} step={1} onInput={(e) => setSeed(e.currentTarget.value)} />
          </label>
          <button type="submit" class="main" disabled={busy}>Start</button>
          {problem && <p class="problem" role="alert">{problem}</p>}
        </form>
      )}
    </section>
  );
}

/** What somebody typed, as the type that the program asks for. */
function valueOf(i: ProgramInput, text: string): unknown {
  if (i.type === "string") return text;
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${i.name} is ${i.type}: write it as JSON`);
  }
}
