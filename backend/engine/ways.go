package engine

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/coppice-run/coppice/backend"
)

// A text can be written in tokens in many ways, and a model gives each of them a
// probability of its own: the probability of an option is their sum. ways adds
// it up over the tree of all sequences of tokens that spell an option:
//
//	"low"   root --"low"-->*      one token, as the tokenizer writes it
//	             --"l"--> --"ow"-->*
//	                      --"o"--> --"w"-->*
//	             --"lo"-->--"w"-->*
//
// The ways that the tokenizer takes are scored anyway, and what may follow each of
// their tokens is read off the same logits. The others are computed level by
// level, each level in one batch, where they may still matter: what a way can add
// is bounded by the probability of its beginning. What is left out is counted
// too, so the result can say how exact it is. Which ways those are depends on
// logits alone, so the same options get the same sum whatever is in the cache.
type ways struct {
	index   *byText
	limit   int // tokens that may be computed
	closed  bool
	ends    []backend.Token // any of them ends the turn
	options []string        // what is asked for
	texts   [][]byte        // of the options, from the boundary on
	usual   []float64       // log-probability of the options as the tokenizer writes them
	root    *way

	computed int       // tokens so far
	total    []float64 // log-probability of the options
	missed   []float64 // what may be missing at most, log-probability
	cut      bool      // the bound on tokens was reached
}

// way is a beginning of some options, written in certain tokens: those before the last
// are the beginning that it goes on from, which most ways of long options never need.
type way struct {
	parent  *way
	token   backend.Token
	tokens  int
	size    int // bytes
	options []int

	seen bool    // its logits were read
	next []step  // by token
	end  float64 // log-probability of the turn's end here, if an option ends here
}

// path returns the tokens of w.
func (w *way) path() []backend.Token {
	tokens := make([]backend.Token, w.tokens)
	for ; w.parent != nil; w = w.parent {
		tokens[w.tokens-1] = w.token
	}
	return tokens
}

// step is a token that may follow.
type step struct {
	token backend.Token
	lp    float64
	way   *way
}

const (
	// maxWays bounds the tokens that a score computes for ways that the tokenizer
	// does not take.
	maxWays = 4096
	// wayWorth is the share of an option's probability, as a logarithm, that the
	// ways with one beginning must be able to add: far below what logits are exact
	// to.
	wayWorth = -23 // 1e-10
	// wayDoubt is the share that may be missing before the result says so.
	wayDoubt = 1e-5
)

func newWays(e *Engine, close backend.Token, req *backend.ScoreRequest, options []scored) (*ways, error) {
	w := &ways{index: e.byText(), limit: e.maxWays, closed: req.Closed, options: req.Options, root: &way{}}
	if w.closed {
		w.ends = append(w.ends, close)
		for _, t := range e.end {
			if t != close {
				w.ends = append(w.ends, t)
			}
		}
	}
	for i, o := range options {
		ids := o.tokens
		if w.closed {
			ids = ids[:len(ids)-1]
		}
		var text []byte
		for _, id := range ids {
			b := e.tok.Bytes(id)
			if len(b) == 0 || e.tok.IsControl(id) {
				return nil, fmt.Errorf("%w: the exact score of option %q: the tokenizer writes it with token %d, which has no text", backend.ErrUnsupported, req.Options[i], id)
			}
			text = append(text, b...)
		}
		w.texts = append(w.texts, text)
		w.root.options = append(w.root.options, i)
	}
	return w, nil
}

// read takes from the logits after path what may follow there.
func (w *ways) read(path []backend.Token, logits []float32, lse float64) {
	at := w.root
	for _, t := range path {
		i, ok := slices.BinarySearchFunc(at.next, t, func(s step, t backend.Token) int { return cmp.Compare(s.token, t) })
		if !ok {
			return // not the beginning of an option in this way
		}
		at = at.next[i].way
	}
	w.expand(at, logits, lse)
}

func (w *ways) expand(at *way, logits []float32, lse float64) {
	if at.seen {
		return
	}
	at.seen = true
	next := map[backend.Token]*way{}
	for _, o := range at.options {
		rest := w.texts[o][at.size:]
		if len(rest) == 0 {
			at.end = w.endsAt(logits, lse)
			continue
		}
		w.index.begin(rest, func(t backend.Token, size int) {
			to := next[t]
			if to == nil {
				to = &way{parent: at, token: t, tokens: at.tokens + 1, size: at.size + size}
				next[t] = to
			}
			to.options = append(to.options, o)
		})
	}
	for t, to := range next {
		at.next = append(at.next, step{t, float64(logits[t]) - lse, to})
	}
	slices.SortFunc(at.next, func(a, b step) int { return cmp.Compare(a.token, b.token) })
}

// endsAt is the log-probability of the turn's end.
func (w *ways) endsAt(logits []float32, lse float64) float64 {
	lp := math.Inf(-1)
	for _, t := range w.ends {
		lp = addLogs(lp, float64(logits[t])-lse)
	}
	return lp
}

// open is a beginning that is not computed.
type open struct {
	way  *way
	lp   float64
	gain float64 // the largest share of an option that it can add, as a logarithm
}

// level adds up what is known and returns the beginnings that are worth to be
// computed next. longest is the number of tokens that fit in the context.
func (w *ways) level(longest int) []*way {
	w.total = make([]float64, len(w.texts))
	w.missed = make([]float64, len(w.texts))
	for i := range w.total {
		w.total[i], w.missed[i] = math.Inf(-1), math.Inf(-1)
	}
	var frontier []open
	var walk func(at *way, lp float64)
	walk = func(at *way, lp float64) {
		on := false
		for _, o := range at.options {
			switch ends := len(w.texts[o]) == at.size; {
			case ends && !w.closed:
				w.total[o] = addLogs(w.total[o], lp)
			case ends && at.seen:
				w.total[o] = addLogs(w.total[o], lp+at.end)
			default:
				on = true
			}
		}
		if !at.seen {
			if on {
				frontier = append(frontier, open{way: at, lp: lp})
			}
			return
		}
		for _, s := range at.next {
			walk(s.way, lp+s.lp)
		}
	}
	walk(w.root, 0)

	worth := frontier[:0]
	for _, f := range frontier {
		f.gain = math.Inf(-1)
		for _, o := range w.goingOn(f.way) {
			f.gain = max(f.gain, f.lp-max(w.total[o], w.usual[o]))
		}
		if f.gain >= wayWorth && f.way.tokens <= longest {
			worth = append(worth, f)
		} else {
			w.miss(f)
		}
	}
	if room := w.limit - w.computed; len(worth) > room {
		w.cut = true
		slices.SortStableFunc(worth, func(a, b open) int { return cmp.Compare(b.gain, a.gain) })
		for _, f := range worth[room:] {
			w.miss(f)
		}
		worth = worth[:room]
	}
	next := make([]*way, len(worth))
	for i, f := range worth {
		next[i] = f.way
	}
	w.computed += len(next)
	return next
}

// goingOn are the options that logits after at would say more of.
func (w *ways) goingOn(at *way) []int {
	if w.closed {
		return at.options
	}
	return slices.DeleteFunc(slices.Clone(at.options), func(o int) bool { return len(w.texts[o]) == at.size })
}

func (w *ways) miss(f open) {
	for _, o := range w.goingOn(f.way) {
		w.missed[o] = addLogs(w.missed[o], f.lp)
	}
}

// doubts says of which options more may be missing than logits are exact to.
func (w *ways) doubts() (out []string) {
	for i, o := range w.options {
		share := math.Exp(w.missed[i] - w.total[i])
		if !(share > wayDoubt) {
			continue
		}
		why := "what is left out is unlikely, but much"
		if w.cut {
			why = fmt.Sprintf("only %d tokens were computed for other ways to write the options", w.limit)
		}
		out = append(out, fmt.Sprintf("exact: the probability of %q may be up to %.2g times as much: %s", o, 1+share, why))
	}
	return out
}

// addLogs is the logarithm of the sum of two numbers given by theirs.
func addLogs(a, b float64) float64 {
	if a < b {
		a, b = b, a
	}
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

// byText is a vocabulary in the order of the tokens' texts.
type byText struct {
	ids   []backend.Token
	texts [][]byte
}

func newByText(tok Tokenizer, isEnd func(backend.Token) bool) *byText {
	x := &byText{}
	for i := range tok.Size() {
		if id := backend.Token(i); !tok.IsControl(id) && !isEnd(id) && len(tok.Bytes(id)) > 0 {
			x.ids = append(x.ids, id)
			x.texts = append(x.texts, tok.Bytes(id))
		}
	}
	sort.Stable(x)
	return x
}

func (x *byText) Len() int           { return len(x.ids) }
func (x *byText) Less(i, j int) bool { return bytes.Compare(x.texts[i], x.texts[j]) < 0 }
func (x *byText) Swap(i, j int) {
	x.ids[i], x.ids[j] = x.ids[j], x.ids[i]
	x.texts[i], x.texts[j] = x.texts[j], x.texts[i]
}

// begin calls f with each token that text begins with, and its length.
func (x *byText) begin(text []byte, f func(t backend.Token, size int)) {
	lo, hi := 0, len(x.ids)
	for n := 0; n < len(text) && lo < hi; n++ {
		// All of [lo, hi) begin with text[:n]. Those that are no longer come first.
		after := func(c int) int {
			return lo + sort.Search(hi-lo, func(i int) bool { b := x.texts[lo+i]; return len(b) > n && int(b[n]) >= c })
		}
		lo, hi = after(int(text[n])), after(int(text[n])+1)
		for i := lo; i < hi && len(x.texts[i]) == n+1; i++ {
			f(x.ids[i], n+1)
		}
	}
}
