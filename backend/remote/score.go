package remote

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend"
)

// NotChosen is the score of the options that an emulated score did not take;
// the one it took has 0. JSON cannot carry a minus infinity.
const NotChosen = Unlikely

// scored is an option as token ids after a boundary that all options share.
type scored struct {
	ids      []backend.Token
	logprobs []float64
	alone    []float64 // with nothing before them, if that is wanted
}

// scoring is what a dialect's way of scoring returns.
type scoring struct {
	options []scored
	// exact is set if the boundary is the prompt's end, so that ids are the
	// option's own. Otherwise they begin with the prompt's last tokens, as the
	// tokenizer joins those with what follows; the same for all options.
	exact bool
	// ended is set if the turn's end was scored where asked for.
	ended bool
	usage backend.Usage
}

// errNoScore is returned by a dialect's way of scoring that cannot score this.
var errNoScore = errors.New("cannot be scored")

// Score returns how likely each option is after the prompt. vLLM, SGLang (raw
// prompts) and llama-server tell log-probabilities; elsewhere, unless emulation
// is off, the model is made to choose, which Emulated says.
//
// Options are compared from a boundary of tokens that all of them share with
// the prompt. The end of the turn can be scored with vLLM chat turns and
// llama-server; where it cannot, Closed requests in which one option begins
// another become a constrained choice.
//
// The methods that look at single tokens are had where the server tells their
// log-probabilities, and are refused elsewhere; [backend.Exact] is refused
// everywhere, as a server tells nothing of other ways to write a text.
func (b *Backend) Score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	res, err := b.score(ctx, req)
	if err != nil {
		return nil, named(req.ID, err)
	}
	return res, nil
}

func (b *Backend) score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	switch err := req.Method.Check(); {
	case err != nil:
		return nil, err
	case req.Method == backend.Exact:
		return nil, unsupportedf("a server does not tell in which ways an option can be written, which an exact score needs: use another method, or a model in this process")
	case req.Closed && !req.Method.Ends():
		return nil, invalidf("%s compares the tokens of options, so the end of the turn cannot be scored with it", req.Method)
	case len(req.Options) == 0:
		return nil, invalidf("a score needs at least one option")
	}
	for i, o := range req.Options {
		if slices.Contains(req.Options[:i], o) {
			return nil, invalidf("option %q is given twice", o)
		}
	}
	turns, raw, err := b.d.checkTurns(req.Turns)
	if err != nil {
		return nil, err
	}
	if req.Salt != "" && !b.d.salt {
		return nil, unsupportedf("the %s dialect has no salt; leave it out or use a backend that has it", b.d.name)
	}
	var how func(context.Context, []backend.Turn, bool, *backend.ScoreRequest) (*scoring, error)
	var alone func(context.Context, []scored, string) (backend.Usage, error)
	switch {
	case backend.HasImages(turns): // scores are of texts
		if req.Method != "" {
			return nil, unsupportedf("the tokens of options behind a picture cannot be compared by %s: leave the method out, and the model is made to choose", req.Method)
		}
		return b.scoreByChoice(ctx, req)
	case b.d.name == "vllm":
		how, alone = b.scoreVLLM, b.aloneVLLM
	case b.d.name == "sglang" && raw:
		how, alone = b.scoreSGLang, b.aloneSGLang
	case b.d.name == "llama":
		how, alone = b.scoreLlama, b.aloneLlama
	default:
		return b.scoreByChoice(ctx, req)
	}
	var s *scoring
	err = b.opts.Retry.do(ctx, func() (err error) {
		s, err = how(ctx, turns, raw, req)
		if err == nil && req.Method == backend.UnconditionalLikelihoodNormalized {
			var u backend.Usage
			u, err = alone(ctx, s.options, req.Salt)
			addUsage(&s.usage, &u)
		}
		return err
	}, nil)
	if errors.Is(err, errNoScore) || err == nil && req.Closed && !s.ended && nested(req.Options) {
		return b.scoreByChoice(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	res := &backend.ScoreResult{Usage: s.usage}
	for i, o := range s.options {
		out := backend.OptionScore{Part: backend.Part{Text: req.Options[i]}, Logprobs: o.logprobs, Unconditional: o.alone}
		for _, lp := range o.logprobs {
			out.Sum += lp
		}
		if s.exact && b.info.Fingerprint != "" {
			out.Part.Tokens, out.Part.Model = o.ids, b.info.Fingerprint
		}
		res.Options = append(res.Options, out)
	}
	if req.Closed && !s.ended {
		res.Emulated = append(res.Emulated, "closed: the turn's end is not scored, but no option begins another")
	}
	return res, nil
}

// unknown are the options whose tokens have a log-probability only with others
// before them: all that have more than one. That of a first token is 0.
func unknown(options []scored) (out []*scored) {
	for i := range options {
		o := &options[i]
		o.alone = make([]float64, len(o.ids))
		if len(o.ids) > 1 {
			out = append(out, o)
		}
	}
	return out
}

// nested reports whether an option is the beginning of another.
func nested(options []string) bool {
	for i, o := range options {
		for j, p := range options {
			if i != j && strings.HasPrefix(p, o) {
				return true
			}
		}
	}
	return false
}

// scoreByChoice lets the model choose among the options under a constraint.
func (b *Backend) scoreByChoice(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	if req.Method != backend.Likelihood {
		return nil, unsupportedf("the %s dialect does not tell the log-probabilities of an option's tokens behind this prompt, by which %s compares: leave the method out or use a backend that tells them", b.d.name, req.Method)
	}
	if b.opts.NoEmulation {
		return nil, unsupportedf("the %s dialect cannot score this prompt and emulation is off", b.d.name)
	}
	c, err := b.plan(&backend.Request{
		ID: req.ID, Turns: req.Turns, Salt: req.Salt, Hints: req.Hints,
		Constraint: backend.Constraint{Choices: req.Options},
	})
	if err != nil {
		return nil, err
	}
	r, err := b.generateChecked(ctx, c, nil)
	if err != nil {
		return nil, err
	}
	res := &backend.ScoreResult{Usage: r.Usage, Emulated: append([]string{"score: a constrained choice, 0 for the option taken and -9999 for the others"}, r.Emulated...)}
	for _, o := range req.Options {
		lp := NotChosen
		if o == r.Part.Text {
			lp = 0
		}
		res.Options = append(res.Options, backend.OptionScore{Part: backend.Part{Text: o}, Logprobs: []float64{lp}, Sum: lp})
	}
	return res, nil
}

// boundary returns how many ids all sequences share with the prompt.
func boundary(prompt []backend.Token, seqs [][]backend.Token) int {
	n := len(prompt)
	for _, s := range seqs {
		n = min(n, common(prompt[:n], s))
	}
	return n
}

func common(a, b []backend.Token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
