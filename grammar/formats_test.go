package grammar

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestFormats(t *testing.T) {
	for format, c := range map[string][2][]string{
		"date":      {{"2024-02-29", "2023-12-31", "2000-02-29", "1900-01-01"}, {"2023-02-29", "1900-02-29", "2023-13-01", "2023-04-31", "23-01-01", "2023-1-1", ""}},
		"time":      {{"00:00:00Z", "23:59:59.123+05:30", "12:30:00z"}, {"24:00:00Z", "12:60:00Z", "12:30Z", "12:30:00", "12:30:00+5:30"}},
		"date-time": {{"2023-01-01T00:00:00Z", "1985-04-12T23:20:50.52-08:00", "1998-12-31T23:59:60Z", "1998-12-31T23:59:60.5+00:00"}, {"1998-12-31T22:59:60Z", "1998-12-31T23:59:61Z", "2023-01-01 00:00:00Z", "2023-02-30T00:00:00Z", "2023-01-01T00:00:00", "2023-01-01"}},
		"duration":  {{"P1D", "PT36H", "P4Y3M2DT1H2M3S", "P2W", "PT0S", "P1Y"}, {"P", "PT", "P1", "1D", "P2D1Y", "P1D2H", "PT1D", "P1W2D"}},
		"email": {{"joe.bloggs@example.com", "te~st@example.com", "\"joe bloggs\"@example.com", "a@[127.0.0.1]", strings.Repeat("a", 64) + "@x.org"}, {"2962", ".test@example.com", "te..st@example.com", "a@b@c", "a@-b.com", "@x.org", "a b@x.org",
			strings.Repeat("a", 65) + "@x.org", strings.Repeat("a.", 32) + "a@x.org", `"` + strings.Repeat("@", 64) + `"@x.org`}},
		"hostname": {{"www.example.com", "a", "xn--4gbwdl.xn--wgbh1c", "1.2"}, {"-a.com", "a-.com", "a_b", "a..b", "", strings.Repeat("a", 64)}},
		"ipv4":     {{"192.168.0.1", "0.0.0.0", "255.255.255.255"}, {"256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5", "1.2.3.4/24"}},
		"ipv6":     {{"::1", "::", "12345::"[1:], "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1", "1::d6:192.168.0.1", "fe80::a"}, {"12345::", "1:2:3:4:5:6:7", "::1::", "1:2:3:4:5:6:7:8:9", ":2:3:4:5:6:7:8", "fe80::a%eth1", "1:1:1:1:1:1:1:1:1.2.3.4"}},
		"uuid":     {{"2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"}, {"2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4ga-73b441d16380"}},
		"uri": {{"http://foo.bar/?baz=qux#quux", "ftp://ftp.is.co.za/rfc/rfc1808.txt", "mailto:John.Doe@example.com", "urn:oasis:names", "http://[2001:db8::7]/c=GB?one", "tel:+1-816-555-1212", "http://a.b/%20"},
			{"//foo.bar/?baz", "/abc", "\\\\WINDOWS\\file", "abc", "http:// shouldfail.com", "bar,baz:foo", "http://a.b/%2", "https://[@example.org/", "http://a.b/<x>"}},
		"uri-reference":         {{"/abc", "", "#frag", "abc?x", "http://a.b"}, {"\\\\WINDOWS", "#frag\\ment", "a b"}},
		"iri":                   {{"http://ƒøø.ßår/?∂éœ=πîx#πîüx"}, {"/abc", "http:// a"}},
		"uri-template":          {{"http://example.com/dictionary/{term:1}/{term}", "{+x,y*}", "a"}, {"http://example.com/{term", "{}", "a b"}},
		"json-pointer":          {{"", "/foo/bar~0/baz~1/%a", "/"}, {"foo", "/~", "/~2", "#/a"}},
		"relative-json-pointer": {{"1", "0/foo", "2#", "120/foo/bar"}, {"/foo", "-1/a", "01/a", "0##", ""}},
		"regex":                 {{"^a+$", "([abc])+\\s+", "a|b", "[^x-]{2,3}?", "(a(b(c)))*", "\\."}, {"^(abc]", "*a", "a**", "[a", "a)"}},
		"idn-email":             {{"실례@실례.테스트", "joe@example.com"}, {"2962", "a@"}},
	} {
		g := mustCompile(t, Spec{JSONSchema: []byte(`{"type":"string","format":"` + format + `"}`)}, ByteVocab())
		for i, list := range c {
			for _, s := range list {
				text, err := Canonical(mustMarshal(t, s))
				if err != nil {
					t.Fatal(err)
				}
				if got, want := g.Match(text), i == 0; got != want {
					t.Errorf("%s: %s is accepted: %v", format, text, got)
				}
			}
		}
	}
	for name, p := range formatPatterns {
		if p == "" {
			t.Errorf("format %s has no pattern", name)
		}
	}
	if len(mustCompile(t, Spec{JSONSchema: []byte(`{"type":"string","format":"color"}`)}, ByteVocab()).Notes()) != 1 {
		t.Error("a format of no draft is not noted")
	}
	if compileError(Spec{JSONSchema: []byte(`{"type":"string","format":"idn-hostname"}`)}) == nil {
		t.Error("idn-hostname is not enforced and not refused")
	}
}

func mustMarshal(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhitespace(t *testing.T) {
	const data = `{"a":[true,false],"b":"x y"}`
	spec := testSpecs["indented"]
	var v any
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatal(err)
	}
	indented, _ := json.MarshalIndent(v, "", "  ")
	if g := mustCompile(t, spec, ByteVocab()); !g.Match(indented) || g.Match([]byte(data)) || !g.Match([]byte("{\n  \"a\": [],\n  \"b\": \"\"\n}")) {
		t.Errorf("%s does not match", indented)
	}
	g := mustCompile(t, testSpecs["spaced"], ByteVocab())
	for text, want := range map[string]bool{
		data: true, `{ "a" : [ true ,false ] , "b":"x" }`: true, "{\n\t\"b\": \"\"}": true, `{   "b":""}`: false, ` {"b":""}`: false, `{"b":"" } `: false,
	} {
		if g.Match([]byte(text)) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}
