package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"math"
	"net/http"
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

// What a request of /v1/score may ask for, and how many of its items are
// computed at once.
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
	t := tenantOf(r.Context())
	release, err := s.admit(t, min(len(q.prompts), scoreAtOnce))
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.cfg.Limits.RequestTime, errTimeout)
	defer cancel()
	out := scoring{Object: "scoring", Model: s.cfg.Names[0], Scores: make([][]float64, len(q.prompts))}
	usages := make([]backend.Usage, len(q.prompts))
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(scoreAtOnce)
	for i, p := range q.prompts {
		work.Go(func() error {
			var err error
			out.Scores[i], usages[i], err = s.scoreItem(ctx, q, p)
			return err
		})
	}
	if err := work.Wait(); err != nil {
		if context.Cause(ctx) == errTimeout {
			err = errTimeout
		}
		return err
	}
	var passes []backend.Span
	for _, u := range usages {
		out.Usage.PromptTokens += u.PromptTokens
		out.Usage.PromptDetails.CachedTokens += u.CachedTokens
		out.Usage.Coppice.ComputedTokens += u.ComputedTokens
		passes = append(passes, u.Passes...)
		s.metrics.count(&u)
	}
	out.Usage.TotalTokens = out.Usage.PromptTokens
	out.Usage.Coppice.ForwardPasses = countPasses(passes)
	t.quota.spend(out.Usage.PromptTokens)
	writeJSON(w, http.StatusOK, out)
	return nil
}

// scoreItem scores the labels after one prompt. The prompt is computed once and
// found in the cache for the labels after the first. The usage is that of the
// prompt.
func (s *Server) scoreItem(ctx context.Context, q *scoreRequest, prompt []backend.Token) ([]float64, backend.Usage, error) {
	reader := s.be.(backend.LogprobScorer)
	var usage backend.Usage
	logprobs := make([]float64, len(q.labels))
	for i, label := range q.labels {
		res, err := reader.Logprobs(ctx, &backend.LogprobRequest{ID: q.id, Tokens: append(slices.Clip(prompt), label), From: len(prompt), Salt: q.salt})
		if err != nil {
			return nil, usage, err
		}
		logprobs[i] = res.Logprobs[0]
		if i == 0 {
			usage = res.Usage
			usage.PromptTokens = len(prompt)
			usage.CachedTokens = min(usage.CachedTokens, len(prompt))
			continue
		}
		usage.ComputedTokens += res.Usage.ComputedTokens
		usage.Passes = append(slices.Clip(usage.Passes), res.Usage.Passes...)
	}
	return probabilities(logprobs, q.softmax), usage, nil
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
	q.salt = tenantOf(r.Context()).salt(readSalt(f, "cache_salt"))
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
	if one, ok := s.readTextOrIDs(raw); ok && raw != nil {
		items = append(items, one)
	} else {
		list, _ := f.list("items")
		for _, x := range list {
			ids, ok := s.readTextOrIDs(bytes.TrimSpace(x))
			if !ok {
				f.fail("items", "is to be a text, a list of token ids, or a list of either")
				break
			}
			items = append(items, ids)
		}
	}
	switch n := len(items); {
	case n == 0:
		f.fail("items", "is to be a list of at least one item")
	case n > maxScoreItems:
		f.fail("items", "has %d entries, at most %d are allowed", n, maxScoreItems)
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
