package runtime

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

var rewrite = flag.Bool("rewrite", false, "write what the machine does into testdata/*.txt; read the diff before committing it")

// TestInteractions runs the conversations with a Machine in testdata/*.txt. A
// file is a list of
//
//	command arguments
//	input lines
//	----
//	expected output
//
// with an empty line behind each; lines that begin with # are comments. Run
// with -rewrite to regenerate the outputs.
func TestInteractions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no interaction files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runInteraction(t, file) })
	}
}

func runInteraction(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c := conversation{file: filepath.Base(file)}
	sc := bufio.NewScanner(strings.NewReader(string(data)))
	sc.Buffer(nil, 1<<20)
	line := 0
	next := func() (string, bool) {
		line++
		return sc.Text(), sc.Scan()
	}
	for ok := sc.Scan(); ok; {
		var text string
		text, ok = next()
		if text == "" || text[0] == '#' {
			fmt.Fprintln(&out, text)
			continue
		}
		at, cmd := line, text
		fmt.Fprintln(&out, cmd)
		var input []string
		for ok {
			if text, ok = next(); text == "----" {
				break
			}
			input = append(input, text)
			fmt.Fprintln(&out, text)
		}
		fmt.Fprintln(&out, "----")
		var want []string
		for ok {
			if text, ok = next(); text == "" {
				break
			}
			want = append(want, text)
		}
		got := strings.TrimRight(c.do(cmd, strings.Join(input, "\n")), "\n")
		fmt.Fprintf(&out, "%s\n", got)
		if ok {
			fmt.Fprintln(&out)
		}
		if w := strings.Join(want, "\n"); w != got && !*rewrite {
			t.Errorf("%s:%d: %s\ngot:\n%s\nwant:\n%s", file, at, cmd, got, w)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// conversation is a machine that is talked to.
type conversation struct {
	file   string
	g      *lang.Graph
	inputs map[string]any
	opt    Options
	m      *Machine
}

func (c *conversation) do(line, input string) string {
	cmd, rest, _ := strings.Cut(line, " ")
	if cmd == "program" {
		return c.program(rest, input)
	}
	if c.m == nil {
		return "no program"
	}
	switch cmd {
	case "ready":
		var b strings.Builder
		for _, t := range c.m.Ready() {
			writeTask(&b, t)
		}
		return orNothing(b.String())
	case "gen":
		id, opts := splitID(rest)
		r := &backend.Result{Part: backend.Part{Text: input, Tokens: puppet.Tokens(input), Model: "m"}, Finish: backend.FinishStop}
		if slices.Contains(opts, "length") {
			r.Finish = backend.FinishLength
		}
		r.Usage = backend.Usage{PromptTokens: 10, ComputedTokens: 12, SampledTokens: 3}
		return c.apply(Result{Task: id, Generate: r})
	case "score":
		id, _ := splitID(rest)
		r := &backend.ScoreResult{}
		for _, l := range strings.Split(input, "\n") {
			i := strings.LastIndexByte(l, ' ')
			sum, err := strconv.ParseFloat(l[i+1:], 64)
			if err != nil {
				return err.Error()
			}
			r.Options = append(r.Options, backend.OptionScore{Part: backend.Part{Text: l[:i], Tokens: puppet.Tokens(l[:i]), Model: "m"}, Sum: sum})
		}
		return c.apply(Result{Task: id, Score: r})
	case "value":
		id, _ := splitID(rest)
		return c.apply(Result{Task: id, Value: json.RawMessage(input)})
	case "fail":
		id, _ := splitID(rest)
		return c.apply(Result{Task: id, Failure: NewFailure(errors.New(input))})
	case "state":
		return c.state()
	case "context":
		return c.context(rest)
	case "restore":
		return c.restore()
	}
	return "unknown command " + cmd
}

func splitID(rest string) (id string, opts []string) {
	f := strings.Fields(rest)
	if len(f) == 0 {
		return "", nil
	}
	return f[0], f[1:]
}

func (c *conversation) program(args, input string) string {
	c.m = nil
	g, err := lang.Decode([]byte(input), c.file)
	if err != nil {
		return err.Error()
	}
	la := lang.Args{}
	c.opt = Options{Run: "test"}
	for _, a := range strings.Fields(args) {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "-nodes":
			c.opt.Limits.Nodes, _ = strconv.Atoi(v)
		case "-branches":
			c.opt.Limits.Branches, _ = strconv.Atoi(v)
		case "-text":
			c.opt.Limits.Text, _ = strconv.Atoi(v)
		default:
			la[k] = v
		}
	}
	vars, err := g.Bind(la)
	if err != nil {
		return err.Error()
	}
	c.g, c.inputs = g, vars
	if c.m, err = New(g, vars, c.opt); err != nil {
		return err.Error()
	}
	return c.changes()
}

func (c *conversation) apply(r Result) string {
	if err := c.m.Apply(r); err != nil {
		return "refused: " + err.Error()
	}
	return c.changes()
}

func (c *conversation) changes() string {
	var b strings.Builder
	ch := c.m.Changes()
	for _, br := range ch.Branches {
		id := br.ID
		if id == "" {
			id = "the run"
		}
		fmt.Fprintf(&b, "%s: %s", id, br.Status)
		if br.Err != nil {
			fmt.Fprintf(&b, ": %v", br.Err)
		}
		b.WriteByte('\n')
	}
	for _, id := range ch.Cancel {
		fmt.Fprintf(&b, "cancel %s\n", id)
	}
	for _, t := range ch.Start {
		fmt.Fprintf(&b, "start %s\n", t.ID)
	}
	return orNothing(b.String())
}

func orNothing(s string) string {
	if s == "" {
		return "(nothing)"
	}
	return s
}

func writeTask(b *strings.Builder, t Task) {
	hints := func(h backend.Hints) {
		if h.Siblings > 1 {
			fmt.Fprintf(b, " siblings=%d", h.Siblings)
		}
		if h.Reused {
			b.WriteString(" reused")
		}
		if h.LastUse {
			b.WriteString(" last-use")
		}
	}
	switch {
	case t.Generate != nil:
		r := t.Generate
		fmt.Fprintf(b, "%s: generate", t.ID)
		if r.MaxTokens > 0 {
			fmt.Fprintf(b, " max=%d", r.MaxTokens)
		}
		if len(r.Stop) > 0 {
			fmt.Fprintf(b, " stop=%q", r.Stop)
		}
		if r.Constraint.Regex != "" {
			fmt.Fprintf(b, " regex=%s", r.Constraint.Regex)
		}
		if r.Constraint.JSONSchema != nil {
			fmt.Fprintf(b, " schema=%s", r.Constraint.JSONSchema)
		}
		hints(r.Hints)
		writePrompt(b, r.Turns)
	case t.Score != nil:
		fmt.Fprintf(b, "%s: score %q", t.ID, t.Score.Options)
		if t.Score.Closed {
			b.WriteString(" closed")
		}
		hints(t.Score.Hints)
		writePrompt(b, t.Score.Turns)
	default:
		fmt.Fprintf(b, "%s: call %s%s key=%s", t.ID, t.Call.Func, lang.FormatJSON(t.Call.Args, lang.Type{}), t.Call.Key)
		if t.Call.Unsafe {
			b.WriteString(" unsafe")
		}
		b.WriteByte('\n')
	}
}

// writePrompt writes turns; what a model wrote stands in angle brackets.
func writePrompt(b *strings.Builder, turns []backend.Turn) {
	b.WriteByte('\n')
	for _, t := range turns {
		role := string(t.Role)
		if role == "" {
			role = "raw"
		}
		fmt.Fprintf(b, "  %s:", role)
		for _, p := range t.Parts {
			if p.Tokens != nil {
				fmt.Fprintf(b, " <%s>", strings.Trim(strconv.Quote(p.Text), `"`))
			} else {
				fmt.Fprintf(b, " %s", strconv.Quote(p.Text))
			}
		}
		if t.Open {
			b.WriteString(" …")
		}
		b.WriteByte('\n')
	}
}

func (c *conversation) state() string {
	var b strings.Builder
	r := c.m.Report()
	switch {
	case c.m.Err() != nil:
		fmt.Fprintf(&b, "failed: %v\n", c.m.Err())
	case c.m.Done():
		fmt.Fprintf(&b, "finished: %s\n", r.Value)
	default:
		b.WriteString("running\n")
	}
	fmt.Fprintf(&b, "variables: %s\n", r.Variables)
	fmt.Fprintf(&b, "tasks: %d, sampled tokens: %d\n", r.Tasks, r.Usage.SampledTokens)
	writeBranches(&b, "", r.Branches)
	return b.String()
}

func writeBranches(b *strings.Builder, indent string, branches []Branch) {
	for _, br := range branches {
		fmt.Fprintf(b, "%s%s (%s): %s %s", indent, br.ID, br.Label, br.Status, br.Value)
		if br.Error != "" {
			fmt.Fprintf(b, " error %q", br.Error)
		}
		fmt.Fprintf(b, " variables %s\n", br.Variables)
		writeBranches(b, indent+"  ", br.Branches)
	}
}

func (c *conversation) context(id string) string {
	var b strings.Builder
	var find func(br *branch) *branch
	find = func(br *branch) *branch {
		if br.id == id {
			return br
		}
		for _, f := range br.forks {
			for _, k := range f.branches {
				if x := find(k); x != nil {
					return x
				}
			}
		}
		return nil
	}
	br := find(c.m.trunk)
	if br == nil {
		return "no branch " + id
	}
	writePrompt(&b, br.prompt.turns)
	return orNothing(strings.TrimPrefix(b.String(), "\n"))
}

// restore replaces the machine by one made from its snapshot and compares.
func (c *conversation) restore() string {
	was := fingerprint(c.m)
	m, err := Restore(c.g, c.inputs, c.opt, c.m.Snapshot())
	if err != nil {
		return err.Error()
	}
	m.Changes()
	c.m = m
	if is := fingerprint(m); is != was {
		return "differs:\n" + is
	}
	return "same"
}

// fingerprint writes down all that can be seen of a machine.
func fingerprint(m *Machine) string {
	var b strings.Builder
	r, err := json.Marshal(m.Report())
	fmt.Fprintln(&b, string(r), err, m.Done(), m.Err())
	for _, t := range m.Ready() {
		text, err := json.Marshal(t)
		fmt.Fprintln(&b, string(text), err)
	}
	writePrompt(&b, m.trunk.prompt.turns)
	return b.String()
}
