package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// call is a request of one of three kinds.
type call struct {
	gen   *backend.Request
	score *backend.ScoreRequest
	read  *backend.LogprobRequest

	abort  int  // after so many deltas, 0 for never
	aborts bool // then, or at some step
}

type outcome struct {
	gen   *backend.Result
	score *backend.ScoreResult
	read  *backend.LogprobResult
	err   error

	held [][]backend.Token // alone: what was computed at each position
}

// run makes the call; cancel gives it up.
func (c *call) run(ctx context.Context, e *Engine, cancel func()) (o outcome) {
	switch {
	case c.score != nil:
		o.score, o.err = e.Score(ctx, c.score)
	case c.read != nil:
		o.read, o.err = e.Logprobs(ctx, c.read)
	default:
		n := 0
		o.gen, o.err = e.Generate(ctx, c.gen, func(backend.Delta) {
			if n++; n == c.abort {
				cancel()
			}
		})
	}
	return o
}

// tokens bounds what the call needs of a context.
func (c *call) tokens(e *Engine) (int, error) {
	if c.read != nil {
		return len(c.read.Tokens), nil
	}
	turns, more := []backend.Turn(nil), 0
	if c.gen != nil {
		turns, more = c.gen.Turns, c.gen.MaxTokens
	} else {
		turns = c.score.Turns
		for _, o := range c.score.Options {
			more = max(more, len(o)+1)
		}
	}
	ids, err := e.Tokenize(turns, true)
	return len(ids) + more + 1, err
}

// mayHold reports whether the sequences of a call may have a token at a position: alone
// they had it there, or it is the position after, of the token drawn last, which alone was
// not computed. Who computed nothing alone holds nothing.
func (o outcome) mayHold(t backend.Token, pos int) bool {
	return pos < len(o.held) && slices.Contains(o.held[pos], t) || pos > 0 && pos == len(o.held)
}

// randomCall draws a request, with all that changes its result.
func randomCall(r *rand.Rand, tok Tokenizer, trunks []string) *call {
	turns := []backend.Turn{user(trunks[r.IntN(len(trunks))])}
	if r.IntN(2) == 0 {
		turns = append(turns, user(fmt.Sprint("branch ", r.IntN(6))))
	}
	switch r.IntN(6) {
	case 0:
		turns = append(turns, backend.Turn{Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: "So the answer is "}}})
	case 1:
		turns = []backend.Turn{raw(trunks[r.IntN(len(trunks))])}
	}
	salt := ""
	if r.IntN(5) == 0 {
		salt = "tenant"
	}
	switch r.IntN(8) {
	case 0, 1:
		return &call{score: randomScore(r, turns, salt)}
	case 2:
		ids := encodeText(tok, trunks[r.IntN(len(trunks))]+fmt.Sprint(r.IntN(4)))
		return &call{read: &backend.LogprobRequest{Tokens: ids, From: 1 + r.IntN(len(ids)), Top: r.IntN(3), Salt: salt}}
	}
	c := &call{gen: &backend.Request{Turns: turns, MaxTokens: 1 + r.IntN(40+r.IntN(120)), Salt: salt, IgnoreEOS: r.IntN(2) == 0}}
	if r.IntN(3) == 0 {
		c.gen.Sampling = backend.Sampling{Temperature: 1, Seed: uint64(r.IntN(3)), TopP: 0.9}
		if r.IntN(2) == 0 {
			c.gen.Sampling.FrequencyPenalty, c.gen.Sampling.RepetitionPenalty = 0.5, 1.2
		}
	}
	if r.IntN(4) == 0 {
		c.gen.Stop = []string{"a", "th"}
	}
	if r.IntN(4) == 0 {
		c.gen.Logprobs, c.gen.Top = true, r.IntN(3)
	}
	if r.IntN(6) == 0 {
		c.gen.MinTokens = r.IntN(1 + c.gen.MaxTokens)
	}
	if r.IntN(8) == 0 {
		c.gen.Tokens = backend.TokenRules{Banned: [][]backend.Token{{'e'}, {'t', 'h'}}, StopRegex: []string{"[0-9]{3}"}}
	}
	switch r.IntN(8) {
	case 0:
		c.gen.Constraint.JSONSchema = []byte(verdictSchema)
		c.gen.CloseAtLimit = r.IntN(2) == 0
	case 1:
		c.gen.Constraint.Regex = "(the high|low)? (in[a-z]{0,20}|is)"
	case 2:
		c.gen.Constraint.Choices = []string{"high", "higher", "the low"}
	}
	if !c.gen.Constraint.IsZero() { // which a rule could leave without a token
		c.gen.Tokens = backend.TokenRules{}
	}
	return c
}

func randomScore(r *rand.Rand, turns []backend.Turn, salt string) *backend.ScoreRequest {
	all := []string{"high", "higher", "low", "lower than the rest", "is", "the thing", longText(30) + "a", longText(30) + "b and", longText(30)}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	req := &backend.ScoreRequest{Turns: turns, Options: all[:1+r.IntN(8)], Closed: r.IntN(2) == 0, Salt: salt}
	switch r.IntN(4) {
	case 0:
		req.Method, req.Closed = backend.UnconditionalLikelihoodNormalized, false
	case 1: // of long options there are too many ways for many rounds
		req.Method, req.Options = backend.Exact, []string{"low", "high", "lower", "is"}
	}
	return req
}

// vary draws what changes no result: hints, priority, whether it jumps, and that it is
// resumed from some of the tokens that it will have written.
func (c *call) vary(r *rand.Rand, want outcome) {
	priority := max(0, r.IntN(6)-2) - 1
	hints := backend.Hints{Run: []string{"", "a", "b"}[r.IntN(3)], Branch: []string{"", "x"}[r.IntN(2)], Siblings: r.IntN(4), Reused: r.IntN(3) == 0, LastUse: r.IntN(3) == 0}
	if c.score != nil {
		c.score.Hints, c.score.Priority = hints, priority
	}
	if c.gen == nil {
		return
	}
	c.gen.Hints, c.gen.Priority, c.gen.NoJump = hints, priority, r.IntN(3) == 0
	if want.gen != nil && r.IntN(6) == 0 && len(c.gen.Stop) == 0 && !strings.Contains(want.gen.Part.Text, "\ufffd") {
		ids := want.gen.Part.Tokens // those that it drew: none was cut
		c.gen.Resume = slices.Clone(ids[:r.IntN(1+len(ids))])
	}
	if r.IntN(8) == 0 {
		c.abort, c.aborts = 1+r.IntN(10), true
	}
}

func compareOutcome(t *testing.T, name string, c *call, got, want outcome) {
	t.Helper()
	if got.err != nil || want.err != nil {
		if !errors.Is(got.err, backend.ErrContextLength) || !errors.Is(want.err, backend.ErrContextLength) {
			t.Errorf("%s: error %v, alone %v", name, got.err, want.err)
		}
		return
	}
	if c.score != nil {
		if !reflect.DeepEqual(got.score.Options, want.score.Options) {
			t.Errorf("%s: scores %+v, alone %+v", name, got.score.Options, want.score.Options)
		}
		if got.score.Usage.Without != want.score.Usage.Without {
			t.Errorf("%s: without %+v, alone %+v", name, got.score.Usage.Without, want.score.Usage.Without)
		}
		return
	}
	if c.read != nil {
		if !reflect.DeepEqual(got.read.Logprobs, want.read.Logprobs) || !reflect.DeepEqual(got.read.Top, want.read.Top) {
			t.Errorf("%s: log-probabilities %+v, alone %+v", name, got.read, want.read)
		}
		return
	}
	g, w := *got.gen, *want.gen
	u := g.Usage
	if u.PromptTokens != w.Usage.PromptTokens || u.CachedTokens > u.PromptTokens || u.CachedTokens == u.PromptTokens && u.ForcedTokens == 0 && len(c.gen.Resume) == 0 || u.Without != w.Usage.Without ||
		u.CachedTokens+u.ComputedTokens < u.PromptTokens && len(u.Passes) > 0 || u.SampledTokens+u.ForcedTokens != w.Usage.SampledTokens {
		t.Errorf("%s: usage %+v, alone %+v", name, u, w.Usage)
	}
	g.Usage, w.Usage = backend.Usage{}, backend.Usage{}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s: %+v\nalone: %+v", name, g, w)
	}
}
