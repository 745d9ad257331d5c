package grammar

import "strings"

// The formats as patterns over the whole string. Sources: RFC 3339 (date,
// time, duration), RFC 5321 and 6531 (mail addresses, ASCII local parts as dot
// atoms or quoted), RFC 1123 (host names), RFC 3986 and 3987 (URI, IRI), RFC
// 4291 (IPv6), RFC 4122 (UUID), RFC 6570 (templates), RFC 6901 (pointers).
var formatPatterns = buildFormats()

// mailAtom is a dotless piece of the part of an address before the @.
const mailAtom = `[A-Za-z0-9!#$%&'*+/=?^_{|}~` + "`" + `-]+`

// formatHeads are the beginnings of formats whose length is bounded on its own:
// at most so many characters, then the format's pattern.
var formatHeads = map[string]struct {
	pattern string
	most    int32
}{
	// RFC 5321, section 4.1.2; the bound is that of section 4.5.3.1.1.
	"email": {mailAtom + `(?:\.` + mailAtom + `)*|"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\[\x20-\x7e])*"`, 64},
}

func buildFormats() map[string]string {
	expand := func(text string, defs ...string) string {
		for i := len(defs) - 2; i >= 0; i -= 2 {
			text = strings.ReplaceAll(text, "<"+defs[i]+">", "(?:"+defs[i+1]+")")
		}
		return text
	}
	f := map[string]string{}
	days := `(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8])`
	leap := `(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29`
	date := `(?:[0-9]{4}-(?:` + days + `)|` + leap + `)`
	// Leap seconds are let in where the time is written in UTC; elsewhere each
	// offset would have a time of its own.
	clock := `(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|` +
		`23:59:60(?:\.[0-9]{1,9})?(?:[Zz]|[+-]00:00))`
	f["date"] = date
	f["time"] = clock
	f["date-time"] = date + `[Tt]` + clock
	dtime := `T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)`
	ddate := `(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)`
	f["duration"] = `P(?:` + ddate + `(?:` + dtime + `)?|` + dtime + `|[0-9]+W)`

	label := `[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
	host := label + `(?:\.` + label + `)*`
	f["hostname"] = host
	oct := `(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	v4 := oct + `(?:\.` + oct + `){3}`
	h := `[0-9A-Fa-f]{1,4}`
	ls := `(?:` + h + `:` + h + `|` + v4 + `)`
	v6 := expand(`(?:<h>:){6}<ls>|::(?:<h>:){5}<ls>|<h>?::(?:<h>:){4}<ls>|(?:(?:<h>:){0,1}<h>)?::(?:<h>:){3}<ls>|`+
		`(?:(?:<h>:){0,2}<h>)?::(?:<h>:){2}<ls>|(?:(?:<h>:){0,3}<h>)?::<h>:<ls>|(?:(?:<h>:){0,4}<h>)?::<ls>|`+
		`(?:(?:<h>:){0,5}<h>)?::<h>|(?:(?:<h>:){0,6}<h>)?::`, "h", h, "ls", ls)
	f["ipv4"] = v4
	f["ipv6"] = v6
	// See formatHeads for what stands before the @.
	f["email"] = `@(?:` + host + `|\[(?:` + v4 + `|IPv6:(?:` + v6 + `))\])`
	uatom := `[A-Za-z0-9!#$%&'*+/=?^_{|}~\u0080-\u{10FFFF}` + "`" + `-]+`
	ulabel := `[A-Za-z0-9\u0080-\u{10FFFF}](?:[A-Za-z0-9\u0080-\u{10FFFF}-]{0,61}[A-Za-z0-9\u0080-\u{10FFFF}])?`
	f["idn-email"] = uatom + `(?:\.` + uatom + `)*@` + ulabel + `(?:\.` + ulabel + `)*`
	f["uuid"] = `[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}`

	uri := func(extra string) (abs, ref string) {
		pct := `%[0-9A-Fa-f]{2}`
		unres := `A-Za-z0-9._~\-` + extra
		sub := `!$&'()*+,;=`
		pchar := `(?:[` + unres + sub + `:@]|` + pct + `)`
		seg := pchar + `*`
		segnc := `(?:[` + unres + sub + `@]|` + pct + `)+`
		reg := `(?:[` + unres + sub + `]|` + pct + `)*`
		auth := `(?:(?:[` + unres + sub + `:]|` + pct + `)*@)?(?:\[(?:` + v6 + `|v[0-9A-Fa-f]+\.[` + unres + sub + `:]+)\]|` + reg + `)(?::[0-9]*)?`
		tail := `(?:\?(?:` + pchar + `|[/?])*)?(?:#(?:` + pchar + `|[/?])*)?`
		abempty := `(?:/` + seg + `)*`
		absolute := `/(?:` + pchar + `+` + abempty + `)?`
		hier := `(?://` + auth + abempty + `|` + absolute + `|` + pchar + `+` + abempty + `|)`
		rel := `(?://` + auth + abempty + `|` + absolute + `|` + segnc + abempty + `|)`
		abs = `[A-Za-z][A-Za-z0-9+.\-]*:` + hier + tail
		return abs, `(?:` + abs + `|` + rel + tail + `)`
	}
	f["uri"], f["uri-reference"] = uri("")
	f["iri"], f["iri-reference"] = uri(`\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{EFFFD}`)
	f["uri-template"] = expand(`(?:[^\x00-\x20"'<>%\\^{|}`+"`"+`]|%[0-9A-Fa-f]{2}|\{[+#./;?&=,!@|]?<v>(?:,<v>)*\})*`,
		"v", `<n>(?:\.<n>)*(?::[1-9][0-9]{0,3}|\*)?`)
	f["uri-template"] = expand(f["uri-template"], "n", `(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+`)
	pointer := `(?:/(?:[^~/]|~[01])*)*`
	f["json-pointer"] = pointer
	f["relative-json-pointer"] = `(?:0|[1-9][0-9]*)(?:#|` + pointer + `)`
	f["regex"] = regexFormat()
	return f
}

// regexFormat is a part of the valid patterns, without look-around, back
// references and unbalanced brackets, and with groups nested three deep.
func regexFormat() string {
	esc := `\\(?:[dDwWsStnrvf0.*+?^$(){}|/\[\]\\-]|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})`
	member := `(?:[^\]\[\\-]|` + esc + `)`
	class := `\[\^?-?(?:A-Z|a-z|0-9|A-Fa-f|a-fA-F|` + member + `)*-?\]`
	// Counts whose order is plain.
	counts := `\{(?:[0-9]{1,3},?|[01],[1-9][0-9]{0,2}|[2-9],[1-9][0-9]{1,2}|2,[2-9]|3,[3-9]|[45],[5-9])\}`
	quant := `(?:(?:[*+?]|` + counts + `)\??)?`
	atom := `(?:[^\\()\[\]{}*+?|^$]|` + esc + `|` + class + `)`
	unit := atom
	seq := ``
	for range 4 {
		seq = `(?:[\^$]?(?:` + unit + quant + `)*[$]?(?:\|[\^$]?(?:` + unit + quant + `)*[$]?)*)`
		unit = `(?:` + atom + `|\((?:\?:)?` + seq + `\))`
	}
	return seq
}
