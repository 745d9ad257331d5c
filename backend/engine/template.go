package engine

import (
	"errors"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// Template writes turns; package chat has them.
type Template interface {
	// Turn returns what stands before and after the content of a turn of role
	// that follows history. Text in it that spells control tokens is theirs
	// where the piece says so.
	Turn(history []backend.Turn, role backend.Role) (open, close []tokenizer.Piece, err error)
}

// plainTurns is the template of models that have none.
type plainTurns struct{}

func (plainTurns) turn(_ []backend.Turn, role backend.Role) (open, close []tokenizer.Piece, err error) {
	return []tokenizer.Piece{{Text: string(role) + ": "}}, []tokenizer.Piece{{Text: "\n"}}, nil
}

type templateTurns struct{ t Template }

func (t templateTurns) turn(history []backend.Turn, role backend.Role) (open, close []tokenizer.Piece, err error) {
	return t.t.Turn(history, role)
}

func newTurnTemplate(t Template, _ Tokenizer) turnTemplate {
	if t == nil {
		return plainTurns{}
	}
	return templateTurns{t}
}

var errTODO = errors.New("todo")
