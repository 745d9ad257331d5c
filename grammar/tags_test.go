package grammar

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// tagged reports whether text is free text with the tags in it, by trying all
// ways to read it. Contents are choices, or free.
func tagged(x *Tags, text string, met bool) bool {
	triggers := x.Triggers
	if triggers == nil {
		for _, t := range x.Tags {
			triggers = append(triggers, t.Begin)
		}
	}
	at, trigger := -1, ""
	for _, t := range triggers { // none holds another
		if i := strings.Index(text, t); i >= 0 && (at < 0 || i+len(t) < at+len(trigger)) {
			at, trigger = i, t
		}
	}
	if at < 0 {
		return met || !x.AtLeastOne
	}
	return slices.ContainsFunc(x.Tags, func(t Tag) bool {
		rest, ok := strings.CutPrefix(text[at:], t.Begin)
		if !ok || !strings.HasPrefix(t.Begin, trigger) {
			return false
		}
		goesOn := func(after string) bool {
			if x.StopAfterFirst {
				return after == ""
			}
			return tagged(x, after, true)
		}
		if t.Content == nil {
			_, after, found := strings.Cut(rest, t.End)
			return found && goesOn(after)
		}
		return slices.ContainsFunc(t.Content.Choices, func(c string) bool {
			after, ok := strings.CutPrefix(rest, c+t.End)
			return ok && goesOn(after)
		})
	})
}

func TestTagsAgainstAllReadings(t *testing.T) {
	rnd := rand.New(rand.NewPCG(91, 92))
	yes, all := 0, 0
	for range 300 {
		x := &Tags{AtLeastOne: rnd.IntN(3) == 0, StopAfterFirst: rnd.IntN(4) == 0}
		names := []string{"<a>", "<ab>", "<b", "<<b>"}
		rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, n := range names[:1+rnd.IntN(3)] {
			if slices.ContainsFunc(x.Tags, func(o Tag) bool { return strings.Contains(o.Begin, n) || strings.Contains(n, o.Begin) }) {
				continue
			}
			tag := Tag{Begin: n, End: oneOf(rnd, ">", "</a>", "b<", "<>")}
			if rnd.IntN(3) > 0 {
				tag.Content = &Spec{Choices: slices.Compact([]string{oneOf(rnd, "", "a"), oneOf(rnd, "b", "b<", ">a")})}
			}
			x.Tags = append(x.Tags, tag)
		}
		if rnd.IntN(2) == 0 && !slices.ContainsFunc(x.Tags, func(t Tag) bool { return !strings.HasPrefix(t.Begin, "<a") && !strings.HasPrefix(t.Begin, "<b") }) {
			x.Triggers = []string{"<"}
		}
		g := mustCompile(t, Spec{Tags: x}, ByteVocab())
		var pieces []string
		for _, tag := range x.Tags {
			pieces = append(pieces, tag.Begin, tag.End)
			if tag.Content != nil {
				pieces = append(pieces, tag.Content.Choices...)
			}
		}
		for range 150 {
			var b strings.Builder
			for range rnd.IntN(7) {
				if rnd.IntN(3) == 0 {
					b.WriteString(oneOf(rnd, "<", "a", "b", ">", "/"))
				} else {
					b.WriteString(pieces[rnd.IntN(len(pieces))])
				}
			}
			text := b.String()
			want := tagged(x, text, false)
			if got := g.Match([]byte(text)); got != want {
				t.Fatalf("%+v on %q: %v, want %v", x, text, got, want)
			}
			if all++; want {
				yes++
			}
		}
	}
	if yes < all/20 || yes > all*19/20 {
		t.Errorf("%d of %d texts belong", yes, all)
	}
}
