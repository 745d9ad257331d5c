"""Drives a coppice server with OpenAI's Python SDK.

    python -m venv v && v/bin/pip install openai
    v/bin/python openai_sdk.py http://127.0.0.1:8080

Each check prints a line; the exit status is 0 if all pass.
"""
import asyncio
import json
import sys
from typing import Annotated, Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

base = sys.argv[1].rstrip("/")
client = OpenAI(base_url=base + "/v1", api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
model = client.models.list().data[0].id
chats, responses = client.chat.completions, client.responses
failed = []


def check(name, ok, info=""):
    print("PASS" if ok else "FAIL", name, "" if ok else info)
    if not ok:
        failed.append(name)


class Finding(BaseModel):
    pod: Annotated[str, Field(max_length=12)]
    reason: Literal["OOMKilled", "ImagePullBackOff"]
    oom: bool


messages = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Pod web-1 is "}, {"type": "text", "text": "OOMKilled"}]},
]
place = {"type": "object", "properties": {"place": {"type": "string", "maxLength": 12}}, "required": ["place"], "additionalProperties": False}
tools = [
    {"type": "function", "function": {"name": "weather", "description": "of a place", "strict": True, "parameters": place}},
    {"type": "function", "function": {"name": "now"}},
]


def chat(**more):
    return chats.create(**{"model": model, "messages": messages, "max_tokens": 8, "temperature": 0, **more})


def models_and_chats():
    check("model", client.models.retrieve(model).id == model)
    r = chat(max_completion_tokens=8, seed=1)
    check("chat", r.choices[0].finish_reason in ("stop", "length") and r.usage.prompt_tokens_details is not None, r)
    check("n", [x.index for x in chat(n=3, temperature=1).choices] == [0, 1, 2])
    chunks = list(chat(n=2, temperature=1, stream=True, stream_options={"include_usage": True}))
    check("usage of a stream", chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 0 and all(c.usage is None for c in chunks[:-1]))
    check("ends of a stream", sorted(x.index for c in chunks for x in c.choices if x.finish_reason) == [0, 1])
    r = chat(logprobs=True, top_logprobs=3)
    check("logprobs", len(r.choices[0].logprobs.content[0].top_logprobs) == 3, r)


def structured():
    p = chats.parse(model=model, messages=messages, response_format=Finding, max_tokens=200)
    check("parse", isinstance(p.choices[0].message.parsed, Finding), p)
    with chats.stream(model=model, messages=messages, response_format=Finding, max_tokens=200) as s:
        for _ in s:
            pass
        check("streamed parse", isinstance(s.get_final_completion().choices[0].message.parsed, Finding))
    r = chat(response_format={"type": "json_object"}, max_tokens=100)
    check("object", r.choices[0].finish_reason == "length" or isinstance(json.loads(r.choices[0].message.content), dict), r)


def calls():
    for choice, reason in (("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")):
        for parallel in (True, False):
            how = dict(tools=tools, tool_choice=choice, parallel_tool_calls=parallel, max_tokens=400)
            x = chat(**how).choices[0]
            want = [(t.function.name, t.function.arguments) for t in x.message.tool_calls or []]
            whole = x.finish_reason == "length" or want and all(isinstance(json.loads(a), dict) for _, a in want)
            check(f"calls {choice} {parallel}", whole and x.finish_reason in (reason, "length"), x)
            got, end = {}, None
            for c in chat(stream=True, **how):
                for y in c.choices:
                    end = y.finish_reason or end
                    for t in y.delta.tool_calls or []:
                        call = got.setdefault(t.index, ["", ""])
                        call[0] += t.function.name or ""
                        call[1] += t.function.arguments or ""
            check("the same streamed", [tuple(v) for v in got.values()] == want and end == x.finish_reason, (got, want, end))
    check("calls auto", chat(tools=tools, max_tokens=20).choices[0].finish_reason in ("stop", "length", "tool_calls"))


def completions():
    r = client.completions.create(model=model, prompt="Alert:", max_tokens=5, echo=True, logprobs=2)
    check("echo", r.choices[0].text.startswith("Alert:") and r.choices[0].logprobs.text_offset[0] == 0, r)
    ids = client.post("/../tokenize", body={"prompt": "Alert:"}, cast_to=object)["tokens"]
    r = client.completions.create(model=model, prompt=[ids, ids], max_tokens=3, temperature=0)
    check("ids", len(r.choices) == 2 and r.choices[0].text == r.choices[1].text)
    whole = client.completions.create(model=model, prompt="A", max_tokens=5, temperature=0).choices[0].text
    parts = client.completions.create(model=model, prompt="A", max_tokens=5, temperature=0, stream=True)
    check("streamed text", "".join(c.choices[0].text for c in parts if c.choices) == whole)


def errors():
    for name, more, kind in (
        ("no such model", {"model": "none-such"}, openai.NotFoundError),
        ("out of range", {"temperature": -1}, openai.BadRequestError),
        ("too long", {"messages": [{"role": "user", "content": "x " * 200000}]}, openai.BadRequestError),
    ):
        try:
            chat(**more)
            check(name, False, "no error")
        except openai.APIStatusError as e:
            check(name, isinstance(e, kind) and e.type and e.body, repr(e))


def the_responses():
    question = dict(model=model, input="Pod web-1 is OOMKilled", max_output_tokens=300)
    r = responses.create(**{**question, "max_output_tokens": 16}, instructions="Be brief.")
    check("response", r.status in ("completed", "incomplete") and isinstance(r.output_text, str) and r.usage.total_tokens > 0, r)
    p = responses.parse(**question, text_format=Finding)
    check("response parsed", isinstance(p.output_parsed, Finding), p)
    flat = [{"type": "function", "name": "weather", "strict": True, "parameters": place}]
    ask = {"role": "user", "content": "Weather in Rome?"}
    r = responses.create(model=model, input=[ask], tools=flat, tool_choice="required", max_output_tokens=400, temperature=0)
    made = [o for o in r.output if o.type == "function_call"]
    check("response with calls", made and all(isinstance(json.loads(c.arguments), dict) for c in made), r)
    turns = [ask, *[o.model_dump() for o in r.output], {"type": "function_call_output", "call_id": made[0].call_id, "output": "sunny"}]
    r = responses.create(model=model, input=turns, tools=flat, tool_choice="none", max_output_tokens=8)
    check("response after a call", r.status in ("completed", "incomplete"), r)
    kinds, text = [], ""
    with responses.stream(**question, text_format=Finding) as s:
        for e in s:
            kinds.append(e.type)
            if e.type == "response.output_text.delta":
                text += e.delta
        end = s.get_final_response()
    check("streamed response", kinds[0] == "response.created" and kinds[-1] == "response.completed" and end.output_text == text and isinstance(end.output_parsed, Finding), (kinds, end))
    try:
        responses.create(model=model, input="x", previous_response_id="resp_1")
        check("nothing is stored", False, "no error")
    except openai.BadRequestError as e:
        check("nothing is stored", e.param == "previous_response_id", e)


async def at_once():
    c = AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)
    answers = await asyncio.gather(*[c.chat.completions.create(model=model, messages=messages, max_tokens=4, temperature=0) for _ in range(20)])
    check("many at once", len({a.choices[0].message.content for a in answers}) == 1)


for part in (models_and_chats, structured, calls, completions, errors, the_responses):
    part()
asyncio.run(at_once())
print("openai", openai.__version__, "failed:", failed or "none")
sys.exit(bool(failed))
