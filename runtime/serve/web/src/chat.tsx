// A chat with the model, over the same API that others use.

import { useRef, useState } from "preact/hooks";
import { request, sse } from "./api";
import { Legend } from "./runview";
import { Strip } from "./treegrid";

type Turn = { role: "user" | "assistant"; content: string; note?: string; counts?: { cached: number; computed: number; forced: number; sampled: number } };

export function Chat() {
  const [turns, setTurns] = useState<Turn[]>([]);
  const [text, setText] = useState("");
  const [system, setSystem] = useState("");
  const [temperature, setTemperature] = useState("0");
  const [limit, setLimit] = useState("256");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const stop = useRef<AbortController | null>(null);
  const box = useRef<HTMLTextAreaElement>(null);

  const send = async (e: Event) => {
    e.preventDefault();
    if (busy || !text.trim()) return;
    const said: Turn[] = [...turns, { role: "user", content: text }];
    const answer: Turn = { role: "assistant", content: "" };
    setTurns([...said, answer]);
    setText("");
    setProblem("");
    setBusy(true);
    const abort = (stop.current = new AbortController());
    const began = performance.now();
    let first = 0;
    try {
      const messages = said.map(({ role, content }) => ({ role, content }));
      const resp = await request("v1/chat/completions", {
        method: "POST",
        signal: abort.signal,
        body: JSON.stringify({
          messages: system ? [{ role: "system", content: system }, ...messages] : messages,
          temperature: Number(temperature) || 0,
          max_completion_tokens: Math.max(1, Number(limit) || 256),
          stream: true,
          stream_options: { include_usage: true },
        }),
      });
      for await (const data of sse(resp)) {
        if (data === "[DONE]") break;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Error(chunk.error.message);
        const piece = chunk.choices?.[0]?.delta?.content;
        if (piece) {
          first ||= performance.now() - began;
          answer.content += piece;
        }
        if (chunk.usage) {
          const u = chunk.usage;
          const cached = u.prompt_tokens_details?.cached_tokens ?? 0;
          const forced = u.coppice?.forced_tokens ?? 0;
          answer.counts = { cached, computed: u.prompt_tokens - cached, forced, sampled: u.completion_tokens - forced };
          const all = performance.now() - began;
          answer.note = `${u.completion_tokens} tokens, the first after ${first.toFixed(0)} ms, all in ${all.toFixed(0)} ms`;
        }
        setTurns([...said, { ...answer }]);
      }
    } catch (err) {
      if (abort.signal.aborted) answer.note = "stopped";
      else setProblem((err as Error).message);
      setTurns(answer.content || answer.note ? [...said, { ...answer }] : said);
    }
    setBusy(false);
    box.current?.focus();
  };
  return (
    <section aria-labelledby="chat-title" class="chat">
      <header class="run-head">
        <h1 id="chat-title">Chat</h1>
        <span class="spread" />
        <button onClick={() => setTurns([])} disabled={busy || !turns.length}>Clear</button>
      </header>
      <details>
        <summary>Settings</summary>
        <label>System message<textarea rows={2} value={system} onInput={(e) => setSystem(e.currentTarget.value)} /></label>
        <div class="pair">
          <label>Temperature<input type="number" min={0} max={2} step={0.1} value={temperature} onInput={(e) => setTemperature(e.currentTarget.value)} /></label>
          <label>Tokens at most<input type="number" min={1} step={1} value={limit} onInput={(e) => setLimit(e.currentTarget.value)} /></label>
        </div>
      </details>
      <div class="turns" role="log" aria-label="Conversation" aria-busy={busy} tabIndex={0}>
        {turns.map((t, i) => (
          <div key={i} class={"turn " + t.role}>
            <b>{t.role === "user" ? "You" : "Model"}</b>
            <p class="text">{t.content}{busy && i === turns.length - 1 && <span class="caret" aria-hidden="true" />}</p>
            {(t.counts || t.note) && <p class="quiet note">{t.counts && <Strip counts={t.counts} />} {t.note}</p>}
          </div>
        ))}
        {!turns.length && <p class="quiet">Write to the model below.</p>}
      </div>
      <Legend />
      {problem && <p class="problem" role="alert">{problem}</p>}
      <form class="say" onSubmit={send}>
        <label>
          <span class="sr">Message</span>
          <textarea
            rows={2} ref={box} value={text} placeholder="Message (Enter sends, Shift+Enter makes a new line)"
            onInput={(e) => setText(e.currentTarget.value)}
            onKeyDown={(e) => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) void send(e); }}
          />
        </label>
        {busy ? <button type="button" onClick={() => stop.current?.abort()}>Stop</button> : <button type="submit" class="main">Send</button>}
      </form>
    </section>
  );
}
