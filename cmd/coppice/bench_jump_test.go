package main

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
)

// Forced tokens stand beside what the runner counts, where both took the texts.
func TestForcedTokensBesideTheRunner(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the runner of this test is a shell script")
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	g := &grammarBenchOptions{
		tokenizer: write("tok.json", `{"added_tokens":[{"id":9,"content":"<|endoftext|>","special":true}],"model":{"type":"BPE","vocab":{"{":0,"}":1,"\"":2,"a":3,":":4,"1":5,"2":6,"\":":7,"b":8},"merges":[["\"",":"]]}}`),
		jsonl: write("in.jsonl", `{"id":"one","set":"BFCL","schema":{"const":{"a":1}},"tests":[{"valid":true,"data":{"a":1}}]}
{"id":"two","set":"other","schema":{"const":{"b":2}},"tests":[{"valid":true,"data":{"b":2}}]}
`),
		runner: write("runner.sh", `cat tok/t/tokenizer.json in.jsonl >/dev/null || exit 1
echo '{"id":"verdict of triage","ff":{"n":1,"tok":6,"ff_tok":3}}' >out.jsonl
echo '{"id":"one","ff":{"n":1,"tok":6,"ff_tok":2}}' >>out.jsonl
echo '{"id":"two","error":"refused"}' >>out.jsonl
`),
		python: "sh",
		budget: 1,
	}
	rows, err := jumpBeside(t.Context(), g, []byte(`{"type":"object","properties":{"a":{"enum":[1,2]}},"required":["a"],"additionalProperties":false}`), `{"a":2}`)
	require.NoError(t, err)
	require.Equal(t, []benchRow{
		{What: "tok.json, the verdict, 1 texts of 6 tokens: forced (peer: llguidance)", Value: 100 * 5.0 / 6, Unit: "%", Peer: ptr(50), Ratio: ptr(5.0 / 3)},
		{What: "tok.json, the verdict, 1 texts of 6 tokens: forced, or likely and right (peer: llguidance)", Value: 100 * 5.0 / 6, Unit: "%", Peer: ptr(50), Ratio: ptr(5.0 / 3)},
		{What: "tok.json, tool calls of --jsonl, 1 texts of 6 tokens: forced (peer: llguidance)", Value: 100, Unit: "%", Peer: ptr(100 * 2.0 / 6), Ratio: ptr(3)},
		{What: "tok.json, tool calls of --jsonl, 1 texts of 6 tokens: forced, or likely and right (peer: llguidance)", Value: 100, Unit: "%", Peer: ptr(100 * 2.0 / 6), Ratio: ptr(3)},
		{What: "tok.json, all of --jsonl, 1 texts of 6 tokens: forced (peer: llguidance)", Value: 100, Unit: "%", Peer: ptr(100 * 2.0 / 6), Ratio: ptr(3)},
		{What: "tok.json, all of --jsonl, 1 texts of 6 tokens: forced, or likely and right (peer: llguidance)", Value: 100, Unit: "%", Peer: ptr(100 * 2.0 / 6), Ratio: ptr(3)},
	}, rows)

	g.runner, g.jsonl = "", ""
	rows, err = jumpBeside(t.Context(), g, []byte(`{"const":1}`), `1`)
	require.NoError(t, err)
	require.Equal(t, []benchRow{
		{What: "tok.json, the verdict, 1 texts of 1 tokens: forced", Value: 100, Unit: "%"},
		{What: "tok.json, the verdict, 1 texts of 1 tokens: forced, or likely and right", Value: 100, Unit: "%"},
	}, rows)

	g.tokenizer = write("none.json", "{")
	_, err = jumpBeside(t.Context(), g, []byte(`{"const":1}`), `1`)
	require.ErrorContains(t, err, "none.json")
}

// Many schemas are written with and without jump-forward, of all sets in turn.
func TestManySchemasWithAndWithoutJumps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "in.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"set":"b","schema":{"type":"object","properties":{"mode":{"enum":["fast","slow"]},"level":{"type":"integer","minimum":1,"maximum":9}},"required":["mode","level"],"additionalProperties":false}}
{"set":"b","schema":{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2}}
{"set":"a","schema":{"const":{"ready":true}}}
{"set":"c","schema":{"pattern":"(?<=x)y","type":"string"}}
`), 0o600))
	o := &benchOptions{grammar: grammarBenchOptions{jsonl: path, schemas: 3, prompts: 2}}
	o.model = "sapling"
	be, err := o.open(t.Context())
	require.NoError(t, err)
	defer be.Close()
	rows, err := jumpMany(t.Context(), o, be)
	require.NoError(t, err)
	got := map[string]float64{}
	for _, r := range rows {
		got[r.What] = r.Value
	}
	require.Equal(t, 2.0, got["schemas, each with all prompts"]) // of sets a and b
	require.Equal(t, 1.0, got["schemas refused"])                // of set c
	require.Equal(t, 4.0, got["texts that are the same with and without"])
	bound := got["of them without a choice, however they are cut (ratio: share)"]
	require.Positive(t, got["of them forced (ratio: share)"])
	require.LessOrEqual(t, got["of them forced (ratio: share)"], bound)
	require.Less(t, bound, got["their tokens"])
	require.Less(t, got["with (ratio: fewer by)"], got["their passes without jump-forward"])

	o.grammar.prompts = 0
	_, err = jumpMany(t.Context(), o, be)
	require.ErrorContains(t, err, "--prompts")
}

func TestTokensWithoutAChoice(t *testing.T) {
	schema := []byte(`{"type":"object","properties":{"ab":{"enum":["xy","xz"]}},"required":["ab"],"additionalProperties":false}`)
	var pieces []piece
	emit := collect(&pieces)
	for _, text := range []string{`{"`, `ab`, `":"x`, `y`, ``, `"`, `}`} { // the empty one is a part of a character
		emit(backend.Delta{Text: text, Tokens: []backend.Token{1}})
	}
	n, err := withoutChoice(t.Context(), schema, pieces)
	require.NoError(t, err)
	require.Equal(t, 6, n) // all but the y
	_, err = withoutChoice(t.Context(), schema, []piece{{"{", 1}, {"x", 1}})
	require.Error(t, err)
	_, err = withoutChoice(t.Context(), []byte(`{`), nil)
	require.Error(t, err)
}
