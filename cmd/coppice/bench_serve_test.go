package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// A small run of what 'coppice bench serve' does: nothing answered wrong, nothing
// left behind.
func TestBenchServe(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures for seconds")
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"bench", "serve", "--runs", "1", "--streams", "10", "--requests", "40", "--json"}, nil, &out, devNull(t)); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var r benchReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	zero := 0
	for _, x := range r.Rows {
		if strings.HasSuffix(x.What, "wrong answers or statuses") || strings.HasSuffix(x.What, "pages held at the end") {
			zero++
			if x.Value != 0 {
				t.Errorf("%s: %v", x.What, x.Value)
			}
		} else if strings.HasPrefix(x.What, "streamed") && x.Value <= 0 {
			t.Errorf("%s: %v", x.What, x.Value)
		}
	}
	if zero != 3 {
		t.Errorf("rows %+v", r.Rows)
	}
	for _, args := range [][]string{{"--streams", "1"}, {"--requests", "0"}} {
		if code := run(t.Context(), append([]string{"bench", "serve"}, args...), nil, devNull(t), devNull(t)); code != 2 {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}
