package lang_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/coppice-run/coppice/grammar"
	"github.com/coppice-run/coppice/lang"
)

// allows reports which texts a schema allows, and that all of them decode.
func allows[T any](t *testing.T, yes, no []string) {
	t.Helper()
	rt := reflect.TypeFor[T]()
	s, err := lang.SchemaOf(rt)
	if err != nil {
		t.Errorf("%s: %v", rt, err)
		return
	}
	g, err := grammar.Compile(t.Context(), grammar.Spec{JSONSchema: s}, grammar.ByteVocab())
	if err != nil {
		t.Errorf("%s: %s: %v", rt, s, err)
		return
	}
	ty, err := lang.TypeOfSchema(s)
	if err != nil {
		t.Errorf("%s: %v", rt, err)
	}
	for _, text := range yes {
		if !g.Match([]byte(text)) {
			t.Errorf("%s: %s refuses %s", rt, s, text)
		}
		// As a run does: into a variable, out of it, into Go.
		v, err := lang.DecodeValue([]byte(text))
		if err == nil {
			v, err = lang.Convert(v, ty)
		}
		var out T
		if err == nil {
			err = json.Unmarshal(lang.FormatJSON(v, ty), &out)
		}
		if err != nil {
			t.Errorf("%s: %s: %v", rt, text, err)
		}
	}
	for _, text := range no {
		if g.Match([]byte(text)) {
			t.Errorf("%s: %s allows %s", rt, s, text)
		}
	}
}

func TestSchemasOfGoTypesAllowOnlyWhatDecodes(t *testing.T) {
	type level int8
	type quoted struct {
		N uint8 `json:"n,string"`
		L int64 `json:"l,string"`
	}
	type octet byte
	allows[int](t, []string{"0", "-7", "9223372036854775807", "-9223372036854775808"}, []string{"9223372036854775808", "-9223372036854775809", "1e40"})
	allows[int8](t, []string{"127", "-128"}, []string{"128", "-129"})
	allows[level](t, []string{"127", "-128"}, []string{"128", "-129"})
	allows[int16](t, []string{"32767", "-32768"}, []string{"32768"})
	allows[int32](t, []string{"2147483647", "-2147483648"}, []string{"2147483648"})
	allows[uint8](t, []string{"0", "255"}, []string{"-1", "256", "300"})
	allows[*uint16](t, []string{"65535"}, []string{"65536", "-1"})
	allows[uint32](t, []string{"4294967295"}, []string{"4294967296"})
	allows[uint64](t, []string{"0", "9223372036854775807"}, []string{"9223372036854775808", "-1"})
	type floats struct {
		F float32 `json:"f"`
		S float32 `json:"s,string"`
	}
	allows[float32](t, []string{"0", "-0.5", "340282346638528859811704183484516925440", "0.000000000000000000001"},
		[]string{"1e39", "340282356779733661637539395458142568448", "-1e400", "1e400"})
	allows[[]*float32](t, []string{"[1.25]"}, []string{"[1e39]"})
	allows[floats](t, []string{`{"f":1.5,"s":"-2.25"}`, `{"f":0,"s":"99999999999999999999999999999999999999"}`}, []string{`{"f":1.5,"s":"x"}`, `{"f":1.5,"s":"1e39"}`})
	allows[float64](t, []string{"1e3", "-0.5", "1.7976931348623157e308"}, nil)
	allows[[]uint16](t, []string{"[1,65535]"}, []string{"[65536]"})
	for _, b := range [][]byte{{}, {1}, {1, 2}, {1, 2, 3}, []byte("any text of some length")} {
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		allows[[]byte](t, []string{string(text)}, []string{`"any text"`, `"YQ="`, `"YQ"`, `"Y==="`})
		allows[[]octet](t, []string{string(text)}, []string{`"any text"`})
	}
	allows[map[uint8]int8](t, []string{`{}`, `{"0":1,"255":-1}`}, []string{`{"256":1}`, `{"x":1}`, `{"-1":1}`, `{"1":200}`})
	allows[map[int64]string](t, []string{`{"-9223372036854775808":"x"}`}, []string{`{"9223372036854775808":"x"}`})
	allows[quoted](t, []string{`{"n":"255","l":"-9223372036854775808"}`, `{"n":"0","l":"9223372036854775807"}`},
		[]string{`{"n":"256","l":"0"}`, `{"n":"x","l":"0"}`, `{"n":"1","l":"9223372036854775808"}`})

	for n := range 300 { // all of the pattern of a byte
		text := fmt.Sprintf(`{"n":"%d","l":"0"}`, n)
		if n < 256 {
			allows[quoted](t, []string{text}, nil)
		} else {
			allows[quoted](t, nil, []string{text})
		}
	}
}
