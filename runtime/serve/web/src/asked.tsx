// What a run asks people, as forms.

import { useState } from "preact/hooks";
import { socket, type Recording } from "./store";
import { asked, type Node } from "./run";
import { show } from "./detail";

export function Asked({ rec, choose }: { rec: Recording; choose(key: string): void }) {
  const list = rec.over ? [] : asked(rec.live);
  const most = 20;
  return (
    <div aria-live="polite">
      {list.slice(0, most).map((n) => <Question key={n.id} run={rec.id} node={n} choose={choose} />)}
      {list.length > most && <p class="quiet">{list.length - most} more wait for answers.</p>}
    </div>
  );
}

function Question({ run, node, choose }: { run: string; node: Node; choose(key: string): void }) {
  const ask = node.ask!;
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const answer = async (value: unknown) => {
    setBusy(true);
    setProblem("");
    try {
      await socket.approve(run, node.id, value);
    } catch (e) {
      setProblem((e as Error).message);
    }
    setBusy(false);
  };
  const id = "ask-" + node.id;
  return (
    <section class="ask" aria-labelledby={id}>
      <p id={id}>
        <b>{ask.text || "An answer is needed."}</b>{" "}
        <button type="button" class="link" onClick={() => choose("n:" + node.id)}>{node.id}</button>
      </p>
      <Form node={node} busy={busy} answer={answer} />
      {ask.due && (
        <p class="quiet">
          Until {new Date(ask.due).toLocaleString()}; then {ask.default === undefined ? "the node fails" : <>the answer is <code>{show(ask.default)}</code></>}.
        </p>
      )}
      {problem && <p class="problem" role="alert">{problem}</p>}
    </section>
  );
}

/** A form that fits the type of the answer. */
function Form({ node, busy, answer }: { node: Node; busy: boolean; answer(value: unknown): void }) {
  const ask = node.ask!;
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const options = ask.schema?.enum;
  if (ask.type === "bool" || options) {
    return (
      <p class="answers">
        {(options ?? [true, false]).map((v) => (
          <button key={show(v)} type="button" disabled={busy} onClick={() => answer(v)}>{v === true ? "Yes" : v === false ? "No" : show(v)}</button>
        ))}
      </p>
    );
  }
  const number = ask.type === "int" || ask.type === "float";
  const send = (e: Event) => {
    e.preventDefault();
    let value: unknown = text;
    setProblem("");
    if (number) value = Number(text);
    else if (ask.type !== "string") {
      try {
        value = JSON.parse(text);
      } catch (err) {
        setProblem("It is no JSON: " + (err as Error).message);
        return;
      }
    }
    answer(value);
  };
  return (
    <form class="answers" onSubmit={send}>
      <label>
        Answer <small>{ask.type === "string" ? "text" : number ? ask.type : `${ask.type}, as JSON`}</small>
        {number
          ? <input type="number" required step={ask.type === "int" ? 1 : "any"} value={text} onInput={(e) => setText(e.currentTarget.value)} />
          : <textarea rows={2} value={text} onInput={(e) => setText(e.currentTarget.value)} />}
      </label>
      <button type="submit" class="main" disabled={busy}>Send</button>
      {problem && <p class="problem" role="alert">{problem}</p>}
    </form>
  );
}
