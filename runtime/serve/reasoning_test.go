package serve

import (
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/puppet"
)

// thinkTemplate is the template of a model that thinks; with enable_thinking it
// begins the thoughts, with false it ends them.
const thinkTemplate = `{% for m in messages %}{{ m.role }}: {{ m.content.split('</think>')[-1] }}
{% endfor %}{% if add_generation_prompt %}assistant: {% if enable_thinking is defined %}<think>
{% if not enable_thinking %}
</think>

{% endif %}{% endif %}{% endif %}`

func TestReasoning(t *testing.T) {
	tmpl, err := chat.Parse(thinkTemplate, "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name, answer  string
		more          []any
		thought, said string
		reason        string
	}{
		{"thoughts", "<think>\nhm, <b>.\n</think>\n\nYes.", nil, "\nhm, <b>.", "Yes.", "stop"},
		{"after blanks", "\n <think>a</think>b", nil, "a", "b", "stop"},
		{"none", "Yes <think>no</think>", nil, "", "Yes <think>no</think>", "stop"},
		{"begun by the prompt", "hm</think> Yes", []any{"chat_template_kwargs", tree{"enable_thinking": true}}, "hm", "Yes", "stop"},
		{"ended by the prompt", "Yes", []any{"chat_template_kwargs", tree{"enable_thinking": false}}, "", "Yes", "stop"},
		{"cut", "<think>and so on and on</think>", []any{"max_tokens", 14}, "and so ", "", "length"},
		{"not to be parted", "<think>a</think>b", []any{"separate_reasoning", false}, "", "<think>a</think>b", "stop"},
		{"not to be shown", "<think>a</think>b", []any{"include_reasoning", false}, "", "b", "stop"},
		{"in a given form", "<think>", []any{"guided_regex", "<think>"}, "", "<think>", "stop"},
		{"only a beginning", "<thi", nil, "", "<thi", "stop"},
		{"a call", "<think>which?</think>\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>", []any{"tools", weatherTools}, "which?", "", "tool_calls"},
	} {
		m := puppet.New()
		m.OnAny().Reply(x.answer)
		c := serveFor(t, m, func(c *Config) { c.Template = tmpl })
		body := ask("Is it so?", x.more...)
		plain := c.ok("/v1/chat/completions", body)
		thought, _ := at(plain, "choices", 0, "message", "reasoning_content").(string)
		said, _ := at(plain, "choices", 0, "message", "content").(string)
		if thought != x.thought || said != x.said || at(plain, "choices", 0, "finish_reason") != x.reason {
			t.Errorf("%s: thought %q, said %q, %v", x.name, thought, said, plain)
		}
		tokens := at(plain, "usage", "completion_tokens_details", "reasoning_tokens").(float64)
		if hidden := x.name == "not to be shown"; tokens > 0 != (x.thought != "" || hidden) || tokens > at(plain, "usage", "completion_tokens").(float64) {
			t.Errorf("%s: %v tokens of thoughts", x.name, tokens)
		}
		body["stream"], body["stream_options"] = true, tree{"include_usage": true}
		var b strings.Builder
		events := c.stream("/v1/chat/completions", body)
		for _, e := range events {
			s, _ := at(e, "choices", 0, "delta", "reasoning_content").(string)
			b.WriteString(s)
		}
		if b.String() != x.thought || chatText(events, 0) != x.said {
			t.Errorf("%s: streamed thought %q, said %q", x.name, b.String(), chatText(events, 0))
		}
		if got := at(events[len(events)-1], "usage", "completion_tokens_details", "reasoning_tokens"); got != tokens {
			t.Errorf("%s: streamed %v tokens of thoughts, else %v", x.name, got, tokens)
		}
	}
}

// However an answer is cut, the same comes out.
func FuzzThinkReader(f *testing.F) {
	f.Add(" <think> a </think> \n b </think>", uint8(2))
	f.Add("<think></thin", uint8(0))
	f.Fuzz(func(t *testing.T, text string, step uint8) {
		for _, state := range []thinking{thinksNot, thinksMay, thinksOpen} {
			read := func(n int) (thought, said string, ended int) {
				r := &thinkReader{state: state}
				for at := 0; at < len(text); at += n {
					a, b := r.push(text[at:min(at+n, len(text))])
					thought, said = thought+a, said+b
				}
				a, b := r.finish()
				return thought + a, said + b, r.ended
			}
			a1, b1, e1 := read(len(text) + 1)
			a2, b2, e2 := read(int(step) + 1)
			if a1 != a2 || b1 != b2 || e1 != e2 {
				t.Errorf("%q by %d: %q %q %d, at once %q %q %d", text, step+1, a2, b2, e2, a1, b1, e1)
			}
		}
	})
}
