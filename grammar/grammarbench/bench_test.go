package grammarbench

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/grammar"
)

const tinyTokenizer = `{"added_tokens":[{"id":8,"content":"<|endoftext|>","special":true}],"pre_tokenizer":{},
"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ġab":4,"{":5,"}":6,"\"":7,":":9,"1":10,"\":":11,",":12},"merges":["a b","Ġ ab",["\"",":"]]}}`

func TestTokenizer(t *testing.T) {
	tok, err := ReadTokenizer(strings.NewReader(tinyTokenizer))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range tok.Encode([]byte(`ab ab{"a":1`)) {
		got = append(got, string(tok.Tokens[id]))
	}
	if s := strings.Join(got, "|"); s != `ab| ab|{|"|a|":|1` {
		t.Errorf("encoded as %s", s)
	}
	if len(tok.End) != 1 || tok.End[0] != 8 || tok.Tokens[8] != nil {
		t.Errorf("end tokens %v", tok.End)
	}
}

func TestRun(t *testing.T) {
	tok, err := ReadTokenizer(strings.NewReader(tinyTokenizer))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Run(context.Background(), strings.NewReader(`{"id":"x","schema":{"type":"object","properties":{"ab":{"const":1}},"required":["ab"],"additionalProperties":false},"tests":[{"valid":true,"data":{"ab":1}},{"valid":false,"data":{"a":1}}]}`), tok)
	if err != nil {
		t.Fatal(err)
	}
	if rep.Compiled != 1 || rep.Texts != 1 || rep.NonCanonical != 0 || rep.ForcedShare != 1 || rep.MaskUS.N == 0 {
		t.Errorf("%+v", rep)
	}
}

// The small cases that are schemas can be given to other engines: each line
// is one that Run and Forced read, and its text belongs to it.
func TestMicroLines(t *testing.T) {
	raw, err := MicroLines()
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	if err := eachLine(bytes.NewReader(raw), func(l *line) error {
		lines++
		g, err := grammar.Compile(context.Background(), grammar.Spec{JSONSchema: l.Schema}, grammar.ByteVocab())
		if err != nil {
			return err
		}
		if text, err := grammar.Canonical(l.Tests[0].Data); err != nil || !g.Match(text) || l.Set != MicroSet {
			t.Errorf("%s: its text does not belong to it: %v", l.ID, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if lines < 10 {
		t.Errorf("%d lines", lines)
	}
}

// So can the others: the text belongs to each form that a line gives.
func TestMicroPatternLines(t *testing.T) {
	raw, err := MicroPatternLines()
	if err != nil {
		t.Fatal(err)
	}
	forms := map[string]int{}
	for text := range bytes.Lines(raw) {
		var l struct {
			ID, Set, Text     string
			JSON              bool
			Regex, EBNF, Lark string
			Choices           []string
		}
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		specs := map[string]grammar.Spec{}
		if l.JSON {
			specs["json"] = grammar.Spec{JSONObject: true}
		}
		if l.Regex != "" {
			specs["regex"] = grammar.Spec{Regex: l.Regex}
		}
		if l.Choices != nil {
			specs["choices"] = grammar.Spec{Choices: l.Choices}
		}
		if l.EBNF != "" {
			specs["ebnf"], specs["lark"] = grammar.Spec{EBNF: l.EBNF}, grammar.Spec{Lark: l.Lark}
		}
		if len(specs) == 0 || l.Set != MicroSet {
			t.Errorf("%s has no form that others read", l.ID)
		}
		for form, spec := range specs {
			forms[form]++
			g, err := grammar.Compile(t.Context(), spec, grammar.ByteVocab())
			if err != nil {
				t.Fatalf("%s, %s: %v", l.ID, form, err)
			}
			if !g.Match([]byte(l.Text)) || g.Match([]byte(l.Text+"\xff")) {
				t.Errorf("%s, %s: its text does not belong to it, or more does", l.ID, form)
			}
		}
	}
	if len(forms) != 5 {
		t.Errorf("forms %v", forms)
	}
}

func TestForced(t *testing.T) {
	tok, err := ReadTokenizer(strings.NewReader(tinyTokenizer))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Forced(context.Background(), strings.NewReader(`{"id":"x","set":"s","schema":{"const":{"ab":1}},"tests":[{"valid":true,"data":{"ab":1}},{"valid":true,"data":2},{"valid":false,"data":3}]}
{"id":"refused","schema":{"type":"string","pattern":"("},"tests":[]}
`), tok)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != (ForcedCount{ID: "x", Set: "s", Texts: 1, Tokens: 6, Forced: 6, Spelled: 6}) {
		t.Errorf("%+v", got)
	}
	// A colon and what is before it may be one token with what a string begins with.
	merging, err := ReadTokenizer(strings.NewReader(`{"added_tokens":[],"model":{"type":"BPE","vocab":{"{":0,"}":1,"\"":2,"a":3,":":4,":\"":5,"\":\"":6,"\":\"/":7,"b":8,"/":9},"merges":[[":","\""],["\"",":\""],["\":\"","/"]]}}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]ForcedCount{
		`{"a":"b"}`: {Texts: 1, Tokens: 7, Forced: 5, Spelled: 6}, // ":" is likely, and right
		`{"a":"/"}`: {Texts: 1, Tokens: 6, Forced: 5, Spelled: 5}, // ":"/ it is
	} {
		got, err := Forced(context.Background(), strings.NewReader(`{"schema":{"type":"object","properties":{"a":{"enum":["/","b"]}},"required":["a"],"additionalProperties":false},"tests":[{"valid":true,"data":`+text+`}]}`), merging)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
	if _, err := Forced(context.Background(), strings.NewReader("{"), tok); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("a broken line: %v", err)
	}
}

// TestRealTokenizers measures the development sample with the tokenizers that
// COPPICE_TOKENIZERS lists (paths of tokenizer.json files).
func TestRealTokenizers(t *testing.T) {
	root := os.Getenv("COPPICE_SHARED")
	if root == "" {
		t.Skip("COPPICE_SHARED is not set: it names the folder of the shared test data")
	}
	for path, tok := range tokenizers(t) {
		data, err := os.Open(filepath.Join(root, "data", "grammar", "maskbench_dev.jsonl.gz"))
		if err != nil {
			t.Fatal(err)
		}
		defer data.Close()
		z, err := gzip.NewReader(data)
		if err != nil {
			t.Fatal(err)
		}
		rep, err := Run(context.Background(), z, tok)
		if err != nil {
			t.Fatal(err)
		}
		out, _ := json.MarshalIndent(rep, "", " ")
		t.Logf("%s\n%s", path, out)
		if rep.NonCanonical > 0 {
			t.Errorf("%d texts were led away from their canonical tokens", rep.NonCanonical)
		}
	}
}

// TestMicro measures the small cases with the tokenizers that
// COPPICE_TOKENIZERS lists.
func TestMicro(t *testing.T) {
	for path, tok := range tokenizers(t) {
		rows, err := Micro(context.Background(), tok)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s\n%s", path, FormatMicro(rows))
		for _, r := range rows {
			if r.Error != "" {
				t.Errorf("%s: %s", r.Name, r.Error)
			}
		}
	}
}
