package serve

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// completionRequest is a request of /v1/completions after reading.
type completionRequest struct {
	job
	model     string
	created   int64
	echo      bool
	promptTop int // likeliest tokens beside each of the prompt, for prompt_logprobs; -1 without
	logprobs  bool
	topShown  int
	stream    bool
	usage     bool
	always    bool
	ids       bool // return_token_ids
	asIDs     bool // return_tokens_as_token_ids
	keep      int  // best_of: choices shown of those generated for a prompt
}

// The JSON of completions; a chunk has the same form.
type (
	completion struct {
		ID          string             `json:"id"`
		Object      string             `json:"object"`
		Created     int64              `json:"created"`
		Model       string             `json:"model"`
		Fingerprint *string            `json:"system_fingerprint"`
		Choices     []completionChoice `json:"choices"`
		Usage       *usage             `json:"usage,omitempty"`
		Emulated    []string           `json:"coppice_emulated,omitempty"`
	}
	completionChoice struct {
		Index    int                 `json:"index"`
		Text     string              `json:"text"`
		Logprobs *completionLogprobs `json:"logprobs"`
		Finish   *string             `json:"finish_reason"`
		Matched  any                 `json:"stop_reason,omitempty"`
		// Prompt has for each token of the prompt the likeliest ones there and
		// itself, by id; null for the first, which follows nothing.
		Prompt []map[string]promptLogprob `json:"prompt_logprobs,omitempty"`
		// IDs are those of the text that were not told before, PromptIDs come once.
		IDs       []backend.Token `json:"token_ids,omitempty"`
		PromptIDs []backend.Token `json:"prompt_token_ids,omitempty"`
	}
	promptLogprob struct {
		Logprob float64 `json:"logprob"`
		Rank    *int    `json:"rank"` // from 1; null if it is not among the likeliest that were asked for
		Token   string  `json:"decoded_token"`
	}
	completionLogprobs struct {
		Tokens  []string             `json:"tokens"`
		Values  []*float64           `json:"token_logprobs"`
		Top     []map[string]float64 `json:"top_logprobs"`
		Offsets []int                `json:"text_offset"` // in characters
	}
	nullCompletionUsage struct {
		*completion
		Usage *usage `json:"usage"`
	}
)

// completions is POST /v1/completions.
func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	q, err := s.readCompletion(r, f)
	if err != nil {
		return err
	}
	w.Header().Set("X-Request-Id", q.id)
	ends := make([]*choice, q.choices())
	if q.stream {
		return s.streamCompletion(w, r, q, ends)
	}
	err = s.run(r.Context(), &q.job, func(steps []step) error {
		for _, x := range steps {
			if x.end != nil {
				ends[x.index] = x.end
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	u := usageOf(ends)
	out := s.completion(q, &u)
	out.Emulated = ends[0].result.Emulated
	for i, c := range q.best(ends) {
		text := c.result.Part.Text
		if q.echo {
			text = c.prompt.text + text
		}
		end := completionEnd(i, c, text)
		if q.logprobs {
			k := s.completionScores(q)
			if q.echo {
				k.prompt(c)
			}
			k.generated(scoredOf(c.result))
			end.Logprobs = k.take()
		}
		if q.promptTop >= 0 {
			end.Prompt = s.promptLogprobs(c, q.promptTop)
		}
		if q.ids {
			end.IDs, end.PromptIDs = c.result.Part.Tokens, c.prompt.ids
		}
		out.Choices = append(out.Choices, end)
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (s *Server) readCompletion(r *http.Request, f *fields) (*completionRequest, error) {
	if err := s.checkModel(f); err != nil {
		return nil, err
	}
	t := tenantOf(r.Context())
	q := &completionRequest{model: s.cfg.Names[0], created: time.Now().Unix()}
	q.job = job{id: s.requestID(r, f, "cmpl-"), tenant: t, readFrom: -1, promptAt: "prompt"}
	s.readCommon(f, t, &q.job)
	q.echo = f.flag("echo", false)
	q.base.MaxTokens = int(f.whole("max_tokens", 16, 0, math.MaxInt32))
	switch {
	case string(f.members["max_tokens"]) == "null":
		q.base.MaxTokens = 0 // the room that is left
	case q.base.MaxTokens == 0:
		q.nothing = true
		if !q.echo {
			f.fail("max_tokens", "is 0, which makes sense only with echo")
		}
	}
	if n := q.base.MaxTokens; n > 0 && q.base.MinTokens > n {
		f.fail("min_tokens", "is more than the limit of %d tokens", n)
	}
	q.topShown = int(f.whole("logprobs", 0, 0, maxTopLogprobs))
	if q.logprobs = f.has("logprobs") && string(f.raw("logprobs")) != "false"; q.logprobs {
		s.canLogprobs(f, "logprobs", q.topShown)
		q.base.Logprobs, q.top = true, q.topShown
		if q.echo {
			s.canLogprobs(f, "logprobs", 1)
			q.readFrom, q.readTop = 0, q.topShown
		}
	}
	f.refuse("the model only continues a text", "suffix")
	f.refuse("prompts are text or token ids", "prompt_embeds")
	q.stream, q.usage, q.always = readStream(f)
	q.asIDs = f.flag("return_tokens_as_token_ids", false)
	q.ids = f.flag("return_token_ids", false)
	if v := s.cfg.Vocabulary; !f.flag("add_special_tokens", true) && (v == nil || len(v.WithBOS(nil)) > 0) {
		f.fail("add_special_tokens", "is to be true: prompts begin as the model was trained, once")
	}
	q.keep = q.n
	if best := int(f.whole("best_of", int64(q.n), 1, int64(s.cfg.Limits.Choices))); best != q.keep {
		switch {
		case best < q.keep:
			f.fail("best_of", "is %d, less than n, which is %d", best, q.keep)
		case q.stream:
			f.fail("best_of", "is not for streams, unless it is n")
		}
		s.canLogprobs(f, "best_of", 0)
		q.n, q.countAt, q.base.Logprobs = best, "best_of", true
	}
	if q.promptTop = s.readPromptLogprobs(f, &q.job, q.stream); q.promptTop >= 0 {
		q.readFrom, q.readTop = 0, max(q.readTop, q.promptTop)
	}
	if !f.has("prompt") {
		f.fail("prompt", "is missing")
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	var err error
	q.prompts, err = s.readPrompts(f)
	return q, err
}

// readPrompts reads prompt: a text, ids, or a list of either.
func (s *Server) readPrompts(f *fields) ([]prompt, error) {
	raw := f.raw("prompt")
	if text, ok := jsonString(raw); ok {
		p, err := s.fromText("prompt", text)
		return []prompt{p}, err
	}
	items, _ := f.list("prompt")
	if err := f.err(); err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, badRequest("prompt", "prompt is an empty list")
	}
	if ids, ok := readIDs(raw); ok {
		p, err := s.fromIDs("prompt", ids)
		return []prompt{p}, err
	}
	if n := max(f.whole("n", 1, 1, math.MaxInt32), f.whole("best_of", 1, 1, math.MaxInt32)); len(items)*int(n) > s.cfg.Limits.Choices {
		return nil, badRequest("prompt", "prompt has %d entries; prompts times n may be %d", len(items), s.cfg.Limits.Choices)
	}
	var out []prompt
	for _, item := range items {
		var p prompt
		var err error
		if text, ok := jsonString(item); ok {
			p, err = s.fromText("prompt", text)
		} else if ids, ok := readIDs(item); ok && len(ids) > 0 {
			p, err = s.fromIDs("prompt", ids)
		} else {
			err = badRequest("prompt", "prompt is to be a text, a list of token ids, or a list of those")
		}
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// best are the choices to show: of each prompt as many as asked for, those with
// the greatest mean log-probability first if more were generated.
func (q *completionRequest) best(ends []*choice) []*choice {
	if q.keep == q.n {
		return ends
	}
	mean := func(c *choice) float64 {
		sum := 0.0
		for _, lp := range c.result.Logprobs {
			sum += finite(lp)
		}
		return sum / float64(max(1, len(c.result.Logprobs)))
	}
	var out []*choice
	for of := range slices.Chunk(ends, q.n) {
		of = slices.Clone(of)
		slices.SortStableFunc(of, func(a, b *choice) int { return cmp.Compare(mean(b), mean(a)) })
		out = append(out, of[:q.keep]...)
	}
	return out
}

func (s *Server) completion(q *completionRequest, u *usage) *completion {
	return &completion{
		ID: q.id, Object: "text_completion", Created: q.created, Model: q.model,
		Fingerprint: s.fingerprint(), Choices: []completionChoice{}, Usage: u,
	}
}

// completionEnd is the end of a finished choice, with the text that is left to say.
func completionEnd(i int, c *choice, text string) completionChoice {
	reason := finishReason(c.result, nil, 0)
	return completionChoice{Index: i, Text: text, Finish: &reason, Matched: matched(c.result)}
}

// completionScores writes the log-probabilities of a completion, or of a piece of
// one.
type completionScores struct {
	s    *Server
	q    *completionRequest
	at   int    // characters before the next token
	part []byte // of the next character
	out  *completionLogprobs
}

func (s *Server) completionScores(q *completionRequest) *completionScores {
	k := &completionScores{s: s, q: q}
	k.take()
	return k
}

// take returns what was added since the last time.
func (k *completionScores) take() *completionLogprobs {
	out := k.out
	k.out = &completionLogprobs{Tokens: []string{}, Values: []*float64{}, Offsets: []int{}}
	if k.q.topShown > 0 {
		k.out.Top = []map[string]float64{}
	}
	return out
}

// add adds a token, whose log-probability is nil if it follows nothing.
func (k *completionScores) add(id backend.Token, value *float64, top []backend.TokenLogprob) {
	lp, name := k.out, k.s.tokenName(id, k.q.asIDs)
	lp.Tokens = append(lp.Tokens, name)
	lp.Values = append(lp.Values, value)
	lp.Offsets = append(lp.Offsets, k.at)
	k.part = append(k.part, k.s.shown(id, k.q.base.ShowControl)...)
	whole := wholeCharacters(k.part)
	k.at += len([]rune(string(k.part[:whole])))
	k.part = k.part[whole:]
	if k.q.topShown == 0 {
		return
	}
	var m map[string]float64
	if value != nil {
		m = map[string]float64{}
		for _, t := range top[:min(k.q.topShown, len(top))] { // more were read if prompt_logprobs wants more
			m[k.s.tokenName(t.Token, k.q.asIDs)] = finite(t.Logprob)
		}
		m[name] = *value
	}
	lp.Top = append(lp.Top, m)
}

// prompt adds the tokens of a prompt.
func (k *completionScores) prompt(c *choice) {
	for i, id := range c.ids {
		var value *float64
		var top []backend.TokenLogprob
		if c.read != nil && i > 0 && i-1 < len(c.read.Logprobs) {
			x := finite(c.read.Logprobs[i-1])
			value = &x
			if i-1 < len(c.read.Top) {
				top = c.read.Top[i-1]
			}
		}
		k.add(id, value, top)
	}
}

// generated adds tokens that were generated.
func (k *completionScores) generated(g scored) {
	for i, lp := range g.logprobs {
		x := finite(lp)
		k.add(g.tokens[i], &x, g.likeliest(i))
	}
}

// promptLogprobs are those of the prompt with the n likeliest tokens at each
// place, as vLLM has them.
func (s *Server) promptLogprobs(c *choice, n int) []map[string]promptLogprob {
	out := make([]map[string]promptLogprob, len(c.ids))
	for i := 1; i < len(c.ids); i++ {
		at := map[string]promptLogprob{}
		own := promptLogprob{Logprob: finite(c.read.Logprobs[i-1]), Token: s.tokenText(c.ids[i])}
		if i-1 < len(c.read.Top) {
			top := c.read.Top[i-1]
			for k, t := range top[:min(n, len(top))] { // more were read if logprobs wants more
				rank := k + 1
				if t.Token == c.ids[i] {
					own.Rank = &rank
				} else {
					at[strconv.Itoa(int(t.Token))] = promptLogprob{finite(t.Logprob), &rank, s.tokenText(t.Token)}
				}
			}
		}
		at[strconv.Itoa(int(c.ids[i]))] = own
		out[i] = at
	}
	return out
}

// completionStream writes a choice of a completion as it is generated.
type completionStream struct {
	s      *Server
	q      *completionRequest
	prompt *prompt
	begun  bool
	told   scoredStream
	scores *completionScores // nil if no log-probabilities are wanted
	ids    []backend.Token   // that came
	sent   int               // of those, told
}

// tell adds the ids that were not told before, and the first time those of the
// prompt, if they are wanted.
func (st *completionStream) tell(c *completionChoice, all []backend.Token) {
	if !st.q.ids {
		return
	}
	if st.sent == 0 {
		c.PromptIDs = st.prompt.ids
	}
	c.IDs = all[min(st.sent, len(all)):]
	st.sent = len(all)
}

// piece is what is said of a delta; ok is false if that is nothing.
func (st *completionStream) piece(d *backend.Delta) (c completionChoice, ok bool) {
	st.ids = append(st.ids, d.Tokens...)
	switch {
	case st.scores == nil:
		c.Text = st.echo() + d.Text
		ok = c.Text != ""
	case st.q.echo: // those of the prompt are read at the end, and come first
	default:
		var k scored
		if k, ok = st.told.piece(d); ok {
			st.scores.generated(k)
			c.Text, c.Logprobs = d.Text, st.scores.take()
		}
	}
	if ok {
		st.tell(&c, st.ids)
	}
	return c, ok
}

// echo is the prompt, once, if it is to be repeated.
func (st *completionStream) echo() string {
	if !st.q.echo || st.begun {
		return ""
	}
	st.begun = true
	return st.prompt.text
}

// end is what is said last.
func (st *completionStream) end(i int, c *choice) (out completionChoice) {
	if st.scores == nil {
		out = completionEnd(i, c, st.echo())
	} else {
		text, k := st.told.rest(c.result)
		if st.q.echo {
			st.scores.prompt(c)
		}
		st.scores.generated(k)
		out = completionEnd(i, c, st.echo()+text)
		out.Logprobs = st.scores.take()
	}
	st.tell(&out, c.result.Part.Tokens)
	return out
}

// streamCompletion writes completions as they are generated.
func (s *Server) streamCompletion(w http.ResponseWriter, r *http.Request, q *completionRequest, ends []*choice) error {
	out := s.newSSE(w)
	streams := make([]completionStream, q.choices())
	for i := range streams {
		streams[i] = completionStream{s: s, q: q, prompt: &q.prompts[i/q.n]}
		if q.logprobs {
			streams[i].scores = s.completionScores(q)
		}
	}
	send := func(c completionChoice) error {
		chunk := s.completion(q, nil)
		chunk.Choices = append(chunk.Choices, c)
		switch {
		case q.always:
			u := usageOf(ends)
			chunk.Usage = &u
		case q.usage:
			return out.data(nullCompletionUsage{completion: chunk})
		}
		return out.data(chunk)
	}
	err := s.run(r.Context(), &q.job, func(steps []step) error {
		for _, x := range steps {
			if x.err != nil {
				return x.err
			}
			st := &streams[x.index]
			if x.end != nil {
				ends[x.index] = x.end
				if err := send(st.end(x.index, x.end)); err != nil {
					return err
				}
			} else if c, ok := st.piece(&x.delta); ok {
				c.Index = x.index
				if err := send(c); err != nil {
					return err
				}
			}
		}
		return out.flush()
	})
	if err == nil && q.usage {
		u := usageOf(ends)
		err = out.data(s.completion(q, &u))
	}
	if err == nil {
		err = out.done()
	}
	return s.endStream(r, out, err)
}
