package serve

import (
	"strconv"
	"strings"

	"github.com/coppice-run/coppice/runtime"
)

// uiTexts follows the texts of a run for protocols that send each piece once and
// cannot take one back. An attempt that is repeated gets a text of its own.
type uiTexts struct {
	run      string
	open     map[string]*uiText // by task
	tries    map[string]int     // attempts that failed, by task
	branches map[string]bool    // that began
}

// uiText is a text that has begun and not ended.
type uiText struct {
	id     string
	branch string
	sent   int // bytes
}

func newUITexts(run string) uiTexts {
	return uiTexts{run: run, open: map[string]*uiText{}, tries: map[string]int{}, branches: map[string]bool{}}
}

// id names the text of a task, in all runs.
func (u *uiTexts) id(task string) string {
	id := u.run + ":" + task
	if n := u.tries[task]; n > 0 {
		id += "#" + strconv.Itoa(n+1)
	}
	return id
}

// add takes a piece that begins at byte offset of its text. It returns the part
// of it that was not sent before, and whether the text begins with it.
func (u *uiTexts) add(e runtime.Event, text string, offset int) (t *uiText, piece string, begins bool) {
	t = u.open[e.Task]
	if t == nil {
		t, begins = &uiText{id: u.id(e.Task), branch: e.Branch}, true
		u.open[e.Task] = t
	}
	if skip := t.sent - offset; skip < len(text) {
		piece = text[max(0, skip):]
		t.sent = offset + len(text)
	}
	return t, piece, begins
}

// end closes the text of a task; nil if none is open.
func (u *uiTexts) end(task string) *uiText {
	t := u.open[task]
	delete(u.open, task)
	return t
}

// begin notes a branch and returns the one that it began in, "" for the trunk:
// the longest known beginning of its id.
func (u *uiTexts) begin(branch string) (parent string) {
	for at := strings.LastIndexByte(branch, '/'); at > 0; at = strings.LastIndexByte(branch[:at], '/') {
		if u.branches[branch[:at]] {
			parent = branch[:at]
			break
		}
	}
	u.branches[branch] = true
	return parent
}

// texts reports whether a finished node has a text that a model wrote.
func texts(e runtime.Event) bool {
	return e.Text != "" && e.Scores == nil && e.Error == ""
}
