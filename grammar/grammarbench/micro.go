package grammarbench

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/coppice-run/coppice/grammar"
)

// MicroRow is one small case that is known to be hard for constrained decoders.
type MicroRow struct {
	Name      string    `json:"name"`
	CompileUS float64   `json:"compile_us"`
	FirstUS   float64   `json:"first_mask_us"`
	MaskUS    Quantiles `json:"mask_us"`
	Error     string    `json:"error,omitempty"`
}

type microCase struct {
	name string
	spec grammar.Spec
	text string
}

const (
	anyObject  = `{"name":"lorem ipsum","list":[1,2.5,true,null,{"a":"b"}],"more":{"x":{"y":"z"}}}`
	arithmetic = "root ::= expr\nexpr ::= term ((\"+\" | \"-\") term)*\nterm ::= factor ((\"*\" | \"/\") factor)*\nfactor ::= [0-9]+ | \"(\" expr \")\""
)

// inLark is the EBNF grammars of the cases for those who read Lark only.
var inLark = map[string]string{
	arithmetic: "start: expr\nexpr: term ((\"+\" | \"-\") term)*\nterm: factor ((\"*\" | \"/\") factor)*\nfactor: /[0-9]+/ | \"(\" expr \")\"",
}

// microCases are the cases and a text of each.
func microCases() []microCase {
	schema := func(s string) grammar.Spec { return grammar.Spec{JSONSchema: []byte(s)} }
	lorem := strings.Repeat("lorem ipsum dolor sit amet consectetur ", 12)
	var choices, enum []string
	for i := range 100 {
		choices = append(choices, fmt.Sprintf("option %d of %d", i, i*i))
	}
	for i := range 5000 {
		enum = append(enum, fmt.Sprintf("%q", fmt.Sprintf("item-%d-%x", i, i*7919)))
	}
	var props, required, filled []string
	for i := range 400 {
		name := fmt.Sprintf("%q", fmt.Sprintf("field_%d_%x", i, i*2654435761%9973))
		props = append(props, name+`:{"type":"integer"}`)
		required = append(required, name)
		if i%5 == 0 {
			filled = append(filled, name+":"+fmt.Sprint(i))
		}
	}
	var all []string
	for i, n := range required {
		all = append(all, n+":"+fmt.Sprint(i))
	}
	var tools []string
	for i := range 64 {
		tools = append(tools, fmt.Sprintf(`{"type":"object","properties":{"name":{"const":"tool_%d"},"arguments":{"type":"object","properties":{"arg_%d":{"type":"string"},"count":{"type":"integer"}},"required":["arg_%d"],"additionalProperties":false}},"required":["name","arguments"],"additionalProperties":false}`, i, i, i))
	}
	ints := strings.TrimSuffix(strings.Repeat("12,345,6,", 60), ",")
	return []microCase{
		{"JSON object mode", grammar.Spec{JSONObject: true}, anyObject},
		{"any JSON object", schema(`{"type":"object"}`), anyObject},
		{"regex [0-9]{3}-[0-9]{4}", grammar.Spec{Regex: `[0-9]{3}-[0-9]{4}`}, "123-4567"},
		{"regex [a-zA-Z0-9 ,.]+", grammar.Spec{Regex: `[a-zA-Z0-9 ,.]+`}, lorem},
		{"regex of a mail address", grammar.Spec{Regex: `[a-zA-Z0-9._%+-]{1,64}@[a-zA-Z0-9.-]{1,255}\.[a-z]{2,}`}, "john.doe.the.second@mail.example.org"},
		{"regex (.|\\n){0,1000}", grammar.Spec{Regex: `(.|\n){0,1000}`}, lorem},
		{"100 choices", grammar.Spec{Choices: choices}, choices[77]},
		{"enum of 5000", schema(`{"enum":[` + strings.Join(enum, ",") + `]}`), enum[4321]},
		{"minLength 10, maxLength 200", schema(`{"type":"string","minLength":10,"maxLength":200}`), `"` + lorem[:190] + `"`},
		{"maxLength 100000", schema(`{"type":"string","maxLength":100000}`), `"` + lorem + `"`},
		{"minLength 500", schema(`{"type":"string","minLength":500}`), `"` + lorem + lorem[:60] + `"`},
		{"pattern {1,2000}", schema(`{"type":"string","pattern":"^[A-Za-z0-9_ -]{1,2000}$"}`), `"` + lorem + `"`},
		{"integer array, maxItems 1000", schema(`{"type":"array","items":{"type":"integer"},"maxItems":1000}`), "[" + ints + "]"},
		{"400 optional properties", schema(`{"type":"object","properties":{` + strings.Join(props, ",") + `},"additionalProperties":false}`), "{" + strings.Join(filled, ",") + "}"},
		{"400 required properties", schema(`{"type":"object","properties":{` + strings.Join(props, ",") + `},"required":[` + strings.Join(required, ",") + `],"additionalProperties":false}`), "{" + strings.Join(all, ",") + "}"},
		{"recursive tree", schema(`{"type":"object","properties":{"label":{"type":"string"},"kids":{"type":"array","items":{"$ref":"#"}}},"required":["label","kids"],"additionalProperties":false}`),
			`{"label":"a","kids":[{"label":"b","kids":[]},{"label":"c","kids":[{"label":"d","kids":[]}]}]}`},
		{"bounded integer array", schema(`{"type":"array","items":{"type":"integer","minimum":-50,"maximum":12345},"minItems":2,"maxItems":20}`), "[12,-3,12345,0,7]"},
		{"anyOf of 64 tools", schema(`{"anyOf":[` + strings.Join(tools, ",") + `]}`), `{"name":"tool_37","arguments":{"arg_37":"lorem ipsum","count":12}}`},
		{"arithmetic", grammar.Spec{EBNF: arithmetic}, "(1+2)*3-(45/(6+7))*8+9"},
	}
}

// Micro measures the small cases.
func Micro(ctx context.Context, tok *Tokenizer) ([]MicroRow, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	vocab, err := grammar.NewVocab(tok.Tokens, grammar.VocabOptions{EndTokens: tok.End})
	if err != nil {
		return nil, err
	}
	bits := make([]uint64, vocab.MaskWords())
	var rows []MicroRow
	for _, c := range microCases() {
		runtime.GC() // what the case before left is none of this one's cost
		start := begin()
		g, err := grammar.Compile(ctx, c.spec, vocab)
		row := MicroRow{Name: c.name, CompileUS: start.us()}
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			row.Error = err.Error()
			rows = append(rows, row)
			continue
		}
		var masks []float64
		s := g.Start()
		for _, id := range tok.Encode([]byte(c.text)) {
			start := begin()
			s.Mask(bits)
			masks = append(masks, start.us())
			next, err := s.Accept(id)
			if err != nil {
				row.Error = err.Error()
				break
			}
			s = next
		}
		row.FirstUS = masks[0]
		row.MaskUS = QuantilesOf(masks)
		rows = append(rows, row)
	}
	return rows, nil
}

// MicroSet is the set that the lines of [MicroLines] name.
const MicroSet = "micro"

// MicroLines is the small cases that are schemas as lines {"id","set","schema",
// "tests"}, for runners that measure others; id is [MicroRow.Name].
func MicroLines() ([]byte, error) {
	return linesOf(func(c microCase) any {
		if c.spec.JSONSchema == nil {
			return nil
		}
		return line{ID: c.name, Set: MicroSet, Schema: c.spec.JSONSchema, Tests: []lineTest{{true, json.RawMessage(c.text)}}}
	})
}

// MicroPatternLines is the other small cases as lines {"id","set","text"} with
// "json" (any object), "regex", "choices", or one grammar as "ebnf" and as "lark".
func MicroPatternLines() ([]byte, error) {
	return linesOf(func(c microCase) any {
		if c.spec.JSONSchema != nil {
			return nil
		}
		return struct {
			ID      string   `json:"id"`
			Set     string   `json:"set"`
			Text    string   `json:"text"`
			JSON    bool     `json:"json,omitempty"`
			Regex   string   `json:"regex,omitempty"`
			Choices []string `json:"choices,omitempty"`
			EBNF    string   `json:"ebnf,omitempty"`
			Lark    string   `json:"lark,omitempty"`
		}{c.name, MicroSet, c.text, c.spec.JSONObject, c.spec.Regex, c.spec.Choices, c.spec.EBNF, inLark[c.spec.EBNF]}
	})
}

// linesOf is a line for each case of which one is made.
func linesOf(of func(microCase) any) ([]byte, error) {
	var out []byte
	for _, c := range microCases() {
		l := of(c)
		if l == nil {
			continue
		}
		text, err := json.Marshal(l)
		if err != nil {
			return nil, fmt.Errorf("grammarbench: %s: %w", c.name, err)
		}
		out = append(append(out, text...), '\n')
	}
	return out, nil
}

// FormatMicro is the rows as a table.
func FormatMicro(rows []MicroRow) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-32s %12s %12s %10s %10s %10s\n", "case", "compile", "first mask", "mask p50", "p99", "max")
	us := func(x float64) string {
		return (time.Duration(x*1e3) * time.Nanosecond).Round(100 * time.Nanosecond).String()
	}
	for _, r := range rows {
		fmt.Fprintf(&b, "%-32s %12s %12s %10s %10s %10s %s\n", r.Name, us(r.CompileUS), us(r.FirstUS), us(r.MaskUS.P50), us(r.MaskUS.P99), us(r.MaskUS.Max), r.Error)
	}
	return b.String()
}
