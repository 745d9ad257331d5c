package chat

import (
	"fmt"
	"slices"
	"strings"
)

// Names of built-in templates.
const (
	ChatML  = "chatml"  // <|im_start|>role ... <|im_end|>: Qwen, SmolLM and many others
	Gemma   = "gemma"   // <start_of_turn>user, roles must alternate
	Llama3  = "llama3"  // <|start_header_id|>role<|end_header_id|>
	Zephyr  = "zephyr"  // <|user|> ... eos
	Plain   = "plain"   // "User: ...", for base models, without control tokens
	Mistral = "mistral" // [INST] ... [/INST]
)

// builtins are templates by name, with the texts of BOS and EOS that they print.
var builtins = map[string]struct{ bos, eos, src string }{
	ChatML: {"", "", `{% for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{% if add_generation_prompt -%}
<|im_start|>assistant
{{ '' }}
{%- endif %}`},

	Gemma: {"<bos>", "<eos>", `{{ bos_token }}
{%- set ns = namespace(system='', expect='user') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}{{ raise_exception('a system message must come first') }}{% endif %}
        {%- set ns.system = message.content | trim ~ '\n\n' %}
    {%- else %}
        {%- set role = 'model' if message.role == 'assistant' else message.role %}
        {%- set want = 'model' if ns.expect == 'model' else 'user' %}
        {%- if role != want %}
            {{- raise_exception('roles must alternate user, assistant, user, assistant; found ' ~ message.role ~ ' where ' ~ want ~ ' is due') }}
        {%- endif %}
        {{- '<start_of_turn>' ~ role ~ '\n' ~ ns.system ~ (message.content | trim) ~ '<end_of_turn>\n' }}
        {%- set ns.system = '' %}
        {%- set ns.expect = 'model' if role == 'user' else 'user' %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}`},

	Llama3: {"<|begin_of_text|>", "<|eot_id|>", `{{ bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' ~ (message.content | trim) ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}`},

	Zephyr: {"<s>", "</s>", `{% for message in messages %}
{{- '<|' ~ message.role ~ '|>\n' ~ message.content ~ eos_token ~ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}`},

	Mistral: {"<s>", "</s>", `{{ bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- set ns.system = message.content ~ '\n\n' %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' ~ (message.content | trim) ~ eos_token }}
    {%- else %}
        {{- '[INST] ' ~ ns.system ~ message.content ~ ' [/INST]' }}
        {%- set ns.system = '' %}
    {%- endif %}
{%- endfor %}`},

	Plain: {"", "", `{% for message in messages %}
{{- message.role | capitalize ~ ': ' ~ message.content ~ '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}`},
}

// Builtin returns a template of this package by name: one of the constants above.
func Builtin(name string) (*Template, error) {
	b, ok := builtins[name]
	if !ok {
		return nil, fmt.Errorf("chat: no built-in template %q; there are %s", name, strings.Join(BuiltinNames(), ", "))
	}
	return Parse(b.src, b.bos, b.eos)
}

// BuiltinNames lists the names that Builtin knows, sorted.
func BuiltinNames() (names []string) {
	for n := range builtins {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
