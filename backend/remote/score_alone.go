package remote

import (
	"context"
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// What the tokens of options are worth with nothing before them, as each dialect
// tells it.

func (b *Backend) aloneVLLM(ctx context.Context, options []scored, salt string) (backend.Usage, error) {
	list := unknown(options)
	if len(list) == 0 {
		return backend.Usage{}, nil
	}
	seqs := make([][]backend.Token, len(list))
	for i, o := range list {
		seqs[i] = o.ids
	}
	got, u, err := b.vllmPrompts(ctx, seqs, 1, salt)
	if err != nil {
		return u, err
	}
	for i, o := range list {
		copy(o.alone[1:], got[i].logprobs)
	}
	return u, nil
}

// aloneSGLang: some versions list the first token, of which there is nothing to
// tell, and some do not.
func (b *Backend) aloneSGLang(ctx context.Context, options []scored, salt string) (u backend.Usage, err error) {
	start := 0
	for batch := range slices.Chunk(unknown(options), scoreBatch) {
		ids := make([][]backend.Token, len(batch))
		for i, o := range batch {
			ids[i] = o.ids
		}
		in := sglangRequest{
			InputIDs: ids, Sampling: map[string]any{"temperature": 0, "max_new_tokens": 0}, CacheSalt: salt,
			ReturnLogprob: true, LogprobStartLen: &start,
		}
		var out []sglangAnswer
		if err := b.srv.post(ctx, b.srv.root, "generate", in, &out); err != nil {
			return u, err
		}
		if len(out) != len(batch) {
			return u, unsupportedf("the server answered %d of %d lists of tokens", len(out), len(batch))
		}
		for i, o := range batch {
			m := &out[i].Meta
			more := usage(m.PromptTokens, m.CachedTokens, 0)
			addUsage(&u, &more)
			n := len(o.ids) - 1
			if len(m.Input) < n || len(m.Input) > n+1 {
				return u, unsupportedf("the server tells %d log-probabilities of %d tokens (return_logprob)", len(m.Input), n+1)
			}
			for j, l := range m.Input[len(m.Input)-n:] {
				if l.ID != o.ids[1+j] {
					return u, unsupportedf("the server tells the log-probabilities of other tokens than it was given (return_logprob)")
				}
				o.alone[1+j] = l.Logprob
			}
		}
	}
	return u, nil
}

func (b *Backend) aloneLlama(ctx context.Context, options []scored, _ string) (backend.Usage, error) {
	list := unknown(options)
	seqs := make([][]backend.Token, len(list))
	for i, o := range list {
		seqs[i] = o.ids
	}
	w := &walk{b: b, next: map[string]map[backend.Token]float64{}}
	for _, o := range list {
		for pos := 1; pos < len(o.ids); pos++ {
			lp, err := w.logprob(ctx, o.ids[:pos], o.ids[pos], seqs)
			if err != nil {
				return w.usage, err
			}
			o.alone[pos] = lp
		}
	}
	return w.usage, nil
}
