// Answers a durable run by the page, in Chromium: node test/durable.mjs, with URL (the
// server, which has the program "asks") in the environment. With RUN it opens that run
// and answers it; else it starts one, sees that it waits, and prints its id. CHROMIUM is
// the browser, SHOTS a folder for pictures.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { chromium } from "playwright-core";

const { URL: url, RUN: run, SHOTS: shots } = process.env;
if (shots) mkdirSync(shots, { recursive: true });

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM || "/usr/bin/chromium", args: ["--no-sandbox"] });
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
page.setDefaultTimeout(120_000);
const problems = [];
page.on("pageerror", (e) => problems.push(e.message));

const question = page.getByRole("region", { name: /Page the team\?/ });
if (!run) {
  await page.goto(url + "/#/runs");
  await page.getByRole("combobox", { name: "Program" }).selectOption("asks");
  await page.getByRole("textbox", { name: /^alert/ }).fill("disk full");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await question.waitFor();
  if (shots) await page.screenshot({ path: `${shots}/durable-asks.png` });
  console.log("run " + page.url().split("/").pop());
} else {
  await page.goto(url + "/#/runs");
  await page.getByRole("link", { name: run }).click();
  await question.getByText(/then the answer is false/).waitFor();
  await question.getByRole("button", { name: "Yes" }).click();
  await page.getByText(/finished after/).waitFor();
  assert.equal(await question.count(), 0);
  assert.match(await page.getByRole("complementary").locator("pre.value").textContent(), /"paged": true/);
  if (shots) await page.screenshot({ path: `${shots}/durable-answered.png` });
}
assert.deepEqual(problems, []);
await browser.close();
