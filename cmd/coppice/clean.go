package main

import (
	"strings"
	"unicode"
)

// What comes from inputs, models, servers and model files is written to people
// without what steers a terminal, and where a line says one thing, on one line,
// so that no text can pass for a line of ours. Results that go to a file or a
// pipe are data and stay as they are.

// oneLine makes text fit a line without control characters.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if breaksLine(c) || c == '\t' {
			return ' '
		}
		return shown(c)
	}, strings.TrimSpace(s))
}

// noControls is text of several lines without control characters.
func noControls(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '\n' || c == '\t' {
			return c
		}
		return shown(c)
	}, s)
}

// indented is noControls with all lines but the first set in, so that none of
// them looks like the beginning of something else.
func indented(s string) string {
	s = strings.Map(func(c rune) rune {
		if breaksLine(c) && c != '\r' {
			return '\n'
		}
		return c
	}, s)
	return strings.ReplaceAll(noControls(strings.TrimSpace(s)), "\n", "\n    ")
}

// harmless is a text that a model may have written as it may go to the results:
// to a terminal without the control characters that would steer it.
func (a *app) harmless(s string) string {
	if !a.screen {
		return s
	}
	return noControls(s)
}

// breaksLine reports whether a terminal or an editor may begin a line after c.
func breaksLine(c rune) bool {
	switch c {
	case '\n', '\r', '\v', '\f', 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

// shown is c, or -1 for what is not to be shown: control characters and those
// that make text run the other way.
func shown(c rune) rune {
	if unicode.IsControl(c) || c >= 0x202a && c <= 0x202e || c >= 0x2066 && c <= 0x2069 {
		return -1
	}
	return c
}
