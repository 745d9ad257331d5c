package remote

import "github.com/coppice-run/coppice/backend"

// method says how a dialect enforces a kind of constraint.
type method uint8

const (
	none      method = iota // cannot
	native                  // the server does, by a field of its own
	asSchema                // the server does, as a JSON Schema that wraps it
	asRegex                 // the server does, as a regular expression
	asGrammar               // the server does, as a grammar
	retried                 // checked here, the model asked again
)

// dialect is what one kind of server understands. The table below is the only
// place that knows; the rest of the package asks it.
type dialect struct {
	name string

	jsonSchema, regex, ebnf, choices method

	// trusted is set if the server can be relied on to enforce what it was
	// asked to: its output may then be streamed before it was checked.
	trusted bool

	// Sampling options beyond OpenAI's.
	topK, minP, repetition, minTokens, ignoreEOS bool
	logitBias                                    bool
	// penalties is set if frequency and presence penalties are taken.
	penalties bool
	// salt is set if the server separates cache entries by one.
	salt bool
	// continues is set if an open assistant turn can be gone on with.
	continues bool
	// newAfterAssistant is set if a finished assistant turn may come last and a
	// new one is then generated; otherwise goOn is put between them.
	newAfterAssistant bool
	// raw is set if prompts without a chat template are taken.
	raw      bool
	logprobs bool
	// seed is set if a seed makes a request repeatable.
	seed bool
	// toolRole is set if a tool's turn needs no id of the call it answers.
	toolRole bool
	// images is set if chat turns may hold pictures.
	images   bool
	maxStops int // 0: no limit known
	// completionField names the limit on generated tokens as
	// max_completion_tokens.
	completionField bool
}

var dialects = map[string]*dialect{
	"openai": {
		name: "openai", jsonSchema: native, regex: retried, choices: asSchema,
		raw: true, logprobs: true, penalties: true, logitBias: true, newAfterAssistant: true,
		maxStops: 4, images: true,
	},
	"vllm": {
		name: "vllm", jsonSchema: native, regex: native, ebnf: native, choices: native, trusted: true,
		topK: true, minP: true, repetition: true, minTokens: true, ignoreEOS: true, logitBias: true,
		penalties: true, salt: true, continues: true, newAfterAssistant: true, raw: true, logprobs: true,
		seed: true, toolRole: true, images: true,
	},
	"sglang": {
		name: "sglang", jsonSchema: native, regex: native, ebnf: native, choices: asRegex, trusted: true,
		topK: true, minP: true, repetition: true, minTokens: true, ignoreEOS: true, logitBias: true,
		penalties: true, salt: true, continues: true, newAfterAssistant: true, raw: true, logprobs: true,
		toolRole: true, maxStops: 32, images: true,
	},
	"llama": {
		name: "llama", jsonSchema: native, regex: asGrammar, ebnf: native, choices: asGrammar, trusted: true,
		topK: true, minP: true, repetition: true, ignoreEOS: true, logitBias: true,
		penalties: true, continues: true, newAfterAssistant: true, raw: true, logprobs: true, seed: true,
		toolRole: true,
	},
	"anthropic": {
		name: "anthropic", jsonSchema: native, regex: retried, choices: asSchema, topK: true, images: true,
	},
	"ollama": {
		name: "ollama", jsonSchema: native, regex: retried, choices: asSchema,
		penalties: true, seed: true, toolRole: true, images: true,
	},
}

// openAIService returns the dialect of OpenAI's own service: its strict schemas
// hold, it names the limit its own way, and only its completion models take
// raw prompts.
func openAIService(model string) *dialect {
	d := *dialects["openai"]
	d.trusted = true
	d.completionField = true
	d.raw = isCompletionModel(model)
	return &d
}

// method returns how the one constraint that c sets is enforced, and its name.
func (d *dialect) method(c *backend.Constraint) (m method, name string) {
	switch {
	case len(c.JSONSchema) > 0:
		return d.jsonSchema, "json_schema"
	case c.Regex != "":
		return d.regex, "regex"
	case c.EBNF != "":
		return d.ebnf, "ebnf"
	case len(c.Choices) > 0:
		return d.choices, "choices"
	}
	return none, ""
}

// check refuses what r asks for and d does not have.
func (d *dialect) check(r *backend.Request) error {
	s := &r.Sampling
	for _, f := range [...]struct {
		name      string
		used, has bool
	}{
		{"top_k", s.TopK != 0, d.topK},
		{"min_p", s.MinP != 0, d.minP},
		{"repetition_penalty", s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1, d.repetition},
		{"frequency_penalty", s.FrequencyPenalty != 0, d.penalties},
		{"presence_penalty", s.PresencePenalty != 0, d.penalties},
		{"logit_bias", len(s.LogitBias) > 0, d.logitBias},
		{"min_tokens", r.MinTokens != 0, d.minTokens},
		{"ignore_eos", r.IgnoreEOS, d.ignoreEOS},
		{"logprobs", r.Logprobs, d.logprobs},
		{"salt", r.Salt != "", d.salt},
	} {
		if f.used && !f.has {
			return unsupportedf("the %s dialect has no %s; leave it out or use a backend that has it", d.name, f.name)
		}
	}
	if d.maxStops > 0 && len(r.Stop) > d.maxStops {
		return unsupportedf("the %s dialect takes %d stop strings, %d were given", d.name, d.maxStops, len(r.Stop))
	}
	return nil
}

// capabilities returns what Generate and Score honour, natively or emulated.
func (d *dialect) capabilities(emulate bool) backend.Capabilities {
	can := func(m method) bool { return m != none && (emulate || m != retried && m != asSchema) }
	return backend.Capabilities{
		JSONSchema: can(d.jsonSchema),
		Regex:      can(d.regex),
		EBNF:       can(d.ebnf),
		Choices:    can(d.choices),
		Score:      d.scores() || emulate && can(d.choices),
		// SGLang tells them of raw prompts only.
		ScoreTokens: d.name == "vllm" || d.name == "llama",
		Logprobs:    d.logprobs,
		Seed:        d.seed,
		Raw:         d.raw,
		OpenTurns:   d.continues,
		Images:      d.images,
	}
}

// scores reports whether the server tells log-probabilities of a given text.
func (d *dialect) scores() bool {
	return d.name == "vllm" || d.name == "sglang" || d.name == "llama"
}
