// Drives the page in Chromium: node test/browser.mjs, with URL, LOCKED, WORK (the
// servers) and JOURNAL in the environment; CHROMIUM is the browser, SHOTS a folder
// for pictures.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const { URL: url, LOCKED: locked, WORK: work, JOURNAL: journal, SHOTS: shots } = process.env;
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
if (shots) mkdirSync(shots, { recursive: true });

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, acceptDownloads: true });
const problems = [];

async function open(address) {
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on("pageerror", (e) => problems.push(e.message));
  page.on("request", (r) => {
    if (!/^(http|ws):\/\/127\.0\.0\.1:|^blob:|^data:/.test(r.url())) problems.push("a request to " + r.url());
  });
  page.on("console", (m) => m.type() === "error" && !/40[013]/.test(m.text()) && problems.push(m.text()));
  await page.goto(address);
  return page;
}

let pictures = 0;
async function shot(page, name) {
  if (shots) await page.screenshot({ path: `${shots}/${String(++pictures).padStart(2, "0")}-${name}.png` });
}

/** No fault that axe finds, in light and in dark. */
async function accessible(page, name) {
  await page.evaluate(axe);
  for (const theme of ["light", "dark"]) {
    await page.getByRole("combobox", { name: "Colours" }).selectOption(theme);
    const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
    const faults = found.violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.map((n) => n.html.slice(0, 120) + " " + n.any.map((a) => a.message).join("; ")).slice(0, 3).join(" | ")}`);
    assert.deepEqual(faults, [], `${name}, ${theme}`);
    await shot(page, `${name}-${theme}`);
  }
  await page.getByRole("combobox", { name: "Colours" }).selectOption("auto");
}

async function startRun(page, program, inputs) {
  await page.goto(url + "/#/runs");
  await page.getByRole("combobox", { name: "Program" }).selectOption(program);
  for (const [name, value] of Object.entries(inputs)) await page.getByRole("textbox", { name: new RegExp("^" + name) }).fill(value);
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.getByText(/finished after/).waitFor();
  return page.url().split("/").pop();
}

// A program from start to end, by name and role as a reader finds them.
const page = await open(url + "/");
await page.getByRole("heading", { name: "Start a program" }).waitFor();
await accessible(page, "runs");
const first = await startRun(page, "looks", { topic: "rain" });
const grid = page.getByRole("treegrid");
assert.equal(await grid.getByRole("row").count(), 7, "head, trunk, two branches with a node each, verdict");
await page.getByText("take it").first().waitFor();

// By keyboard alone.
await grid.focus();
const active = () => page.evaluate(() => document.getElementById(document.activeElement.getAttribute("aria-activedescendant")).querySelector(".name").textContent);
assert.equal(await active(), "looks");
await page.keyboard.press("ArrowDown");
assert.equal(await active(), "sides[0]");
await page.keyboard.press("ArrowLeft"); // closes it
assert.equal(await grid.getByRole("row").count(), 6);
await page.keyboard.press("ArrowRight");
await page.keyboard.press("ArrowRight"); // opens it, goes in
assert.equal(await active(), "view");
await page.getByRole("complementary").getByText("good enough").waitFor();
await page.keyboard.press("End");
assert.equal(await active(), "verdict");
await accessible(page, "run");

// Time runs backwards with the slider, one event a key.
const slider = page.getByRole("slider");
const total = Number((await slider.getAttribute("aria-valuetext")).match(/of (\d+)$/)[1]);
await slider.focus();
for (let i = 0; i < total - 3; i++) await page.keyboard.press("ArrowLeft");
assert.match(await slider.getAttribute("aria-valuetext"), new RegExp(`event 3 of ${total}`));
assert.equal(await page.getByText("take it").count(), 0, "the end is not known in the middle");
await page.getByRole("button", { name: "Replay" }).click();
await page.getByText(/finished after/).waitFor();

// Saved events and a journal can be opened again.
const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save events" }).click()]);
const saved = await download.path();
await page.goto(url + "/#/runs");
await page.getByLabel("Open a journal").setInputFiles({ name: "saved.events.jsonl", mimeType: "", buffer: readFileSync(saved) });
await page.getByText(/finished after/).waitFor();
assert.equal(await grid.getByRole("row").count(), 7);
await page.goto(url + "/#/runs");
await page.getByLabel("Open a journal").setInputFiles(journal);
await page.getByText(/finished after/).waitFor();
assert.equal(await grid.getByRole("row").count(), 7);
await shot(page, "journal");
await page.goto(url + "/#/runs");
await page.getByLabel("Open a journal").setInputFiles({ name: "no.journal", mimeType: "", buffer: Buffer.from("no") });
await page.getByRole("alert").getByText(/no\.journal/).waitFor();

// What waits for a person is a form of its kind, by keyboard too.
await page.goto(url + "/#/runs");
await page.getByRole("combobox", { name: "Program" }).selectOption("people");
await page.getByRole("button", { name: "Start", exact: true }).click();
const asked = (text) => page.getByRole("region", { name: new RegExp(text) });
await asked("Page ops").waitFor();
assert.equal(await page.getByRole("status").first().textContent(), "waits for an answer");
await accessible(page, "asked");
await asked("Page ops").getByRole("button", { name: "No" }).press("Enter");
await asked("How many").getByText(/then the answer is 0/).waitFor();
await asked("How many").getByRole("spinbutton").fill("3");
await page.keyboard.press("Enter");
await asked("Why").getByRole("textbox").fill("because");
await accessible(page, "asked-text");
await asked("Why").getByRole("button", { name: "Send" }).click();
await asked("Which").getByRole("textbox").fill("{");
await asked("Which").getByRole("button", { name: "Send" }).click();
await asked("Which").getByRole("alert").getByText("It is no JSON").waitFor();
await asked("Which").getByRole("textbox").fill("7");
await asked("Which").getByRole("button", { name: "Send" }).click();
await asked("Which").getByRole("alert").getByText(/must be/).waitFor(); // the server says so
await asked("Which").getByRole("textbox").fill('["a", "b"]');
await asked("Which").getByRole("button", { name: "Send" }).click();
await page.getByText(/finished after/).waitFor();
assert.equal(await asked("").filter({ hasText: "Answer" }).count(), 0);
assert.match(await page.getByRole("complementary").locator("pre.value").textContent(), /"ok": false,\s+"n": 3,\s+"why": "because"/);

// Two runs side by side.
const second = await startRun(page, "looks", { topic: "snow" });
await page.goto(`${url}/#/compare/${first}/${second}`);
await page.getByText("3 of 3 nodes gave the same").waitFor();
await accessible(page, "compare");

// A chat.
await page.goto(url + "/#/chat");
await page.getByRole("textbox", { name: "Message" }).fill("Who are you?");
await page.keyboard.press("Enter");
await page.getByText("this is all I say").waitFor();
await page.getByText(/tokens, the first after/).waitFor();
await accessible(page, "chat");

// 200 branches and more than 10,000 events: all of them are here, few of them in
// the document, and the page answers.
await page.goto(url + "/#/runs");
const began = Date.now();
await startRun(page, "many", {});
const events = Number((await slider.getAttribute("aria-valuetext")).match(/of (\d+)$/)[1]);
assert.ok(events >= 10_000, `${events} events`);
assert.equal(await grid.getAttribute("aria-rowcount"), "402");
const elements = await page.evaluate(() => document.querySelectorAll("*").length);
assert.ok(elements < 2000, `${elements} elements`);
console.log(`many: ${events} events in ${Date.now() - began} ms, ${elements} elements`);
await shot(page, "many-top");
await grid.focus();
await page.keyboard.press("End");
assert.equal(await active(), "x");
await page.keyboard.press("ArrowLeft");
assert.equal(await active(), "looks[199]");
await shot(page, "many-end");
await slider.focus();
const jump = await page.evaluate(async () => {
  const s = document.querySelector("input[type=range]");
  const t = performance.now();
  for (let i = 0; i < 20; i++) {
    s.value = String((Number(s.max) * ((i * 7) % 20)) / 20);
    s.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise(requestAnimationFrame);
  }
  return (performance.now() - t) / 20;
});
console.log(`many: a jump of the slider takes ${jump.toFixed(1)} ms`);
await shot(page, "many-middle");
await accessible(page, "many");

// A small window.
await page.setViewportSize({ width: 420, height: 800 });
await shot(page, "narrow");
await page.close();

// With keys the page asks for one and keeps it for the tab.
const shut = await open(locked + "/");
await shut.getByLabel("API key").fill("secret-key");
await shut.getByRole("button", { name: "Use it" }).click();
await shut.getByText("The server has no programs").waitFor();
await shut.close();

// The engine at work.
const engine = await open(work + "/#/engine");
for (let i = 0; i < 6; i++) {
  await fetch(work + "/v1/completions", { method: "POST", body: JSON.stringify({ prompt: ["abc", "abd", "xyz"], max_tokens: 20 }) });
}
await engine.getByText(/of 256; a page holds 16 tokens/).waitFor();
await engine.getByRole("group", { name: /Cached prefixes/ }).getByRole("button").first().click();
await engine.getByText(/tokens from position 0/).waitFor();
await accessible(engine, "engine");
await engine.close();

assert.deepEqual(problems, []);
await browser.close();
console.log("the page works");
