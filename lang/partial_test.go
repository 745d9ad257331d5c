package lang_test

import (
	"encoding/json"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

func TestPartialJSONHoldsWhatIsThereSoFar(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "  ": "", "tru": "", "true": "true", "12": "", "12 ": "12", `"ab`: `"ab"`, "nul": "",
		"{": "{}", `{"a`: "{}", `{"a"`: "{}", `{"a":`: "{}", `{"a":1`: "{}", `{"a":1,`: `{"a":1}`, `{"a":12,"b`: `{"a":12}`,
		`{"a":"x`: `{"a":"x"}`, `{"a":"x\`: `{"a":"x"}`, `{"a":"x\n`: `{"a":"x\n"}`, `{"a":"x\u00`: `{"a":"x"}`, `{"a":"x\u00e9`: `{"a":"x\u00e9"}`,
		`{"a":"\ud83d`: `{"a":""}`, `{"a":"\ud83d\ude`: `{"a":""}`, `{"a":"\ud83d\ude00`: `{"a":"\ud83d\ude00"}`,
		`[1, [2, {"b": [`: `[1, [2, {"b": []}]]`, `[true, fal`: "[true]", `[-1.5e3, -`: "[-1.5e3]", `{"a":{}}`: `{"a":{}}`, `[]`: "[]",
		`{"a":"é`: `{"a":"é"}`, "{\"a\":\"\xc3": `{"a":""}`, `{"a":nope`: "{}", `{"a":1} x`: `{"a":1}`, `{]`: "{}", `{"a" "b"`: "{}", "[1,]": "[1]", `["a` + "\n": `["a"]`,
		"{\"a\": \"b\" ,\n \"c\" : fa": `{"a": "b"}`,
	} {
		got, ok := lang.PartialJSON(text)
		if string(got) != want && !(want != "" && json.Valid(got) && string(got) == want) || ok != (want != "") {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Each prefix of a document gives valid JSON, whatever the steps it comes in, and
// the whole gives the document.
func TestPartialJSONIsAlwaysJSON(t *testing.T) {
	const doc = `{"pod":"web-1 é😀\ud83d\ude00\n","n":[1,-2.5e10,{"x":null}],"ok":true,"s":"","deep":[[[["a"]]]]}`
	var p lang.Partial
	for i := range len(doc) {
		p.Add(doc[i : i+1])
		got, ok := p.Value()
		if !ok || !json.Valid(got) {
			t.Errorf("%q: %q", doc[:i+1], got)
		}
		if at, _ := lang.PartialJSON(doc[:i+1]); string(at) != string(got) {
			t.Errorf("%q: %q in steps and %q at once", doc[:i+1], got, at)
		}
	}
	if got, _ := p.Value(); string(got) != doc {
		t.Errorf("%s", got)
	}
}

func FuzzPartial(f *testing.F) {
	for _, s := range []string{`{"a":[1,"b\u00e9",true]}`, "[[[", `"\`, "-", `{"a":"` + "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, ok := lang.PartialJSON(text); ok && !json.Valid(got) {
			t.Errorf("%q: %q", text, got)
		}
	})
}
