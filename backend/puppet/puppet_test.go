package puppet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

func turns(role backend.Role, text string) []backend.Turn {
	return []backend.Turn{{Role: role, Parts: []backend.Part{{Text: text}}}}
}

func ask(t *testing.T, m *puppet.Model, req *backend.Request) (*backend.Result, error) {
	t.Helper()
	return m.Generate(t.Context(), req, nil)
}

func TestRenderWritesWhatRulesMatch(t *testing.T) {
	for _, x := range []struct {
		turns []backend.Turn
		want  string
	}{
		{nil, "assistant: "},
		{turns(backend.User, "hi"), "user: hi\nassistant: "},
		{turns(backend.Raw, "once upon"), "once upon"},
		{append(turns(backend.User, "hi"), backend.Turn{Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: "So "}, {Text: "far"}}}), "user: hi\nassistant: So far"},
	} {
		if got := puppet.Render(x.turns); got != x.want {
			t.Errorf("got %q, want %q", got, x.want)
		}
	}
	m := puppet.New()
	ids, err := m.Tokenize(turns(backend.User, "hé"), true)
	if err != nil || puppet.Text(ids) != "user: hé\nassistant: " {
		t.Errorf("%q %v", puppet.Text(ids), err)
	}
	if ids, _ = m.Tokenize(turns(backend.User, "h"), false); puppet.Text(ids) != "user: h\n" {
		t.Errorf("%q", puppet.Text(ids))
	}
}

func TestRulesAnswerInOrder(t *testing.T) {
	m := puppet.New()
	m.On("user: exact\nassistant: ").Reply("by text")
	m.OnID("a/b").Reply("by id")
	m.OnRegexp(`only at (?P<what>\w+)`).Reply("$1 and ${what}")
	m.OnFunc(func(p *puppet.Prompt) bool { return p.Call == 2 }).ReplyFunc(func(p *puppet.Prompt) (string, error) {
		return strings.ToUpper(p.ID), nil
	})
	for _, x := range []struct {
		id, prompt, want string
	}{
		{"x", "exact", "by text"},
		{"a/b", "anything", "by id"},
		{"y", "look only at a, then only at b", "b and b"},
	} {
		r, err := ask(t, m, &backend.Request{ID: x.id, Turns: turns(backend.User, x.prompt)})
		if err != nil || r.Part.Text != x.want || puppet.Text(r.Part.Tokens) != x.want || r.Part.Model != puppet.Fingerprint {
			t.Errorf("%+v: %+v %v", x, r, err)
		}
	}
	_, err := ask(t, m, &backend.Request{ID: "z", Turns: turns(backend.User, "?")})
	if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), `"z"`) {
		t.Error(err)
	}
	if r, err := ask(t, m, &backend.Request{ID: "z", Turns: turns(backend.User, "?")}); err != nil || r.Part.Text != "Z" {
		t.Error(r, err)
	}
	if m.Calls("z") != 2 || len(m.Log()) != 5 || m.Log()[0].Prompt != "user: exact\nassistant: " {
		t.Errorf("calls %d, log %v", m.Calls("z"), m.Log())
	}
}

func TestRepliesAreCutToTheLimitsOfTheRequest(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("ab\ncé|f")
	for _, x := range []struct {
		req     backend.Request
		text    string
		finish  backend.FinishReason
		matched string
	}{
		{backend.Request{}, "ab\ncé|f", backend.FinishStop, ""},
		{backend.Request{Stop: []string{"|", "\n"}}, "ab", backend.FinishStop, "\n"},
		{backend.Request{MaxTokens: 2}, "ab", backend.FinishLength, ""},
		{backend.Request{MaxTokens: 5}, "ab\nc", backend.FinishLength, ""}, // not inside a character
		{backend.Request{MaxTokens: 2, Stop: []string{"\n"}}, "ab", backend.FinishStop, "\n"},
	} {
		var streamed strings.Builder
		r, err := m.Generate(t.Context(), &x.req, func(d backend.Delta) {
			streamed.WriteString(d.Text)
			if puppet.Text(d.Tokens) != d.Text {
				t.Errorf("delta %+v", d)
			}
		})
		if err != nil || r.Part.Text != x.text || r.Finish != x.finish || r.Matched != x.matched || streamed.String() != x.text {
			t.Errorf("%+v: %+v %v, streamed %q", x.req, r, err, streamed.String())
		}
	}
}

func TestConstraintsForceTextAndRefuseScriptsThatLeaveThem(t *testing.T) {
	m := puppet.New()
	m.OnID("ok").Reply(`{"reason": "OOM", "n": 3 }`)
	m.OnID("open").Reply(`{"reason":"OOM","n":3`) // more digits may follow, so the end is not forced
	m.OnID("bad").Reply(`{"reason": "other", "n": 3}`)
	m.OnID("choice").Reply("left")
	m.OnID("digits").Reply("12x")
	schema := []byte(`{"type":"object","properties":{"reason":{"enum":["OOM"]},"n":{"type":"integer"}},"required":["reason","n"],"additionalProperties":false}`)
	var forced, sampled string
	r, err := m.Generate(t.Context(), &backend.Request{ID: "ok", Constraint: backend.Constraint{JSONSchema: schema}}, func(d backend.Delta) {
		if d.Origin == backend.Forced {
			forced += d.Text
		} else {
			sampled += d.Text
		}
	})
	if err != nil || r.Part.Text != `{"reason":"OOM","n":3}` {
		t.Fatalf("%+v %v", r, err)
	}
	if forced != `{"reason":"OOM","n":` || sampled != "3}" {
		t.Errorf("forced %q, sampled %q", forced, sampled)
	}
	if r.Usage.ForcedTokens != len(forced) || r.Usage.SampledTokens != len(sampled) {
		t.Errorf("usage %+v", r.Usage)
	}
	for _, req := range []backend.Request{
		{ID: "open", Constraint: backend.Constraint{JSONSchema: schema}},
		{ID: "bad", Constraint: backend.Constraint{JSONSchema: schema}},
		{ID: "digits", Constraint: backend.Constraint{Regex: "[0-9]+"}},
		{ID: "choice", Constraint: backend.Constraint{Choices: []string{"right", "up"}}},
		{ID: "choice", Constraint: backend.Constraint{Regex: "("}},
	} {
		if _, err := m.Generate(t.Context(), &req, nil); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", req.ID, err)
		}
	}
	if r, err := ask(t, m, &backend.Request{ID: "choice", Constraint: backend.Constraint{Choices: []string{"right", "left"}}}); err != nil || r.Part.Text != "left" {
		t.Error(r, err)
	}
}

func TestScores(t *testing.T) {
	m := puppet.New()
	m.OnID("sums").Scores(map[string]float64{"yes": -1, "no": -3})
	m.OnID("tokens").ScoreFunc(func(p *puppet.Prompt, option string) []float64 {
		if option == "Oslo" {
			return []float64{-1.2}
		}
		return []float64{-4.6, -0.01, -0.01}
	})
	s, err := m.Score(t.Context(), &backend.ScoreRequest{ID: "sums", Options: []string{"yes", "no", "maybe"}})
	if err != nil || len(s.Options) != 3 || s.Options[2].Sum != -100 || len(s.Options[0].Logprobs) != 3 {
		t.Errorf("%+v %v", s, err)
	}
	if s, err = m.Score(t.Context(), &backend.ScoreRequest{ID: "tokens", Options: []string{"Oslo", "Bergen"}}); err != nil || s.Options[1].Sum > -4.6 {
		t.Errorf("%+v %v", s, err)
	}
	m.OnAny().Reply("x")
	if _, err := m.Score(t.Context(), &backend.ScoreRequest{ID: "other", Options: []string{"a"}}); !errors.Is(err, backend.ErrUnsupported) {
		t.Error(err)
	}
}

func TestUsageAddsUp(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("four").Scores(map[string]float64{"ab": -1, "c": -2})
	first, err := ask(t, m, &backend.Request{Turns: turns(backend.User, "one")})
	if err != nil {
		t.Fatal(err)
	}
	n := len("user: one\nassistant: ")
	u := first.Usage
	if u.PromptTokens != n || u.CachedTokens != 0 || u.ComputedTokens != n+3 || u.SampledTokens != 4 || u.Without != (backend.Cost{ComputedTokens: n + 3, ForwardPasses: 4}) {
		t.Errorf("%+v", u)
	}
	second, _ := ask(t, m, &backend.Request{Turns: turns(backend.User, "one")})
	if u := second.Usage; u.CachedTokens != n-1 || u.ComputedTokens != 1+3 || u.Passes[0].From != first.Usage.Passes[0].To+1 {
		t.Errorf("%+v", u)
	}
	third, _ := ask(t, m, &backend.Request{Turns: turns(backend.User, "other")})
	if u := third.Usage; u.CachedTokens != len("user: o") {
		t.Errorf("%+v", u)
	}
	s, _ := m.Score(t.Context(), &backend.ScoreRequest{Turns: turns(backend.User, "one"), Options: []string{"ab", "c"}})
	if u := s.Usage; u.CachedTokens != n-1 || u.ComputedTokens != 1+1 || u.Without.ComputedTokens != 2*n+1 {
		t.Errorf("%+v", u)
	}
}

func TestFailuresPanicsAndGates(t *testing.T) {
	m := puppet.New()
	boom := errors.New("boom")
	m.OnID("second").FailCall(2, boom).Reply("ok")
	m.OnID("panic").Panic("at the disco")
	m.OnAny().Reply("ok")
	for i, want := range []error{nil, boom, nil} {
		if _, err := ask(t, m, &backend.Request{ID: "second"}); !errors.Is(err, want) {
			t.Errorf("call %d: %v", i+1, err)
		}
	}
	func() {
		defer func() {
			if recover() != "at the disco" {
				t.Error("no panic")
			}
		}()
		ask(t, m, &backend.Request{ID: "panic"})
	}()

	gate := puppet.NewGate()
	m = puppet.New()
	m.SetGate(gate)
	m.OnAny().Reply("ok")
	done := make(chan string)
	for _, id := range []string{"a", "b"} {
		go func() {
			if _, err := m.Generate(context.Background(), &backend.Request{ID: id}, nil); err != nil {
				done <- err.Error()
			}
			done <- id
		}()
	}
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	gate.Release("b")
	if got := <-done; got != "b" {
		t.Error(got)
	}
	gate.Open()
	if got := <-done; got != "a" {
		t.Error(got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ch := make(chan struct{})
	m = puppet.New()
	m.OnAny().Wait(ch).Reply("ok")
	if _, err := m.Generate(ctx, &backend.Request{}, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(ch)
	if _, err := ask(t, m, &backend.Request{}); err != nil {
		t.Error(err)
	}
	m.Close()
	if _, err := ask(t, m, &backend.Request{}); !errors.Is(err, backend.ErrClosed) {
		t.Error(err)
	}
}

func Example() {
	m := puppet.New()
	m.OnRegexp(`Look only at (\w+)\.`).Reply("$1 is fine")
	m.OnAny().Reply("ok")

	r, err := m.Generate(context.Background(), &backend.Request{
		ID:    "looks[0]/finding",
		Turns: []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: "Look only at memory."}}}},
	}, nil)
	fmt.Println(r.Part.Text, r.Finish, err)
	fmt.Println(m.Calls("looks[0]/finding"))
	// Output:
	// memory is fine stop <nil>
	// 1
}
