package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// view shows a run while it goes. On a terminal it redraws a tree of the
// branches; elsewhere it writes a plain line for each finished node. It is the
// run's event sink: Emit only notes what happened, drawing is done beside it.
type view struct {
	w     io.Writer
	model string
	name  string
	live  bool
	quiet bool

	mu    sync.Mutex
	rows  []*viewRow
	byID  map[string]*viewRow
	begun time.Time

	drawn int // lines on the screen
	stop  chan struct{}
	done  chan struct{}
}

// viewRow is a node, or the head line of a branch's node.
type viewRow struct {
	id, label string
	text      strings.Builder
	state     byte // '.' running, '+' done, '!' failed, '-' cancelled
	note      string
	done      int // tokens of the prompt computed so far
	total     int // tokens of the prompt, 0 if unknown
}

const frameTime = 80 * time.Millisecond

// newView shows a run of g on w. Without a terminal it is quiet if the result is
// JSON.
func newView(w io.Writer, g *lang.Graph, model string, asJSON bool) *view {
	v := &view{w: w, model: model, name: g.Name, byID: map[string]*viewRow{}, begun: time.Now()}
	f, ok := w.(*os.File)
	v.live = ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
	v.quiet = asJSON && !v.live
	if v.live {
		v.stop, v.done = make(chan struct{}), make(chan struct{})
		go v.loop(f)
	}
	return v
}

// Emit takes an event of the run.
func (v *view) Emit(e runtime.Event) {
	if v.quiet {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch e.Kind {
	case runtime.BranchStarted:
		v.row(e.Branch).label = e.Label
	case runtime.NodeStarted:
		r := v.row(e.Task)
		r.state = '.'
		if r.label == "" {
			r.label = v.labelOf(e.Branch)
		}
	case runtime.PromptProgress:
		r := v.row(e.Task)
		r.done, r.total = e.Done, e.Total
	case runtime.TextDelta:
		v.row(e.Task).text.WriteString(e.Text)
	case runtime.NodeFinished:
		v.finish(e)
	case runtime.NodeRetried:
		r := v.row(e.Task)
		r.text.Reset()
		r.note = fmt.Sprintf(" (attempt %d failed)", e.Attempt)
		if !v.live {
			fmt.Fprintf(v.w, "%s%s: attempt %d failed: %s\n", r.id, r.labelText(), e.Attempt, oneLine(e.Error))
		}
	case runtime.NodeRefused:
		r := v.row(e.Task)
		r.note = " (refused: " + e.Error + ")"
		if !v.live {
			fmt.Fprintf(v.w, "%s%s: refused: %s\n", r.id, r.labelText(), oneLine(e.Error))
		}
	case runtime.NodeCancelled:
		v.row(e.Task).state = '-'
	case runtime.RunFinished, runtime.RunFailed:
	}
}

func (v *view) finish(e runtime.Event) {
	r := v.row(e.Task)
	r.text.Reset()
	switch {
	case e.Error != "":
		r.state = '!'
		r.text.WriteString(e.Error)
	case e.Value != nil:
		r.state = '+'
		r.text.Write(e.Value)
	default:
		r.state = '+'
		r.text.WriteString(e.Text)
	}
	if r.label == "" {
		r.label = v.labelOf(e.Branch)
	}
	for _, s := range e.Scores {
		if s.Option == e.Text {
			r.note = fmt.Sprintf(" (p %.2f)", s.P)
		}
	}
	if e.Restored > 0 {
		r.note += " (from the journal)"
	}
	if !v.live {
		fmt.Fprintf(v.w, "%s%s: %s%s\n", r.id, r.labelText(), oneLine(r.text.String()), r.note)
	}
}

func (v *view) labelOf(branch string) string {
	if r := v.byID[branch]; r != nil {
		return r.label
	}
	return ""
}

func (r *viewRow) labelText() string {
	if r.label == "" {
		return ""
	}
	return " " + r.label
}

// row returns the row of a branch or node. Rows stand in the order they began,
// a branch's nodes behind its head.
func (v *view) row(id string) *viewRow {
	if r := v.byID[id]; r != nil {
		return r
	}
	r := &viewRow{id: id}
	v.byID[id] = r
	at := len(v.rows)
	if head, _, ok := cutLast(id, "/"); ok {
		for i := len(v.rows) - 1; i >= 0; i-- {
			if v.rows[i].id == head || strings.HasPrefix(v.rows[i].id, head+"/") {
				at = i + 1
				break
			}
		}
	}
	v.rows = append(v.rows[:at], append([]*viewRow{r}, v.rows[at:]...)...)
	return r
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

// loop redraws until close.
func (v *view) loop(f *os.File) {
	defer close(v.done)
	tick := time.NewTicker(frameTime)
	defer tick.Stop()
	for n := 0; ; n++ {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil || width < 20 || height < 5 {
			width, height = 80, 24
		}
		select {
		case <-v.stop:
			v.draw(width, height, -1)
			return
		case <-tick.C:
			v.draw(width, height, n)
		}
	}
}

// close draws the last state and stops drawing.
func (v *view) close() {
	if v.live {
		close(v.stop)
		<-v.done
	}
}

var spinner = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// draw replaces what it drew before; frame -1 is the last.
func (v *view) draw(width, height, frame int) {
	v.mu.Lock()
	var lines []string
	for _, r := range v.rows {
		if r.state == 0 {
			continue // a branch's head: its nodes name it
		}
		lines = append(lines, r.line(width-1, frame))
	}
	v.mu.Unlock()
	// What does not fit on the screen cannot be redrawn: the end counts.
	if room := height - 3; len(lines) > room {
		cut := len(lines) - room
		lines = append([]string{fmt.Sprintf("  … %d more above", cut+1)}, lines[cut+1:]...)
	}
	head := fmt.Sprintf("%s on %s  %.1fs", v.name, v.model, time.Since(v.begun).Seconds())
	lines = append([]string{"\x1b[1m" + runewidth.Truncate(head, width-1, "…") + "\x1b[0m"}, lines...)
	var b strings.Builder
	if v.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", v.drawn)
	}
	b.WriteString("\x1b[J")
	for _, l := range lines {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	if frame < 0 {
		b.WriteByte('\n')
	}
	v.drawn = len(lines)
	_, _ = io.WriteString(v.w, b.String())
}

// line is a row as text of at most width columns.
func (r *viewRow) line(width, frame int) string {
	mark, colour := spinner[(max(frame, 0))%len(spinner)], "36"
	switch r.state {
	case '+':
		mark, colour = "✓", "32"
	case '!':
		mark, colour = "✗", "31"
	case '-':
		mark, colour = "–", "90"
	}
	head := r.id + r.labelText()
	text := oneLine(r.text.String())
	if r.state == '.' && text == "" {
		text = "waiting"
		if r.total > 0 {
			text = fmt.Sprintf("reading %s %s of %s tokens", bar(r.done, r.total, 16), thousands(r.done), thousands(r.total))
		}
	}
	text += r.note
	room := width - 4 - runewidth.StringWidth(head) - 2
	if room < 10 {
		head = runewidth.Truncate(head, max(width/2, 1), "…")
		room = width - 4 - runewidth.StringWidth(head) - 2
	}
	if runewidth.StringWidth(text) > room {
		if r.state == '.' {
			// Of a text that grows, the end is news.
			text = "…" + runewidth.TruncateLeft(text, runewidth.StringWidth(text)-room+1, "")
		} else {
			text = runewidth.Truncate(text, room, "…")
		}
	}
	return fmt.Sprintf("  \x1b[%sm%s\x1b[0m %s  \x1b[2m%s\x1b[0m", colour, mark, head, text)
}

// bar draws done of total over width columns.
func bar(done, total, width int) string {
	n := min(done*width/max(total, 1), width)
	return strings.Repeat("█", n) + strings.Repeat("░", width-n)
}

// oneLine makes text fit a line and keeps control characters of a model's
// output away from the terminal.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '\n' || c == '\t' {
			return ' '
		}
		if c < 0x20 || c >= 0x7f && c < 0xa0 {
			return -1
		}
		return c
	}, strings.TrimSpace(s))
}
