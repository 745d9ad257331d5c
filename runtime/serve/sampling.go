package serve

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// The ranges of numbers that clients may ask for.
const (
	maxTemperature = 100
	maxTopLogprobs = 20
	maxStops       = 16
	maxSaltLength  = 1024
	// maxStopLength bounds, in bytes, what is looked for at each token.
	maxStopLength = 1024
	// Logits are divided by the penalty; one of less would make them infinite.
	minRepetitionPenalty = 0.01
)

// readSampling reads how tokens are drawn, with OpenAI's names and defaults and
// the extra fields of vLLM.
func (s *Server) readSampling(f *fields) backend.Sampling {
	p := backend.Sampling{
		Temperature:       f.number("temperature", 1, 0, maxTemperature, false),
		TopP:              f.number("top_p", 1, 0, 1, true),
		MinP:              f.number("min_p", 0, 0, 1, false),
		TopK:              readTopK(f),
		RepetitionPenalty: f.number("repetition_penalty", 1, minRepetitionPenalty, 100, false),
		FrequencyPenalty:  f.number("frequency_penalty", 0, -2, 2, false),
		PresencePenalty:   f.number("presence_penalty", 0, -2, 2, false),
		Seed:              readSeed(f, "seed"),
		LogitBias:         s.readBias(f),
	}
	return p
}

func readTopK(f *fields) int {
	return int(max(0, f.whole("top_k", 0, -1, math.MaxInt32)))
}

// readSeed reads a seed; without one each request draws its own.
func readSeed(f *fields, name string) uint64 {
	if !f.has(name) {
		return rand.Uint64()
	}
	return uint64(f.whole(name, 0, math.MinInt64, math.MaxInt64))
}

// readBias reads logit_bias: an object from ids, as strings, to numbers.
func (s *Server) readBias(f *fields) map[backend.Token]float64 {
	o := f.object("logit_bias")
	if o == nil || len(o.members) == 0 {
		return nil
	}
	out := make(map[backend.Token]float64, len(o.members))
	for name := range o.members {
		id, err := strconv.ParseInt(name, 10, 32)
		switch v := s.cfg.Vocabulary; {
		case err != nil || id < 0:
			f.fail("logit_bias", "has the key %q, which is no token id", clip(name))
		case v != nil && int(id) >= v.Size():
			f.fail("logit_bias", "names token %d; the vocabulary has %d", id, v.Size())
		}
		out[backend.Token(id)] = o.number(name, 0, -100, 100, false)
	}
	return out
}

// readStop reads stop strings and the ids that end a generation. The model's end
// tokens among them say something only if those are ignored: else they end it
// anyway.
func (s *Server) readStop(f *fields, name string, limit int, rules *backend.TokenRules, ignoreEnd bool) []string {
	stop := f.texts(name, limit)
	for _, t := range stop {
		if t == "" {
			f.fail(name, "holds an empty string")
		}
		if len(t) > maxStopLength {
			f.fail(name, "holds a string of %d bytes, at most %d are allowed", len(t), maxStopLength)
		}
	}
	for _, id := range s.readTokens(f, "stop_token_ids") {
		if ignoreEnd || !slices.Contains(s.cfg.Vocabulary.EndTokens(), id) {
			rules.Stop = append(rules.Stop, id)
		}
	}
	if len(rules.Stop) > 0 {
		s.canRule(f, "stop_token_ids")
	}
	if rules.StopRegex = slices.DeleteFunc(f.texts("stop_regex", 32), func(p string) bool { return p == "" }); len(rules.StopRegex) > 0 {
		s.canRule(f, "stop_regex")
		if _, err := backend.CompileStops(rules.StopRegex); err != nil {
			f.fail("stop_regex", "cannot be used: %v", err)
		}
	}
	return stop
}

// readTokens reads a list of ids, nil if it is not there.
func (s *Server) readTokens(f *fields, name string) []backend.Token {
	raw := f.raw(name)
	if raw == nil {
		return nil
	}
	v := s.cfg.Vocabulary
	ids, ok := readIDs(raw)
	switch {
	case v == nil:
		f.fail(name, "is not supported: this model shows no token ids")
		return nil
	case !ok:
		f.fail(name, "is to be a list of token ids")
		return nil
	}
	for _, id := range ids {
		if id < 0 || int(id) >= v.Size() {
			f.fail(name, "holds token %d; the vocabulary has %d", id, v.Size())
		}
	}
	return ids
}

func (s *Server) canRule(f *fields, name string) {
	if !s.info.Capabilities.TokenRules {
		f.fail(name, "is not supported: this model takes no rules about single tokens")
	}
}

// maxBadWords bounds the sequences that are looked for at each token.
const maxBadWords = 1000

// readRules reads allowed_token_ids and bad_words.
func (s *Server) readRules(f *fields, rules *backend.TokenRules) {
	if f.has("allowed_token_ids") {
		s.canRule(f, "allowed_token_ids")
		if rules.Allowed = s.readTokens(f, "allowed_token_ids"); len(rules.Allowed) == 0 {
			f.fail("allowed_token_ids", "is empty")
		}
	}
	words := f.texts("bad_words", maxBadWords)
	if len(words) == 0 {
		return
	}
	s.canRule(f, "bad_words")
	v := s.cfg.Vocabulary
	if v == nil {
		f.fail("bad_words", "is not supported: this model shows no token ids")
		return
	}
	for _, w := range words {
		if w == "" {
			f.fail("bad_words", "holds an empty string")
			continue
		}
		if len(w) > maxStopLength {
			f.fail("bad_words", "holds a string of %d bytes, at most %d are allowed", len(w), maxStopLength)
			continue
		}
		// As at the beginning of a text, and as a word after others.
		for _, text := range []string{w, " " + strings.TrimLeft(w, " ")} {
			ids := v.EncodePieces([]tokenizer.Piece{{Text: text}})
			if len(ids) > 0 && !slices.ContainsFunc(rules.Banned, func(b []backend.Token) bool { return slices.Equal(b, ids) }) {
				rules.Banned = append(rules.Banned, ids)
			}
		}
	}
}

// readCommon reads what all ways to generate share.
func (s *Server) readCommon(f *fields, t *tenant, j *job) {
	r := &j.base
	r.Sampling = s.readSampling(f)
	r.Constraint, j.constraintAt = readConstraint(f)
	s.canTag(f, r.Constraint, j.constraintAt)
	// A complete constraint ends.
	r.IgnoreEOS = f.flag("ignore_eos", false) && r.Constraint.IsZero()
	r.Stop = s.readStop(f, "stop", maxStops, &r.Tokens, r.IgnoreEOS)
	s.readRules(f, &r.Tokens)
	r.CloseAtLimit = s.readClosing(f)
	r.ShowControl = s.readControl(f)
	j.keepStop = f.flag("include_stop_str_in_output", f.flag("no_stop_trim", false))
	r.MinTokens = int(f.whole("min_tokens", 0, 0, math.MaxInt32))
	r.Salt = t.salt(readSalt(f, "cache_salt"), readSalt(f, "extra_key"))
	j.n, j.countAt = int(f.whole("n", 1, 1, int64(s.cfg.Limits.Choices))), "n"
	r.Priority = -int(f.whole("priority", 0, math.MinInt32, math.MaxInt32)) // lower is earlier, as in vLLM
	refuseOthers(f)
}

// readClosing reads close_at_limit: whether an answer in a given form is closed
// where its limit of tokens would cut it. It is, unless it is said otherwise.
func (s *Server) readClosing(f *fields) bool {
	can := s.info.Capabilities.CloseAtLimit
	closes := f.flag("close_at_limit", can)
	if closes && !can {
		f.fail("close_at_limit", "is not supported: this model cuts what comes to its limit")
	}
	return closes
}

// constrain limits the output of a job by what the field at stands for.
func (s *Server) constrain(j *job, c backend.Constraint, at string) {
	j.base.Constraint, j.constraintAt = c, at
	if !j.base.IgnoreEOS {
		return
	}
	j.base.IgnoreEOS = false // as in readCommon
	j.base.Tokens.Stop = slices.DeleteFunc(j.base.Tokens.Stop, func(id backend.Token) bool {
		return slices.Contains(s.cfg.Vocabulary.EndTokens(), id)
	})
}

func readSalt(f *fields, name string) string {
	salt := f.text(name)
	if len(salt) > maxSaltLength {
		f.fail(name, "is longer than %d bytes", maxSaltLength)
	}
	if raw := f.raw(name); string(raw) == `""` {
		f.fail(name, "is empty")
	}
	return salt
}

// readConstraint reads what limits the output, in the ways that OpenAI, vLLM and
// SGLang write it, and returns the field that it came from.
func readConstraint(f *fields) (c backend.Constraint, at string) {
	set := func(name string, x backend.Constraint) {
		if x.IsZero() {
			return
		}
		if at != "" {
			f.fail(name, "and %s both limit the output; use one of them", at)
		}
		c, at = x, name
	}
	set("response_format", responseFormat(f))
	for _, old := range []struct{ name, kind string }{
		{"guided_json", "json"}, {"guided_regex", "regex"}, {"guided_choice", "choice"}, {"guided_grammar", "grammar"},
		{"json_schema", "json"}, {"regex", "regex"}, {"ebnf", "grammar"}, {"grammar", "grammar"}, {"structural_tag", "structural_tag"},
	} {
		if f.has(old.name) {
			set(old.name, oneConstraint(f, old.name, old.kind))
		}
	}
	if so := f.object("structured_outputs"); so != nil {
		for _, kind := range []string{"json", "regex", "choice", "grammar", "json_object", "structural_tag"} {
			if so.has(kind) {
				set("structured_outputs."+kind, oneConstraint(so, kind, kind))
			}
		}
		refuseInStructured(so)
	}
	return c, at
}

// anyObject is the schema of any JSON object.
var anyObject = []byte(`{"type":"object"}`)

func oneConstraint(f *fields, name, kind string) (c backend.Constraint) {
	switch kind {
	case "json":
		c.JSONSchema = readSchema(f, name)
	case "structural_tag":
		return readStructuralTag(f, name)
	case "json_object":
		if f.flag(name, false) {
			c.JSONSchema = anyObject
		}
	case "choice":
		c.Choices = f.texts(name, 10000)
		if raw := f.raw(name); raw[0] != '[' || len(c.Choices) == 0 {
			f.fail(name, "is to be a list of at least one string")
		}
	case "regex":
		if c.Regex = f.text(name); c.Regex == "" {
			f.fail(name, "is empty")
		}
	case "grammar":
		if c.EBNF = f.text(name); c.EBNF == "" {
			f.fail(name, "is empty")
		}
	}
	return c
}

// readSchema reads a JSON Schema, or a string that holds one.
func readSchema(f *fields, name string) []byte {
	raw := f.raw(name)
	if s, ok := jsonString(raw); ok {
		if !json.Valid([]byte(s)) {
			f.fail(name, "is a string that holds no JSON")
			return nil
		}
		return []byte(s)
	}
	if len(raw) > 0 && raw[0] != '{' && raw[0] != 't' && raw[0] != 'f' {
		f.fail(name, "is to be a JSON Schema")
		return nil
	}
	return raw
}

func responseFormat(f *fields) (c backend.Constraint) {
	r := f.object("response_format")
	if r == nil {
		return c
	}
	switch kind := r.text("type"); kind {
	case "text":
	case "json_object":
		c.JSONSchema = anyObject
		if r.has("schema") { // as llama.cpp and others take it
			c.JSONSchema = readSchema(r, "schema")
		}
	case "json_schema":
		js := r.object("json_schema")
		if js == nil {
			r.fail("json_schema", "is missing")
			return c
		}
		js.text("name")
		js.flag("strict", false) // what is not strict is enforced all the same
		if !js.has("schema") {
			js.fail("schema", "is missing")
			return c
		}
		c.JSONSchema = readSchema(js, "schema")
	case "structural_tag":
		return structuralTag(r)
	default:
		r.fail("type", "is %q; it is to be text, json_object, json_schema or structural_tag", clip(kind))
	}
	return c
}
