package backend

import (
	"fmt"
	"regexp"
	"regexp/syntax"
)

// The bounds of StopRegex: they are looked for at each token, while others wait.
const (
	maxStopPatterns = 32
	maxStopPattern  = 256 // bytes of one
	maxStopProgram  = 256 // instructions of all
)

// CompileStops compiles the patterns of TokenRules.StopRegex, or says which is none.
func CompileStops(patterns []string) ([]*regexp.Regexp, error) {
	if len(patterns) > maxStopPatterns {
		return nil, fmt.Errorf("%w: %d patterns that stop, at most %d are allowed", ErrInvalid, len(patterns), maxStopPatterns)
	}
	var out []*regexp.Regexp
	size := 0
	for _, p := range patterns {
		if len(p) > maxStopPattern {
			return nil, fmt.Errorf("%w: a pattern that stops has %d bytes, at most %d are allowed", ErrInvalid, len(p), maxStopPattern)
		}
		tree, err := syntax.Parse(p, syntax.Perl)
		if err != nil {
			return nil, fmt.Errorf("%w: the pattern that stops %q: %w", ErrInvalid, p, err)
		}
		prog, err := syntax.Compile(tree.Simplify())
		if err != nil {
			return nil, fmt.Errorf("%w: the pattern that stops %q: %w", ErrInvalid, p, err)
		}
		if size += len(prog.Inst); size > maxStopProgram {
			return nil, fmt.Errorf("%w: the patterns that stop are too large together: each repetition counts as often as it repeats", ErrInvalid)
		}
		re, err := regexp.Compile(p)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: the pattern that stops %q: %w", ErrInvalid, p, err)
		case re.MatchString(""):
			return nil, fmt.Errorf("%w: the pattern that stops %q matches nothing at all, which is everywhere", ErrInvalid, p)
		case anchored(tree):
			return nil, fmt.Errorf("%w: the pattern that stops %q has an anchor to a beginning; it is looked for at the end of the text only", ErrInvalid, p)
		}
		out = append(out, re)
	}
	return out, nil
}

// anchored reports whether a pattern asks for the beginning of a text or a line.
func anchored(re *syntax.Regexp) bool {
	if re.Op == syntax.OpBeginText || re.Op == syntax.OpBeginLine {
		return true
	}
	for _, sub := range re.Sub {
		if anchored(sub) {
			return true
		}
	}
	return false
}
