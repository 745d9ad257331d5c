package runtime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime"
)

func TestFileThatIsNoJournalIsLeftAlone(t *testing.T) {
	for name, text := range map[string]string{
		"program": "coppice: 1\nname: p\nsteps:\n  - user: x\n",
		"json":    "{\"coppice\": 1}\n",
		"no line": "some notes",
		"short":   "x\n",
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, read := runtime.ReadJournal(path)
		_, resumed := runtime.Resume(t.Context(), puppet.New(), path, nil)
		_, run := runtime.RunGraph(t.Context(), puppet.New(), graphOf(t, fork8), nil, nil, runtime.WithJournal(path))
		for _, err := range []error{read, resumed, run} {
			if err == nil || !strings.Contains(err.Error(), "is not a journal") || strings.Contains(err.Error(), "damaged") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("%s: the file is now %q, %v", name, now, err)
		}
	}
}
