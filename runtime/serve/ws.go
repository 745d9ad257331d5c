package serve

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/coppice-run/coppice/runtime"
)

// A client of /v1/ws sends commands and gets messages, each a JSON text:
//
//	{"type":"start","ref":"a","program":"triage","inputs":{...},"seed":1,"watch":true,"detach":false}
//	{"type":"watch","ref":"b","run":"run-...","after":17}
//	{"type":"unwatch","ref":"c","run":"run-..."}
//	{"type":"cancel","ref":"d","run":"run-..."}
//	{"type":"approve","ref":"e","run":"run-...","task":"ok","answer":true}
//
//	{"type":"started","ref":"a","run":"run-..."}
//	{"type":"event","run":"run-...","event":{"seq":1,...}}
//	{"type":"end","run":"run-...","seq":99,"status":"finished"}
//	{"type":"ok","ref":"c","run":"run-..."}
//	{"type":"error","ref":"b","error":{...}}
//
// One goroutine reads the connection and one writes it. Each watch has one that
// reads the run's log and hands events to the writer, waiting for it: a slow
// connection holds up its own watches, whose logs go on without them.
type socket struct {
	s      *Server
	tenant *tenant
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelCauseFunc
	out    chan any
	take   func(data []byte) bool // carries out what the client said; false ends the connection
	wg     sync.WaitGroup         // of watches

	mu      sync.Mutex
	watches map[string]*watching // by run, or by request
}

// watching is one watch.
type watching struct {
	stop context.CancelFunc
	done chan struct{} // closed when nothing more is sent for it
	run  *run
}

// socketProtocol names the version of the messages and events. A client need not
// ask for it.
const socketProtocol = "coppice.v1"

// wsMessage is what the server sends.
type wsMessage struct {
	Type   string         `json:"type"`
	Ref    string         `json:"ref,omitempty"`
	Run    string         `json:"run,omitempty"`
	Event  *runtime.Event `json:"event,omitempty"`
	Seq    uint64         `json:"seq,omitempty"`
	Status string         `json:"status,omitempty"`
	Error  *errorObject   `json:"error,omitempty"`
}

// sockets are the open connections.
type sockets struct {
	mu     sync.Mutex
	open   map[*socket]struct{}
	closed bool
}

func (k *sockets) add(c *socket, limit int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
		return errDraining
	case len(k.open) >= limit:
		return &Error{Status: http.StatusTooManyRequests, Type: typeRate, Code: "too_many_connections", Message: "too many websocket connections", RetryAfter: time.Second}
	}
	k.open[c] = struct{}{}
	c.s.wg.Add(1)
	return nil
}

func (k *sockets) remove(c *socket) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.open, c)
	c.s.wg.Done()
}

func (k *sockets) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.open)
}

func (k *sockets) closeAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for c := range k.open {
		c.end(websocket.CloseGoingAway, "the server is shutting down")
	}
}

// closeError is why a connection is to be closed.
type closeError struct {
	code   int
	reason string
}

func (e *closeError) Error() string { return e.reason }

// end closes the connection with a code, soon.
func (c *socket) end(code int, reason string) { c.cancel(&closeError{code, reason}) }

// websocket is GET /v1/ws.
func (s *Server) websocket(w http.ResponseWriter, r *http.Request) error {
	return s.serveSocket(w, r, func(c *socket) func([]byte) bool { return c.takeCommand })
}

// serveSocket serves one connection, whose messages go to what take returns. It
// returns when the connection is closed and all that belonged to it has ended.
func (s *Server) serveSocket(w http.ResponseWriter, r *http.Request, take func(*socket) func([]byte) bool) error {
	if !websocket.IsWebSocketUpgrade(r) {
		w.Header().Set("Upgrade", "websocket")
		return &Error{Status: http.StatusUpgradeRequired, Type: typeInvalid, Code: "upgrade_required", Message: "this address speaks websocket"}
	}
	c := &socket{s: s, tenant: tenantOf(r.Context()), out: make(chan any), watches: map[string]*watching{}}
	c.take = take(c)
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(r.Context()))
	defer c.cancel(nil)
	if err := s.sockets.add(c, s.cfg.Limits.Sockets); err != nil {
		return err
	}
	defer s.sockets.remove(c)
	up := websocket.Upgrader{
		HandshakeTimeout: 10 * time.Second,
		CheckOrigin:      s.originAllowed,
		Subprotocols:     []string{socketProtocol},
		Error: func(w http.ResponseWriter, r *http.Request, status int, reason error) {
			s.fail(w, r, &Error{Status: status, Type: typeInvalid, Code: "bad_handshake", Message: reason.Error()})
		},
	}
	conn, err := up.Upgrade(w, r, nil)
	if err != nil {
		return nil // answered by Error above
	}
	c.conn = conn
	written := make(chan struct{})
	go func() {
		defer close(written)
		c.write()
	}()
	c.read()
	c.cancel(nil)
	c.drain()
	<-written
	c.conn.Close()
	c.wg.Wait()
	return nil
}

// read takes commands until the connection ends. A peer that neither sends nor
// answers pings is dead.
func (c *socket) read() {
	limits := &c.s.cfg.Limits
	patience := limits.PongWait
	c.conn.SetReadLimit(limits.MessageBytes)
	c.conn.SetReadDeadline(time.Now().Add(patience))
	alive := func() {
		c.conn.SetReadDeadline(time.Now().Add(patience))
		if c.ctx.Err() != nil { // the writer has set the last deadline, or is about to
			c.conn.SetReadDeadline(time.Now().Add(closeTimeout))
		}
	}
	c.conn.SetPongHandler(func(string) error {
		alive()
		return nil
	})
	for {
		kind, data, err := c.conn.ReadMessage()
		if err != nil {
			return
		}
		alive()
		if kind != websocket.TextMessage {
			c.end(websocket.CloseUnsupportedData, "messages are to be text")
			return
		}
		if !c.take(data) {
			return
		}
	}
}

// takeCommand carries out a message of /v1/ws and answers it.
func (c *socket) takeCommand(data []byte) bool {
	m, err := c.command(data)
	if err != nil {
		o := toError(err).body().Error
		m.Type, m.Error = "error", &o
	}
	return m.Type == "" || c.send(c.ctx, m)
}

// drain reads on until the peer has answered the close, or the deadline that the
// writer set has passed: a connection that is closed with something unread is
// reset, and the peer may never see why it was closed.
func (c *socket) drain() {
	for {
		if _, _, err := c.conn.NextReader(); err != nil {
			return
		}
	}
}

// send hands a message to the writer.
func (c *socket) send(ctx context.Context, m any) bool {
	select {
	case c.out <- m:
		return true
	case <-ctx.Done():
		return false
	}
}

// write is the only writer of the connection. A client that does not take what
// it is sent within the write timeout is closed.
func (c *socket) write() {
	limits := &c.s.cfg.Limits
	ping := time.NewTicker(limits.PingEvery)
	defer ping.Stop()
	deadline := func() time.Time { return time.Now().Add(limits.WriteTimeout) }
	for {
		var err error
		select {
		case m := <-c.out:
			var data []byte
			if data, err = encode(m); err == nil {
				c.conn.SetWriteDeadline(deadline())
				err = c.conn.WriteMessage(websocket.TextMessage, data)
			}
		case <-ping.C:
			err = c.conn.WriteControl(websocket.PingMessage, nil, deadline())
		case <-c.ctx.Done():
			code, reason := websocket.CloseNormalClosure, ""
			if e, ok := context.Cause(c.ctx).(*closeError); ok {
				code, reason = e.code, e.reason
			}
			c.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(time.Second))
			c.conn.SetReadDeadline(time.Now().Add(closeTimeout))
			return
		}
		if err != nil {
			if t, ok := err.(net.Error); ok && t.Timeout() {
				c.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseTryAgainLater, "too slow"), time.Now().Add(time.Second))
				c.s.metrics.slow.Inc()
			}
			c.cancel(err)
			c.conn.Close()
			return
		}
	}
}

// closeTimeout is the time that a peer has to answer a close.
const closeTimeout = time.Second

// command carries out what a client asks for and returns the answer. Answers
// that must come before others are sent at once, and the result is empty.
func (c *socket) command(data []byte) (m wsMessage, err error) {
	f, err := parseFields(data)
	if err != nil {
		return m, err
	}
	m.Ref = f.text("ref")
	kind := f.text("type")
	if err := f.err(); err != nil {
		return m, err
	}
	if kind == "start" {
		return c.start(f, m)
	}
	id := f.text("run")
	after := uint64(f.whole("after", 0, 0, 1<<53))
	if err := f.err(); err != nil {
		return m, err
	}
	switch kind {
	case "watch", "unwatch", "cancel", "approve":
	default:
		return m, badRequest("type", "type is %q; it is to be start, watch, unwatch, cancel or approve", clip(kind))
	}
	x, err := c.tenant.run(c.ctx, id)
	if err != nil {
		return m, err
	}
	m.Type, m.Run = "ok", x.id
	switch kind {
	case "watch":
		return c.watch(x, after, m)
	case "unwatch":
		c.mu.Lock()
		w := c.watches[x.id]
		c.mu.Unlock()
		if w == nil {
			return m, badRequest("run", "run %s is not watched here", x.id)
		}
		w.stop()
		<-w.done // no event comes after the answer, and the run can be watched again
	case "cancel":
		x.cancel(errCancelled)
		if x.interrupted() {
			return c.later(m, func() error {
				_, err := c.s.giveUp(c.ctx, c.tenant, x)
				return err
			}), nil
		}
	case "approve":
		task, answer, err := readAnswer(f)
		if err != nil {
			return m, err
		}
		q, v, err := x.asks.claim(task, answer)
		if err != nil {
			return m, err
		}
		return c.later(m, func() error { return q.give(c.ctx, v) }), nil
	}
	return m, nil
}

// later sends an answer when do is done. Until then the client may say more.
func (c *socket) later(said wsMessage, do func() error) wsMessage {
	c.wg.Go(func() {
		if err := do(); err != nil {
			o := toError(err).body().Error
			said.Type, said.Error = "error", &o
		}
		c.send(c.ctx, said)
	})
	return wsMessage{}
}

func (c *socket) start(f *fields, m wsMessage) (wsMessage, error) {
	q := readRun(c.ctx, f, c.tenant)
	watch := f.flag("watch", true)
	q.attached = watch && !f.flag("detach", false)
	name := f.text("program")
	graph := f.raw("graph")
	if (name == "") == (graph == nil) {
		f.fail("program", "is the name of a program; give that or graph")
	}
	if err := f.err(); err != nil {
		return m, err
	}
	var err error
	if graph != nil {
		q.program, err = c.s.readProgram(c.ctx, graph)
	} else {
		q.program, q.builtIn, err = c.s.program(c.tenant, name)
	}
	if err != nil {
		return m, err
	}
	x, err := c.s.start(c.tenant, q)
	if err != nil {
		return m, err
	}
	m.Type, m.Run = "started", x.id
	if watch {
		if m, err = c.watch(x, 0, m); err != nil && q.attached {
			x.cancel(errCancelled)
		}
	}
	return m, err
}

// watch sends m and then the events of a run after a number, each once and in
// order, until the run is over.
func (c *socket) watch(x *run, after uint64, m wsMessage) (wsMessage, error) {
	err := c.follow(x, x.id, m, func(ctx context.Context) {
		last := after
		for e := range x.told(ctx, x.history(), after) {
			said := e.Finite()
			if !c.send(ctx, wsMessage{Type: "event", Run: x.id, Event: &said}) {
				return
			}
			last = e.Seq
		}
		if ctx.Err() != nil {
			return
		}
		select { // the log ends a moment before the run has its status
		case <-x.done:
			m := wsMessage{Type: "end", Run: x.id, Seq: last, Status: x.status()}
			if x.interrupted() { // nothing of its events says why
				o := x.stopped().body().Error
				m.Error = &o
			}
			c.send(ctx, m)
		case <-ctx.Done():
		}
	})
	if err != nil {
		return m, err
	}
	return wsMessage{}, nil
}

// follow registers a watch of a run under a name, sends its first message, and
// then has tell send the rest in a goroutine of its own.
func (c *socket) follow(x *run, name string, first any, tell func(ctx context.Context)) error {
	ctx, stop := context.WithCancel(c.ctx)
	w := &watching{stop: stop, done: make(chan struct{}), run: x}
	c.mu.Lock()
	_, twice := c.watches[name]
	full := len(c.watches) >= c.s.cfg.Limits.Watches
	if !twice && !full {
		c.watches[name] = w
	}
	c.mu.Unlock()
	switch {
	case twice:
		stop()
		return badRequest("run", "run %s is watched here already; unwatch it first", name)
	case full:
		stop()
		return &Error{Status: http.StatusTooManyRequests, Type: typeRate, Code: "too_many_watches", Message: "too many runs are watched on this connection"}
	}
	leave := x.watch()
	forget := func() {
		stop()
		leave()
		c.mu.Lock()
		delete(c.watches, name)
		c.mu.Unlock()
		close(w.done)
	}
	if !c.send(ctx, first) {
		forget()
		return nil
	}
	c.wg.Go(func() {
		defer forget()
		tell(ctx)
	})
	return nil
}
