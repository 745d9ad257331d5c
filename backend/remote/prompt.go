package remote

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
)

// isRaw reports whether the prompt is plain text outside any chat template, and
// refuses mixtures: no server has a route for those.
func isRaw(turns []backend.Turn) (bool, error) {
	raw := 0
	for i, t := range turns {
		switch t.Role {
		case backend.Raw:
			raw++
		case backend.System, backend.User, backend.Assistant, backend.Tool:
		default:
			return false, invalidf("turn %d has the unknown role %q", i, t.Role)
		}
		if t.Open && i != len(turns)-1 {
			return false, invalidf("turn %d is open, but only the last may be", i)
		}
		for _, p := range t.Parts {
			if !utf8.ValidString(p.Text) {
				return false, invalidf("turn %d holds text that is not UTF-8", i)
			}
			if p.Image != "" && t.Role != backend.User {
				return false, invalidf("turn %d of role %s holds a picture, which only a user's may", i, t.Role)
			}
		}
	}
	switch {
	case len(turns) == 0:
		return false, invalidf("the prompt has no turns")
	case raw == 0:
		return false, nil
	case raw == len(turns):
		return true, nil
	}
	return false, unsupportedf("the prompt mixes raw text and chat turns; remote servers take one or the other")
}

// checkTurns refuses prompts that d cannot express. It returns the turns to
// send: an open assistant turn without text is the same as none.
func (d *dialect) checkTurns(turns []backend.Turn) (t []backend.Turn, raw bool, err error) {
	raw, err = isRaw(turns)
	if err != nil {
		return nil, false, err
	}
	if raw {
		if !d.raw {
			return nil, false, unsupportedf("the %s dialect (or this model of it) takes no raw prompt; write the prompt as chat turns", d.name)
		}
		return turns, true, nil
	}
	if !d.images && backend.HasImages(turns) {
		return nil, false, unsupportedf("the %s dialect takes no pictures", d.name)
	}
	last := turns[len(turns)-1]
	if last.Open {
		if last.Role != backend.Assistant {
			return nil, false, unsupportedf("the last turn is open and of role %s; remote servers continue an assistant turn only", last.Role)
		}
		if last.Text() == "" {
			turns = turns[:len(turns)-1]
			if len(turns) == 0 {
				return nil, false, unsupportedf("the prompt is an empty assistant turn alone")
			}
		} else if !d.continues {
			return nil, false, unsupportedf("the %s dialect cannot continue an open assistant turn; close the turn, or use vllm, sglang or llama", d.name)
		}
	}
	return turns, false, nil
}

// answered reports whether the prompt ends in a finished assistant turn, after
// which a second one is to come.
func answered(turns []backend.Turn) bool {
	n := len(turns)
	return n > 0 && turns[n-1].Role == backend.Assistant && !turns[n-1].Open
}

// goOn is what a user turn says that is put between two assistant turns where
// one cannot follow the other.
const goOn = "Go on."

// betweenNote reports goOn in Result.Emulated.
const betweenNote = "assistant turn after another: a user turn between them"

// open reports whether the prompt's last turn is to be continued.
func open(turns []backend.Turn) bool { return len(turns) > 0 && turns[len(turns)-1].Open }

// rawText joins a raw prompt.
func rawText(turns []backend.Turn) string {
	var b strings.Builder
	for _, t := range turns {
		for _, p := range t.Parts {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// runs splits a raw prompt into pieces that alternate between text and ids:
// text of the program, and ids that the model named fingerprint generated.
func runs(turns []backend.Turn, fingerprint string) []backend.Part {
	var out []backend.Part
	for _, t := range turns {
		for _, p := range t.Parts {
			if fingerprint == "" || p.Model != fingerprint || len(p.Tokens) == 0 {
				p.Tokens = nil
			}
			if p.Text == "" && p.Tokens == nil {
				continue
			}
			if n := len(out); n > 0 && (out[n-1].Tokens == nil) == (p.Tokens == nil) {
				out[n-1].Text += p.Text
				out[n-1].Tokens = append(slices.Clip(out[n-1].Tokens), p.Tokens...)
				continue
			}
			out = append(out, p)
		}
	}
	return out
}

// withOption returns the turns with an option appended where a generation would
// go: to the open turn, or as a new one that stays open.
func withOption(turns []backend.Turn, option string) []backend.Turn {
	part := backend.Part{Text: option}
	n := len(turns)
	out := slices.Clone(turns)
	if last := turns[n-1]; last.Open || last.Role == backend.Raw {
		last.Parts = append(slices.Clip(last.Parts), part)
		out[n-1] = last
		return out
	}
	return append(out, backend.Turn{Role: backend.Assistant, Parts: []backend.Part{part}, Open: true})
}

// isCompletionModel reports whether an OpenAI model takes raw prompts.
func isCompletionModel(model string) bool {
	return strings.Contains(model, "instruct") || strings.HasPrefix(model, "davinci") || strings.HasPrefix(model, "babbage")
}
