package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/chat"
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
		Long: `Show the token ids of a text, or of a chat rendered by the model's template.

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
				if pieces, err = renderChat(f, chatFile); err != nil {
					return err
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

// renderChat renders the messages of a file with the model's own template.
func renderChat(f *gguf.File, path string) ([]tokenizer.Piece, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, usageError{err}
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
		return nil, usagef("%s: %w", path, err)
	}
	t, err := chat.FromGGUF(f)
	if err != nil {
		return nil, err
	}
	return t.Render(doc.Messages, chat.Options{AddGenerationPrompt: true, Tools: doc.Tools})
}
