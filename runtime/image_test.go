package runtime_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

const png = "\x89PNG\r\n\x1a\n and so on"

var seeing = lang.Define("seeing", func(p *lang.Program) lang.Var[string] {
	name := lang.In[string](p, "name")
	p.Role("user", func(p *lang.Program) {
		p.Text("What is on them? ")
		p.Image("https://example.org/", name, ".png")
		p.Image(lang.ImageURL([]byte(png)))
	})
	return p.Gen("what")
})

// TestImagesReachTheBackend: from the builder, from a file and from a script.
func TestImagesReachTheBackend(t *testing.T) {
	doc := `coppice: 1
name: seeing
inputs: {name: string}
steps:
  - role:
      role: user
      steps:
        - text: "What is on them? "
        - image: https://example.org/${name}.png
        - image: {file: a.png}
  - gen: {name: what}
  - return: what
`
	files := fstest.MapFS{"a.png": {Data: []byte(png)}}
	written, err := lang.Decode([]byte(doc), "p.yaml", lang.Files(files))
	if err != nil {
		t.Fatal(err)
	}
	built, err := seeing.Compile()
	if err != nil {
		t.Fatal(err)
	}
	script := lang.Script("seeing", func(s *lang.S, in struct {
		Name string `json:"name"`
	}) (string, error) {
		s.Role("user", func(s *lang.S) {
			s.Text("What is on them? ")
			s.Image("https://example.org/", in.Name, ".png")
			s.Image(lang.ImageURL([]byte(png)))
		})
		return s.Gen("what").Get()
	})
	check := func(how string, m *puppet.Model, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(how, err)
		}
		turns := m.Log()[0].Request.Turns
		if len(turns) != 1 || len(turns[0].Parts) != 3 || turns[0].Parts[1].Image != "https://example.org/cat.png" ||
			turns[0].Parts[2].Image != lang.ImageURL([]byte(png)) || !strings.HasPrefix(turns[0].Parts[2].Image, "data:image/png;base64,") {
			t.Errorf("%s: %+v", how, turns)
		}
	}
	for how, g := range map[string]*lang.Graph{"built": built, "written": written} {
		m := puppet.New()
		m.OnAny().Reply("a cat")
		_, err := runtime.RunGraph(t.Context(), m, g, nil, lang.Args{"name": "cat"})
		check(how, m, err)
	}
	m := puppet.New()
	m.OnAny().Reply("a cat")
	_, err = runtime.PlayScript(t.Context(), m, script, lang.Args{"name": "cat"})
	check("script", m, err)

	again, err := lang.Decode([]byte(mustYAML(t, written)), "again.yaml")
	if err != nil || again.Hash() != written.Hash() {
		t.Errorf("%v\n%s", err, mustYAML(t, written))
	}
	x, err := lang.Explain(built, lang.ExplainOptions{Inputs: lang.Args{"name": "cat"}})
	if err != nil || len(x.Notes) == 0 || !strings.Contains(x.Notes[0], "picture") || !strings.Contains(x.Usage.Prompt.String(), "or more") {
		t.Errorf("%+v %v", x, err)
	}
}

func mustYAML(t *testing.T, g *lang.Graph) string {
	t.Helper()
	doc, err := g.YAML()
	if err != nil {
		t.Fatal(err)
	}
	return string(doc)
}

// TestImagesAreCheckedBeforeTheFirstCall: a backend that reads text refuses the
// program; what is no picture fails its step, and one in the wrong place the program.
func TestImagesAreCheckedBeforeTheFirstCall(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("a cat")
	m.SetInfo(func(i *backend.Info) { i.Capabilities.Images = false })
	_, err := runtime.Run(t.Context(), m, seeing, lang.Args{"name": "cat"})
	var missing *runtime.UnsupportedError
	if !errors.As(err, &missing) || missing.Missing[0].Need != "images" || len(m.Log()) != 0 {
		t.Error(err)
	}
	m.SetInfo(func(i *backend.Info) { i.Capabilities.Images = true })
	for _, url := range []string{"/etc/passwd", "file:///etc/passwd", "data:text/html,x", "http:x", ""} {
		g := graphYAML(t, "inputs: {u: string}\nsteps:\n  - role: {role: user, steps: [{text: x}, {image: '${u}'}]}\n  - gen: {name: a}\n")
		if _, err := runtime.RunGraph(t.Context(), m, g, nil, lang.Args{"u": url}); err == nil || !strings.Contains(err.Error(), "is no picture") {
			t.Errorf("%q: %v", url, err)
		}
	}
	for doc, want := range map[string]string{
		"- image: http://x\n": "outside of a user's turn",
		"- role: {role: assistant, steps: [{image: 'http://x'}]}\n": "outside of a user's turn",
		"- role: {role: user, steps: [{image: ''}]}\n":              "no picture",
		"- role: {role: user, steps: [{image: {file: a.txt}}]}\n":   "is no PNG",
		"- role: {role: user, steps: [{image: {file: ../a}}]}\n":    "beside the program",
	} {
		_, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: hi\n  "+doc), "p.yaml", lang.Files(fstest.MapFS{"a.txt": {Data: []byte("x")}}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}
