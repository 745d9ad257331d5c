package remote

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-run/coppice/backend"
)

// llamaPrompt writes a prompt for /completion: text, or for a raw prompt that
// holds generated ids a list of texts and ids.
func (b *Backend) llamaPrompt(ctx context.Context, turns []backend.Turn, raw bool) (any, error) {
	if !raw {
		pieces, err := b.llamaChat(ctx, turns)
		if err != nil {
			return nil, err
		}
		if len(pieces) == 1 {
			return pieces[0].Text, nil
		}
		return mixedPrompt(pieces), nil
	}
	pieces := runs(turns, b.info.Fingerprint)
	if len(pieces) > 0 {
		pieces[0].Tokens = nil // the beginning goes as text, for the BOS token
	}
	if !slices.ContainsFunc(pieces, func(p backend.Part) bool { return p.Tokens != nil }) {
		return rawText(turns), nil
	}
	return mixedPrompt(pieces), nil
}

// mixedPrompt writes pieces as the server's list of texts and ids.
func mixedPrompt(pieces []backend.Part) []any {
	var mixed []any
	for _, p := range pieces {
		if p.Tokens == nil {
			mixed = append(mixed, p.Text)
			continue
		}
		for _, id := range p.Tokens {
			mixed = append(mixed, id)
		}
	}
	return mixed
}

// joinTexts makes one of texts that stand side by side: a list of texts without an id
// is several prompts to the server.
func joinTexts(pieces []backend.Part) []backend.Part {
	var out []backend.Part
	for _, p := range pieces {
		if n := len(out); n > 0 && out[n-1].Tokens == nil && p.Tokens == nil {
			out[n-1].Text += p.Text
			continue
		}
		out = append(out, p)
	}
	return out
}

// llamaChat renders chat turns as pieces of text, in which the names of control
// tokens are control tokens, and of ids. The server would read such names in
// the content of a turn, too, so that a user could end the turn and begin one
// of the system. A content that holds one is therefore tokenised apart, with
// the names as plain text, and put where the template printed a placeholder.
func (b *Backend) llamaChat(ctx context.Context, turns []backend.Turn) ([]backend.Part, error) {
	n := len(turns)
	if open(turns) && answered(turns[:n-1]) {
		// The server continues an assistant turn only after a user's.
		pieces, err := b.llamaChat(ctx, turns[:n-1])
		return joinTexts(append(pieces, backend.Part{Text: turns[n-1].Text()})), err
	}
	plain := slices.Clone(turns)
	var marks []string
	var contents []backend.Part
	again := answered(turns)
	for i, t := range turns {
		content := t.Text()
		last := again && i == n-1
		if !last && !strings.ContainsAny(content, "<[") { // what such names begin with
			continue
		}
		ids, err := b.llamaTokenize(ctx, content, false, false)
		if err != nil {
			return nil, err
		}
		special, err := b.llamaTokenize(ctx, content, false, true)
		if err != nil {
			return nil, err
		}
		if slices.Equal(ids, special) {
			if !last {
				continue
			}
			ids = nil
		}
		mark := "contentofturn" + strconv.Itoa(i) + "here"
		for _, t := range turns {
			if strings.Contains(t.Text(), mark) {
				return nil, invalidf("turn %d holds a control token's name, and a turn holds %q, which would stand for it", i, mark)
			}
		}
		marks = append(marks, mark)
		contents = append(contents, backend.Part{Text: content, Tokens: ids})
		plain[i].Parts = []backend.Part{{Text: mark}}
	}
	if again {
		plain = append(plain, text(backend.User, nextMark))
	}
	rest, err := b.llamaTemplate(ctx, plain)
	if err != nil {
		return nil, err
	}
	var pieces []backend.Part
	for i, mark := range marks {
		before, after, found := strings.Cut(rest, mark)
		if !found || strings.Contains(after, mark) {
			return nil, unsupportedf("a turn holds a control token's name, and the model's template does not print that turn once and in its place")
		}
		if before != "" {
			pieces = append(pieces, backend.Part{Text: before})
		}
		pieces = append(pieces, contents[i])
		rest = after
	}
	if again {
		if rest, err = newTurn(rest); err != nil {
			return nil, err
		}
	}
	if rest != "" || pieces == nil {
		pieces = append(pieces, backend.Part{Text: rest})
	}
	return joinTexts(pieces), nil
}

// nextMark stands for the content of a user turn that follows.
const nextMark = "contentofnextturnhere"

// newTurn returns what ends an assistant turn and begins another. The server
// would go on with the first one; so it was asked to render a user turn after
// it, and then an assistant's. Where both kinds of turn end alike, what follows
// the user turn is what is looked for:
//
//	<|im_end|>\n<|im_start|>user\n MARK <|im_end|>\n<|im_start|>assistant\n
//
// Where they do not, it is refused.
func newTurn(rest string) (string, error) {
	close, next, found := strings.Cut(rest, nextMark)
	if !found {
		return "", unsupportedf("the model's template does not print a user turn in its place")
	}
	if close != "" && next != "" && close[0] == next[0] && sharedPrefix(close, next) > 1 {
		return next, nil
	}
	return "", unsupportedf("the model's template ends turns of users and of assistants differently, so that one assistant turn cannot follow another; put a user turn between them")
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// llamaIDs returns the ids of a prompt.
func (b *Backend) llamaIDs(ctx context.Context, turns []backend.Turn, raw bool) ([]backend.Token, error) {
	if raw {
		return b.llamaTokenize(ctx, rawText(turns), true, true)
	}
	pieces, err := b.llamaChat(ctx, turns)
	if err != nil {
		return nil, err
	}
	var ids []backend.Token
	for i, p := range pieces {
		if p.Tokens == nil {
			if p.Tokens, err = b.llamaTokenize(ctx, p.Text, i == 0, true); err != nil {
				return nil, err
			}
		}
		ids = append(ids, p.Tokens...)
	}
	return ids, nil
}

type llamaMessage struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	ToolCallID string `json:"tool_call_id,omitempty"`
}

// llamaTemplate renders chat turns by the model's template, which the server
// keeps.
func (b *Backend) llamaTemplate(ctx context.Context, turns []backend.Turn) (string, error) {
	msgs := make([]llamaMessage, len(turns))
	for i, t := range turns {
		msgs[i] = llamaMessage{Role: string(t.Role), Content: t.Text()}
		if t.Role == backend.Tool {
			msgs[i].ToolCallID = "call_" + strconv.Itoa(i)
		}
	}
	var out struct {
		Prompt string `json:"prompt"`
	}
	if err := b.srv.post(ctx, b.srv.root, "apply-template", map[string]any{"messages": msgs}, &out); err != nil {
		return "", err
	}
	if open(turns) && !strings.HasSuffix(out.Prompt, turns[len(turns)-1].Text()) {
		return "", unsupportedf("this llama-server closes the last assistant turn instead of leaving it open; use a newer one")
	}
	return out.Prompt, nil
}

// llamaTokenize returns the ids of a text; start adds what begins a prompt, and
// special reads the names of control tokens as such.
func (b *Backend) llamaTokenize(ctx context.Context, text string, start, special bool) ([]backend.Token, error) {
	var out struct {
		Tokens []backend.Token `json:"tokens"`
	}
	in := map[string]any{"content": text, "add_special": start, "parse_special": special}
	err := b.srv.post(ctx, b.srv.root, "tokenize", in, &out)
	return out.Tokens, err
}

func (b *Backend) llamaDetokenize(ctx context.Context, ids []backend.Token) (string, error) {
	var out struct {
		Content string `json:"content"`
	}
	err := b.srv.post(ctx, b.srv.root, "detokenize", map[string]any{"tokens": ids}, &out)
	return out.Content, err
}
