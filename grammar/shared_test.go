package grammar

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// sharedFile opens a file of the shared test data, or skips the test.
func sharedFile(t testing.TB, name string) io.ReadCloser {
	t.Helper()
	root := os.Getenv("COPPICE_SHARED")
	if root == "" {
		t.Skip("COPPICE_SHARED is not set: it names the folder of the shared test data")
	}
	f, err := os.Open(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if !strings.HasSuffix(name, ".gz") {
		return f
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func checkShared(t *testing.T, name string, opts CheckOptions) *CheckReport {
	t.Helper()
	rep, err := Check(context.Background(), sharedFile(t, name), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s any-order=%v: %d schemas, %d all right (%.1f%%), %d refused, %d tests (%d in another order), %d wrong accepts, %d wrong rejects", name, opts.AnyOrder, rep.Schemas, rep.AllRight,
		100*float64(rep.AllRight)/float64(rep.Schemas), rep.Refused, rep.Tests, rep.OtherOrder, rep.WrongAccepts, rep.WrongRejects)
	if rep.WrongAccepts > 0 {
		t.Errorf("%d wrong accepts", rep.WrongAccepts)
	}
	for i, f := range rep.Failures {
		if i < 400 {
			t.Logf("  %-12s %s test %d byte %d: %.300s", f.Kind, f.ID, f.Test, f.At, f.Why)
		}
	}
	return rep
}

func TestMaskbench(t *testing.T) {
	for name, share := range map[string]float64{"maskbench_dev": 0.98, "maskbench_extra": 1} {
		for _, any := range []bool{false, true} {
			if testing.Short() && (any || name != "maskbench_dev") {
				continue
			}
			rep := checkShared(t, "data/grammar/"+name+".jsonl.gz", CheckOptions{AnyOrder: any})
			if got := float64(rep.AllRight) / float64(rep.Schemas); got < share {
				t.Errorf("%s: only %.1f%% of the schemas are all right", name, 100*got)
			}
		}
	}
}

// TestMaskbenchStress compiles the largest schemas, or refuses them, within
// 256 MiB of allocations in all.
func TestMaskbenchStress(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: compiles the largest schemas twice")
	}
	const name = "data/grammar/maskbench_stress.jsonl.gz"
	checkShared(t, name, CheckOptions{})
	raw, err := io.ReadAll(sharedFile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var l struct {
			ID     string
			Schema json.RawMessage
		}
		if err := json.Unmarshal(line, &l); err != nil {
			t.Fatal(err)
		}
		cost := costOf(func() { err = compileError(Spec{JSONSchema: l.Schema}) })
		if cost.bytes > 256<<20 {
			t.Errorf("%s allocates %d MiB", l.ID, cost.bytes>>20)
		}
		t.Logf("%s: %.60v, %v", l.ID, err, cost)
	}
}

// TestMaskbenchEndings: at places of texts of all schemas, in the schema's order and in
// any, there is a way to an end; with -short of every eighth schema.
func TestMaskbenchEndings(t *testing.T) {
	for _, name := range []string{"maskbench_dev", "maskbench_stress"} {
		raw, err := io.ReadAll(sharedFile(t, "data/grammar/"+name+".jsonl.gz"))
		if err != nil {
			t.Fatal(err)
		}
		r, places, lines := rand.New(rand.NewPCG(1, 2)), 0, 0
		for line := range bytes.Lines(raw) {
			if lines++; testing.Short() && lines%8 != 0 {
				continue
			}
			var l struct {
				ID     string
				Schema json.RawMessage
				Tests  []struct {
					Data  json.RawMessage
					Valid bool
				}
			}
			if err := json.Unmarshal(line, &l); err != nil {
				t.Fatal(err)
			}
			for _, any := range []bool{false, true} {
				g, err := Compile(context.Background(), Spec{JSONSchema: l.Schema, AnyOrder: any}, ByteVocab())
				if err != nil {
					continue
				}
				texts := [][]byte{nil}
				for _, x := range l.Tests {
					text, err := Canonical(x.Data)
					for range 5 {
						if err == nil && x.Valid && g.Match(text) {
							texts = append(texts, text[:r.IntN(len(text))])
						}
					}
				}
				for _, text := range texts {
					places++
					s, err := g.Start().AcceptBytes(text)
					if err != nil {
						t.Fatal(err)
					}
					var end []byte
					ids, ok := s.Ending(LongestEnding)
					for _, id := range ids {
						end = append(end, g.vocab.Token(id)...)
					}
					if !ok || !g.Match(slices.Concat(text, end)) {
						t.Errorf("%s, any order %v, behind %d bytes: %v, %q", l.ID, any, len(text), ok, end)
					}
				}
			}
		}
		if t.Logf("%s: %d places", name, places); places == 0 {
			t.Errorf("%s: nothing of it compiles", name)
		}
	}
}

// cost is the time that something took and the bytes that it allocated in all.
type cost struct {
	took  time.Duration
	bytes uint64
}

func (c cost) String() string {
	return fmt.Sprintf("%v, %d MiB allocated in all", c.took.Round(time.Millisecond), c.bytes>>20)
}

func costOf(work func()) cost {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	work()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return cost{took, after.TotalAlloc - before.TotalAlloc}
}
