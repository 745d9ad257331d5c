package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/puppet"
)

// feature is one thing that clients of OpenAI's, vLLM's or SGLang's API rely on.
type feature struct {
	row  string // whose it is, and what
	path string // of a POST
	body tree
	// want are places in the answer, as choices.0.text, and what stands there: "*"
	// is anything but null. In a stream it is found in some event.
	want tree
	// check looks at the rest: at the answer, or at {"events": [...]} of a stream.
	check func(got tree) bool
	// asked looks at what the model was asked, and makes the model a puppet.
	asked func(r *backend.Request) bool
	bad   string // the field that is refused with 400
}

// place reads choices.0.text.
func place(v any, path string) any {
	var steps []any
	for name := range strings.SplitSeq(path, ".") {
		if n, err := strconv.Atoi(name); err == nil {
			steps = append(steps, n)
		} else {
			steps = append(steps, name)
		}
	}
	return at(v, steps...)
}

// events are those of a stream that hold what path says.
func events(got tree, path string) (out []any) {
	for _, e := range got["events"].([]tree) {
		if v := place(e, path); v != nil {
			out = append(out, v)
		}
	}
	return out
}

const letters = "abcdefghijklmnopqrstuvwxyz"

// chatOf and rawOf are requests of the alphabet, greedily unless more says otherwise.
func chatOf(more ...any) tree {
	return ask("x", append([]any{"temperature", 0}, more...)...)
}

func rawOf(more ...any) tree {
	body := tree{"prompt": ".", "temperature": 0, "max_tokens": 4}
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return body
}

func nativeOf(more ...any) tree {
	params := tree{"temperature": 0, "max_new_tokens": 4}
	for i := 0; i+1 < len(more); i += 2 {
		params[more[i].(string)] = more[i+1]
	}
	return tree{"text": ".", "sampling_params": params}
}

const (
	chatPath     = "/v1/chat/completions"
	rawPath      = "/v1/completions"
	responsePath = "/v1/responses"
	nativePath   = "/generate"
	said         = "choices.0.message.content"
	cont         = "choices.0.text"
	why          = "choices.0.finish_reason"
)

var schemaText = tree{"type": "json_schema", "json_schema": tree{"name": "s", "schema": tree{"type": "string"}}}

func schemaOf(s string) tree {
	return tree{"type": "json_schema", "json_schema": tree{"name": "s", "strict": true, "schema": tree{"const": s}}}
}

func features() []feature {
	hot := []any{"temperature", 4, "max_completion_tokens", 12, "seed", 5}
	with := func(more ...any) tree { return chatOf(append(append([]any{}, hot...), more...)...) }
	first := func(name string, n int) func(tree) bool {
		return func(got tree) bool { return place(got, name) == letters[:n] }
	}
	logit := func(f func(s backend.Sampling) bool) func(*backend.Request) bool {
		return func(r *backend.Request) bool { return f(r.Sampling) }
	}
	tools := func(choice any, more ...any) tree {
		return ask("x", append([]any{"tools", weatherTools, "tool_choice", choice}, more...)...)
	}
	roles := []any{
		tree{"role": "developer", "content": "d"},
		tree{"role": "user", "content": []any{tree{"type": "text", "text": "a"}, tree{"type": "text", "text": "b"}}, "name": "eve"},
		tree{"role": "assistant", "content": nil, "tool_calls": []any{tree{"id": "c1", "type": "function", "function": tree{"name": "now", "arguments": "{}"}}}},
		tree{"role": "tool", "tool_call_id": "c1", "content": "noon"},
		tree{"role": "assistant", "content": "ok"}, tree{"role": "user", "content": ""},
	}
	return []feature{
		{row: "chat: messages of all roles, content as text, parts and null", path: chatPath, body: tree{"messages": roles}, asked: func(r *backend.Request) bool {
			var got []string
			for _, t := range r.Turns {
				got = append(got, string(t.Role)+"="+t.Text())
			}
			return reflect.DeepEqual(got, []string{"system=d", "user=ab", "assistant=<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "tool=noon", "assistant=ok", "user="})
		}},
		{row: "chat: role system", path: chatPath, body: tree{"messages": []any{tree{"role": "system", "content": "s"}}}, asked: func(r *backend.Request) bool { return r.Turns[0].Role == backend.System }},
		{row: "chat: a role that there is not", path: chatPath, body: tree{"messages": []any{tree{"role": "narrator", "content": "s"}}}, bad: "messages.0.role"},
		{row: "chat: model", path: chatPath, body: chatOf("model", "chain"), want: tree{"model": "chain"}},
		{row: "chat: max_tokens", path: chatPath, body: chatOf("max_tokens", 3), want: tree{said: "abc", why: "length"}},
		{row: "chat: max_completion_tokens, which wins", path: chatPath, body: chatOf("max_tokens", 9, "max_completion_tokens", 2), want: tree{said: "ab", why: "length"}},
		{row: "chat: without a limit it is the room that is left", path: chatPath, body: chatOf(), want: tree{said: letters, why: "stop"}},
		{row: "chat: temperature", path: chatPath, body: with(), check: func(got tree) bool { return !first(said, 12)(got) }},
		{row: "chat: top_p", path: chatPath, body: with("top_p", 0.01), want: tree{said: letters[:12]}},
		{row: "chat: n", path: chatPath, body: with("n", 3), want: tree{"choices.2.index": 2.0, "choices.2.message.content": "*"}, check: func(got tree) bool {
			return len(got["choices"].([]any)) == 3 && place(got, said) != place(got, "choices.1.message.content") && place(got, "usage.completion_tokens") == 36.0
		}},
		{row: "chat: seed", path: chatPath, body: with("n", 1), check: func() func(tree) bool {
			var one any
			return func(got tree) bool { // asked twice
				defer func() { one = place(got, said) }()
				return one == nil || one == place(got, said)
			}
		}()},
		{row: "chat: stop, one", path: chatPath, body: chatOf("stop", "de"), want: tree{said: "abc", why: "stop", "choices.0.stop_reason": "de"}},
		{row: "chat: stop, sixteen", path: chatPath, body: chatOf("stop", []any{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "A", "B", "C", "D", "E", "f"}), want: tree{said: "abcde", why: "stop"}},
		{row: "chat: stop, seventeen", path: chatPath, body: chatOf("stop", []any{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "A", "B", "C", "D", "E", "F", "G"}), bad: "stop"},
		{row: "chat: stream", path: chatPath, body: chatOf("stream", true), want: tree{"object": "chat.completion.chunk", "choices.0.delta.role": "assistant", "choices.0.finish_reason": "stop"}, check: func(got tree) bool {
			return chatText(got["events"].([]tree), 0) == letters && len(events(got, "choices.0.finish_reason")) == 1 && len(events(got, "usage")) == 0
		}},
		{row: "chat: stream_options.include_usage", path: chatPath, body: chatOf("stream", true, "stream_options", tree{"include_usage": true}), check: func(got tree) bool {
			all := got["events"].([]tree)
			last := all[len(all)-1]
			_, null := all[0]["usage"]
			return null && len(last["choices"].([]any)) == 0 && place(last, "usage.completion_tokens") == 26.0 && len(events(got, "usage")) == 1
		}},
		{row: "chat: presence_penalty", path: chatPath, body: chatOf("presence_penalty", 1.5), asked: logit(func(s backend.Sampling) bool { return s.PresencePenalty == 1.5 })},
		{row: "chat: frequency_penalty", path: chatPath, body: chatOf("frequency_penalty", -1.5), asked: logit(func(s backend.Sampling) bool { return s.FrequencyPenalty == -1.5 })},
		{row: "chat: logit_bias", path: chatPath, body: chatOf("logit_bias", tree{"98": -100, "122": 50}, "max_tokens", 2), want: tree{said: "zz"}},
		{row: "chat: logprobs and top_logprobs, with true bytes", path: chatPath, body: chatOf("logprobs", true, "top_logprobs", 2, "max_tokens", 1), want: tree{
			"choices.0.logprobs.content.0.token": "a", "choices.0.logprobs.content.0.bytes.0": 97.0, "choices.0.logprobs.content.0.top_logprobs.1.logprob": "*"}},
		{row: "chat: logprobs in a stream", path: chatPath, body: chatOf("logprobs", true, "stream", true), check: func(got tree) bool {
			return len(events(got, "choices.0.logprobs.content.0.token")) == 26
		}},
		{row: "chat: response_format text", path: chatPath, body: chatOf("response_format", tree{"type": "text"}), want: tree{said: letters}},
		{row: "chat: response_format json_object", path: chatPath, body: chatOf("response_format", tree{"type": "json_object"}), asked: func(r *backend.Request) bool { return string(r.Constraint.JSONSchema) == `{"type":"object"}` }},
		{row: "chat: response_format json_schema", path: chatPath, body: chatOf("response_format", schemaOf("q")), want: tree{said: `"q"`, why: "stop"}},
		{row: "chat: an answer in a form is closed at the limit", path: chatPath, body: chatOf("response_format", schemaText, "max_tokens", 5), want: tree{said: `"abc"`, why: "length", "usage.coppice.closed_tokens": 1.0}},
		{row: "chat: close_at_limit false", path: chatPath, body: chatOf("response_format", schemaText, "max_tokens", 5, "close_at_limit", false), want: tree{said: `"abcd`, why: "length", "usage.coppice.closed_tokens": 0.0}},
		{row: "chat: closed in a stream", path: chatPath, body: chatOf("response_format", schemaText, "max_tokens", 5, "stream", true, "logprobs", true), want: tree{why: "length"}, check: func(got tree) bool {
			return chatText(got["events"].([]tree), 0) == `"abc"` && len(events(got, "choices.0.logprobs.content.0.token")) == 5
		}},
		{row: "chat: a call is not closed", path: chatPath, body: tools(tree{"type": "function", "function": tree{"name": "weather"}}, "temperature", 0, "max_tokens", 14), check: func(got tree) bool {
			args, _ := place(got, "choices.0.message.tool_calls.0.function.arguments").(string)
			return place(got, why) == "length" && args != "" && !json.Valid([]byte(args))
		}},
		{row: "chat: tools, tool_choice none", path: chatPath, body: tools("none", "temperature", 0), want: tree{said: letters, why: "stop"}, check: func(got tree) bool { return place(got, "choices.0.message.tool_calls") == nil }},
		{row: "chat: tools, tool_choice auto", path: chatPath, body: tools("auto"), asked: func(r *backend.Request) bool {
			return strings.Contains(r.Turns[0].Text(), "weather") && r.Constraint.IsZero()
		}},
		{row: "chat: tools, tool_choice required", path: chatPath, body: tools("required", "temperature", 0, "parallel_tool_calls", false, "tools", weatherTools[1:]), want: tree{
			"choices.0.message.tool_calls.0.function.name": "now", "choices.0.message.tool_calls.0.function.arguments": "{}", "choices.0.message.tool_calls.0.id": "*", "choices.0.message.tool_calls.0.type": "function", why: "tool_calls"}},
		{row: "chat: tools, a named one", path: chatPath, body: tools(tree{"type": "function", "function": tree{"name": "now"}}), want: tree{"choices.0.message.tool_calls.0.function.name": "now", why: "stop"}},
		{row: "chat: parallel_tool_calls", path: chatPath, body: tools("required"), asked: func(r *backend.Request) bool {
			return strings.Contains(string(r.Constraint.JSONSchema), `"maxItems":8`)
		}},
		{row: "chat: user and metadata", path: chatPath, body: chatOf("user", "eve", "metadata", tree{"a": "b"}, "store", false, "service_tier", "auto"), want: tree{said: letters}},
		{row: "chat: the answer", path: chatPath, body: chatOf(), want: tree{
			"id": "*", "object": "chat.completion", "created": "*", "model": "chain", "system_fingerprint": "*", "choices.0.index": 0.0, "choices.0.message.role": "assistant",
			"usage.prompt_tokens": "*", "usage.completion_tokens": 26.0, "usage.total_tokens": "*", "usage.prompt_tokens_details.cached_tokens": "*", "usage.completion_tokens_details.reasoning_tokens": 0.0,
		}, check: func(got tree) bool {
			m := place(got, "choices.0.message").(tree)
			refusal, there := m["refusal"]
			return there && refusal == nil && place(got, "usage.total_tokens") == place(got, "usage.prompt_tokens").(float64)+26
		}},

		{row: "completions: prompt as text", path: rawPath, body: rawOf(), want: tree{cont: "abcd", "object": "text_completion", why: "length"}},
		{row: "completions: prompt as ids", path: rawPath, body: rawOf("prompt", []any{97, 98}), want: tree{cont: "cdef"}},
		{row: "completions: prompt as a list", path: rawPath, body: rawOf("prompt", []any{"a", "x"}), want: tree{cont: "bcde", "choices.1.text": "yz", "choices.1.index": 1.0}},
		{row: "completions: prompt as a list of ids", path: rawPath, body: rawOf("prompt", []any{[]any{97}, []any{120}}), want: tree{"choices.1.text": "yz"}},
		{row: "completions: suffix is refused", path: rawPath, body: rawOf("suffix", "z"), bad: "suffix"},
		{row: "completions: echo", path: rawPath, body: rawOf("echo", true), want: tree{cont: ".abcd"}},
		{row: "completions: logprobs with text_offset", path: rawPath, body: rawOf("logprobs", 2), want: tree{"choices.0.logprobs.tokens.3": "d", "choices.0.logprobs.text_offset.3": 3.0, "choices.0.logprobs.token_logprobs.0": "*", "choices.0.logprobs.top_logprobs.0.a": "*"}},
		{row: "completions: max_tokens 0 with echo", path: rawPath, body: rawOf("echo", true, "max_tokens", 0, "logprobs", 1), want: tree{cont: ".", "usage.completion_tokens": 0.0}},
		{row: "completions: best_of", path: rawPath, body: rawOf("best_of", 3, "n", 2, "temperature", 1, "seed", 2), check: func(got tree) bool { return len(got["choices"].([]any)) == 2 }},

		{row: "responses: input as text", path: responsePath, body: tree{"input": "x", "temperature": 0}, want: tree{"object": "response", "status": "completed", "output.0.content.0.text": letters, "output.0.type": "message", "usage.output_tokens": 26.0}},
		{row: "responses: input as items, instructions", path: responsePath, body: tree{"instructions": "i", "input": []any{tree{"role": "user", "content": []any{tree{"type": "input_text", "text": "u"}}}}}, asked: func(r *backend.Request) bool {
			return len(r.Turns) == 2 && r.Turns[0].Text() == "i" && r.Turns[0].Role == backend.System && r.Turns[1].Text() == "u"
		}},
		{row: "responses: text.format json_schema", path: responsePath, body: tree{"input": "x", "text": tree{"format": tree{"type": "json_schema", "name": "s", "strict": true, "schema": tree{"const": "q"}}}}, want: tree{"output.0.content.0.text": `"q"`}},
		{row: "responses: text.format is closed at the limit", path: responsePath, body: tree{"input": "x", "temperature": 0, "max_output_tokens": 5, "text": tree{"format": tree{"type": "json_schema", "name": "s", "schema": tree{"type": "string"}}}}, want: tree{"output.0.content.0.text": `"abc"`, "status": "incomplete", "incomplete_details.reason": "max_output_tokens"}},
		{row: "responses: tools", path: responsePath, body: tree{"input": "x", "tool_choice": "required", "parallel_tool_calls": false, "tools": []any{tree{"type": "function", "name": "now"}}}, want: tree{"output.0.type": "function_call", "output.0.name": "now", "output.0.arguments": "{}", "output.0.call_id": "*"}},
		{row: "responses: streaming events", path: responsePath, body: tree{"input": "x", "temperature": 0, "stream": true}, want: tree{"type": "response.completed", "response.output.0.content.0.text": letters}, check: func(got tree) bool {
			return strings.Join(strings.Fields(fmt.Sprint(events(got, "delta")...)), "") == letters && place(got["events"].([]tree)[0], "type") == "response.created"
		}},
		{row: "responses: previous_response_id is refused", path: responsePath, body: tree{"input": "x", "previous_response_id": "resp_1"}, bad: "previous_response_id"},

		{row: "vLLM: structured_outputs.json", path: chatPath, body: chatOf("structured_outputs", tree{"json": tree{"const": 7}}), want: tree{said: "7"}},
		{row: "vLLM: structured_outputs.regex", path: chatPath, body: chatOf("structured_outputs", tree{"regex": "[x-z]{2}"}), check: func(got tree) bool { return len(place(got, said).(string)) == 2 }},
		{row: "vLLM: structured_outputs.choice", path: chatPath, body: chatOf("structured_outputs", tree{"choice": []any{"yes", "no"}}), check: func(got tree) bool { s := place(got, said); return s == "yes" || s == "no" }},
		{row: "vLLM: structured_outputs.grammar", path: chatPath, body: chatOf("structured_outputs", tree{"grammar": `root ::= "q" "r"`}), want: tree{said: "qr"}},
		{row: "vLLM: structured_outputs.structural_tag", path: chatPath, body: chatOf("structured_outputs", tree{"structural_tag": tree{"structures": []any{tree{"begin": "<a>", "schema": tree{"const": 1}, "end": "</a>"}}, "triggers": []any{"<a>"}}}), asked: func(r *backend.Request) bool { return r.Constraint.Tags != nil }},
		{row: "vLLM: guided_json", path: chatPath, body: chatOf("guided_json", tree{"const": 7}), want: tree{said: "7"}},
		{row: "vLLM: guided_regex", path: chatPath, body: chatOf("guided_regex", "qr"), want: tree{said: "qr"}},
		{row: "vLLM: guided_choice", path: chatPath, body: chatOf("guided_choice", []any{"qr"}), want: tree{said: "qr"}},
		{row: "vLLM: guided_grammar", path: chatPath, body: chatOf("guided_grammar", `root ::= "qr"`), want: tree{said: "qr"}},
		{row: "vLLM: top_k", path: chatPath, body: with("top_k", 1), want: tree{said: letters[:12]}},
		{row: "vLLM: min_p", path: chatPath, body: with("min_p", 0.9), want: tree{said: letters[:12]}},
		{row: "vLLM: repetition_penalty", path: chatPath, body: chatOf("repetition_penalty", 1.2), asked: logit(func(s backend.Sampling) bool { return s.RepetitionPenalty == 1.2 })},
		{row: "vLLM: min_tokens", path: chatPath, body: chatOf("min_tokens", 30, "max_tokens", 40), want: tree{}, check: func(got tree) bool { return place(got, "usage.completion_tokens").(float64) >= 30 }},
		{row: "vLLM: ignore_eos", path: chatPath, body: chatOf("ignore_eos", true, "max_tokens", 40), want: tree{"usage.completion_tokens": 40.0, why: "length"}},
		{row: "vLLM: stop_token_ids", path: chatPath, body: chatOf("stop_token_ids", []any{101}), want: tree{said: "abcd", "choices.0.stop_reason": 101.0}},
		{row: "vLLM: bad_words", path: chatPath, body: chatOf("bad_words", []any{"d"}, "max_tokens", 4), check: func(got tree) bool {
			s := place(got, said).(string)
			return strings.HasPrefix(s, "abc") && !strings.Contains(s, "d")
		}},
		{row: "vLLM: allowed_token_ids", path: chatPath, body: chatOf("allowed_token_ids", []any{113}, "max_tokens", 2), want: tree{said: "qq"}},
		{row: "vLLM: prompt_logprobs", path: rawPath, body: rawOf("prompt", "ab", "prompt_logprobs", 1), check: func(got tree) bool {
			b := at(got, "choices", 0, "prompt_logprobs", 1, "98")
			return at(b, "decoded_token") == "b" && at(b, "rank") == 1.0
		}},
		{row: "vLLM: add_generation_prompt", path: "/tokenize", body: tree{"messages": []any{tree{"role": "user", "content": "hey"}}, "add_generation_prompt": false}, asked: func(*backend.Request) bool { return true }, want: tree{"count": float64(len("<|im_start|>user\nhey<|im_end|>\n"))}},
		{row: "vLLM: continue_final_message", path: chatPath, body: tree{"messages": []any{tree{"role": "user", "content": "u"}, tree{"role": "assistant", "content": "So"}}, "continue_final_message": true}, asked: func(r *backend.Request) bool {
			return strings.HasSuffix(r.Turns[len(r.Turns)-1].Text(), "So")
		}},
		{row: "vLLM: chat_template_kwargs", path: chatPath, body: ask("x", "chat_template_kwargs", tree{"enable_thinking": true}), asked: func(r *backend.Request) bool { return true }},
		{row: "vLLM: cache_salt", path: chatPath, body: chatOf("cache_salt", "pepper"), asked: func(r *backend.Request) bool { return strings.HasSuffix(r.Salt, "pepper") }},
		{row: "vLLM: priority, lower first", path: chatPath, body: chatOf("priority", -3), asked: func(r *backend.Request) bool { return r.Priority == 3 }},
		{row: "vLLM: request_id", path: chatPath, body: chatOf("request_id", "mine-1"), want: tree{"id": "chatcmpl-mine-1"}},
		{row: "vLLM: return_token_ids", path: chatPath, body: chatOf("return_token_ids", true, "max_tokens", 2), want: tree{"choices.0.token_ids.1": 98.0}},
		{row: "vLLM: return_tokens_as_token_ids", path: rawPath, body: rawOf("logprobs", 0, "return_tokens_as_token_ids", true), want: tree{"choices.0.logprobs.tokens.0": "token_id:97"}},

		{row: "vLLM: return_token_ids of completions", path: rawPath, body: rawOf("return_token_ids", true, "prompt", "ab"), want: tree{"choices.0.token_ids.3": 102.0, "choices.0.prompt_token_ids.1": 98.0}},
		{row: "vLLM: return_token_ids of completions in a stream", path: rawPath, body: rawOf("return_token_ids", true, "prompt", "ab", "stream", true), check: func(got tree) bool {
			n := 0
			for _, ids := range events(got, "choices.0.token_ids") {
				n += len(ids.([]any))
			}
			return n == 4 && len(events(got, "choices.0.prompt_token_ids")) == 1
		}},
		{row: "vLLM: add_special_tokens false", path: rawPath, body: rawOf("add_special_tokens", false), want: tree{cont: "abcd"}},
		{row: "vLLM: documents and reasoning_effort", path: chatPath, body: ask("x", "documents", []any{tree{"title": "t", "text": "d"}}, "reasoning_effort", "low", "chat_template_kwargs", tree{"a": 1}), asked: func(*backend.Request) bool { return true }},
		{row: "vLLM: truncate_prompt_tokens is refused", path: chatPath, body: chatOf("truncate_prompt_tokens", 5), bad: "truncate_prompt_tokens"},
		{row: "vLLM: an unknown structured output is refused", path: chatPath, body: chatOf("structured_outputs", tree{"jsn": tree{}}), bad: "structured_outputs.jsn"},
		{row: "vLLM: white space in JSON is refused", path: chatPath, body: chatOf("structured_outputs", tree{"json": tree{}, "whitespace_pattern": " "}), bad: "structured_outputs.whitespace_pattern"},
		{row: "vLLM: thinking_token_budget is refused", path: chatPath, body: chatOf("thinking_token_budget", 5), bad: "thinking_token_budget"},
		{row: "chat: modalities", path: chatPath, body: chatOf("modalities", []any{"text"}), want: tree{said: letters}},
		{row: "chat: other modalities are refused", path: chatPath, body: chatOf("modalities", []any{"text", "audio"}), bad: "modalities"},
		{row: "llama.cpp: grammar", path: chatPath, body: chatOf("grammar", `root ::= "qr"`), want: tree{said: "qr"}},
		{row: "llama.cpp: other ways to sample are refused", path: rawPath, body: rawOf("mirostat", 2), bad: "mirostat"},

		{row: "routes: /tokenize", path: "/tokenize", body: tree{"prompt": "ab"}, want: tree{"count": 2.0, "tokens.1": 98.0, "max_model_len": 512.0}},
		{row: "routes: /detokenize", path: "/detokenize", body: tree{"tokens": []any{104, 105}}, want: tree{"prompt": "hi"}},

		{row: "SGLang: /generate", path: nativePath, body: nativeOf(), want: tree{"text": "abcd", "output_ids.3": 100.0, "meta_info.id": "*", "meta_info.finish_reason.type": "length", "meta_info.finish_reason.length": 4.0, "meta_info.prompt_tokens": 1.0, "meta_info.completion_tokens": 4.0, "meta_info.cached_tokens": "*", "meta_info.e2e_latency": "*"}},
		{row: "SGLang: max_new_tokens 0", path: nativePath, body: nativeOf("max_new_tokens", 0), want: tree{"text": "", "meta_info.completion_tokens": 0.0}},
		{row: "SGLang: stop", path: nativePath, body: nativeOf("stop", []any{"c"}), want: tree{"text": "ab", "meta_info.finish_reason.matched": "c"}},
		{row: "SGLang: stop_token_ids", path: nativePath, body: nativeOf("stop_token_ids", []any{99}), want: tree{"text": "ab", "meta_info.finish_reason.matched": 99.0}},
		{row: "SGLang: stop_regex", path: nativePath, body: nativeOf("stop_regex", "[bc]"), want: tree{"text": "ab"}},
		{row: "SGLang: no_stop_trim", path: nativePath, body: nativeOf("stop", "c", "no_stop_trim", true), want: tree{"text": "abc"}},
		{row: "SGLang: regex", path: nativePath, body: nativeOf("regex", "qr"), want: tree{"text": "qr"}},
		{row: "SGLang: json_schema as text", path: nativePath, body: nativeOf("json_schema", `{"const":7}`), want: tree{"text": "7"}},
		{row: "SGLang: json_schema is closed at the limit", path: nativePath, body: nativeOf("json_schema", `{"type":"string"}`), want: tree{"text": `"ab"`, "meta_info.finish_reason.type": "length", "meta_info.coppice.closed_tokens": 1.0}},
		{row: "SGLang: close_at_limit false", path: nativePath, body: nativeOf("json_schema", `{"type":"string"}`, "close_at_limit", false), want: tree{"text": `"abc`, "meta_info.finish_reason.type": "length"}},
		{row: "SGLang: ebnf", path: nativePath, body: nativeOf("ebnf", `root ::= "qr"`), want: tree{"text": "qr"}},
		{row: "SGLang: min_new_tokens", path: nativePath, body: nativeOf("min_new_tokens", 30, "max_new_tokens", 31), check: func(got tree) bool { return place(got, "meta_info.completion_tokens").(float64) >= 30 }},
		{row: "SGLang: ignore_eos", path: nativePath, body: nativeOf("ignore_eos", true, "max_new_tokens", 40), want: tree{"meta_info.completion_tokens": 40.0}},
		{row: "SGLang: stream, all of the text so far", path: nativePath, body: func() tree { b := nativeOf(); b["stream"] = true; return b }(), want: tree{"text": "abcd", "meta_info.finish_reason.type": "length"}},
		{row: "SGLang: logprobs", path: nativePath, body: func() tree {
			b := nativeOf()
			b["return_logprob"], b["logprob_start_len"], b["top_logprobs_num"], b["return_text_in_logprobs"] = true, 0, 2, true
			return b
		}(), want: tree{"meta_info.output_token_logprobs.3.2": "d", "meta_info.input_token_logprobs.0.1": 46.0, "meta_info.output_top_logprobs.0.1.0": "*", "meta_info.output_token_logprobs_length": 4.0}},
		{row: "SGLang: no_stop_trim and rid in a chat", path: chatPath, body: chatOf("stop", "c", "no_stop_trim", true, "rid", "mine-2"), want: tree{said: "abc", "id": "chatcmpl-mine-2"}},
		{row: "SGLang: extra_key in a chat", path: chatPath, body: chatOf("cache_salt", "a", "extra_key", "bc"), asked: func(r *backend.Request) bool { return r.Salt == "salt+:1:abc" }},
		{row: "SGLang: skip_special_tokens false", path: nativePath, body: nativeOf("logit_bias", tree{"256": 50}, "skip_special_tokens", false, "max_new_tokens", 1), want: tree{"text": ""}}, // what ends the text is not in it
		{row: "SGLang: stream_reasoning false is refused", path: chatPath, body: chatOf("stream_reasoning", false), bad: "stream_reasoning"},
		{row: "SGLang: lora_path is refused in a chat", path: chatPath, body: chatOf("lora_path", "x"), bad: "lora_path"},
		{row: "SGLang: priority, higher first", path: nativePath, body: tree{"text": "x", "priority": 3}, asked: func(r *backend.Request) bool { return r.Priority == 3 }},
		{row: "SGLang: an unknown name in sampling_params", path: nativePath, body: nativeOf("max_tokens", 4), bad: "sampling_params.max_tokens"},
		{row: "SGLang: a bound for thoughts is refused, not dropped", path: nativePath, body: tree{"text": "x", "max_thinking_tokens": 9}, bad: "max_thinking_tokens"},
	}
}

// Each thing that clients of the three APIs rely on is there, row by row.
func TestFeaturesOfTheAPIs(t *testing.T) {
	tmpl, err := chat.Builtin(chat.ChatML)
	if err != nil {
		t.Fatal(err)
	}
	word := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	for _, f := range features() {
		t.Run(f.row, func(t *testing.T) {
			c, m := word, (*puppet.Model)(nil)
			if f.asked != nil {
				m = toolModel("{}")
				c = serveFor(t, m, func(c *Config) {
					if f.path == "/tokenize" || f.body["documents"] != nil || f.body["chat_template_kwargs"] != nil || f.body["continue_final_message"] != nil {
						c.Template = tmpl
					}
				})
			}
			c.t = t
			if f.bad != "" {
				c.refused(f.path, f.body, 400, f.bad)
				return
			}
			for range 2 {
				var got tree
				if f.body["stream"] == true && f.path == responsePath {
					got = tree{"events": c.events(f.path, f.body)}
				} else if f.body["stream"] == true {
					got = tree{"events": c.stream(f.path, f.body)}
				} else {
					got = c.ok(f.path, f.body)
				}
				for path, want := range f.want {
					has := func(v any) bool { return v == want || want == "*" && v != nil }
					found := has(place(got, path))
					if got["events"] != nil {
						for _, v := range events(got, path) {
							found = found || has(v)
						}
					}
					if !found {
						t.Errorf("%s is %v, want %v: %.600s", path, place(got, path), want, fmt.Sprint(got))
					}
				}
				if f.check != nil && !f.check(got) {
					t.Errorf("%.600s", fmt.Sprint(got))
				}
			}
			if m != nil && f.path != "/tokenize" {
				if r := m.Log()[0].Request; !f.asked(r) {
					t.Errorf("the model was asked %+v", r)
				}
			}
		})
	}
}

// The routes that are no POST are there.
func TestFeaturesThatAreRead(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	c.ok(rawPath, rawOf())
	for path, want := range map[string]string{
		"/health": "", "/ping": "", "/version": `{"version":"test"}`, "/load": `{"server_load":0}`, "/v1/models": `"id":"chain"`,
		"/v1/models/chain": `"max_model_len":512`, "/metrics": "vllm:generation_tokens_total{model_name=\"chain\"} 4",
		"/get_model_info": `"model_path":"chain"`, "/server_info": `"context_length":512`, "/health_generate": "",
	} {
		resp := c.do("GET", path, nil)
		if data := readAll(t, resp); resp.StatusCode != 200 || !strings.Contains(data, want) {
			t.Errorf("%s: %d %.300s", path, resp.StatusCode, data)
		}
	}
	resp := c.do("POST", "/flush_cache", nil)
	if data := readAll(t, resp); resp.StatusCode != 200 || !strings.Contains(data, "flushed") {
		t.Error(resp.StatusCode, data)
	}
}

// Errors are objects with message, type, param and code, under the statuses that
// clients know: 400, 401, 404, 413 here, 429, 499, 500, 503 and 504 in TestQueueLimit,
// TestClientGone and TestErrorsOfBackends. No request is ever answered with 422.
func TestFeaturesOfErrors(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), func(c *Config) {
		c.Limits.BodyBytes = 2000
		c.Keys = []Key{{Name: "k", Secret: "secret-key"}}
	})
	for _, x := range []struct {
		key, body, kind, param, code string
		status                       int
	}{
		{"secret-key", `{"messages": 5}`, typeInvalid, "messages", "", 400},
		{"secret-key", `{"messages": [{"role":"user","content":"x"}], "response_format": {"type":"json_schema","json_schema":{"name":"a","schema":{"type":"strin"}}}}`, typeInvalid, "response_format", "invalid_constraint", 400},
		{"secret-key", `{`, typeInvalid, "", "", 400},
		{"wrong-key", `{}`, typeAuth, "", "invalid_api_key", 401},
		{"secret-key", `{"model":"m","messages":[{"role":"user","content":"x"}]}`, typeNotFound, "model", "model_not_found", 404},
		{"secret-key", strings.Repeat(" ", 3000), typeInvalid, "", "request_too_large", 413},
		{"secret-key", `{"prompt":"` + strings.Repeat("a", 600) + `"}`, typeInvalid, "prompt", "context_length_exceeded", 400},
	} {
		path := chatPath
		if strings.HasPrefix(x.body, `{"prompt"`) {
			path = rawPath
		}
		c.key = x.key
		status, got := c.post(path, x.body)
		e, _ := got["error"].(tree)
		null := func(s string) any {
			if s == "" {
				return nil
			}
			return s
		}
		if status != x.status || e["type"] != x.kind || e["param"] != null(x.param) || e["code"] != null(x.code) || e["message"] == "" || len(e) != 4 {
			t.Errorf("%.80s: %d %v", x.body, status, got)
		}
	}
}

func readAll(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
