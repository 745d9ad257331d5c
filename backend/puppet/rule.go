package puppet

import (
	"regexp"
	"sync"

	"github.com/coppice-run/coppice/backend"
)

// Prompt is what a rule sees of a request.
type Prompt struct {
	ID    string         // of the request
	Text  string         // as [Render] writes it
	Turns []backend.Turn // as sent
	// Groups are the submatches of OnRegexp; nil for other rules.
	Groups []string
	// Call is the number of this call among those of the same ID, from 1.
	Call int
	// Request is set for generations, Score for scores.
	Request *backend.Request
	Score   *backend.ScoreRequest
}

// Rule answers the requests it matches. Its methods return the rule, so that
// they chain; they must be called before the first request.
type Rule struct {
	match func(p *Prompt) bool
	expr  *regexp.Regexp // of OnRegexp

	reply   func(p *Prompt) (string, error)
	score   func(p *Prompt, option string) []float64
	alone   func(option string) []float64
	wait    []<-chan struct{}
	fail    map[int]error // by the number of the rule's call, from 1; 0 is each
	edit    func(p *Prompt, r *backend.Result)
	finish  backend.FinishReason
	panicky any

	mu    sync.Mutex
	calls int
}

// Reply answers generations with text. In rules of OnRegexp $1 and ${name} are
// replaced by what the expression matched.
func (r *Rule) Reply(text string) *Rule {
	r.reply = func(p *Prompt) (string, error) {
		if r.expr != nil {
			src, match := joinGroups(p.Groups)
			return string(r.expr.ExpandString(nil, text, src, match)), nil
		}
		return text, nil
	}
	return r
}

// ReplyFunc answers generations with what f returns.
func (r *Rule) ReplyFunc(f func(p *Prompt) (string, error)) *Rule {
	r.reply = f
	return r
}

// Scores answers score requests: the log-probability in nats of each option as
// a whole, spread evenly over its tokens. Options that are not in the map get
// -100.
func (r *Rule) Scores(sums map[string]float64) *Rule {
	return r.ScoreFunc(func(p *Prompt, option string) []float64 {
		sum, ok := sums[option]
		if !ok {
			sum = -100
		}
		n := max(len(option), 1)
		lps := make([]float64, n)
		for i := range lps {
			lps[i] = sum / float64(n)
		}
		return lps
	})
}

// ScoreFunc answers score requests: f returns the log-probabilities of an
// option's tokens.
func (r *Rule) ScoreFunc(f func(p *Prompt, option string) []float64) *Rule {
	r.score = f
	return r
}

// ScoreAlone adds to ScoreFunc what the tokens of an option have with nothing
// before them, for the method that asks for it.
func (r *Rule) ScoreAlone(f func(option string) []float64) *Rule {
	r.alone = f
	return r
}

// Fail makes every call of the rule fail with err.
func (r *Rule) Fail(err error) *Rule { return r.FailCall(0, err) }

// FailCall makes the nth call of the rule, counted from 1, fail with err.
func (r *Rule) FailCall(n int, err error) *Rule {
	if r.fail == nil {
		r.fail = map[int]error{}
	}
	r.fail[n] = err
	return r
}

// Wait makes each call wait for a value from ch, or for ch to be closed, or for
// the end of the request's context.
func (r *Rule) Wait(ch <-chan struct{}) *Rule {
	r.wait = append(r.wait, ch)
	return r
}

// Finish sets the reason that results report instead of the one that follows
// from the text and the limits.
func (r *Rule) Finish(reason backend.FinishReason) *Rule {
	r.finish = reason
	return r
}

// Edit lets f change a finished result, its usage for example.
func (r *Rule) Edit(f func(p *Prompt, res *backend.Result)) *Rule {
	r.edit = f
	return r
}

// Panic makes every call of the rule panic with v.
func (r *Rule) Panic(v any) *Rule {
	r.panicky = v
	return r
}

// On adds a rule for prompts that are text, as [Render] writes them.
func (m *Model) On(text string) *Rule {
	return m.OnFunc(func(p *Prompt) bool { return p.Text == text })
}

// OnID adds a rule for requests whose ID is id.
func (m *Model) OnID(id string) *Rule {
	return m.OnFunc(func(p *Prompt) bool { return p.ID == id })
}

// OnRegexp adds a rule for prompts in which expr, which must compile, matches;
// of several matches the last counts, since the end of a prompt says what is
// asked.
func (m *Model) OnRegexp(expr string) *Rule {
	re := regexp.MustCompile(expr)
	r := m.OnFunc(func(p *Prompt) bool {
		all := re.FindAllStringSubmatchIndex(p.Text, -1)
		if len(all) == 0 {
			return false
		}
		last := all[len(all)-1]
		p.Groups = p.Groups[:0]
		for i := 0; i < len(last); i += 2 {
			g := ""
			if last[i] >= 0 {
				g = p.Text[last[i]:last[i+1]]
			}
			p.Groups = append(p.Groups, g)
		}
		return true
	})
	r.expr = re
	return r
}

// joinGroups lays submatches one after another and returns their offsets in
// the form that regexp's Expand takes.
func joinGroups(groups []string) (src string, match []int) {
	for _, g := range groups {
		match = append(match, len(src), len(src)+len(g))
		src += g
	}
	return src, match
}

// OnFunc adds a rule for the requests for which match returns true.
func (m *Model) OnFunc(match func(p *Prompt) bool) *Rule {
	r := &Rule{match: match}
	m.mu.Lock()
	m.rules = append(m.rules, r)
	m.mu.Unlock()
	return r
}

// OnAny adds a rule for all requests.
func (m *Model) OnAny() *Rule {
	return m.OnFunc(func(*Prompt) bool { return true })
}
