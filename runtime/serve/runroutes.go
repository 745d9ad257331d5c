package serve

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/coppice-run/coppice/runtime"
)

// startRun is POST /v1/programs/{name}/runs. It answers at once with 202, with
// "wait" when the run is over, with "stream" by its events.
func (s *Server) startRun(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	t := tenantOf(r.Context())
	q := readRun(r.Context(), f, t)
	wait, stream := f.flag("wait", false), f.flag("stream", false)
	if wait && stream {
		f.fail("wait", "and stream exclude each other")
	}
	if err := f.err(); err != nil {
		return err
	}
	if q.program, q.builtIn, err = s.program(t, r.PathValue("name")); err != nil {
		return err
	}
	x, err := s.start(t, q)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+x.id)
	w.Header().Set("X-Request-Id", x.id)
	switch {
	case stream:
		return s.sendEvents(w, r, x, 0)
	case wait:
		if err := x.wait(r.Context()); err != nil { // the run goes on
			return err
		}
		if x.interrupted() {
			return x.stopped()
		}
		writeJSON(w, http.StatusOK, x.info(true))
	default:
		writeJSON(w, http.StatusAccepted, x.info(true))
	}
	return nil
}

func (s *Server) listRuns(w http.ResponseWriter, r *http.Request) error {
	t := tenantOf(r.Context())
	list := []runInfo{}
	t.mu.Lock()
	for i := len(t.order) - 1; i >= 0; i-- { // newest first
		list = append(list, t.order[i].info(false))
	}
	t.mu.Unlock()
	writeJSON(w, http.StatusOK, struct {
		Object string    `json:"object"`
		Data   []runInfo `json:"data"`
	}{"list", list})
	return nil
}

func (s *Server) showRun(w http.ResponseWriter, r *http.Request) error {
	x, err := tenantOf(r.Context()).run(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := x.settle(r.Context()); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, x.info(true))
	return nil
}

// settle waits for the moment between the last event of the run and its status:
// who has seen the one is to find the other.
func (r *run) settle(ctx context.Context) error {
	if r.log == nil {
		return nil
	}
	if _, over := r.log.Since(math.MaxUint64 - 1); over {
		return r.wait(ctx)
	}
	return nil
}

// cancelRun is POST /v1/runs/{id}/cancel. It answers when the run is over.
func (s *Server) cancelRun(w http.ResponseWriter, r *http.Request) error {
	t := tenantOf(r.Context())
	x, err := t.run(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	x.cancel(errCancelled)
	if err := x.wait(r.Context()); err != nil {
		return err
	}
	if x.interrupted() { // before, or just then
		if x, err = s.giveUp(r.Context(), t, x); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusOK, x.info(true))
	return nil
}

// giveUp ends a run that was interrupted, or says why it still is. One that others
// carry out may go on with them, so they are told.
func (s *Server) giveUp(ctx context.Context, t *tenant, x *run) (*run, error) {
	other := s.abandon
	if x.files.meta.Elsewhere {
		if s.cfg.Runner == nil {
			return nil, x.stopped()
		}
		other = func(t *tenant, f *runFiles) *run { return s.goOn(t, f, errCancelled) }
	}
	y, err := s.replace(t, x, other)
	if err != nil {
		return nil, err
	}
	if err := y.wait(ctx); err != nil {
		return nil, err
	}
	if !y.interrupted() {
		return y, nil
	}
	if x.files.meta.Elsewhere {
		return nil, y.stopped()
	}
	return nil, s.notKept(y.err)
}

// runEvents is GET /v1/runs/{id}/events.
func (s *Server) runEvents(w http.ResponseWriter, r *http.Request) error {
	x, err := tenantOf(r.Context()).run(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	from := r.Header.Get("Last-Event-ID")
	if q := r.URL.Query().Get("after"); q != "" {
		from = q
	}
	after := uint64(0)
	if from != "" {
		if after, err = strconv.ParseUint(from, 10, 63); err != nil {
			return badRequest("Last-Event-ID", "%q is no number of an event", clip(from))
		}
	}
	return s.sendEvents(w, r, x, after)
}

// sendEvents streams the events of a run after a number. A client that has them
// all gets 204, which tells an EventSource not to come again.
func (s *Server) sendEvents(w http.ResponseWriter, r *http.Request, x *run, after uint64) error {
	defer x.watch()()
	log := x.history()
	if missing, over := log.Since(after); len(missing) == 0 {
		switch {
		case over:
			w.WriteHeader(http.StatusNoContent)
			return nil
		case x.broke(r.Context()):
			return x.stopped()
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	events := make(chan runtime.Event, 64)
	go func() {
		defer close(events)
		for e := range x.told(ctx, log, after) {
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	out := s.newSSE(w)
	out.comment("run " + x.id)
	alive := time.NewTicker(s.cfg.Limits.PingEvery)
	defer alive.Stop()
	for out.flush() == nil {
		select {
		case e, ok := <-events:
			for more := true; more; {
				if !ok {
					// The end of the server is for the client to see as the end of
					// the connection, after which it comes again.
					if x.broke(ctx) && !x.suspended() {
						out.data(x.stopped().body())
					}
					out.flush()
					return nil
				}
				out.numbered(e.Seq, e.Finite())
				select {
				case e, ok = <-events:
				default:
					more = false
				}
			}
		case <-alive.C:
			out.comment("alive")
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
