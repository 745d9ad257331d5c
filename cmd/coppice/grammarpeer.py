"""Times xgrammar (xgr) or llguidance (llg) on patterns, grammars and choices.

ENGINE TOKENIZER_DIR OUT IN SECONDS: IN holds lines {"id", "set", "text" and one
of "regex", "ebnf" with "lark", "choices"}; OUT gets a line for each with
compile_cpu_us, ttfm_cpu_us, mask_us and commit_us, or error. Each case has a
process of its own and SECONDS at most.
"""
import gc
import json
import os
import signal
import sys
import time

import tokenizers
import transformers

engine, folder, out_path, in_path, seconds = sys.argv[1:6]
tokenizer_file = os.path.join(folder, "tokenizer.json")
encoder = tokenizers.Tokenizer.from_file(tokenizer_file)
with open(os.path.join(folder, "tokenizer_config.json")) as f:
    end = json.load(f)["eos_token"]
hf = transformers.PreTrainedTokenizerFast(tokenizer_file=tokenizer_file, eos_token=end)


class XGrammar:
    def __init__(self):
        import torch
        import xgrammar

        torch.set_num_threads(1)
        self.lib = xgrammar
        self.info = xgrammar.TokenizerInfo.from_huggingface(hf)
        self.bits = xgrammar.allocate_token_bitmask(1, self.info.vocab_size)

    def compile(self, case):
        c = self.lib.GrammarCompiler(self.info, max_threads=1, cache_enabled=False)
        if "json" in case:
            return c.compile_builtin_json_grammar()
        if "regex" in case:
            return c.compile_regex(case["regex"])
        if "choices" in case:
            return c.compile_grammar("root ::= " + " | ".join(json.dumps(x) for x in case["choices"]))
        return c.compile_grammar(case["ebnf"])

    def start(self, grammar):
        return self.lib.GrammarMatcher(grammar)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.bits)

    def commit(self, matcher, token):
        return matcher.accept_token(token)


class LLGuidance:
    def __init__(self):
        import llguidance
        import llguidance.hf
        import llguidance.numpy

        self.lib, self.masks = llguidance, llguidance.numpy
        self.tokenizer = llguidance.hf.from_tokenizer(hf)
        self.bits = self.masks.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def compile(self, case):
        m = self.lib.LLMatcher
        if "json" in case:
            text = m.grammar_from_json_schema('{"type":"object"}')
        elif "regex" in case:
            text = m.grammar_from_regex(case["regex"])
        elif "choices" in case:
            text = m.grammar_from_lark("start: " + " | ".join(json.dumps(x) for x in case["choices"]))
        else:
            text = m.grammar_from_lark(case["lark"])
        matcher = m(self.tokenizer, text, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, grammar):
        return grammar.deep_copy()

    def fill(self, matcher):
        self.masks.fill_next_token_bitmask(matcher, self.bits, 0)

    def commit(self, matcher, token):
        return matcher.consume_token(token)


def measure(lib, case):
    ids = encoder.encode(case["text"], add_special_tokens=False).ids
    gc.collect()
    gc.disable()
    began = time.thread_time_ns()
    grammar = lib.compile(case)
    compiled = time.thread_time_ns()
    lib.fill(lib.start(grammar))
    first = time.thread_time_ns()
    matcher, masks, commits = lib.start(grammar), [], []
    for token in ids:
        cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
        lib.fill(matcher)
        took = time.perf_counter_ns() - wall
        if took > 50_000:  # long enough to hold waiting
            took = min(took, time.thread_time_ns() - cpu)
        masks.append(took / 1e3)
        wall = time.perf_counter_ns()
        ok = lib.commit(matcher, token)
        commits.append((time.perf_counter_ns() - wall) / 1e3)
        if not ok:
            raise ValueError("refuses token %d of the text" % token)
    return {"compile_cpu_us": (compiled - began) / 1e3, "ttfm_cpu_us": (first - began) / 1e3, "mask_us": masks, "commit_us": commits}


lib = XGrammar() if engine == "xgr" else LLGuidance()
lib.fill(lib.start(lib.compile({"regex": "[a-z]+x"})))
with open(in_path) as f:
    cases = [json.loads(line) for line in f]
for case in cases:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        signal.alarm(int(float(seconds)) + 1)  # ends this process
        try:
            answer = measure(lib, case)
        except BaseException as e:
            answer = {"error": str(e)[:200] or type(e).__name__}
        with os.fdopen(write, "w") as f:
            f.write(json.dumps(answer))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        said = f.read()
    _, status = os.waitpid(child, 0)
    answer = json.loads(said) if said else {"error": "no answer within %s s, or ended with status %d" % (seconds, status)}
    with open(out_path, "a") as f:
        f.write(json.dumps({"id": case["id"], "set": case["set"], **answer}) + "\n")
