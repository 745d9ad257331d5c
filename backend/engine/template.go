package engine

import (
	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// Template writes turns; package chat has them.
type Template interface {
	// Turn returns what stands before and after the content of a turn of role
	// that follows history. Text in it that spells control tokens is theirs
	// where the piece says so.
	Turn(history []backend.Turn, role backend.Role) (open, close []tokenizer.Piece, err error)
}

// plainTurns is the template of models that have none: lines of role, colon and
// content.
type plainTurns struct{}

func (plainTurns) Turn(_ []backend.Turn, role backend.Role) (open, close []tokenizer.Piece, err error) {
	return []tokenizer.Piece{{Text: string(role) + ": "}}, []tokenizer.Piece{{Text: "\n"}}, nil
}

// chatMLTurns is the template of models that have none but know ChatML's
// control tokens.
type chatMLTurns struct{}

func (chatMLTurns) Turn(_ []backend.Turn, role backend.Role) (open, close []tokenizer.Piece, err error) {
	return []tokenizer.Piece{{Text: "<|im_start|>" + string(role) + "\n", Special: true}},
		[]tokenizer.Piece{{Text: "<|im_end|>\n", Special: true}}, nil
}

// templateOf returns the template of a model file.
func templateOf(_ *gguf.File, tok *tokenizer.Tokenizer) (Template, error) {
	start, ok := tok.Lookup("<|im_start|>")
	end, ok2 := tok.Lookup("<|im_end|>")
	if ok && ok2 && tok.IsControl(start) && tok.IsControl(end) {
		return chatMLTurns{}, nil
	}
	return plainTurns{}, nil
}
