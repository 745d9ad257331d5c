package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// underRace: the race detector's own memory is beside that of the program.
var underRace bool

// TestMemoryIsObeyed fills the cache of servers that have bounds of memory, and reads
// from the system what they took at most. It is the bound and a part that is the same
// whatever the bound: the program itself and what requests need.
func TestMemoryIsObeyed(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("no /proc/self/status, which tells a process's memory: ", err)
	}
	if underRace || testing.Short() {
		t.Skip("needs a program without the race detector, and some seconds")
	}
	const small, large = 64, 128 // MiB
	rest := func(mib int) int {
		s := startServant(t, "--memory", fmt.Sprint(mib, "MiB"))
		metric := func(name string) float64 {
			resp, err := http.Get(s.url + "/metrics")
			require.NoError(t, err)
			defer resp.Body.Close()
			data, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			m := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindSubmatch(data)
			require.NotNil(t, m, "%s in %s", name, data)
			v, err := strconv.ParseFloat(string(m[1]), 64)
			require.NoError(t, err)
			return v
		}
		pages := metric("sglang:max_total_num_tokens") / 16
		perPage := 16 * metric("coppice_kv_bytes_per_token")
		if bytes := pages * perPage; bytes > float64(mib<<20) || bytes < float64((mib-32)<<20) { // the model takes the rest
			t.Errorf("%d MiB: %.0f pages of %.0f bytes are %.1f MiB", mib, pages, perPage, bytes/(1<<20))
		}
		for i := 0; metric("coppice_kv_pages_free") > 0; i++ {
			if i == 500 {
				t.Fatalf("%.0f of %.0f pages are free after %d prompts", metric("coppice_kv_pages_free"), pages, i)
			}
			body, err := json.Marshal(map[string]any{
				"text":            fmt.Sprint(i, " ", strings.Repeat(fmt.Sprint("pod ", i, " is down. "), 500)),
				"sampling_params": map[string]any{"max_new_tokens": 1},
			})
			require.NoError(t, err)
			status, m := s.call("POST", "/generate", string(body))
			require.Equal(t, http.StatusOK, status, "%v", m)
		}
		took := peak(t, s.cmd.Process.Pid)
		t.Logf("--memory %dMiB: %.0f pages, %d MiB at most", mib, pages, took>>20)
		s.term()
		return took - mib<<20
	}
	a, b := rest(small), rest(large)
	if most := 128 << 20; a > most || b > most {
		t.Errorf("%d and %d MiB beside the bound, want at most %d", a>>20, b>>20, most>>20)
	}
	if more := b - a; more > (large-small)<<20/8 {
		t.Errorf("a bound of %d MiB more took %d MiB more than that", large-small, more>>20)
	}
}

// peak is the most memory that a process ever had, in bytes.
func peak(t *testing.T, pid int) int {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "VmHWM:"); ok {
			kib, err := strconv.Atoi(strings.Fields(v)[0])
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
