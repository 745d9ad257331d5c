package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// The JSON of /v1/score, as SGLang has it.
type (
	scoring struct {
		Object string      `json:"object"`
		Model  string      `json:"model"`
		Scores [][]float64 `json:"scores"`
		Usage  usage       `json:"usage"`
	}
	scoreRequest struct {
		prompts [][]backend.Token // one an item
		labels  []backend.Token
		softmax bool
		salt    string
		id      string
	}
)

// What a request of /v1/score may ask for, besides [Limits.ScoreTokens], and how
// many of its items are computed at once.
const (
	maxLabels     = 256
	maxScoreItems = 1024
	scoreAtOnce   = 32
)

// score is POST /v1/score: how probable each of some tokens is right after the
// query and each of some items. With apply_softmax the tokens share 1 among them.
func (s *Server) score(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	q, err := s.readScore(r, f)
	if err != nil {
		return err
	}
	w.Header().Set("X-Request-Id", q.id)
	out, err := s.scoreAll(r.Context(), tenantOf(r.Context()), q)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// scoreAll scores the items. When it returns none of them is at work. What was
// computed is paid and counted however it ends.
func (s *Server) scoreAll(ctx context.Context, t *tenant, q *scoreRequest) (*scoring, error) {
	atOnce := min(len(q.prompts), scoreAtOnce, s.most(t))
	release, err := s.admit(t, atOnce)
	if err != nil {
		return nil, err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Limits.RequestTime, errTimeout)
	defer cancel()
	aborted, done := s.aborts.add(jobName{t, q.id}, cancel)
	defer done()
	ctx, endSpan := s.traces.scoring(ctx, q)
	out := &scoring{Object: "scoring", Model: s.cfg.Names[0], Scores: make([][]float64, len(q.prompts))}
	usages := make([]backend.Usage, len(q.prompts))
	work, each := errgroup.WithContext(ctx)
	work.SetLimit(atOnce)
	for i := range q.prompts {
		work.Go(func() (err error) {
			if each.Err() != nil {
				return each.Err()
			}
			defer func() {
				if v := recover(); v != nil {
					s.cfg.Log.Error("panic in a backend", "request", q.id, "panic", v, "stack", string(debug.Stack()))
					err = errors.New("serve: a backend panicked")
				}
			}()
			out.Scores[i], usages[i], err = s.scoreItem(each, t, q, i)
			return err
		})
	}
	err = work.Wait()
	var sum backend.Usage
	for i := range usages {
		u := &usages[i]
		s.metrics.count(u)
		sum.PromptTokens += u.PromptTokens
		sum.CachedTokens += u.CachedTokens
		sum.ComputedTokens += u.ComputedTokens
		sum.Passes = append(sum.Passes, u.Passes...)
	}
	switch {
	case err == nil:
	case aborted():
		err = errAborted
	case context.Cause(ctx) == errTimeout:
		err = errTimeout
	}
	s.metrics.scored(err)
	endSpan(&sum, err)
	if err != nil {
		return nil, err
	}
	out.Usage.PromptTokens, out.Usage.TotalTokens = sum.PromptTokens, sum.PromptTokens
	out.Usage.PromptDetails.CachedTokens = sum.CachedTokens
	out.Usage.Coppice.ComputedTokens = sum.ComputedTokens
	out.Usage.Coppice.ForwardPasses = countPasses(sum.Passes)
	return out, nil
}

// scoreItem scores the labels after one prompt.
func (s *Server) scoreItem(ctx context.Context, t *tenant, q *scoreRequest, i int) (scores []float64, usage backend.Usage, err error) {
	prompt := q.prompts[i]
	bill := s.newBill(t.quota, &promptBill{}, func() int { return len(prompt) })
	defer func() {
		if scores == nil {
			bill.leave(ctx.Err() != nil)
		}
	}()
	if s.traces != nil {
		x := &steps{tracer: s.traces.tracer, ctx: ctx, choice: i}
		defer x.end()
		ctx = backend.WithTrace(ctx, &backend.Trace{Step: x.add})
	}
	res, err := s.be.(backend.LogprobScorer).Logprobs(bill.watch(ctx), &backend.LogprobRequest{ID: q.id, Tokens: prompt, From: len(prompt), Next: q.labels, Salt: q.salt})
	if err != nil {
		return nil, usage, err
	}
	if len(res.Next) != len(q.labels) {
		return nil, usage, fmt.Errorf("serve: the backend gave %d of %d log-probabilities", len(res.Next), len(q.labels))
	}
	bill.pay(res.Usage.PromptTokens, 0)
	return probabilities(res.Next, q.softmax), res.Usage, nil
}

// probabilities turns log-probabilities into probabilities, of all tokens or of
// these alone.
func probabilities(logprobs []float64, alone bool) []float64 {
	out := make([]float64, len(logprobs))
	best, sum := 0.0, 1.0
	if alone {
		best, sum = slices.Max(logprobs), 0
		if math.IsInf(best, -1) { // none is possible: none is likelier
			for i := range out {
				out[i] = 1 / float64(len(out))
			}
			return out
		}
		for _, lp := range logprobs {
			sum += math.Exp(lp - best)
		}
	}
	for i, lp := range logprobs {
		out[i] = math.Exp(lp-best) / sum
	}
	return out
}

func (s *Server) readScore(r *http.Request, f *fields) (*scoreRequest, error) {
	if err := s.checkModel(f); err != nil {
		return nil, err
	}
	if _, ok := s.be.(backend.LogprobScorer); !ok || s.cfg.Vocabulary == nil {
		return nil, badRequest("", "this model does not show the log-probabilities of given tokens")
	}
	q := &scoreRequest{id: s.requestID(r, f, "score-"), softmax: f.flag("apply_softmax", false)}
	q.salt = tenantOf(r.Context()).salt(readSalt(f, "cache_salt"), "")
	q.labels = s.readTokens(f, "label_token_ids")
	switch n := len(q.labels); {
	case n == 0:
		f.fail("label_token_ids", "is to be a list of at least one token id")
	case n > maxLabels:
		f.fail("label_token_ids", "has %d entries, at most %d are allowed", n, maxLabels)
	}
	itemFirst := f.flag("item_first", false)
	query, ok := s.readTextOrIDs(f.raw("query"))
	if !ok {
		f.fail("query", "is to be a string or a list of token ids")
	}
	var items [][]backend.Token
	raw := f.raw("items")
	list := []json.RawMessage{raw}
	one, single := s.readTextOrIDs(raw)
	if single = single && raw != nil; single {
		items = append(items, one)
	} else if list, _ = f.list("items"); len(list) > maxScoreItems {
		f.fail("items", "has %d entries, at most %d are allowed", len(list), maxScoreItems)
		list = nil
	}
	if len(list) == 0 {
		f.fail("items", "is to be a list of at least one item")
	}
	tokens := 0
	for i, x := range list {
		if !single {
			ids, ok := s.readTextOrIDs(bytes.TrimSpace(x))
			if !ok {
				f.fail("items", "is to be a text, a list of token ids, or a list of either")
				break
			}
			items = append(items, ids)
		}
		tokens += len(query) + len(items[i])
	}
	if most := s.cfg.Limits.ScoreTokens; tokens > most {
		f.fail("items", "and the query with each of them are %d tokens, at most %d are allowed in one request", tokens, most)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	v := s.cfg.Vocabulary
	for _, item := range items {
		ids := slices.Concat(query, item)
		if itemFirst {
			ids = slices.Concat(item, query)
		}
		ids = v.WithBOS(ids)
		switch n := s.info.ContextLength; {
		case len(ids) == 0:
			return nil, badRequest("items", "an item and the query are both empty")
		case n > 0 && len(ids) >= n:
			e := *toError(&backend.ContextLengthError{Prompt: len(ids), Context: n})
			e.Param = "items"
			return nil, &e
		}
		q.prompts = append(q.prompts, ids)
	}
	return q, nil
}

// readTextOrIDs reads a text as ids, or ids. Nothing at all is an empty text.
func (s *Server) readTextOrIDs(raw json.RawMessage) ([]backend.Token, bool) {
	v := s.cfg.Vocabulary
	if raw == nil {
		return nil, true
	}
	if text, ok := jsonString(raw); ok {
		return v.EncodePieces([]tokenizer.Piece{{Text: text, Special: true}}), true
	}
	ids, ok := readIDs(raw)
	for _, id := range ids {
		ok = ok && id >= 0 && int(id) < v.Size()
	}
	return ids, ok && len(ids) > 0
}
