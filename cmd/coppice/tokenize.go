package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

func (a *app) tokenizeCmd() *cobra.Command {
	var (
		m            modelFlags
		chatFile     string
		bos, noParse bool
		asJSON       bool
	)
	c := &cobra.Command{
		Use:   "tokenize [TEXT]",
		Short: "Show the token ids of a text or a chat",
		Long: `Show the token ids of a text, or of a chat rendered by the model's template,
or by what a run uses for a model that has none.

The text of a control token (such as <|im_end|>) becomes that token unless
--no-special is given; inside the messages of a chat it never does. No
beginning-of-text token is added to TEXT unless --bos asks for it.

F.json of --chat is a list of {"role", "content"} or an object with "messages".`,
		Args: func(cmd *cobra.Command, args []string) error {
			if chatFile != "" {
				return exactly()(cmd, args)
			}
			return exactly("TEXT")(cmd, args)
		},
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := m.openGGUF()
			if err != nil {
				return err
			}
			defer f.Close()
			tok, err := tokenizer.FromGGUF(f)
			if err != nil {
				return err
			}
			var pieces []tokenizer.Piece
			if chatFile != "" {
				var which backend.Template
				if pieces, which, err = renderChat(f, tok, chatFile); err != nil {
					return err
				}
				if note := templateNote(which); note != "" {
					fmt.Fprintln(a.errOut, note)
				}
			} else {
				pieces = []tokenizer.Piece{{Text: args[0], Special: !noParse}}
			}
			ids := tok.EncodePieces(pieces)
			if id, ok := tok.BOS(); ok && bos && (len(ids) == 0 || ids[0] != id) {
				ids = append([]tokenizer.Token{id}, ids...)
			}
			var text strings.Builder
			for _, p := range pieces {
				text.WriteString(p.Text)
			}
			if ids == nil {
				ids = []tokenizer.Token{}
			}
			if asJSON {
				return a.printJSON(struct {
					IDs  []tokenizer.Token `json:"ids"`
					Text string            `json:"text"`
				}{ids, text.String()})
			}
			for _, id := range ids {
				fmt.Fprintf(a.out, "%7d  %q\n", id, tok.Text(id))
			}
			fmt.Fprintf(a.errOut, "%d tokens\n", len(ids))
			return nil
		},
	}
	m.register(c)
	c.Flags().StringVar(&chatFile, "chat", "", "render the messages of this JSON file instead of a text")
	c.Flags().BoolVar(&bos, "bos", false, "begin with the model's beginning-of-text token, if it has one")
	c.Flags().BoolVar(&noParse, "no-special", false, "treat the text of control tokens as plain text")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// renderChat renders the messages of a file with what an engine uses for the
// model.
func renderChat(f *gguf.File, tok *tokenizer.Tokenizer, path string) ([]tokenizer.Piece, backend.Template, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, "", usageError{err}
	}
	var doc struct {
		Messages []chat.Message  `json:"messages"`
		Tools    json.RawMessage `json:"tools"`
	}
	if strings.HasPrefix(strings.TrimSpace(string(data)), "[") {
		err = json.Unmarshal(data, &doc.Messages)
	} else {
		err = json.Unmarshal(data, &doc)
	}
	if err != nil {
		return nil, "", usagef("%s:%d: %w: it is to be a list of {\"role\", \"content\"} or an object with \"messages\"", path, lineOf(data, err), err)
	}
	t, which, err := engine.FileTemplate(f, tok)
	if err != nil {
		return nil, "", err
	}
	if t == nil {
		pieces, err := plainChat(tok, doc.Messages)
		return pieces, which, err
	}
	pieces, err := t.Render(doc.Messages, chat.Options{AddGenerationPrompt: true, Tools: doc.Tools})
	if errors.Is(err, chat.ErrTemplate) { // it refuses these messages
		err = usagef("%s: %w", path, err)
	}
	return pieces, which, err
}

// plainChat is a chat as an engine writes it for a model without a template.
func plainChat(tok *tokenizer.Tokenizer, messages []chat.Message) (pieces []tokenizer.Piece, err error) {
	if id, ok := tok.BOS(); ok && tok.AddBOS() {
		pieces = append(pieces, tokenizer.Piece{Text: tok.Text(id), Special: true})
	}
	t := engine.PlainTemplate()
	for _, m := range messages {
		around, err := t.Turn(nil, backend.Role(m.Role))
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, around.Open...)
		pieces = append(pieces, tokenizer.Piece{Text: m.Content})
		pieces = append(pieces, around.Close...)
	}
	answer, err := t.Turn(nil, backend.Assistant)
	return append(pieces, answer.Open...), err
}

// lineOf is the line of a JSON document that an error of reading it is about.
func lineOf(data []byte, err error) int {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
		at     int64
	)
	switch {
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.As(err, &kind):
		at = kind.Offset
	}
	return 1 + bytes.Count(data[:min(max(int(at), 0), len(data))], []byte{'\n'})
}
