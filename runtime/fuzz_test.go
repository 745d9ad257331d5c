package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"testing"
)

func FuzzReadRecords(f *testing.F) {
	def := errand(&effects{}, false)
	g, err := def.Compile()
	if err != nil {
		f.Fatal(err)
	}
	mem := newMemFS()
	if _, err := RunGraph(context.Background(), errandModel(), g, def.Funcs(), nil, WithJournal("j"), withFS(mem)); err != nil {
		f.Fatal(err)
	}
	whole := mem.files["j"].data
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("00000000 {}\n"))
	head := whole[:bytes.IndexByte(whole, '\n')+1]
	sum, err := claimed(head)
	if err != nil {
		f.Fatal(err)
	}
	for _, rec := range []string{`{"kind":"header","header":{"format":2}}`, `{"kind":"header","header":{"format":1}}`, `{"kind":"result"}`, `{"kind":"again","task":"x"}`} {
		var r record
		if err := json.Unmarshal([]byte(rec), &r); err != nil {
			f.Fatal(err)
		}
		for _, before := range []struct {
			text []byte
			sum  uint32
		}{{}, {head, sum}} {
			data, _, err := appendRecord(bytes.Clone(before.text), &r, before.sum)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := readRecords(bytes.NewReader(data))
		if err != nil {
			if !errors.Is(err, ErrJournalCorrupt) && !errors.Is(err, ErrNoJournal) && !errors.Is(err, ErrJournalFormat) {
				t.Errorf("error of no class: %v", err)
			}
			return
		}
		if c.size > int64(len(data)) {
			t.Fatal("more read than there is")
		}
		// What was read whole reads the same without its torn end.
		again, err := readRecords(bytes.NewReader(data[:c.size]))
		if err != nil || len(again.results) != len(c.results) || len(again.started) != len(c.started) || again.size != c.size {
			t.Fatalf("cut at %d: %v", c.size, err)
		}
		// Going on with any of it ends in an error or a report, never a panic.
		mem := newMemFS()
		mem.files["j"] = &memData{data: bytes.Clone(data)}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		Resume(ctx, errandModel(), "j", def.Funcs(), withFS(mem), WithGrace(1))
	})
}
