package grammar

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// ecmaCase is a pattern and what an ECMAScript engine found of texts.
type ecmaCase struct {
	Pattern string   `json:"pattern"`
	Yes     []string `json:"yes"`
	No      []string `json:"no"`
}

const ecmaCases = "testdata/ecma.jsonl"

func checkECMA(t *testing.T, cases []ecmaCase) (refused int) {
	t.Helper()
	bad := 0
	for _, c := range cases {
		p := newPool()
		id, err := p.compilePattern(c.Pattern, encRaw, false, 200)
		var inJSON nodeID
		if err == nil {
			inJSON, err = p.compilePattern(c.Pattern, encString, false, 200)
		}
		if errors.Is(err, ErrUnsupported) {
			refused++
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.Pattern, err)
			bad++
			continue
		}
		for want, texts := range map[bool][]string{true: c.Yes, false: c.No} {
			for _, s := range texts {
				if p.matches(id, s) != want {
					t.Errorf("%q on %q: %v, want %v", c.Pattern, s, !want, want)
					bad++
				}
				spelled, _ := json.Marshal(s)
				if p.matches(inJSON, string(spelled[1:len(spelled)-1])) != want {
					t.Errorf("%q on the JSON text %s: %v, want %v", c.Pattern, spelled, !want, want)
					bad++
				}
			}
		}
		if bad > 20 {
			t.Fatal("and more")
		}
	}
	return refused
}

// TestPatternsOfECMAScript holds what an ECMAScript engine said once.
func TestPatternsOfECMAScript(t *testing.T) {
	raw, err := os.ReadFile(ecmaCases)
	if err != nil {
		t.Fatal(err)
	}
	var cases []ecmaCase
	for l := range bytes.Lines(raw) {
		var c ecmaCase
		if err := json.Unmarshal(l, &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if testing.Short() {
		cases = cases[:len(cases)/4]
	}
	if n := checkECMA(t, cases); n > len(cases)/4 {
		t.Errorf("%d of %d patterns are refused", n, len(cases))
	}
}

// askNode reads lines [pattern, texts] and answers each with a list of booleans,
// or null where the pattern is none with the flag u, which JSON Schema wants.
const askNode = `
const lines = require('fs').readFileSync(0, 'utf8').split('\n').filter(l => l)
for (const l of lines) {
  const [p, texts] = JSON.parse(l)
  let r = null
  try { r = new RegExp(p, 'u') } catch (e) {}
  console.log(JSON.stringify(r && texts.map(t => r.test(t))))
}`

// TestPatternsAgainstNode compares random patterns with the ECMAScript engine
// that COPPICE_NODE names. With COPPICE_NODE_RECORD it writes a sample of them
// for TestPatternsOfECMAScript.
func TestPatternsAgainstNode(t *testing.T) {
	node := os.Getenv("COPPICE_NODE")
	if node == "" {
		t.Skip("COPPICE_NODE is not set: it names the node program to compare with")
	}
	if testing.Short() {
		t.Skip("100,000 texts: run without -short")
	}
	rnd := rand.New(rand.NewPCG(171, 72))
	var in bytes.Buffer
	var cases []ecmaCase
	var texts [][]string
	for range 4000 {
		c := ecmaCase{Pattern: ecmaPattern(rnd)}
		var list []string
		for range 25 {
			list = append(list, ecmaText(rnd, c.Pattern))
		}
		line, _ := json.Marshal([]any{c.Pattern, list})
		in.Write(append(line, '\n'))
		cases, texts = append(cases, c), append(texts, list)
	}
	cmd := exec.CommandContext(t.Context(), node, "-e", askNode)
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var known []ecmaCase
	yes := 0
	for l := range bytes.Lines(out) {
		var found []bool
		if err := json.Unmarshal(l, &found); err != nil {
			t.Fatal(err)
		}
		c := cases[n]
		for i, is := range found {
			if is {
				c.Yes = append(c.Yes, texts[n][i])
				yes++
			} else {
				c.No = append(c.No, texts[n][i])
			}
		}
		if found != nil {
			known = append(known, c)
		}
		n++
	}
	if n != len(cases) {
		t.Fatalf("%d answers for %d patterns", n, len(cases))
	}
	refused := checkECMA(t, known)
	t.Logf("%d patterns, %d are none, %d refused, %d texts match", n, n-len(known), refused, yes)
	if refused > len(known)/3 || yes < len(known) {
		t.Errorf("too little is compared")
	}
	if os.Getenv("COPPICE_NODE_RECORD") != "" {
		var file bytes.Buffer
		for i := 0; i < len(known) && i < 250; i++ {
			c := known[i]
			c.Yes, c.No = c.Yes[:min(4, len(c.Yes))], c.No[:min(4, len(c.No))]
			line, _ := json.Marshal(c)
			file.Write(append(line, '\n'))
		}
		if err := os.WriteFile(ecmaCases, file.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func oneOf[T any](rnd *rand.Rand, list ...T) T { return list[rnd.IntN(len(list))] }

// ecmaPattern is a random pattern in ECMAScript's notation.
func ecmaPattern(rnd *rand.Rand) string {
	p := ecmaPart(rnd, 1+rnd.IntN(4))
	switch rnd.IntN(8) {
	case 0, 1:
		p = "^" + p
	case 2, 3:
		p = "^(?:" + p + ")$"
	case 4:
		p += "$"
	case 5:
		look := oneOf(rnd, "(?=", "(?!") + ecmaPart(rnd, 2) + ")"
		p = "^" + look + p
	case 6:
		p = p + oneOf(rnd, "(?=", "(?!") + ecmaPart(rnd, 1) + ")" + ecmaPart(rnd, 1)
	}
	return p
}

func ecmaPart(rnd *rand.Rand, d int) string {
	if d <= 0 {
		switch rnd.IntN(5) {
		case 0:
			return oneOf(rnd, `\d`, `\D`, `\w`, `\W`, `\s`, `\S`, `.`)
		case 1:
			return ecmaClass(rnd)
		case 2:
			return oneOf(rnd, `\n`, `\t`, `\x41`, `\u0062`, `\u{1F600}`, `\ud83d\ude00`, `\.`, `\/`, `\$`, `\^`, `\[`, `\cJ`, `\0`, `\u00e9`, `\p{L}`, `\P{Lu}`, `\p{Nd}`)
		}
		return oneOf(rnd, "a", "b", "A", "é", "😀", "1", "-", " ", "_", "/", "ab", ",", "ß", "K")
	}
	sub := func() string { return ecmaPart(rnd, d-1) }
	switch rnd.IntN(9) {
	case 0, 1, 2:
		return sub() + sub()
	case 3:
		return oneOf(rnd, "(", "(?:", "(?<n"+string(rune('a'+rnd.IntN(26)))+string(rune('a'+rnd.IntN(26)))+">") + sub() + "|" + sub() + ")"
	case 4:
		return "(?:" + sub() + ")" + oneOf(rnd, "*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "+?", "??", "{1,2}?")
	case 5:
		return ecmaClass(rnd) + oneOf(rnd, "*", "+", "?", "{2}", "{1,3}", "{0}", "{0,1}", "{3,4}")
	case 6:
		return oneOf(rnd, "^", "", "$") + sub() + oneOf(rnd, "$", "", "")
	case 7:
		return "(" + sub() + "|)" + sub()
	}
	return sub()
}

func ecmaClass(rnd *rand.Rand) string {
	var b strings.Builder
	b.WriteString(oneOf(rnd, "[", "[", "[^"))
	for range 1 + rnd.IntN(4) {
		b.WriteString(oneOf(rnd, "a", "b-d", "A-Z", "0-9", `\d`, `\w`, `\s`, `\S`, `\W`, `\D`, "é", "à-ÿ", "😀", "😀-😂", `\n`, `\]`, `\\`, `\-`, "_", " ", ".", "$", `\u0061`, `\x30-\x39`, `\b`, "(", "|", `\p{Ll}`, "*"))
	}
	b.WriteString(oneOf(rnd, "]", "]", "-]"))
	return b.String()
}

// ecmaText is a random text, often one of the pattern's own pieces.
func ecmaText(rnd *rand.Rand, pattern string) string {
	var b strings.Builder
	own := []rune(pattern)
	for range rnd.IntN(6) {
		if rnd.IntN(3) == 0 {
			b.WriteRune(own[rnd.IntN(len(own))])
			continue
		}
		b.WriteString(oneOf(rnd, "a", "b", "c", "A", "B", "Z", "é", "ÿ", "ß", "😀", "😁", "1", "9", "٣", "-", " ", "_", "\n", "\r", "\t", "\u00a0", "\ufeff", "\u2028", "/", ".", ",", "$", "\x00", "\b", "K", "ſ", "\u212a", "中"))
	}
	return b.String()
}
