package serve

import (
	"encoding/json"
	"slices"
)

// This file reads the fields that few requests have. What would change an answer and
// is not there is refused; docs/serve.md lists what changes none.

// refuseOthers refuses fields of OpenAI, vLLM, SGLang and llama.cpp in the routes of
// OpenAI's API.
func refuseOthers(f *fields) {
	f.refuse("use logit_bias, allowed_token_ids, bad_words or a grammar", "logits_processors", "custom_logit_processor", "custom_params", "vllm_xargs")
	f.refuse("sampling is the only way to generate", "use_beam_search", "beam_width", "repetition_detection")
	f.refuse("tokens are drawn by temperature, top_k, top_p and min_p alone", "mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range")
	f.refuse("only log-probabilities of the likeliest tokens are shown", "logprob_token_ids", "token_ids_logprob")
	f.refuse("a prompt that is too long is an error: shorten it", "truncate_prompt_tokens")
	f.refuse("thoughts are not bounded here", "thinking_token_budget", "max_thinking_tokens")
	f.refuse("there are no adapters", "lora_path")
	f.refuse("every request carries its whole prompt, and the cache finds what is known", "session_id", "session_params")
	f.refuse("the model's inner state is not shown", "return_hidden_states", "return_routed_experts")
	f.refuse("JSON is written without white space", "guided_whitespace_pattern")
	if !f.flag("stream_reasoning", true) {
		f.fail("stream_reasoning", "is to be true: thoughts are told as they come; include_reasoning: false leaves them out")
	}
	for _, kind := range f.texts("modalities", 16) {
		if kind != "text" {
			f.fail("modalities", "holds %q; the model writes text only", clip(kind))
		}
	}
}

// structuredNames are the members of structured_outputs that limit an answer, and
// those that change none.
var structuredNames = []string{
	"json", "regex", "choice", "grammar", "json_object", "structural_tag",
	"disable_any_whitespace", "disable_fallback", "whitespace_pattern", "disable_additional_properties", "_backend", "_backend_was_auto",
}

func refuseInStructured(so *fields) {
	so.refuse("JSON is written without white space", "whitespace_pattern")
	so.refuse("say so in the schema", "disable_additional_properties")
	for name := range so.members {
		if so.has(name) && !slices.Contains(structuredNames, name) {
			so.fail(name, "is not known: there are json, regex, choice, grammar, json_object and structural_tag")
		}
	}
}

// readControl reads skip_special_tokens: without it the answer shows control tokens by
// their names.
func (s *Server) readControl(f *fields) bool {
	show := !f.flag("skip_special_tokens", true)
	if show && (s.cfg.Vocabulary == nil || !s.info.Capabilities.TokenRules) {
		f.fail("skip_special_tokens", "is to be true: this model does not show its control tokens")
	}
	return show
}

// shown is what a token stands for in an answer.
func (s *Server) shown(id int32, control bool) []byte {
	v := s.cfg.Vocabulary
	if control && v.IsControl(id) {
		return []byte(v.Text(id))
	}
	return v.Bytes(id)
}

// templateFields are fields that a chat's template may know, beside
// chat_template_kwargs.
var templateFields = []string{"documents", "reasoning_effort"}

// readTemplate reads what a chat's template is told besides the messages.
func (s *Server) readTemplate(f *fields) (extra map[string]any) {
	set := func(name string, raw json.RawMessage) {
		if extra == nil {
			extra = map[string]any{}
		}
		extra[name] = raw
	}
	f.list("documents")
	f.text("reasoning_effort")
	if o := f.object("reasoning"); o != nil { // of a response
		if o.text("effort"); o.has("effort") && s.cfg.Template != nil {
			set("reasoning_effort", o.raw("effort"))
		}
	}
	for _, name := range templateFields {
		switch raw := f.raw(name); {
		case raw == nil:
		case s.cfg.Template != nil:
			set(name, raw)
		case name == "documents":
			f.fail(name, "is not supported: the chat template is not at hand here; put them into the messages")
		}
	}
	if kw := f.object("chat_template_kwargs"); kw != nil {
		for name, raw := range kw.members {
			set(name, raw)
		}
	}
	return extra
}
