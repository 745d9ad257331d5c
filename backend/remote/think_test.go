package remote

import (
	"errors"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestThoughtsReachTheServer: a thought with a budget is two requests in one turn of
// the assistant, the first bounded and ended by the mark, the second behind it; on
// servers that cannot go on with a turn the program is refused before its first call.
func TestThoughtsReachTheServer(t *testing.T) {
	g, err := lang.Decode([]byte(`coppice: 1
name: think
steps:
  - user: Why?
  - gen: {name: a, max_tokens: 5, think: 7}
  - return: '[a_thought, a]'
`), "think.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for scheme, limit := range map[string]string{
		"vllm+http": "max_tokens", "sglang+http": "max_tokens", "llama+http": "n_predict",
		"openai+http": "", "ollama+http": "", "anthropic+http": "",
	} {
		t.Run(scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{answer: []string{"hm"}}).start(t)
				r, err := runtime.RunGraph(t.Context(), f.open(scheme, Options{}), g, nil, nil)
				var asked []recorded
				for _, c := range f.got {
					if isGeneration(c.Path) {
						asked = append(asked, c)
					}
				}
				if limit == "" {
					var missing *runtime.UnsupportedError
					if !errors.As(err, &missing) || missing.Missing[0].Need != "open_turns" || len(asked) != 0 {
						t.Errorf("%d calls, %v", len(asked), err)
					}
					return
				}
				if err != nil || string(r.Value) != `["hm","hm"]` || len(asked) != 2 {
					t.Fatalf("%d calls, %v, %v", len(asked), r, err)
				}
				for i, want := range []struct {
					limit float64
					turn  string
				}{{7, "<think>\n"}, {5, "<think>\nhm\n</think>\n\n"}} {
					body := asked[i].Body
					if body[limit] != want.limit {
						t.Errorf("request %d: %s", i, asked[i].Raw)
					}
					if prompt, ok := body["prompt"].(string); ok {
						if !strings.HasSuffix(prompt, "<assistant>"+want.turn) {
							t.Errorf("request %d: prompt %q", i, prompt)
						}
					} else {
						turns := body["messages"].([]any)
						last := turns[len(turns)-1].(m)
						if len(turns) != 2 || last["role"] != "assistant" || last["content"] != want.turn || body["continue_final_message"] != true || body["add_generation_prompt"] != false {
							t.Errorf("request %d: %s", i, asked[i].Raw)
						}
					}
					if stops, _ := body["stop"].([]any); (i == 0) != (len(stops) > 0 && strings.Contains(stops[len(stops)-1].(string), "</think>")) {
						t.Errorf("request %d: %s", i, asked[i].Raw)
					}
				}
			})
		})
	}
}
