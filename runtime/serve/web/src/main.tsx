import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { setKey } from "./api";
import { Chat } from "./chat";
import { Compare } from "./compare";
import { Engine } from "./engine";
import { Runs } from "./runs";
import { RunView } from "./runview";
import { connection, recording, useLoaded } from "./store";

const pages = [["runs", "Runs"], ["compare", "Compare"], ["chat", "Chat"], ["engine", "Engine"]] as const;

function useHash(): string[] {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const [parts, set] = useState(read);
  useEffect(() => {
    const f = () => set(read());
    addEventListener("hashchange", f);
    return () => removeEventListener("hashchange", f);
  }, []);
  return parts;
}

function App() {
  const [page = "", a = "", b = ""] = useHash();
  const models = useLoaded<{ data: { id: string }[] }>("v1/models");
  connection.signal.use();
  const here = page === "run" || page === "" ? "runs" : page;
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById("main")!.focus(); }}>Skip to the content</a>
      <header class="top">
        <a class="brand" href="#/runs">coppice</a>
        <nav aria-label="Pages">
          {pages.map(([id, title]) => <a key={id} href={"#/" + id} aria-current={here === id ? "page" : undefined}>{title}</a>)}
        </nav>
        <span class="spread" />
        <span class="model">{models.data?.data[0]?.id}</span>
        <Theme />
      </header>
      <main id="main" tabIndex={-1}>
        {models.error && <Key problem={models.error} />}
        {here === "runs" && page !== "run" && <Runs />}
        {page === "run" && <RunView key={a} rec={recording(a)} />}
        {here === "compare" && <Compare a={a} b={b} />}
        <div hidden={here !== "chat"}><Chat /></div>
        {here === "engine" && <Engine />}
      </main>
    </>
  );
}

/** The API key, where the server asks for one. It is kept for this tab only. */
function Key({ problem }: { problem: string }) {
  const [value, set] = useState("");
  return (
    <form class="key" onSubmit={(e) => { e.preventDefault(); setKey(value); location.reload(); }}>
      <p class="problem" role="alert">{problem}</p>
      <label>API key <input type="password" autocomplete="off" value={value} onInput={(e) => set(e.currentTarget.value)} /></label>
      <button type="submit">Use it</button>
    </form>
  );
}

function Theme() {
  const [theme, set] = useState(localStorage.getItem("coppice.theme") ?? "auto");
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem("coppice.theme", theme);
  }, [theme]);
  return (
    <label class="theme">
      Colours{" "}
      <select value={theme} onChange={(e) => set(e.currentTarget.value)}>
        <option value="auto">as the system</option>
        <option value="light">light</option>
        <option value="dark">dark</option>
      </select>
    </label>
  );
}

render(<App />, document.getElementById("app")!);
