package engine

import (
	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
)

// reach is the number of tokens from which on any end that can be found is within
// the limit: no text that leads to one has more bytes.
const reach = grammar.LongestEnding

// close returns t, which was drawn to follow output, or, if with t the text could
// not come to an end within the limit, a token that leads to one. It looks ahead by
// the constraint alone, so that what is written does not depend on how it is computed.
func (g *generation) close(t backend.Token, output []backend.Token) backend.Token {
	left := g.limit - g.generated()
	if !g.closing || left > reach || g.engine.isEnd(t) || g.rules.stops(t) {
		return t
	}
	next, err := g.state.Accept(t)
	if err != nil || next.EndsWithin(left-1) {
		return t // if it is refused, take says so
	}
	way, ok := g.state.Ending(left)
	switch {
	case !ok: // it is cut
		g.closing = false
		return t
	case len(way) > 0:
		if !g.rules.permits(way[0], output) {
			return t
		}
		t = way[0]
	case len(g.engine.end) > 0:
		t = g.engine.end[0]
	}
	g.closed++
	return t
}
