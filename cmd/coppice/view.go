package main

import (
	"fmt"
	"io"
	"os"
	goruntime "runtime"
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
	style style

	mu       sync.Mutex
	rows     []*viewRow
	byID     map[string]*viewRow
	begun    time.Time
	finished int // nodes that ended well

	drawn []int // columns of the lines on the screen
	stop  chan struct{}
	done  chan struct{}
}

// style is what a terminal can show.
type style struct {
	colour bool
	ascii  bool // no letters beyond it
}

// styleOf reads what the environment says of the terminal: NO_COLOR, and the
// character set of the locale.
func styleOf(getenv func(string) string) style {
	s := style{colour: getenv("NO_COLOR") == ""}
	for _, k := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(getenv(k)); v != "" {
			s.ascii = !strings.Contains(v, "utf-8") && !strings.Contains(v, "utf8")
			break
		}
	}
	return s
}

// paint puts text in a colour or weight, where there is any.
func (s style) paint(code, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// pick is the sign for what is said twice, by whether the terminal has it.
func (s style) pick(sign, ascii string) string {
	if s.ascii {
		return ascii
	}
	return sign
}

// viewRow is a node, or the head line of a branch's node.
type viewRow struct {
	id, label string // the label is clean
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
	v := &view{w: w, model: oneLine(model), name: oneLine(g.Name), byID: map[string]*viewRow{}, begun: time.Now()}
	v.style = styleOf(os.Getenv)
	v.live = isTerminal(w) && !dumb(os.Getenv("TERM"))
	v.quiet = asJSON && !v.live
	if v.live {
		v.stop, v.done = make(chan struct{}), make(chan struct{})
		go v.loop(w.(*os.File))
	}
	return v
}

// dumb reports whether a terminal of that kind cannot move its cursor. Windows
// names none.
func dumb(kind string) bool { return kind == "dumb" || kind == "" && goruntime.GOOS != "windows" }

// Emit takes an event of the run.
func (v *view) Emit(e runtime.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if e.Kind == runtime.NodeFinished && e.Error == "" {
		v.finished++
	}
	if v.quiet {
		return
	}
	switch e.Kind {
	case runtime.BranchStarted:
		v.row(e.Branch).label = oneLine(e.Label)
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
			fmt.Fprintf(v.w, "%s: attempt %d failed: %s\n", r.head(), e.Attempt, oneLine(e.Error))
		}
	case runtime.NodeRefused:
		r := v.row(e.Task)
		r.note = " (refused: " + oneLine(e.Error) + ")"
		if !v.live {
			fmt.Fprintf(v.w, "%s: refused: %s\n", r.head(), oneLine(e.Error))
		}
	case runtime.NodeCancelled:
		v.row(e.Task).state = '-'
	case runtime.RunFinished, runtime.RunFailed:
	}
}

// count is the number of nodes that ended well.
func (v *view) count() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.finished
}

func (v *view) finish(e runtime.Event) {
	r := v.row(e.Task)
	r.text.Reset()
	switch {
	case e.Error != "":
		r.state = '!'
		r.text.WriteString(strings.TrimPrefix(e.Error, e.Task+": ")) // it stands before it
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
		failed := ""
		if e.Error != "" {
			failed = "failed: "
		}
		fmt.Fprintf(v.w, "%s: %s%s%s\n", r.head(), failed, oneLine(r.text.String()), r.note)
	}
}

func (v *view) labelOf(branch string) string {
	if r := v.byID[branch]; r != nil {
		return r.label
	}
	return ""
}

// head names the row.
func (r *viewRow) head() string {
	if r.label == "" {
		return oneLine(r.id)
	}
	return oneLine(r.id) + " " + r.label
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
		if err != nil || width <= 0 || height <= 0 {
			width, height = 80, 24 // it does not say
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

var (
	spinner      = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}
	spinnerASCII = []string{"|", "/", "-", "\\"}
)

// draw replaces what it drew before; frame -1 is the last.
func (v *view) draw(width, height, frame int) {
	lines, columns := v.lines(width-1, height, frame)
	var b strings.Builder
	// Lines that a narrower window has broken since take as many rows more.
	up := 0
	for _, n := range v.drawn {
		up += max(1, (n+width-1)/width)
	}
	if up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r", up)
	}
	b.WriteString("\x1b[J")
	for _, l := range lines {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	if frame < 0 {
		b.WriteByte('\n')
	}
	v.drawn = columns
	_, _ = io.WriteString(v.w, b.String())
}

// lines is what draw shows, each line of at most width columns, and the columns
// that each takes.
func (v *view) lines(width, height, frame int) (lines []string, columns []int) {
	dots := v.style.pick("…", "...")
	add := func(plain, painted string) {
		lines, columns = append(lines, painted), append(columns, runewidth.StringWidth(plain))
	}
	head := runewidth.Truncate(fmt.Sprintf("%s on %s  %.1fs", v.name, v.model, time.Since(v.begun).Seconds()), width, "")
	add(head, v.style.paint("1", head))
	v.mu.Lock()
	defer v.mu.Unlock()
	var rows []*viewRow
	for _, r := range v.rows {
		if r.state != 0 { // a branch's head: its nodes name it
			rows = append(rows, r)
		}
	}
	// What does not fit on the screen cannot be redrawn: the end counts, until
	// the last time.
	if room := max(height-3, 0); frame >= 0 && len(rows) > room {
		cut := min(len(rows)-room+1, len(rows))
		rows = rows[cut:]
		if room > 0 {
			more := runewidth.Truncate(fmt.Sprintf("  %s %d more above", dots, cut), width, "")
			add(more, more)
		}
	}
	for _, r := range rows {
		add(r.line(width, frame, v.style))
	}
	return lines, columns
}

// line is a row as text of at most width columns, plain and in colours.
func (r *viewRow) line(width, frame int, s style) (plain, painted string) {
	spin, dots := spinner, s.pick("…", "...")
	if s.ascii {
		spin = spinnerASCII
	}
	mark, colour := spin[(max(frame, 0))%len(spin)], "36"
	switch r.state {
	case '+':
		mark, colour = s.pick("✓", "+"), "32"
	case '!':
		mark, colour = s.pick("✗", "!"), "31"
	case '-':
		mark, colour = s.pick("–", "-"), "90"
	}
	head := r.head()
	text := oneLine(r.text.String())
	if r.state == '.' && text == "" {
		text = "waiting"
		if r.total > 0 {
			text = fmt.Sprintf("reading %s %s of %s tokens", s.bar(r.done, r.total, 16), thousands(r.done), thousands(r.total))
		}
	}
	text += r.note
	room := width - 4 - runewidth.StringWidth(head) - 2
	if room < 10 {
		head = runewidth.Truncate(head, max(width/2, 1), dots)
		room = width - 4 - runewidth.StringWidth(head) - 2
	}
	if room < 4 { // no terminal for this; what fits of it
		line := runewidth.Truncate("  "+mark+" "+head, max(width, 0), "")
		return line, line
	}
	if n := runewidth.StringWidth(text); n > room {
		if r.state == '.' {
			// Of a text that grows, the end is news.
			text = dots + runewidth.TruncateLeft(text, n-room+runewidth.StringWidth(dots), "")
		} else {
			text = runewidth.Truncate(text, room, dots)
		}
	}
	return "  " + mark + " " + head + "  " + text,
		"  " + s.paint(colour, mark) + " " + head + "  " + s.paint("2", text)
}

// bar draws done of total over width columns.
func (s style) bar(done, total, width int) string {
	n := min(done*width/max(total, 1), width)
	return strings.Repeat(s.pick("█", "#"), n) + strings.Repeat(s.pick("░", "."), width-n)
}
