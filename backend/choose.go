package backend

import (
	"fmt"
	"math"
	"strings"
)

// ScoreMethod says by what the options of a score are compared. All but
// Likelihood and Exact are those of SGLang's frontend, under its names.
type ScoreMethod string

// The methods. A token is one of those that the option's text becomes behind the
// prompt. Where the prompt's last letters become part of a token of one option, all
// options are scored from before those letters on, and the tokens of the others hold
// them too: all are compared from one place.
const (
	// Likelihood is the probability of all tokens of an option, the default. An
	// option that is the beginning of another is always at least as likely, unless
	// the end of the turn is scored too (ScoreRequest.Closed).
	Likelihood ScoreMethod = ""
	// TokenLengthNormalized is the mean of the log-probabilities of the tokens.
	TokenLengthNormalized ScoreMethod = "token_length_normalized"
	// GreedyTokenSelection takes the options with the likeliest first token, of
	// these those with the likeliest second one, and so on. An option that has no
	// more tokens goes on with the mean of its own.
	GreedyTokenSelection ScoreMethod = "greedy_token_selection"
	// UnconditionalLikelihoodNormalized is the mean of what the prompt adds to the
	// log-probabilities of the tokens: what they have without any prompt is taken
	// off. The first token has no probability without one; nothing is taken off it.
	UnconditionalLikelihoodNormalized ScoreMethod = "unconditional_likelihood_normalized"
	// Exact is the probability of an option however it is written in tokens: the
	// sum over all sequences of tokens that spell it.
	Exact ScoreMethod = "exact"
)

// scoreMethods are the methods that have a name.
var scoreMethods = []ScoreMethod{TokenLengthNormalized, GreedyTokenSelection, UnconditionalLikelihoodNormalized, Exact}

// Check returns an error that is ErrInvalid for a method that there is not.
func (m ScoreMethod) Check() error {
	names := make([]string, len(scoreMethods))
	for i, known := range scoreMethods {
		if m == known {
			return nil
		}
		names[i] = string(known)
	}
	if m == Likelihood {
		return nil
	}
	return fmt.Errorf("%w: no method of scoring %q: there are %s, and the default", ErrInvalid, string(m), strings.Join(names, ", "))
}

// Ends reports whether the end of the turn may be scored with an option. SGLang's
// methods are about the tokens of the option alone.
func (m ScoreMethod) Ends() bool { return m == Likelihood || m == Exact }

// Ranking is what a method makes of the scores of options.
type Ranking struct {
	// Best is the option that is taken; of equal ones the first.
	Best int
	// Scores, in nats, are what the options are compared by, one each. The greedy
	// method compares token by token: its scores are those of the first token.
	Scores []float64
	// P are the shares of the options, which add up to 1: of the probability under
	// Likelihood and Exact, and of e to the score under the two means. Of the greedy
	// method, a share is split at each token between the different ones that the
	// options left have there, and only what goes to the likeliest is split further.
	P []float64
}

// Rank compares options. There must be one at least.
func (m ScoreMethod) Rank(options []OptionScore) Ranking {
	r := Ranking{Scores: make([]float64, len(options))}
	for i := range options {
		o := &options[i]
		switch m {
		case TokenLengthNormalized, GreedyTokenSelection:
			r.Scores[i] = mean(o.Logprobs)
		case UnconditionalLikelihoodNormalized:
			r.Scores[i] = mean(o.Logprobs)
			if len(o.Unconditional) == len(o.Logprobs) {
				r.Scores[i] -= mean(o.Unconditional)
			}
		default:
			r.Scores[i] = o.Sum
		}
		r.Scores[i] = max(r.Scores[i], -math.MaxFloat64)
	}
	if m == GreedyTokenSelection {
		r.Best, r.P = greedy(options, r.Scores)
		for i := range options {
			if lps := options[i].Logprobs; len(lps) > 0 {
				r.Scores[i] = lps[0]
			}
		}
		return r
	}
	for i, s := range r.Scores {
		if s > r.Scores[r.Best] {
			r.Best = i
		}
	}
	r.P = make([]float64, len(options))
	total := 0.0
	for i, s := range r.Scores {
		r.P[i] = math.Exp(s - r.Scores[r.Best])
		total += r.P[i]
	}
	for i := range r.P {
		r.P[i] /= total
	}
	return r
}

// mean is 0 of nothing.
func mean(x []float64) float64 {
	if len(x) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// greedy walks the tokens of the options. Tokens with one log-probability count
// as one: options that begin alike have the same.
func greedy(options []OptionScore, means []float64) (best int, p []float64) {
	p = make([]float64, len(options))
	left := make([]int, len(options))
	most := 0
	for i := range options {
		left[i] = i
		most = max(most, len(options[i].Logprobs))
	}
	share := 1.0
	for column := 0; column < most && len(left) > 1; column++ {
		at := func(i int) float64 {
			if lps := options[i].Logprobs; column < len(lps) {
				return max(lps[column], -math.MaxFloat64)
			}
			return means[i]
		}
		top := at(left[0])
		for _, i := range left {
			top = max(top, at(i))
		}
		alike := map[float64]int{} // options by value
		for _, i := range left {
			alike[at(i)]++
		}
		total := 0.0
		seen := make(map[float64]bool, len(alike))
		for _, i := range left { // in the order of the options: sums are repeatable
			if v := at(i); !seen[v] {
				seen[v] = true
				total += math.Exp(v - top)
			}
		}
		kept := left[:0:0]
		for _, i := range left {
			if v := at(i); v == top {
				kept = append(kept, i)
			} else {
				p[i] = share * math.Exp(v-top) / total / float64(alike[v])
			}
		}
		left, share = kept, share/total
	}
	for _, i := range left {
		p[i] = share / float64(len(left))
	}
	return left[0], p
}
