package workflows

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/remote"
)

// TestOneOwnerOfRetriesOnTheWire counts what a failing server is sent: the client
// below an activity repeats nothing.
func TestOneOwnerOfRetriesOnTheWire(t *testing.T) {
	const attempts = 3
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		fails  int // the first so many requests; the next is answered
		asked  int
		after  time.Duration
		code   string // of the failed run; empty: it does not fail
	}{
		"500":     {func(w http.ResponseWriter) { w.WriteHeader(500) }, 100, attempts, 0, "unavailable"},
		"503":     {func(w http.ResponseWriter) { w.WriteHeader(503) }, 1, 2, 0, ""},
		"400":     {func(w http.ResponseWriter) { w.WriteHeader(400) }, 100, 1, 0, "invalid"},
		"401":     {func(w http.ResponseWriter) { w.WriteHeader(401) }, 100, 1, 0, "invalid"},
		"429":     {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) }, 1, 2, 7 * time.Second, ""},
		"reset":   {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 100, attempts, 0, "unavailable"},
		"reset 1": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 1, 2, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int32 // a reset connection orders nothing
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodPost {
					w.WriteHeader(404)
					return
				}
				if int(asked.Add(1)) <= c.fails {
					c.answer(w)
					return
				}
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"fine\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
			}))
			defer s.Close()
			be, err := remote.Open(t.Context(), "openai+"+s.URL+"/v1?model=m", remote.Options{})
			require.NoError(t, err)
			defer be.Close()
			r := newRig(t, be, nil, fmt.Sprintf(once, ""), nil, StartOptions{Retry: Retry{Attempts: attempts}})
			begin := r.env.Now()
			_, err = r.run()
			require.EqualValues(t, c.asked, asked.Load())
			require.GreaterOrEqual(t, r.env.Now().Sub(begin), c.after)
			if c.code == "" {
				require.NoError(t, err)
				return
			}
			require.Equal(t, c.code, codeOf(t, err), "%v", err)
		})
	}
}
