#!/usr/bin/env python3
"""Renders snippets.txt with Jinja2 3.1.6 as chat templates are rendered by Hugging Face:
record.py snippets.txt > snippets.json

A snippet is what stands between lines of "----". Its result, or the fact that it fails,
is recorded; the variables are those of VARS.
"""
import datetime
import json
import sys

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

VARS = {
    "s": "  Hello, World  ", "t": "a,b,,c", "e": "", "n": 7, "f": 2.5, "z": 0, "yes": True, "no": False, "nil": None,
    "l": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "empty": [],
    "d": {"zeta": 1, "alpha": "x", "items": [1]}, "uni": "naïve 漢字 😀 <&>\"'\\\n\t",
    "msgs": [{"role": "system", "content": "S"}, {"role": "user", "content": "u1"},
             {"role": "assistant", "content": "<think>a</think>b"}, {"role": "user", "content": " u2 "}],
    "people": [{"name": "Bo", "age": 3, "x": {"y": 1}}, {"name": "al", "age": 5, "x": {"y": 2}}, {"name": "Cy", "age": 3}],
    "num": 1e16, "small": 0.00001, "big": 12345678901234567890, "nest": {"a": [1, {"b": None}], "c": {}},
}


def fail(message):
    raise jinja2.exceptions.TemplateError(message)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"])
env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
    x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
env.globals["raise_exception"] = fail
env.globals["strftime_now"] = lambda f: datetime.datetime(2026, 3, 4, 15, 6, 7).strftime(f)

out = []
for src in open(sys.argv[1], encoding="utf8").read().split("\n----\n"):
    case = {"src": src}
    try:
        case["out"] = env.from_string(src).render(**VARS)
    except Exception as e:
        case["error"] = type(e).__name__
    out.append(case)
json.dump({"vars": VARS, "cases": out}, sys.stdout, indent=1, ensure_ascii=False)
print()
