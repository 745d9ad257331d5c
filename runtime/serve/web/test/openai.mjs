// OpenAI's SDK for JavaScript against a server: node test/openai.mjs, with URL in
// the environment. Each check prints a line; the exit status is 0 if all hold.
import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.env.URL + "/v1", apiKey: "none", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [
  { role: "developer", content: "Be brief." },
  { role: "user", content: [{ type: "text", text: "Pod web-1 is " }, { type: "text", text: "OOMKilled" }] },
];
const finding = {
  type: "object",
  properties: { pod: { type: "string", maxLength: 12 }, reason: { enum: ["OOMKilled", "ImagePullBackOff"] }, oom: { type: "boolean" } },
  required: ["pod", "reason", "oom"],
  additionalProperties: false,
};
const format = { type: "json_schema", json_schema: { name: "finding", strict: true, schema: finding } };
const place = { type: "object", properties: { place: { type: "string", maxLength: 12 } }, required: ["place"], additionalProperties: false };
const tools = [
  { type: "function", function: { name: "weather", description: "of a place", strict: true, parameters: place } },
  { type: "function", function: { name: "now", parameters: { type: "object", properties: {}, additionalProperties: false } } },
];
const ask = { model, messages, temperature: 0, max_tokens: 8 };

let failed = 0;
async function check(name, f) {
  try {
    await f();
    console.log("PASS", name);
  } catch (e) {
    failed++;
    console.log("FAIL", name, e.message);
  }
}

function isFinding(v) {
  assert.equal(typeof v.pod, "string");
  assert.ok(["OOMKilled", "ImagePullBackOff"].includes(v.reason), v.reason);
  assert.equal(typeof v.oom, "boolean");
}

async function refused(kind, f, more) {
  const e = await f().then(() => assert.fail("it was not refused"), (e) => e);
  assert.ok(e instanceof kind, `${e.constructor.name}: ${e.message}`);
  assert.ok(e.error.message && e.type, "an error says what is wrong");
  more?.(e);
}

await check("models", async () => {
  assert.equal((await client.models.retrieve(model)).id, model);
  await refused(OpenAI.NotFoundError, () => client.models.retrieve("none-such"));
});

await check("chat", async () => {
  const r = await client.chat.completions.create({ ...ask, n: 2, seed: 3, logprobs: true, top_logprobs: 2 });
  assert.deepEqual(r.choices.map((c) => c.index), [0, 1]);
  assert.ok(["stop", "length"].includes(r.choices[0].finish_reason));
  assert.equal(r.choices[0].logprobs.content[0].top_logprobs.length, 2);
  assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
});

await check("stream", async () => {
  const whole = (await client.chat.completions.create(ask)).choices[0].message.content;
  let text = "", usage, end;
  for await (const c of await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } })) {
    text += c.choices[0]?.delta.content ?? "";
    end = c.choices[0]?.finish_reason ?? end;
    usage = c.usage ?? usage;
  }
  assert.equal(text, whole);
  assert.ok(end && usage.completion_tokens > 0);
  const helper = client.chat.completions.stream(ask);
  assert.equal(await helper.finalContent(), whole);
});

await check("a stream that is left", async () => {
  const stream = await client.chat.completions.create({ ...ask, max_tokens: 400, stream: true });
  for await (const _ of stream) break;
  assert.ok((await client.chat.completions.create(ask)).id, "the server answers others");
});

await check("structured output", async () => {
  const r = await client.chat.completions.parse({ ...ask, max_tokens: 200, response_format: format });
  isFinding(r.choices[0].message.parsed);
  const streamed = await client.chat.completions.stream({ ...ask, max_tokens: 200, response_format: format }).finalChatCompletion();
  isFinding(streamed.choices[0].message.parsed);
  assert.equal(streamed.choices[0].message.content, r.choices[0].message.content);
});

await check("tools", async () => {
  for (const [choice, reason] of [["required", "tool_calls"], [{ type: "function", function: { name: "weather" } }, "stop"]]) {
    const how = { ...ask, tools, tool_choice: choice, parallel_tool_calls: false, max_tokens: 400 };
    const r = (await client.chat.completions.create(how)).choices[0];
    assert.ok([reason, "length"].includes(r.finish_reason), r.finish_reason);
    const calls = r.message.tool_calls.map((t) => [t.function.name, t.function.arguments]);
    if (r.finish_reason !== "length") JSON.parse(calls[0][1]);
    const streamed = (await client.chat.completions.stream(how).finalChatCompletion()).choices[0];
    assert.deepEqual(streamed.message.tool_calls.map((t) => [t.function.name, t.function.arguments]), calls);
    assert.equal(streamed.finish_reason, r.finish_reason);
    if (r.finish_reason === "length") continue;
    const turns = [...messages, r.message, { role: "tool", tool_call_id: r.message.tool_calls[0].id, content: "sunny" }];
    assert.ok((await client.chat.completions.create({ ...ask, messages: turns, tools, tool_choice: "none" })).choices[0].message);
  }
});

await check("a loop of tools", async () => {
  // The function is called and its result given back as often as rounds are allowed;
  // what a small model would say by itself in between is not for this to judge.
  const places = [];
  const weather = ({ place }) => (places.push(place), "sunny");
  const runner = client.chat.completions.runTools({
    ...ask, max_tokens: 400, tool_choice: "required", parallel_tool_calls: false,
    tools: [{ type: "function", function: { name: "weather", parse: JSON.parse, function: weather, parameters: place } }],
  }, { maxChatCompletions: 2 });
  await runner.done();
  assert.equal(places.length, 2);
  assert.ok(places.every((p) => typeof p === "string"));
  assert.equal(runner.messages.filter((m) => m.role === "tool" && m.content === "sunny").length, 2);
});

await check("completions", async () => {
  const r = await client.completions.create({ model, prompt: "Alert:", max_tokens: 5, echo: true, logprobs: 2 });
  assert.ok(r.choices[0].text.startsWith("Alert:"));
  let text = "";
  for await (const c of await client.completions.create({ model, prompt: "A", max_tokens: 5, temperature: 0, stream: true })) text += c.choices[0]?.text ?? "";
  assert.equal(text, (await client.completions.create({ model, prompt: "A", max_tokens: 5, temperature: 0 })).choices[0].text);
});

await check("responses", async () => {
  const question = { model, input: "Pod web-1 is OOMKilled", temperature: 0, max_output_tokens: 200 };
  const r = await client.responses.create({ ...question, instructions: "Be brief.", max_output_tokens: 16 });
  assert.ok(["completed", "incomplete"].includes(r.status));
  assert.equal(typeof r.output_text, "string");
  const text = { format: { type: "json_schema", name: "finding", strict: true, schema: finding } };
  isFinding((await client.responses.parse({ ...question, text })).output_parsed);
  const kinds = [];
  let said = "";
  const stream = client.responses.stream({ ...question, text });
  for await (const e of stream) {
    kinds.push(e.type);
    if (e.type === "response.output_text.delta") said += e.delta;
  }
  const end = await stream.finalResponse();
  assert.equal(kinds[0], "response.created");
  assert.equal(kinds.at(-1), "response.completed");
  assert.equal(end.output_text, said);
  isFinding(end.output_parsed);
  const flat = [{ type: "function", name: "weather", strict: true, parameters: place }];
  const called = await client.responses.create({ ...question, tools: flat, tool_choice: "required", max_output_tokens: 400 });
  const call = called.output.find((o) => o.type === "function_call");
  JSON.parse(call.arguments);
  const turns = [{ role: "user", content: question.input }, ...called.output, { type: "function_call_output", call_id: call.call_id, output: "sunny" }];
  assert.ok((await client.responses.create({ model, input: turns, tools: flat, tool_choice: "none", max_output_tokens: 8 })).status);
});

await check("errors", async () => {
  const { NotFoundError, BadRequestError } = OpenAI;
  await refused(NotFoundError, () => client.chat.completions.create({ ...ask, model: "none-such" }));
  await refused(BadRequestError, () => client.chat.completions.create({ ...ask, temperature: -1 }), (e) => assert.equal(e.param, "temperature"));
  await refused(BadRequestError, () => client.chat.completions.create({ ...ask, messages: [{ role: "user", content: "x ".repeat(200_000) }] }),
    (e) => assert.equal(e.code, "context_length_exceeded"));
  await refused(BadRequestError, () => client.responses.create({ model, input: "x", previous_response_id: "resp_1" }), (e) => assert.equal(e.param, "previous_response_id"));
  await refused(NotFoundError, () => client.responses.retrieve("resp_1"));
  await refused(NotFoundError, () => client.embeddings.create({ model, input: "x" }), (e) => assert.match(e.message, /embeddings/));
});

await check("many at once", async () => {
  const all = await Promise.all(Array.from({ length: 12 }, () => client.chat.completions.create({ ...ask, max_tokens: 4 })));
  assert.equal(new Set(all.map((r) => r.choices[0].message.content)).size, 1);
});

console.log(failed ? `${failed} failed` : "the SDK works");
process.exit(failed ? 1 : 0);
