package grammar

import (
	"context"
	"testing"
)

// everyday are schemas as developers write them, with instances that are valid and
// instances that are not; the names of properties are in the schema's order.
var everyday = []struct {
	name, schema string
	yes, no      []string
}{
	{"openapi: error", `{"type":"object","required":["code","message"],"properties":{"code":{"type":"integer","format":"int32","minimum":400,"maximum":599},"message":{"type":"string","minLength":1},"details":{"type":"array","items":{"type":"object","additionalProperties":true}}}}`,
		[]string{`{"code":404,"message":"x"}`, `{"code":599,"message":"x","details":[{},{"a":[1]}]}`}, []string{`{"code":200,"message":"x"}`, `{"code":404,"message":""}`, `{"code":404}`, `{"code":404,"message":"x","details":[1]}`}},
	{"openapi: page of items", `{"type":"object","properties":{"items":{"type":"array","items":{"$ref":"#/components/schemas/Pet"},"maxItems":2},"next":{"type":["string","null"],"format":"uri"}},"required":["items"],"additionalProperties":false,"components":{"schemas":{"Pet":{"type":"object","required":["id","name"],"properties":{"id":{"type":"integer","format":"int64"},"name":{"type":"string"},"tag":{"type":"string"}}}}}}`,
		[]string{`{"items":[]}`, `{"items":[{"id":1,"name":"a"},{"id":-2,"name":"","tag":"t"}],"next":null}`, `{"items":[],"next":"https://a.example/?p=2"}`}, []string{`{"items":[{"id":1}]}`, `{"items":[],"next":"no uri"}`, `{"items":[],"more":1}`, `{"items":[{"id":1,"name":"a"},{"id":1,"name":"a"},{"id":1,"name":"a"}]}`}},
	{"k8s: container", `{"type":"object","required":["name"],"properties":{"name":{"type":"string","pattern":"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$","maxLength":63},"image":{"type":"string"},"env":{"type":"array","items":{"type":"object","required":["name"],"properties":{"name":{"type":"string","pattern":"^[A-Z_][A-Z0-9_]*$"},"value":{"type":"string"},"valueFrom":{"type":"object","maxProperties":1,"minProperties":1,"properties":{"secretKeyRef":{"type":"string"},"fieldRef":{"type":"string"}},"additionalProperties":false}},"not":{"required":["value","valueFrom"]},"additionalProperties":false}},"resources":{"type":"object","additionalProperties":{"type":"object","additionalProperties":{"anyOf":[{"type":"integer"},{"type":"string"}],"pattern":"^[0-9]+(m|Mi|Gi)?$"}}}},"additionalProperties":false}`,
		[]string{`{"name":"web","image":"nginx","env":[{"name":"A","value":"b"},{"name":"B_1","valueFrom":{"fieldRef":"x"}}],"resources":{"limits":{"cpu":"500m","memory":"1Gi"},"requests":{"cpu":1}}}`, `{"name":"a-b"}`}, []string{`{"name":"-a"}`, `{"name":"a","env":[{"name":"A","value":"b","valueFrom":{"fieldRef":"x"}}]}`, `{"name":"a","env":[{"name":"A","valueFrom":{}}]}`, `{"name":"a","resources":{"limits":{"cpu":"500x"}}}`}},
	{"k8s: quantity, int or string", `{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}],"pattern":"^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$"}`,
		[]string{`5`, `"1.5Gi"`, `"-2e3"`, `".5"`}, []string{`1.5`, `"Gi"`, `"1 Gi"`, `null`}},
	{"k8s: condition", `{"type":"object","required":["lastTransitionTime","status","type"],"properties":{"lastTransitionTime":{"type":"string","format":"date-time"},"status":{"type":"string","enum":["True","False","Unknown"]},"type":{"type":"string","maxLength":316,"pattern":"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$"}}}`,
		[]string{`{"lastTransitionTime":"2024-02-29T12:00:00Z","status":"True","type":"Ready"}`, `{"lastTransitionTime":"2024-01-01T12:00:00+02:00","status":"Unknown","type":"a.example/Ready"}`}, []string{`{"lastTransitionTime":"2023-02-29T12:00:00Z","status":"True","type":"Ready"}`, `{"lastTransitionTime":"2024-01-01T12:00:00Z","status":"true","type":"Ready"}`, `{"lastTransitionTime":"2024-01-01T12:00:00Z","status":"True","type":"-x"}`}},
	{"github: user or organisation", `{"type":"object","properties":{"login":{"type":"string","pattern":"^[a-zA-Z0-9](?:-?[a-zA-Z0-9]){0,38}$"},"id":{"type":"integer","minimum":1},"type":{"enum":["User","Organization","Bot"]},"site_admin":{"type":"boolean"},"email":{"type":["string","null"],"format":"email"}},"required":["login","id","type","site_admin"]}`,
		[]string{`{"login":"a-b","id":1,"type":"User","site_admin":false,"email":null}`, `{"login":"x","id":9007199254740993,"type":"Bot","site_admin":true,"email":"a@b.example"}`}, []string{`{"login":"a--b","id":1,"type":"User","site_admin":false}`, `{"login":"a","id":0,"type":"User","site_admin":false}`, `{"login":"a","id":1,"type":"user","site_admin":false}`, `{"login":"a","id":1,"type":"User","site_admin":false,"email":"nobody"}`}},
	{"github: labels, names or objects", `{"type":"array","items":{"oneOf":[{"type":"string"},{"type":"object","properties":{"name":{"type":"string"},"color":{"type":"string","pattern":"^[0-9a-fA-F]{6}$"}},"required":["name"]}]}}`,
		[]string{`["bug",{"name":"x","color":"00ff7F"}]`, `[]`}, []string{`[1]`, `[{"color":"000000"}]`, `[{"name":"x","color":"#00000"}]`}},
	{"discriminated union", `{"oneOf":[{"type":"object","properties":{"kind":{"const":"circle"},"r":{"type":"number","exclusiveMinimum":0}},"required":["kind","r"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"square"},"side":{"type":"number","exclusiveMinimum":0}},"required":["kind","side"],"additionalProperties":false}]}`,
		[]string{`{"kind":"circle","r":0.5}`, `{"kind":"square","side":1}`}, []string{`{"kind":"circle","side":1}`, `{"kind":"circle","r":0}`, `{"kind":"line"}`}},
	{"union by if and then", `{"type":"object","properties":{"method":{"enum":["card","iban"]},"card":{"type":"string","pattern":"^\\d{16}$"},"iban":{"type":"string","pattern":"^[A-Z]{2}\\d{2}[A-Z0-9]{4,30}$"}},"required":["method"],"allOf":[{"if":{"properties":{"method":{"const":"card"}}},"then":{"required":["card"],"properties":{"iban":false}}},{"if":{"properties":{"method":{"const":"iban"}}},"then":{"required":["iban"],"properties":{"card":false}}}]}`,
		[]string{`{"method":"card","card":"1234567890123456"}`, `{"method":"iban","iban":"DE89370400440532013000"}`}, []string{`{"method":"card"}`, `{"method":"card","card":"1234567890123456","iban":"DE89370400440532013000"}`, `{"method":"iban","card":"1234567890123456"}`}},
	{"recursive expression", `{"$ref":"#/$defs/e","$defs":{"e":{"anyOf":[{"type":"number"},{"$ref":"#/$defs/b"},{"$ref":"#/$defs/u"}]},"b":{"type":"object","properties":{"op":{"enum":["+","*"]},"l":{"$ref":"#/$defs/e"},"r":{"$ref":"#/$defs/e"}},"required":["op","l","r"],"additionalProperties":false},"u":{"type":"object","properties":{"neg":{"$ref":"#/$defs/e"}},"required":["neg"],"additionalProperties":false}}}`,
		[]string{`1`, `{"op":"+","l":1,"r":{"neg":{"op":"*","l":2,"r":3}}}`}, []string{`{"op":"-","l":1,"r":2}`, `{"op":"+","l":1}`, `{"neg":"x"}`, `{"neg":1,"op":"+"}`}},
	{"mutual references", `{"$ref":"#/$defs/dir","$defs":{"dir":{"type":"object","properties":{"name":{"type":"string"},"entries":{"type":"array","items":{"anyOf":[{"$ref":"#/$defs/file"},{"$ref":"#/$defs/dir"}]}}},"required":["name","entries"],"additionalProperties":false},"file":{"type":"object","properties":{"name":{"type":"string"},"size":{"type":"integer","minimum":0},"link":{"$ref":"#/$defs/dir"}},"required":["name","size"],"additionalProperties":false}}}`,
		[]string{`{"name":"/","entries":[{"name":"a","size":0},{"name":"b","entries":[{"name":"c","size":1,"link":{"name":"d","entries":[]}}]}]}`}, []string{`{"name":"/","entries":[{"name":"a"}]}`, `{"name":"/","entries":[{"name":"a","size":1,"entries":[]}]}`, `{"name":"/"}`}},
	{"nullable everything", `{"type":["object","null"],"properties":{"a":{"type":["string","null"]},"b":{"anyOf":[{"type":"integer"},{"type":"null"}]},"c":{"oneOf":[{"type":"null"},{"type":"array","items":{"type":["boolean","null"]}}]},"d":{"enum":["x",null]}},"required":["a","b","c","d"],"additionalProperties":false}`,
		[]string{`null`, `{"a":null,"b":null,"c":null,"d":null}`, `{"a":"","b":0,"c":[null,true],"d":"x"}`}, []string{`{"a":null,"b":null,"c":null}`, `{"a":1,"b":null,"c":null,"d":null}`, `{"a":null,"b":0.5,"c":null,"d":null}`, `{"a":null,"b":null,"c":[0],"d":null}`}},
	{"openapi 3.0 nullable is no keyword", `{"type":"string","nullable":true}`, []string{`"a"`}, []string{`null`}},
	{"currency", `{"type":"object","properties":{"amount":{"type":"number","multipleOf":0.01,"minimum":0,"maximum":999999.99},"currency":{"type":"string","pattern":"^[A-Z]{3}$"}},"required":["amount","currency"],"additionalProperties":false}`,
		[]string{`{"amount":0,"currency":"EUR"}`, `{"amount":19.99,"currency":"EUR"}`, `{"amount":999999.99,"currency":"USD"}`, `{"amount":4.35,"currency":"USD"}`}, []string{`{"amount":0.001,"currency":"EUR"}`, `{"amount":-0.01,"currency":"EUR"}`, `{"amount":1000000,"currency":"EUR"}`, `{"amount":1,"currency":"eur"}`}},
	{"percent in steps", `{"type":"number","minimum":-100,"exclusiveMaximum":100,"multipleOf":2.5}`, []string{`0`, `-100`, `97.5`, `2.5`}, []string{`100`, `1`, `-102.5`, `2.25`}},
	{"dates", `{"type":"object","properties":{"from":{"type":"string","format":"date"},"at":{"type":"string","format":"time"},"for":{"type":"string","format":"duration"}},"required":["from"],"additionalProperties":false}`,
		[]string{`{"from":"2024-02-29","at":"23:59:59Z","for":"P1DT2H"}`, `{"from":"2000-02-29"}`}, []string{`{"from":"1900-02-29"}`, `{"from":"2024-13-01"}`, `{"from":"2024-01-01","at":"24:00:00Z"}`, `{"from":"2024-01-01","for":"P"}`}},
	{"addresses", `{"type":"array","items":{"anyOf":[{"type":"string","format":"ipv4"},{"type":"string","format":"ipv6"},{"type":"string","format":"hostname"}]},"minItems":1}`,
		[]string{`["127.0.0.1","::1","a.example"]`}, []string{`[]`, `["a_b"]`, `["-a"]`}},
	{"identifiers", `{"type":"object","properties":{"id":{"type":"string","format":"uuid"},"mail":{"type":"string","format":"email"},"ref":{"type":"string","format":"uri-reference"}},"required":["id"]}`,
		[]string{`{"id":"123e4567-e89b-12d3-a456-426614174000","mail":"a.b@c.example","ref":"/a?b#c"}`}, []string{`{"id":"123e4567"}`, `{"id":"123e4567-e89b-12d3-a456-426614174000","mail":"a"}`, `{"id":"123e4567-e89b-12d3-a456-426614174000","ref":"%zz"}`}},
	{"unique days", `{"type":"array","items":{"enum":["mo","tu","we","th","fr"]},"uniqueItems":true,"minItems":1,"maxItems":3}`, []string{`["mo"]`, `["fr","mo","we"]`}, []string{`[]`, `["mo","mo"]`, `["mo","tu","we","th"]`, `["sa"]`}},
	{"names by pattern alone", `{"type":"object","patternProperties":{"^x-":true,"^[a-z]{2}$":{"type":"string"}},"additionalProperties":false,"minProperties":1}`,
		[]string{`{"de":"ja"}`, `{"x-a":[1],"en":"yes"}`}, []string{`{}`, `{"DE":"x"}`, `{"de":1}`, `{"eng":"x"}`}},
	{"translations", `{"type":"object","properties":{"default":{"type":"string"}},"required":["default"],"propertyNames":{"anyOf":[{"const":"default"},{"pattern":"^[a-z]{2}(-[A-Z]{2})?$"}]},"additionalProperties":{"type":"string","maxLength":5}}`,
		[]string{`{"default":"hello there"}`, `{"default":"","de":"ja","pt-BR":"sim"}`}, []string{`{"de":"ja"}`, `{"default":"","DE":"ja"}`, `{"default":"","de":"jawohl"}`}},
	{"inheritance by allOf", `{"$defs":{"base":{"type":"object","properties":{"id":{"type":"integer"},"tags":{"type":"array","items":{"type":"string"}}},"required":["id"]}},"allOf":[{"$ref":"#/$defs/base"},{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}],"unevaluatedProperties":false}`,
		[]string{`{"id":1,"name":"a"}`, `{"id":1,"tags":["x"],"name":"a"}`}, []string{`{"id":1}`, `{"name":"a"}`, `{"id":1,"name":"a","more":1}`, `{"id":"1","name":"a"}`}},
	{"narrowed by allOf", `{"allOf":[{"type":"object","properties":{"n":{"type":"number","minimum":0},"s":{"type":"string","minLength":2}}},{"properties":{"n":{"type":"integer","maximum":9},"s":{"maxLength":3,"pattern":"a"}},"required":["n"]}],"additionalProperties":true}`,
		[]string{`{"n":0}`, `{"n":9,"s":"ba"}`}, []string{`{"n":-1}`, `{"n":0.5}`, `{"n":10}`, `{"n":1,"s":"a"}`, `{"n":1,"s":"bb"}`, `{"n":1,"s":"baaa"}`}},
	{"either of two sets", `{"type":"object","properties":{"lat":{"type":"number","minimum":-90,"maximum":90},"lon":{"type":"number","minimum":-180,"maximum":180},"address":{"type":"string"}},"anyOf":[{"required":["lat","lon"]},{"required":["address"]}],"dependentRequired":{"lat":["lon"],"lon":["lat"]},"additionalProperties":false}`,
		[]string{`{"lat":1.5,"lon":-180}`, `{"address":"x"}`, `{"lat":90,"lon":0,"address":"x"}`}, []string{`{}`, `{"lat":1}`, `{"lat":1,"address":"x"}`, `{"lat":91,"lon":0}`}},
	{"geojson point or line", `{"oneOf":[{"type":"object","properties":{"type":{"const":"Point"},"coordinates":{"$ref":"#/$defs/p"}},"required":["type","coordinates"]},{"type":"object","properties":{"type":{"const":"LineString"},"coordinates":{"type":"array","items":{"$ref":"#/$defs/p"},"minItems":2}},"required":["type","coordinates"]}],"$defs":{"p":{"type":"array","prefixItems":[{"type":"number"},{"type":"number"}],"minItems":2,"maxItems":3,"items":{"type":"number"}}}}`,
		[]string{`{"type":"Point","coordinates":[1,2]}`, `{"type":"LineString","coordinates":[[1,2],[3,4,5]]}`}, []string{`{"type":"Point","coordinates":[1]}`, `{"type":"LineString","coordinates":[[1,2]]}`, `{"type":"Point","coordinates":[[1,2],[3,4]]}`, `{"type":"Point","coordinates":[1,2,3,4]}`}},
	{"semantic version", `{"type":"string","pattern":"^(0|[1-9]\\d*)\\.(0|[1-9]\\d*)\\.(0|[1-9]\\d*)(?:-((?:0|[1-9]\\d*|\\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\\.(?:0|[1-9]\\d*|\\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?(?:\\+([0-9a-zA-Z-]+(?:\\.[0-9a-zA-Z-]+)*))?$"}`,
		[]string{`"1.0.0"`, `"1.2.3-rc.1+b.7"`}, []string{`"1.0"`, `"01.0.0"`, `"1.0.0-"`, `"1.0.0-01"`}},
	{"slug that is not reserved", `{"type":"string","pattern":"^[a-z0-9-]{3,20}$","not":{"enum":["admin","api"]}}`, []string{`"abc"`, `"admin2"`}, []string{`"admin"`, `"api"`, `"ab"`, `"Abc"`}},
	{"tuple with the rest closed", `{"type":"array","prefixItems":[{"enum":["GET","POST"]},{"type":"string","pattern":"^/"},{"type":"integer"}],"items":false,"minItems":2}`, []string{`["GET","/"]`, `["POST","/a",1]`}, []string{`["GET"]`, `["PUT","/"]`, `["GET","a"]`, `["GET","/",1,2]`}},
	{"at least one default", `{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"},"default":{"type":"boolean"}},"required":["name","default"],"additionalProperties":false},"contains":{"properties":{"default":{"const":true}},"required":["default"]},"maxContains":1}`,
		[]string{`[{"name":"a","default":true}]`, `[{"name":"a","default":false},{"name":"b","default":true}]`}, []string{`[]`, `[{"name":"a","default":false}]`, `[{"name":"a","default":true},{"name":"b","default":true}]`}},
	{"draft-07: definitions and dependencies", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"card":{"$ref":"#/definitions/digits"},"billing":{"type":"string"}},"dependencies":{"card":["billing"]},"additionalProperties":false,"definitions":{"digits":{"type":"string","pattern":"^\\d+$"}}}`,
		[]string{`{}`, `{"billing":"x"}`, `{"card":"12","billing":"x"}`}, []string{`{"card":"12"}`, `{"card":"a","billing":"x"}`}},
	{"feature flags", `{"type":"object","minProperties":1,"maxProperties":3,"propertyNames":{"pattern":"^[a-z_]+$"},"additionalProperties":{"oneOf":[{"type":"boolean"},{"type":"object","properties":{"percent":{"type":"integer","minimum":0,"maximum":100}},"required":["percent"],"additionalProperties":false}]}}`,
		[]string{`{"a":true}`, `{"a_b":{"percent":100},"c":false}`}, []string{`{}`, `{"A":true}`, `{"a":{"percent":101}}`, `{"a":true,"b":true,"c":true,"d":true}`}},
}

// TestEverydaySchemas: in the schema's order and in any, whole and cut into tokens, with
// what is forced and without, the verdicts are those of the list and of a validator; and
// what a puppet writes is valid, also when it is closed at a limit.
func TestEverydaySchemas(t *testing.T) {
	toks := []*testBPE{learnBPE(bpeText, 0), learnBPE(bpeText, 300)}
	for i, c := range everyday {
		want := validator(t, c.schema, true)
		if want == nil {
			t.Fatalf("%s: no schema to the validator", c.name)
		}
		if testing.Short() && i%4 != 0 {
			continue
		}
		for k, tok := range toks {
			for _, any := range []bool{false, true} {
				g, err := Compile(context.Background(), Spec{JSONSchema: []byte(c.schema), AnyOrder: any}, tok.vocab())
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
					continue
				}
				for n, x := range append(c.yes[:len(c.yes):len(c.yes)], c.no...) {
					if ok := compareVerdicts(t, c.schema, g, want, x); ok != (n < len(c.yes)) {
						t.Errorf("%s: %s is %v", c.name, x, ok)
					}
					if n < len(c.yes) {
						mustWrite(t, g, tok, c.name, []byte(x))
					}
				}
				seed := uint64(4*i + k)
				off, _, ended := generate(t, g, tok, seed, false, 400)
				on, _, _ := generate(t, g, tok, seed, true, 400)
				if n := min(len(on), len(off)); string(tok.decode(on[:n])) != string(tok.decode(off[:n])) {
					t.Errorf("%s: with jumps %q, without %q", c.name, tok.decode(on), tok.decode(off))
				}
				if ended {
					mustBeValid(t, c.schema, want, tok.decode(off))
				}
				way, ok := g.Start().Ending(5000)
				if !ok {
					t.Fatalf("%s: no ending", c.name)
				}
				closed, _ := closeAt(t, g, tok, seed, len(way)+int(seed%17))
				mustBeValid(t, c.schema, want, tok.decode(closed))
			}
		}
	}
}

// mustWrite fails if a text cannot be written token by token, where what is forced is
// taken as it is: then some other tokens spell the same.
func mustWrite(t *testing.T, g *Grammar, tok *testBPE, what string, text []byte) {
	t.Helper()
	s := g.Start()
	for len(text) > 0 {
		var id int32
		if len(s.plan) > 0 {
			id = s.plan[0]
		} else {
			id = tok.encode(text)[0]
		}
		next, err := s.Accept(id)
		if err != nil {
			t.Fatalf("%s: before %q: %v", what, text, err)
		}
		if len(tok.tokens[id]) > len(text) || string(text[:len(tok.tokens[id])]) != string(tok.tokens[id]) {
			t.Fatalf("%s: %q is forced before %q", what, tok.tokens[id], text)
		}
		text, s = text[len(tok.tokens[id]):], next
	}
	if !s.CanEnd() {
		t.Fatalf("%s: it may not end", what)
	}
}
