package runtime

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goOn resumes a journal of the errand, or begins it anew where nothing is
// recorded, and requires the report of an undisturbed run or an error that says
// what is wrong with the file.
func goOn(t *testing.T, what string, data []byte, want string) (damaged bool) {
	t.Helper()
	mem := newMemFS()
	mem.files["j"] = &memData{data: bytes.Clone(data)}
	e := &effects{}
	def := errand(e, true)
	got, err := RunGraph(t.Context(), errandModel(), compile(t, def), def.Funcs(), nil, WithJournal("j"), WithRun("run-1"), withFS(mem))
	if err != nil {
		var je *JournalError
		known := slices.ContainsFunc([]error{ErrJournalCorrupt, ErrNoJournal, ErrJournalFormat, ErrUnknownOutcome}, func(k error) bool { return errors.Is(err, k) })
		if !known || !errors.Is(err, ErrUnknownOutcome) && (!errors.As(err, &je) || je.Path != "j") {
			t.Fatalf("%s: %v", what, err)
		}
		return true
	}
	if n := normal(t, got); n != want {
		t.Fatalf("%s: went on to\n%s\nnot\n%s", what, n, want)
	}
	if c, err := readRecords(bytes.NewReader(data)); err != nil || !bytes.HasPrefix(mem.files["j"].data, data[:c.size]) {
		t.Fatalf("%s: whole records were written over (%v)", what, err)
	}
	return false
}

func TestDamagedJournalNeverGivesAnotherResult(t *testing.T) {
	whole, report := recorded(t, &effects{}, true)
	want := normal(t, report)
	if goOn(t, "as it is", whole, want) {
		t.Fatal("an undamaged journal was refused")
	}

	t.Run("lines", func(t *testing.T) {
		lines := bytes.SplitAfter(whole, []byte{'\n'})
		lines = lines[:len(lines)-1]
		join := func(ls ...[][]byte) []byte { return bytes.Join(slices.Concat(ls...), nil) }
		for i := range lines {
			if !goOn(t, fmt.Sprintf("line %d is there twice", i), join(lines[:i+1], lines[i:]), want) {
				t.Errorf("line %d twice was not found", i)
			}
			if !goOn(t, fmt.Sprintf("line %d is at the end again", i), join(lines, lines[i:i+1]), want) {
				t.Errorf("line %d at the end again was not found", i)
			}
			if i == len(lines)-1 {
				continue // without its last line it is a journal of a run that was killed
			}
			if !goOn(t, fmt.Sprintf("line %d is missing", i), join(lines[:i], lines[i+1:]), want) {
				t.Errorf("line %d missing was not found", i)
			}
			swapped := slices.Clone(lines)
			swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
			if !goOn(t, fmt.Sprintf("lines %d and %d are swapped", i, i+1), join(swapped), want) {
				t.Errorf("lines %d and %d swapped was not found", i, i+1)
			}
		}
	})

	t.Run("bits", func(t *testing.T) {
		step := 3
		if testing.Short() {
			step = 13
		}
		last := bytes.LastIndexByte(whole[:len(whole)-1], '\n') + 1
		for at := 0; at < len(whole); at += step {
			data := bytes.Clone(whole)
			data[at] ^= 1 << (at / step % 8)
			what := fmt.Sprintf("bit %d of byte %d", at/step%8, at)
			// A checksum means the same in capitals, and without its line feed the
			// last record is a torn one.
			harmless := strings.EqualFold(string(data), string(whole)) || at == len(whole)-1
			if damaged := goOn(t, what, data, want); !damaged && !harmless {
				t.Errorf("%s (the last record begins at %d) was not found", what, last)
			}
		}
	})

	t.Run("bytes", func(t *testing.T) {
		rounds := 600
		if testing.Short() {
			rounds = 150
		}
		rng := rand.New(rand.NewPCG(1, 2))
		for range rounds {
			data := bytes.Clone(whole)
			var did []string
			for range 1 + rng.IntN(3) {
				at := rng.IntN(len(data))
				switch rng.IntN(5) {
				case 0:
					data, did = slices.Insert(data, at, byte(rng.IntN(256))), append(did, fmt.Sprint("insert at ", at))
				case 1:
					data, did = slices.Delete(data, at, at+1), append(did, fmt.Sprint("delete at ", at))
				case 2:
					data, did = data[:at+1], append(did, fmt.Sprint("cut at ", at+1))
				case 3:
					data, did = append(data, data[at:]...), append(did, fmt.Sprint("end again from ", at))
				case 4:
					to := min(len(data), at+rng.IntN(600))
					clear(data[at:to])
					did = append(did, fmt.Sprintf("zeros from %d to %d", at, to))
				}
			}
			goOn(t, strings.Join(did, ", "), data, want)
		}
	})
}

func TestJournalOfAnotherFormatIsRefused(t *testing.T) {
	whole, _ := recorded(t, &effects{}, false)
	old := record{Kind: recordHeader, Header: &Header{Format: journalFormat - 1, Coppice: "v0.0.9"}}
	head, _, err := appendRecord(nil, &old, 0)
	if err != nil {
		t.Fatal(err)
	}
	// What follows was written by other rules, so the header must decide.
	data := append(head, whole[bytes.IndexByte(whole, '\n')+1:]...)
	path := filepath.Join(t.TempDir(), "j")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	def := errand(&effects{}, false)
	_, read := ReadJournal(path)
	_, resumed := Resume(t.Context(), errandModel(), path, def.Funcs())
	_, run := RunGraph(t.Context(), errandModel(), compile(t, def), def.Funcs(), nil, WithJournal(path))
	for _, err := range []error{read, resumed, run} {
		if !errors.Is(err, ErrJournalFormat) || errors.Is(err, ErrJournalCorrupt) || !strings.Contains(err.Error(), "v0.0.9") {
			t.Error(err)
		}
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, data) {
		t.Errorf("the file was changed: %v", err)
	}
}

// A device has no end, and a pipe may have no beginning.
func TestDevicesAreNoJournals(t *testing.T) {
	for _, path := range []string{"/dev/zero", t.TempDir()} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if _, err := ReadJournal(path); !errors.Is(err, ErrNoJournal) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
