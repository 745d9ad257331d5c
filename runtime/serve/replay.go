package serve

import (
	"bytes"
	"net/http"

	"github.com/coppice-run/coppice/runtime"
)

// journalEvents is POST /v1/journals/events: the body is the journal of a run,
// the answer its events, one a line. Nothing is kept.
func (s *Server) journalEvents(w http.ResponseWriter, r *http.Request) error {
	data, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	var (
		out    bytes.Buffer
		failed error
	)
	sink := runtime.SinkFunc(func(e runtime.Event) {
		line, err := encode(e.Finite())
		if err != nil {
			failed = err
			return
		}
		out.Write(line)
		out.WriteByte('\n')
	})
	l := s.cfg.Limits.ProgramLimits
	if _, err := runtime.Replay(bytes.NewReader(data), sink, runtime.Limits{Nodes: l.Nodes, Branches: l.Branches, Text: l.TextBytes}); err != nil {
		return badRequest("", "the journal cannot be shown: %v", err)
	}
	if failed != nil {
		return failed
	}
	writeDocument(w, http.StatusOK, "application/jsonl", out.Bytes())
	return nil
}
