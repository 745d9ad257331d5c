package lang

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// DecodeOption is an option of Decode.
type DecodeOption func(*decoder)

// Files lets a program take texts from files beside it: {file: runbook.md} and
// {template: prompt.md}. Without it such texts are refused.
func Files(fsys fs.FS) DecodeOption { return func(d *decoder) { d.fsys = fsys } }

// Decode reads a program in JSON or YAML. file is its name in errors. The error,
// if any, is of type Errors and holds everything that is wrong, each with its
// line.
func Decode(data []byte, file string, opts ...DecodeOption) (*Graph, error) {
	d := &decoder{file: file}
	for _, o := range opts {
		o(d)
	}
	t, err := parseDocument(data, file)
	if err != nil {
		line := 0
		var le *lineError
		msg := err.Error()
		if errors.As(err, &le) {
			line, msg = le.line, le.msg
		}
		return nil, Errors{{Pos: Pos{file, line}, Msg: msg}}
	}
	g, all := d.graph(t)
	if !d.partial {
		d.unrun(g, all)
	}
	c := &analysis{g: g, outputPos: Pos{file, t.line}}
	checked := c.check()
	if len(d.errs) > 0 {
		// What follows from a step that could not be read is not worth saying.
		bad := map[Pos]bool{}
		for _, e := range d.errs {
			bad[e.Pos] = true
		}
		var more Errors
		errors.As(checked, &more)
		for _, e := range more {
			if !bad[e.Pos] && !(d.partial && e.unknown) {
				d.errs = append(d.errs, e)
			}
		}
		return nil, d.errs.err()
	}
	if checked != nil {
		return nil, checked
	}
	return g, nil
}

// Load reads a program file; texts that it takes from files are looked for in
// its directory and not outside of it.
func Load(name string) (*Graph, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return Decode(data, name, Files(root.FS()))
}

func parseDocument(data []byte, file string) (*tree, error) {
	if len(data) > maxDocBytes {
		return nil, fmt.Errorf("%d bytes long, the limit is %d", len(data), maxDocBytes)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	head := bytes.TrimLeft(data, " \t\r\n")
	if len(head) > 0 && head[0] == '{' {
		t, err := parseJSON(data)
		if err == nil || strings.HasSuffix(file, ".json") || json.Valid(data) {
			return t, err
		}
		if y, yerr := parseYAML(data); yerr == nil {
			return y, nil // a YAML map in braces
		}
		return nil, err
	}
	return parseYAML(data)
}

// decoder turns a document into a graph. It notes what is wrong and goes on.
type decoder struct {
	file string
	fsys fs.FS
	errs Errors
	read int // bytes of texts from files
	// partial is set if steps are missing, so that what they set is unknown.
	partial bool
}

func (d *decoder) errorf(line int, hint, format string, args ...any) {
	d.errs = append(d.errs, &Error{Pos: Pos{d.file, line}, Msg: fmt.Sprintf(format, args...), Hint: hint})
}

// fields reads the keys of a map and knows which were asked for.
type fields struct {
	d     *decoder
	t     *tree
	what  string
	known []string
}

func (d *decoder) fields(t *tree, what string) *fields {
	if t.kind != treeMap {
		d.errorf(t.line, "", "%s is %s, not a map", what, t.kind)
		t = &tree{kind: treeMap, line: t.line}
	}
	return &fields{d: d, t: t, what: what}
}

func (f *fields) get(key string) *tree {
	f.known = append(f.known, key)
	return f.t.get(key)
}

// done reports the keys that nobody asked for.
func (f *fields) done() {
	for i, k := range f.t.keys {
		if !contains(f.known, k) {
			f.d.errorf(f.t.at[i], didYouMean(k, f.known), "%s has no field %q", f.what, clip(k, 40))
		}
	}
}

// str returns a text; numbers and bools are taken as they are written.
func (f *fields) str(key string) string {
	t := f.get(key)
	if t == nil {
		return ""
	}
	return f.d.str(t, f.what+": "+key)
}

func (d *decoder) str(t *tree, what string) string {
	switch t.kind {
	case treeString:
		return t.text
	case treeNumber, treeBool:
		if t.src != "" {
			return t.src
		}
		return t.text
	case treeNull:
		if t.src != "" {
			return t.src
		}
		d.errorf(t.line, "write a text", "%s is empty", what)
		return ""
	}
	d.errorf(t.line, "write a text", "%s is %s, not a text", what, t.kind)
	return ""
}

// expr returns an expression. A list or map of expressions is one too.
func (f *fields) expr(key string) Expr {
	t := f.get(key)
	if t == nil {
		return ""
	}
	return f.d.expr(t, f.what+": "+key, 0)
}

func (d *decoder) expr(t *tree, what string, depth int) Expr {
	var parts []string
	for i, v := range t.vals {
		x := string(d.expr(v, what, depth+1))
		if t.kind == treeMap {
			x = exprString(t.keys[i]) + ": " + x
		}
		parts = append(parts, x)
	}
	switch t.kind {
	case treeList:
		return Expr("[" + strings.Join(parts, ", ") + "]")
	case treeMap:
		return Expr("{" + strings.Join(parts, ", ") + "}")
	case treeNull:
		if t.src != "" || depth > 0 {
			return "nil"
		}
	}
	return Expr(d.str(t, what))
}

func (f *fields) name() string { return f.str("name") }

func (f *fields) int(key string) int {
	t := f.get(key)
	if t == nil {
		return 0
	}
	n, err := strconv.Atoi(t.text)
	if t.kind != treeNumber || err != nil {
		f.d.errorf(t.line, "write a whole number", "%s: %s is %s", f.what, key, t.describe())
		return 0
	}
	return n
}

func (f *fields) float(key string) float64 {
	t := f.get(key)
	if t == nil {
		return 0
	}
	x, err := strconv.ParseFloat(t.text, 64)
	if t.kind != treeNumber || err != nil {
		f.d.errorf(t.line, "write a number", "%s: %s is %s", f.what, key, t.describe())
		return 0
	}
	return x
}

func (f *fields) seed() *uint64 {
	t := f.get("seed")
	if t == nil {
		return nil
	}
	n, err := strconv.ParseUint(t.text, 10, 64)
	if t.kind != treeNumber || err != nil {
		f.d.errorf(t.line, "write a whole number from 0", "%s: seed is %s", f.what, t.describe())
		return nil
	}
	return &n
}

func (f *fields) bool(key string) bool {
	t := f.get(key)
	if t == nil {
		return false
	}
	if t.kind != treeBool {
		f.d.errorf(t.line, "write true or false", "%s: %s is %s", f.what, key, t.describe())
	}
	return t.text == "true"
}

func (f *fields) typ(key string) Type {
	t := f.get(key)
	if t == nil {
		return Type{}
	}
	return f.d.typ(t, f.what)
}

// typ reads a type: its text form, or a map of fields.
func (d *decoder) typ(t *tree, what string) Type {
	if t.kind == treeMap {
		ty := Type{Kind: TypeObject}
		for i, k := range t.keys {
			name, optional := strings.CutSuffix(k, "?")
			ty.Fields = append(ty.Fields, Field{Name: name, Optional: optional, Type: d.typ(t.vals[i], what)})
		}
		return ty
	}
	ty, err := ParseType(d.str(t, what+": type"))
	if err != nil {
		d.errorf(t.line, "", "%s: %v", what, err)
		return Type{Kind: TypeAny}
	}
	return ty
}

// strs returns a list of texts; a single text is a list of one.
func (f *fields) strs(key string) []string {
	t := f.get(key)
	if t == nil {
		return nil
	}
	vals := []*tree{t}
	if t.kind == treeList {
		vals = t.vals
	}
	out := make([]string, 0, len(vals))
	for _, v := range vals {
		out = append(out, f.d.str(v, f.what+": "+key))
	}
	return out
}

func (t *tree) describe() string {
	switch t.kind {
	case treeString:
		return "the text " + strconv.Quote(clip(t.text, 40))
	case treeNumber:
		return clip(t.text, 40)
	}
	return t.kind.String()
}

// graph reads a document: its program, and those that this one may run.
func (d *decoder) graph(t *tree) (*Graph, []*Graph) {
	g := &Graph{}
	f := d.fields(t, "the program")
	if v := f.get("coppice"); v == nil {
		d.errorf(t.line, "begin the file with coppice: 1", "no line says that this is a coppice program")
	} else if v.text != strconv.Itoa(Version) {
		d.errorf(v.line, "write coppice: 1, or use a newer coppice", "format version %s is not known here", v.describe())
	}
	g.Name = f.name()
	all := d.programs(f)
	d.parts(g, f)
	f.done()
	g.pick(all)
	return g, all
}

// parts reads all but the name of a program.
func (d *decoder) parts(g *Graph, f *fields) {
	g.Doc = f.str("doc")
	g.Budget = d.budget(f)
	if ins := f.get("inputs"); ins != nil && ins.kind != treeNull {
		in := d.fields(ins, "inputs")
		for i, k := range in.t.keys {
			g.Inputs = append(g.Inputs, d.input(k, in.t.at[i], in.t.vals[i]))
		}
	}
	steps := f.get("steps")
	if steps == nil {
		d.errorf(f.t.line, "add steps:", "%s has no steps", f.what)
	} else {
		g.Body = d.steps(steps)
	}
}

func (d *decoder) input(name string, line int, t *tree) Input {
	in := Input{Name: name, Pos: Pos{d.file, line}}
	if t.kind != treeMap || t.get("type") == nil && t.get("default") == nil && t.get("doc") == nil {
		in.Type = d.typ(t, "input "+name)
		return in
	}
	f := d.fields(t, "input "+name)
	in.Type = f.typ("type")
	in.Doc = f.str("doc")
	if v := f.get("default"); v != nil {
		in.Default = v.appendJSON(nil)
	}
	if p, ok := d.at(f); ok {
		in.Pos = p
	}
	f.done()
	return in
}

// at reads a position.
func (d *decoder) at(f *fields) (Pos, bool) {
	t := f.get("at")
	if t == nil {
		return Pos{}, false
	}
	s := d.str(t, f.what+": at")
	i := strings.LastIndexByte(s, ':')
	line, err := strconv.Atoi(s[i+1:])
	if i < 0 || err != nil || line < 1 {
		d.errorf(t.line, "write file:line", "%s: at is %s", f.what, t.describe())
		return Pos{}, false
	}
	return Pos{s[:i], line}, true
}

// maxTextFiles bounds what texts from files may bring into a program.
const maxTextFiles = 16 << 20

// text reads a text: itself, {file: name} or {template: name}.
func (d *decoder) text(t *tree, what string) Template {
	if t.kind != treeMap {
		return Template(d.str(t, what))
	}
	f := d.fields(t, what)
	file, tmpl := f.get("file"), f.get("template")
	f.done()
	src := file
	if src == nil {
		src = tmpl
	}
	if src == nil || file != nil && tmpl != nil {
		d.errorf(t.line, "write a text, {file: name} or {template: name}", "%s is a map", what)
		return ""
	}
	name := d.str(src, what)
	data, ok := d.fileOf(src, what, name)
	if !ok {
		return ""
	}
	if !utf8.Valid(data) {
		d.errorf(src.line, "convert it", "%s: file %q is not UTF-8", what, name)
		return ""
	}
	text := strings.ReplaceAll(string(data), "\r\n", "\n")
	if file != nil {
		return Escape(text)
	}
	return Template(text)
}

// fileOf reads a file beside the program, whose name stands at src.
func (d *decoder) fileOf(src *tree, what, name string) ([]byte, bool) {
	if d.fsys == nil {
		d.errorf(src.line, "load the program from its file", "%s: this program may not read files", what)
		return nil, false
	}
	clean := path.Clean(filepath.ToSlash(name))
	if !fs.ValidPath(clean) {
		d.errorf(src.line, "name a file beside the program or below it", "%s: file %q", what, name)
		return nil, false
	}
	data, err := fs.ReadFile(d.fsys, clean)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		d.errorf(src.line, "files are looked for beside the program", "%s: file %q: %v", what, name, err)
		return nil, false
	}
	if d.read += len(data); d.read > maxTextFiles {
		d.errorf(src.line, "shorten them", "the files of this program hold more than %d bytes", maxTextFiles)
		return nil, false
	}
	return data, true
}
