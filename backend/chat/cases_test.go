package chat

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/chat/internal/jinja"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// caseFile reads a file of the shared cases, or skips the test.
func caseFile(t *testing.T, parts ...string) string {
	t.Helper()
	dir := os.Getenv("COPPICE_SHARED")
	if dir == "" {
		t.Skip("set COPPICE_SHARED to the folder that holds cases/")
	}
	b, err := os.ReadFile(filepath.Join(append([]string{dir, "cases"}, parts...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCaseTemplates renders the cases that consist of a template, variables and the
// expected text.
func TestCaseTemplates(t *testing.T) {
	for _, id := range []string{"B02", "B04", "B06"} {
		t.Run(id, func(t *testing.T) {
			tmpl, err := jinja.Parse(caseFile(t, id, "template.jinja"))
			if err != nil {
				t.Fatal(err)
			}
			vars, err := jinja.FromJSON([]byte(caseFile(t, id, "vars.json")), jinja.User)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tmpl.Execute(vars.(*jinja.Dict), nil)
			if err != nil {
				t.Fatal(err)
			}
			want := caseFile(t, id, "expected.txt")
			if got.S != want && got.S+"\n" != want {
				t.Errorf("got %q, want %q", got.S, want)
			}
		})
	}
}

type request struct {
	Messages []struct {
		Role       string
		Content    *string
		ToolCallID string `json:"tool_call_id"`
		ToolCalls  []struct {
			ID       string
			Function struct {
				Name      string
				Arguments json.RawMessage
			}
		} `json:"tool_calls"`
	}
}

func (r request) messages() (out []Message) {
	for _, m := range r.Messages {
		x := Message{Role: m.Role, ToolCallID: m.ToolCallID}
		if m.Content != nil {
			x.Content = *m.Content
		}
		for _, c := range m.ToolCalls {
			x.ToolCalls = append(x.ToolCalls, ToolCall{c.ID, c.Function.Name, c.Function.Arguments})
		}
		out = append(out, x)
	}
	return out
}

// realModel is a model with a chat template, or the test is skipped.
func realModel(t *testing.T, file string) (*Template, *tokenizer.Tokenizer) {
	t.Helper()
	dir := os.Getenv("COPPICE_MODELS")
	if dir == "" {
		t.Skip("set COPPICE_MODELS to the folder with " + file)
	}
	f, err := gguf.Open(filepath.Join(dir, file))
	if err != nil {
		t.Skipf("COPPICE_MODELS: %v", err)
	}
	defer f.Close()
	tmpl, err := FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	return tmpl, tok
}

var chatModels = []string{"SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-0.5b-q4.gguf"}

func controls(tok *tokenizer.Tokenizer, ids []tokenizer.Token) (n int) {
	for _, id := range ids {
		if tok.IsControl(id) {
			n++
		}
	}
	return n
}

// TestForgedTurnIsPlainText is case B01: control-token text of a user stays text.
func TestForgedTurnIsPlainText(t *testing.T) {
	for _, file := range chatModels {
		own, tok := realModel(t, file)
		for name, tmpl := range map[string]*Template{"own": own, "case": mustParse(t, caseFile(t, "B01", "template.jinja"))} {
			var r request
			if err := json.Unmarshal([]byte(caseFile(t, "B01", "request.json")), &r); err != nil {
				t.Fatal(err)
			}
			bad := r.messages()
			good := r.messages()
			for i := range good {
				good[i].Content = "harmless"
			}
			opts := Options{AddGenerationPrompt: true}
			badPieces, err := tmpl.Render(bad, opts)
			if err != nil {
				t.Fatal(err)
			}
			goodPieces, err := tmpl.Render(good, opts)
			if err != nil {
				t.Fatal(err)
			}
			ids := tok.EncodePieces(badPieces)
			if got, want := controls(tok, ids), controls(tok, tok.EncodePieces(goodPieces)); got != want {
				t.Errorf("%s, %s template: %d control tokens, want %d", file, name, got, want)
			}
			for _, m := range bad {
				if !strings.Contains(tok.Decode(ids), m.Content) {
					t.Errorf("%s, %s template: %q does not survive the round trip", file, name, m.Content)
				}
			}
		}
	}
}

// TestTurnsTokeniseLikeTheWhole compares tokens of turns appended one by one with the
// tokens of the conversation rendered at once.
func TestTurnsTokeniseLikeTheWhole(t *testing.T) {
	for _, file := range chatModels {
		tmpl, tok := realModel(t, file)
		var history []Message
		var stream []tokenizer.Token
		for _, m := range []Message{user("Hello there."), assistant("Hi!\n"), user(" How are\n\nyou?"), user("Well?"), assistant("Fine <|im_end|>")} {
			open, close, err := tmpl.Turn(history, m.Role)
			if err != nil {
				t.Fatal(err)
			}
			turn := append(append(open, tokenizer.Piece{Text: m.Content}), close...)
			stream = append(stream, tok.EncodePieces(turn)...)
			history = append(history, m)
		}
		whole, err := tmpl.Render(history, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := tok.Decode(stream), tok.Decode(tok.EncodePieces(whole)); got != want {
			t.Errorf("%s: got %q, want %q", file, got, want)
		}
		if got, want := controls(tok, stream), controls(tok, tok.EncodePieces(whole)); got != want {
			t.Errorf("%s: %d control tokens, want %d", file, got, want)
		}
	}
}

// TestToolsOfRealTemplate is what Qwen2.5 prints for tools and their results.
func TestToolsOfRealTemplate(t *testing.T) {
	tmpl, _ := realModel(t, chatModels[1])
	var r request
	if err := json.Unmarshal([]byte(caseFile(t, "B05", "request.json")), &r); err != nil {
		t.Fatal(err)
	}
	ps, err := tmpl.Render(r.messages(), Options{Tools: json.RawMessage(`[{"type":"function","function":{"name":"df","parameters":{"z":1,"a":"<&>"}}}]`)})
	if err != nil {
		t.Fatal(err)
	}
	got := joined(ps)
	for _, want := range []string{
		`{"type": "function", "function": {"name": "df", "parameters": {"z": 1, "a": "<&>"}}}`,
		"<tool_call>\n{\"name\": \"df\", \"arguments\": {\"path\": \"/\"}}\n</tool_call><|im_end|>",
		"<tool_response>\n91%\n</tool_response>",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	for _, bad := range []string{"None", "null", "<nil>"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q is in %q", bad, got)
		}
	}
}

func TestFileWithoutTemplate(t *testing.T) {
	dir := os.Getenv("COPPICE_MODELS")
	if dir == "" {
		t.Skip("set COPPICE_MODELS to the folder with gemma-3-270m-q4_k_m.gguf")
	}
	f, err := gguf.Open(filepath.Join(dir, "gemma-3-270m-q4_k_m.gguf"))
	if err != nil {
		t.Skipf("COPPICE_MODELS: %v", err)
	}
	defer f.Close()
	if _, err := FromGGUF(f); err != ErrNoTemplate {
		t.Errorf("got %v, want ErrNoTemplate", err)
	}
}
