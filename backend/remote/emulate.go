package remote

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend"
)

// generateChecked runs c until its answer passes c's check:
//
//	ask -> check -> done
//	  ^      |
//	  +------+ with the answer and what is wrong with it, Tries times in all
//
// Where the server enforces the constraint the first answer passes and the
// check is only a check.
func (b *Backend) generateChecked(ctx context.Context, c *call, emit func(backend.Delta)) (*backend.Result, error) {
	if c.check == nil {
		return b.run(ctx, c, emit)
	}
	var total backend.Usage
	if c.how == retried {
		c = c.instructed()
	}
	for try := 1; ; try++ {
		live := emit
		if c.hold {
			live = nil
		}
		res, err := b.run(ctx, c, live)
		if err != nil {
			return nil, err
		}
		addUsage(&total, &res.Usage)
		passes := res.Usage.Passes
		res.Usage = total
		res.Usage.Passes = passes

		text, err := c.check(res.Part.Text)
		if err != nil && res.Finish == backend.FinishLength && c.how != asSchema {
			// Cut short is not wrong: the caller sees the reason.
			text, err = res.Part.Text, nil
		}
		if err == nil {
			if text != res.Part.Text && c.hold {
				res.Part = backend.Part{Text: text}
			}
			if c.hold && emit != nil && res.Part.Text != "" {
				emit(backend.Delta{Text: res.Part.Text, Tokens: res.Part.Tokens})
			}
			if how := c.emulated(try); how != "" {
				res.Emulated = append(res.Emulated, how)
			}
			return res, nil
		}
		switch {
		case res.ContextFull > 0:
			return nil, invalidf("%s: the context of %d tokens was full before the answer was whole, and %d of them are the prompt: shorten the prompt or ask for less", c.kind, res.ContextFull, res.Usage.PromptTokens)
		case res.Finish == backend.FinishLength:
			return nil, invalidf("%s: the answer was cut at MaxTokens before it was whole; raise the limit", c.kind)
		case !c.hold:
			return nil, unsupportedf("%s: the server did not enforce it, and its answer is already streamed: %v", c.kind, oneLine(err))
		case b.opts.NoEmulation:
			return nil, unsupportedf("%s: the server did not enforce it: %v", c.kind, oneLine(err))
		case try >= b.opts.Tries:
			return nil, unsupportedf("%s: no answer passed in %s: %v", c.kind, count(try, "try", "tries"), oneLine(err))
		}
		c = c.again(res.Part.Text, err)
	}
}

// emulated describes how the constraint was met, "" if by the server.
func (c *call) emulated(tries int) string {
	switch {
	case c.how == retried:
		return c.kind + ": validated, " + count(tries, "try", "tries")
	case c.how == asSchema && tries == 1:
		return c.kind + ": a one-field schema"
	case c.how == asSchema:
		return c.kind + ": a one-field schema, " + count(tries, "try", "tries")
	case tries > 1:
		return c.kind + ": not enforced by the server; validated, " + count(tries, "try", "tries")
	}
	return ""
}

// instructed returns c with the constraint told to the model in words, at the
// end of the last user turn or in a new one.
func (c *call) instructed() *call {
	k := &c.req.Constraint
	var words string
	switch c.kind {
	case "json_schema":
		words = "Answer with one JSON value that matches this JSON Schema and nothing else:\n" + string(k.JSONSchema)
	case "regex":
		words = "Answer with text that matches this regular expression as a whole, and nothing else:\n" + k.Regex
	case "choices":
		words = "Answer with exactly one of these lines and nothing else:\n" + strings.Join(k.Choices, "\n")
	}
	out := *c
	out.turns = slices.Clone(c.turns)
	n := len(out.turns)
	if last := out.turns[n-1]; last.Role == backend.User {
		last.Parts = append(slices.Clip(last.Parts), backend.Part{Text: "\n\n" + words})
		out.turns[n-1] = last
		return &out
	}
	out.turns = append(out.turns, text(backend.User, words))
	return &out
}

// again returns c with a wrong answer and what is wrong with it appended.
func (c *call) again(answer string, why error) *call {
	out := *c
	out.turns = append(slices.Clip(c.turns),
		text(backend.Assistant, answer),
		text(backend.User, "That answer does not fit: "+oneLine(why)+"."))
	return out.instructed()
}

func text(role backend.Role, s string) backend.Turn {
	return backend.Turn{Role: role, Parts: []backend.Part{{Text: s}}}
}

// oneLine bounds a validator's report.
func oneLine(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	if len(s) > 400 {
		s = strings.ToValidUTF8(s[:400], "") + "..."
	}
	return s
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}
