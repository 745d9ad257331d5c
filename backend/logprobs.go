package backend

import "context"

// LogprobRequest asks how likely a model finds the tokens of a given text.
type LogprobRequest struct {
	ID     string  `json:"id"`
	Tokens []Token `json:"tokens"` // the text as the model is to read it, BOS included
	// From is the first token whose log-probability is wanted, from 1: the
	// first token follows nothing. len(Tokens) asks for none, and only computes
	// the text, so that it is in the cache.
	From int `json:"from"`
	// Top is how many of the likeliest tokens to report beside each.
	Top int `json:"top,omitempty"`
	// Next are tokens whose log-probability after the whole text is wanted.
	Next []Token `json:"next,omitempty"`
	Salt string  `json:"salt,omitempty"`
}

// TokenLogprob is a token with its log-probability in nats.
type TokenLogprob struct {
	Token   Token   `json:"token"`
	Logprob float64 `json:"logprob"`
}

// LogprobResult answers a LogprobRequest.
type LogprobResult struct {
	Logprobs []float64        `json:"logprobs"`       // of Tokens[From:], in nats
	Top      [][]TokenLogprob `json:"top,omitempty"`  // the same places, the likeliest first
	Next     []float64        `json:"next,omitempty"` // of the request's Next, in nats
	Usage    Usage            `json:"usage"`
}

// LogprobScorer is implemented by backends that can look at any place of a text
// by ids, not only at what they generate, and that take Request.Top.
type LogprobScorer interface {
	Logprobs(ctx context.Context, req *LogprobRequest) (*LogprobResult, error)
}
