// The real clients of AG-UI and of the AI SDK against a server: URL in the
// environment serves the program "looks", whose two branches are held until GATE
// is asked to let them go; ASKS serves "asks", which waits for two answers.
import assert from "node:assert/strict";
import { HttpAgent } from "@ag-ui/client";
import { AbstractChat, DefaultChatTransport, readUIMessageStream, WebSocketChatTransport } from "ai";
import { WebSocket } from "ws";

const { URL: url, HELD: held, GATE: gate, ASKS: asks } = process.env;

// AG-UI: branches are subagents, their texts are messages of their own.
{
  const events = [];
  const agent = new HttpAgent({ url: url + "/v1/programs/looks/agui", threadId: "thread-1" });
  agent.addMessage({ id: "m1", role: "user", content: "rain" });
  const { result, newMessages } = await agent.runAgent({ runId: "run-a" }, { onEvent: ({ event }) => void events.push(event) });
  assert.equal(result, "take it");
  const kinds = (k) => events.filter((e) => e.type === k);
  assert.equal(events[0].type, "RUN_STARTED");
  assert.equal(events.at(-1).type, "RUN_FINISHED");
  assert.deepEqual(kinds("SUBAGENT_STARTED").map((e) => [e.subagentRunId, e.name]).sort(), [["sides[0]", "good"], ["sides[1]", "bad"]]);
  assert.equal(kinds("SUBAGENT_FINISHED").length, 2);
  assert.equal(kinds("STEP_STARTED").length, kinds("STEP_FINISHED").length);
  const said = newMessages.map((m) => [m.subagentRunId ?? "", m.content]).sort();
  assert.deepEqual(said, [["", "take it"], ["sides[0]", "good enough"], ["sides[1]", "bad enough"]]);

  // Inputs by name; a mistake is an error of the request.
  const named = new HttpAgent({ url: url + "/v1/programs/looks/agui", threadId: "thread-2" });
  assert.equal((await named.runAgent({ runId: "run-b", forwardedProps: { inputs: { topic: "snow" } } })).result, "take it");
  const wrong = new HttpAgent({ url: url + "/v1/programs/none/agui", threadId: "thread-3" });
  const { error } = console; // the client reports it there too
  console.error = () => {};
  await assert.rejects(wrong.runAgent({ runId: "run-c" }), /there is no program/);
  console.error = error;
  console.log("AG-UI:", events.length, "events");
}

// What waits for people is an interrupt; the answers come with the next run.
{
  const agent = new HttpAgent({ url: asks + "/v1/programs/asks/agui", threadId: "thread-4" });
  agent.addMessage({ id: "m1", role: "user", content: "ops" });
  const ends = [];
  const run = (runId, ...resume) => agent.runAgent({ runId, ...(resume.length && { resume }) }, { onRunFinishedEvent: (e) => void ends.push(e) });
  await run("run-1");
  assert.equal(ends.at(-1).outcome, "interrupt");
  const [ask] = agent.pendingInterrupts;
  assert.deepEqual([ask.message, ask.reason, ask.subagentRunId, ask.responseSchema], ["Page ops?", "approval", "all/a", { type: "boolean" }]);
  await run("run-2", { interruptId: ask.id, status: "resolved", payload: { approved: true } });
  assert.equal(ends.at(-1).outcome, "interrupt");
  const [count] = agent.pendingInterrupts;
  assert.deepEqual([count.message, count.reason, count.subagentRunId], ["How many?", "input", undefined]);
  await run("run-3", { interruptId: count.id, status: "resolved", payload: 3 });
  assert.equal(ends.at(-1).outcome, "success");
  assert.deepEqual(ends.at(-1).result, { all: [true, "done"], count: 3 });
  await run("run-4");
  await run("run-5", { interruptId: agent.pendingInterrupts[0].id, status: "cancelled" });
  assert.equal(ends.at(-1).outcome, "cancelled");
  console.log("AG-UI: interrupts");
}

async function last(stream) {
  let message;
  for await (const m of readUIMessageStream({ stream })) message = m;
  return message;
}

function check(message) {
  const texts = message.parts.filter((p) => p.type === "text").map((p) => p.text).sort();
  assert.deepEqual(texts, ["bad enough", "good enough", "take it"]);
  const branches = message.parts.filter((p) => p.type === "data-branch").map((p) => [p.data.label, p.data.status]).sort();
  assert.deepEqual(branches, [["bad", "finished"], ["good", "finished"]]);
  assert.equal(message.parts.find((p) => p.type === "data-result").data.value, "take it");
  assert.equal(message.parts.filter((p) => p.type === "data-node").length, 3);
  assert.ok(message.metadata.usage.sampled_tokens > 0);
}

const question = [{ id: "q", role: "user", parts: [{ type: "text", text: "rain" }] }];
const send = (transport, chatId) =>
  transport.sendMessages({ trigger: "submit-message", chatId, messageId: undefined, messages: question, abortSignal: undefined });

// The AI SDK over HTTP.
check(await last(await send(new DefaultChatTransport({ api: url + "/v1/programs/looks/chat" }), "chat-1")));

// And over a websocket: dropped in the middle, resumed, whole.
{
  const make = () => new WebSocketChatTransport({ url: held.replace("http", "ws") + "/v1/programs/looks/chat", webSocket: WebSocket });
  const first = make();
  const reader = (await send(first, "chat-2")).getReader();
  for (let i = 0; i < 4; i++) assert.ok((await reader.read()).value, "chunks come before the drop");
  first.close();
  await reader.read().then(() => assert.fail("the stream was to break"), () => {});
  const second = make();
  const again = await second.reconnectToStream({ chatId: "chat-2" });
  assert.ok(again, "the chat goes on");
  await fetch(gate);
  check(await last(again));
  assert.equal(await second.reconnectToStream({ chatId: "chat-2" }), null, "it is over");
  assert.equal(await second.reconnectToStream({ chatId: "none" }), null);
  check(await last(await send(second, "chat-3"))); // the same socket again
  second.close();
}
// Questions are tools that the person approves, or gives the output of.
class State {
  status = "ready";
  messages = [];
  pushMessage = (m) => void (this.messages = [...this.messages, m]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (i, m) => void (this.messages = this.messages.with(i, m));
  snapshot = structuredClone;
}
class Chat extends AbstractChat {
  constructor(init) {
    super({ ...init, state: new State() });
  }
}
for (const transport of [
  new DefaultChatTransport({ api: asks + "/v1/programs/asks/chat" }),
  new WebSocketChatTransport({ url: asks.replace("http", "ws") + "/v1/programs/asks/chat", webSocket: WebSocket }),
]) {
  const chat = new Chat({ transport, id: transport.constructor.name, onError: (e) => assert.fail(e) });
  const tool = (name) => chat.lastMessage.parts.find((p) => p.type === "dynamic-tool" && p.toolName === name);
  await chat.sendMessage({ text: "ops" });
  const ok = tool("all/a/ok");
  assert.deepEqual([ok.state, ok.input.text, chat.status], ["approval-requested", "Page ops?", "ready"]);
  await chat.addToolApprovalResponse({ id: ok.approval.id, approved: false });
  await chat.sendMessage();
  assert.deepEqual([tool("all/a/ok").state, tool("all/a/ok").output], ["output-available", false]);
  const count = tool("count");
  assert.deepEqual([count.state, count.input.type], ["input-available", "int"]);
  await chat.addToolOutput({ tool: "count", toolCallId: count.toolCallId, output: 2 });
  await chat.sendMessage();
  assert.deepEqual(chat.lastMessage.parts.find((p) => p.type === "data-result").data.value, { all: [false, "done"], count: 2 });
  assert.equal(chat.messages.length, 2, "it is one message");
  transport.close?.();
}
console.log("AI SDK: over HTTP, over a websocket, and resumed");
