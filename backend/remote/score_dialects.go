package remote

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"

	"github.com/coppice-run/coppice/backend"
)

// scoreBatch bounds the sequences of one scoring request.
const scoreBatch = 64

// scoreVLLM has the server tokenise the prompt with each option and tell the
// log-probabilities of those ids as a prompt.
func (b *Backend) scoreVLLM(ctx context.Context, turns []backend.Turn, raw bool, req *backend.ScoreRequest) (*scoring, error) {
	prompt, err := b.vllmTokenize(ctx, turns, raw, !raw && !open(turns))
	if err != nil {
		return nil, err
	}
	s := &scoring{ended: req.Closed && !raw}
	seqs := make([][]backend.Token, len(req.Options))
	for i, o := range req.Options {
		with := withOption(turns, o)
		if seqs[i], err = b.vllmTokenize(ctx, with, raw, false); err != nil {
			return nil, err
		}
		if !s.ended {
			continue
		}
		// The template closes the turn: what it adds first is the end.
		with[len(with)-1].Open = false
		whole, err := b.vllmTokenize(ctx, with, raw, false)
		if err != nil {
			return nil, err
		}
		if n := len(seqs[i]); len(whole) > n && common(whole, seqs[i]) == n {
			seqs[i] = whole[:n+1]
		} else {
			s.ended = false
		}
	}
	from := boundary(prompt, seqs)
	if from == 0 {
		return nil, errNoScore // nothing comes before the first token
	}
	s.exact = from == len(prompt)
	if s.options, s.usage, err = b.vllmPrompts(ctx, seqs, from, req.Salt); err != nil {
		return nil, err
	}
	for i, o := range s.options {
		s.options[i].ids = o.ids[:len(o.ids)-ended(s.ended)]
	}
	return s, nil
}

// vllmPrompts asks for the log-probabilities of the tokens of prompts from one on.
func (b *Backend) vllmPrompts(ctx context.Context, seqs [][]backend.Token, from int, salt string) ([]scored, backend.Usage, error) {
	var all []scored
	var none backend.Usage
	prompts, generated := 0, 0
	for batch := range slices.Chunk(seqs, scoreBatch) {
		in := map[string]any{"model": b.info.Model, "prompt": batch, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
		if salt != "" {
			in["cache_salt"] = salt
		}
		var out struct {
			Choices []struct {
				Index   int                         `json:"index"`
				Prompts []map[string]vllmPromptProb `json:"prompt_logprobs"`
			} `json:"choices"`
			Usage struct {
				Prompt    int `json:"prompt_tokens"`
				Generated int `json:"completion_tokens"`
			} `json:"usage"`
		}
		if err := b.srv.post(ctx, b.srv.base, "completions", in, &out); err != nil {
			return nil, none, err
		}
		prompts, generated = prompts+out.Usage.Prompt, generated+out.Usage.Generated
		got := make([]scored, len(batch))
		for _, c := range out.Choices {
			if c.Index < 0 || c.Index >= len(batch) || len(c.Prompts) != len(batch[c.Index]) {
				return nil, none, unsupportedf("the server tells no log-probabilities of a prompt (prompt_logprobs)")
			}
			for pos, id := range batch[c.Index] {
				if pos < from {
					continue
				}
				p, ok := c.Prompts[pos][strconv.Itoa(int(id))]
				lp := Unlikely
				if ok && p.Logprob != nil {
					lp = max(*p.Logprob, Unlikely)
				}
				got[c.Index].ids = append(got[c.Index].ids, id)
				got[c.Index].logprobs = append(got[c.Index].logprobs, lp)
			}
		}
		all = append(all, got...)
	}
	for i, o := range all {
		if len(o.logprobs) != len(seqs[i])-from {
			return nil, none, unsupportedf("the server tells no log-probabilities of a prompt (prompt_logprobs)")
		}
	}
	return all, usage(prompts, 0, generated), nil
}

// vllmPromptProb is what prompt_logprobs says of one token; a null number is
// minus infinity.
type vllmPromptProb struct {
	Logprob *float64 `json:"logprob"`
}

// ended is how many ids at an option's end are the turn's.
func ended(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func (b *Backend) vllmTokenize(ctx context.Context, turns []backend.Turn, raw, begin bool) ([]backend.Token, error) {
	in := map[string]any{"model": b.info.Model}
	if raw {
		in["prompt"] = rawText(turns)
	} else {
		msgs := make([]llamaMessage, len(turns))
		for i, t := range turns {
			msgs[i] = llamaMessage{Role: string(t.Role), Content: t.Text()}
		}
		in["messages"] = msgs
		in["add_generation_prompt"] = begin
		in["continue_final_message"] = open(turns)
	}
	var out struct {
		Tokens []backend.Token `json:"tokens"`
	}
	err := b.srv.post(ctx, b.srv.root, "tokenize", in, &out)
	return out.Tokens, err
}

// scoreSGLang reads the log-probabilities of the prompt with each option from a
// few tokens before the prompt's end on, so that the server may reuse what it
// has cached before them:
//
//	prompt         p0 p1 ... | p7 p8 p9 |
//	prompt+option  p0 p1 ... | p7 p8 x9 | x10
//	                          start  ^ boundary
//
// If the options part from the prompt before the window, it is widened.
func (b *Backend) scoreSGLang(ctx context.Context, turns []backend.Turn, _ bool, req *backend.ScoreRequest) (*scoring, error) {
	prompt := rawText(turns)
	in := sglangRequest{Text: prompt, Sampling: map[string]any{"temperature": 0, "max_new_tokens": 0}, CacheSalt: req.Salt}
	var first sglangAnswer
	if err := b.srv.post(ctx, b.srv.root, "generate", in, &first); err != nil {
		return nil, err
	}
	length := first.Meta.PromptTokens
	total := usage(length, first.Meta.CachedTokens, 0)
	texts := []string{prompt}
	for _, o := range req.Options {
		texts = append(texts, prompt+o)
	}
	in.ReturnLogprob = true
	for window := 8; ; window *= 8 {
		start := max(0, length-window)
		in.LogprobStartLen = &start
		all, err := b.sglangBatch(ctx, in, texts)
		if start > 0 && errors.Is(err, backend.ErrInvalid) {
			continue // an option joined so much that it ends before the window
		}
		if err != nil {
			return nil, err
		}
		from := 0 // position of the latest window
		for i := range all {
			m := &all[i].Meta
			u := usage(m.PromptTokens, m.CachedTokens, 0)
			addUsage(&total, &u)
			if len(m.Input) == 0 {
				return nil, unsupportedf("the server tells no log-probabilities of a prompt (return_logprob)")
			}
			from = max(from, m.PromptTokens-len(m.Input))
		}
		ids := make([][]backend.Token, len(all))
		for i := range all {
			m := &all[i].Meta
			m.Input = m.Input[from-(m.PromptTokens-len(m.Input)):]
			for _, l := range m.Input {
				ids[i] = append(ids[i], l.ID)
			}
		}
		shared := boundary(ids[0], ids[1:])
		if shared == 0 {
			if start == 0 {
				return nil, errNoScore // nothing comes before the first token
			}
			continue
		}
		s := &scoring{exact: shared == len(ids[0]), usage: total}
		for _, a := range all[1:] {
			var o scored
			for _, l := range a.Meta.Input[shared:] {
				o.ids = append(o.ids, l.ID)
				o.logprobs = append(o.logprobs, l.Logprob)
			}
			s.options = append(s.options, o)
		}
		return s, nil
	}
}

// sglangBatch sends texts in lists and returns one answer each.
func (b *Backend) sglangBatch(ctx context.Context, in sglangRequest, texts []string) ([]sglangAnswer, error) {
	var all []sglangAnswer
	for batch := range slices.Chunk(texts, scoreBatch) {
		in.Text = batch
		var out []sglangAnswer
		if err := b.srv.post(ctx, b.srv.root, "generate", in, &out); err != nil {
			return nil, err
		}
		if len(out) != len(batch) {
			return nil, unsupportedf("the server answered %d of %d texts", len(out), len(batch))
		}
		all = append(all, out...)
	}
	return all, nil
}

// maxWalk bounds the requests of one score on llama-server.
const maxWalk = 512

// scoreLlama walks the tree of the options' tokens: one request a node asks for
// the log-probabilities of the next token, and every child is looked up in it.
func (b *Backend) scoreLlama(ctx context.Context, turns []backend.Turn, raw bool, req *backend.ScoreRequest) (*scoring, error) {
	prompt, err := b.llamaIDs(ctx, turns, raw)
	if err != nil {
		return nil, err
	}
	s := &scoring{ended: req.Closed}
	seqs := make([][]backend.Token, len(req.Options))
	var end []backend.Token
	if req.Closed && raw && b.endToken != "" {
		if end, err = b.llamaTokenize(ctx, b.endToken, false, true); err != nil {
			return nil, err
		}
	}
	for i, o := range req.Options {
		with := withOption(turns, o)
		if seqs[i], err = b.llamaIDs(ctx, with, raw); err != nil {
			return nil, err
		}
		if !s.ended {
			continue
		}
		n := len(seqs[i])
		if !raw {
			// A turn that follows makes the template close this one.
			with[len(with)-1].Open = false
			whole, err := b.llamaIDs(ctx, append(with, text(backend.User, "-")), raw)
			if err != nil {
				return nil, err
			}
			end = nil
			if len(whole) > n && common(whole, seqs[i]) == n {
				end = whole[n : n+1]
			}
		}
		if len(end) != 1 {
			s.ended = false
			continue
		}
		seqs[i] = append(slices.Clip(seqs[i]), end[0])
	}
	from := boundary(prompt, seqs)
	if from == 0 {
		return nil, errNoScore
	}
	s.exact = from == len(prompt)
	w := &walk{b: b, next: map[string]map[backend.Token]float64{}}
	for _, seq := range seqs {
		var o scored
		for pos := from; pos < len(seq); pos++ {
			lp, err := w.logprob(ctx, seq[:pos], seq[pos], seqs)
			if err != nil {
				return nil, err
			}
			o.ids = append(o.ids, seq[pos])
			o.logprobs = append(o.logprobs, lp)
		}
		o.ids = o.ids[:len(o.ids)-ended(s.ended)]
		s.options = append(s.options, o)
	}
	s.usage = w.usage
	return s, nil
}

// walk remembers the next-token log-probabilities of the nodes seen.
type walk struct {
	b        *Backend
	next     map[string]map[backend.Token]float64
	requests int
	usage    backend.Usage
}

// logprob returns the log-probability of id after prefix. The first time at a
// node it asks for as many candidates as cover the node's children.
func (w *walk) logprob(ctx context.Context, prefix []backend.Token, id backend.Token, seqs [][]backend.Token) (float64, error) {
	n := len(prefix)
	key, err := json.Marshal(prefix)
	if err != nil {
		return 0, err
	}
	if known, ok := w.next[string(key)]; ok {
		return known[id], nil
	}
	children := map[backend.Token]float64{}
	for _, s := range seqs {
		if len(s) > n && slices.Equal(s[:n], prefix) {
			children[s[n]] = Unlikely
		}
	}
	whole := 1 << 20
	if w.b.vocabulary > 0 {
		whole = w.b.vocabulary
	}
	for _, top := range []int{64, 4096, whole} {
		if w.requests++; w.requests > maxWalk {
			return 0, errNoScore
		}
		in := map[string]any{
			"prompt": prefix, "n_predict": 1, "n_probs": top, "temperature": 0,
			"cache_prompt": true, "stream": false, "post_sampling_probs": false,
		}
		var a llamaAnswer
		if err := w.b.srv.post(ctx, w.b.srv.root, "completion", in, &a); err != nil {
			return 0, err
		}
		if len(a.Probs) == 0 {
			return 0, unsupportedf("the server tells no log-probabilities (n_probs)")
		}
		cached := 0
		if a.Timings.PromptN != nil {
			cached = a.Evaluated - *a.Timings.PromptN
		}
		u := usage(a.Evaluated, cached, a.Predicted)
		addUsage(&w.usage, &u)
		found := 0
		for i := range a.Probs[0].Top {
			p := &a.Probs[0].Top[i]
			if _, ok := children[p.ID]; ok {
				children[p.ID] = p.value()
				found++
			}
		}
		if found == len(children) || len(a.Probs[0].Top) < top {
			break // all are there, or the server has no more to tell
		}
	}
	w.next[string(key)] = children
	return children[id], nil
}
