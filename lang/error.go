package lang

import (
	"sort"
	"strconv"
	"strings"
)

// Error is one thing that is wrong with a program: where it is, what it is and
// what to do about it.
type Error struct {
	Pos  Pos
	Node string // ID of the node, or empty
	Msg  string
	Hint string // what to do; may be empty
	// Snippet shows the place in an expression, a caret under it; may be empty.
	Snippet string

	// unknown: it reads what nothing sets, which a step that could not be read may.
	unknown bool
}

// Error returns "file.go:12: node: what is wrong: what to do", and the snippet on
// lines of its own.
func (e *Error) Error() string {
	var b strings.Builder
	if s := e.Pos.String(); s != "" {
		b.WriteString(s)
		b.WriteString(": ")
	}
	if e.Node != "" {
		b.WriteString(e.Node)
		b.WriteString(": ")
	}
	b.WriteString(e.Msg)
	if e.Hint != "" {
		b.WriteString(": ")
		b.WriteString(e.Hint)
	}
	if e.Snippet != "" {
		b.WriteByte('\n')
		b.WriteString(e.Snippet)
	}
	return b.String()
}

// Errors is everything that is wrong with a program, in the order of the
// source. It is never empty where it is returned as an error.
type Errors []*Error

// Error returns one line for each error.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap lets errors.Is and errors.As see each error.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// sorted orders errors by position and drops repeated ones.
func (es Errors) sorted() Errors {
	sort.SliceStable(es, func(i, j int) bool {
		a, b := es[i].Pos, es[j].Pos
		if a.File != b.File {
			return a.File < b.File
		}
		return a.Line < b.Line
	})
	out := es[:0]
	seen := make(map[Error]bool, len(es))
	for _, e := range es {
		if !seen[*e] {
			seen[*e] = true
			out = append(out, e)
		}
	}
	return out
}

// err returns nil for an empty list, so that an empty Errors is no error.
func (es Errors) err() error {
	if len(es) == 0 {
		return nil
	}
	return es.sorted()
}

// String returns "file:line", or what of it is known.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return p.File + ":" + strconv.Itoa(p.Line)
}

// nearest returns the name in names that is most like name, or "" if none is
// like it.
func nearest(name string, names []string) string {
	limit := 0 // only case differs in names of one letter
	switch n := len(name); {
	case n > 8:
		limit = 3
	case n > 4:
		limit = 2
	case n > 1:
		limit = 1
	}
	best, bestDist := "", limit+1
	for _, n := range names {
		if d := editDistance(name, n, limit+1); d < bestDist || d == bestDist && d <= limit && n < best {
			best, bestDist = n, d
		}
	}
	return best
}

// editDistance returns the number of inserted, deleted, changed or swapped
// bytes between a and b, or a number >= limit if there are that many.
func editDistance(a, b string, limit int) int {
	if a == b {
		return 0
	}
	if strings.EqualFold(a, b) {
		return 0
	}
	if len(a) > 64 || len(b) > 64 || abs(len(a)-len(b)) >= limit {
		return limit
	}
	prev2 := make([]int, len(b)+1)
	prev := make([]int, len(b)+1)
	cur := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}

func abs(n int) int {
	if n < 0 {
		return -n
	}
	return n
}

// didYouMean returns a hint that names the nearest of names, or lists them.
func didYouMean(name string, names []string) string {
	if n := nearest(name, names); n != "" {
		return "did you mean " + strconv.Quote(n) + "?"
	}
	if len(names) == 0 {
		return ""
	}
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = strconv.Quote(n)
	}
	if len(names) == 1 {
		return "there is only " + quoted[0]
	}
	return "there is " + list(quoted)
}

// list writes names as a short sorted enumeration.
func list(names []string) string {
	s := append([]string(nil), names...)
	sort.Strings(s)
	const most = 12
	if len(s) > most {
		return strings.Join(s[:most], ", ") + " and " + strconv.Itoa(len(s)-most) + " more"
	}
	return strings.Join(s, ", ")
}
