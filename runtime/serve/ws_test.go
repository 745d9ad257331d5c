package serve

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/coppice-run/coppice/backend/puppet"
)

// peer is a client of /v1/ws.
type peer struct {
	t    testing.TB
	conn *websocket.Conn
}

func (c *client) dial() *peer {
	c.t.Helper()
	h := http.Header{}
	if c.key != "" {
		h.Set("Authorization", "Bearer "+c.key)
	}
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/v1/ws", h)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { conn.Close() })
	conn.SetPingHandler(func(s string) error {
		conn.WriteControl(websocket.PongMessage, []byte(s), time.Now().Add(time.Second)) // may cross with a close
		return nil
	})
	return &peer{c.t, conn}
}

func (p *peer) send(m tree) {
	p.t.Helper()
	if err := p.conn.WriteJSON(m); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) next() tree {
	p.t.Helper()
	var m tree
	if err := p.conn.ReadJSON(&m); err != nil {
		p.t.Fatal(err)
	}
	return m
}

// until reads messages up to the first that fits.
func (p *peer) until(fits func(m tree) bool) tree {
	p.t.Helper()
	for {
		if m := p.next(); fits(m) {
			return m
		}
	}
}

func (p *peer) typed(kind string) tree {
	p.t.Helper()
	return p.until(func(m tree) bool { return m["type"] == kind })
}

// Many runs go over one connection; the events of each are in order and dense.
func TestManyRunsOnOneSocket(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	c.ok("/v1/programs", looks)
	p := c.dial()
	const runs = 8
	for range runs - 1 {
		p.send(tree{"type": "start", "ref": "r", "program": "looks", "inputs": tree{"topic": "fog"}})
	}
	_, shown := c.call("GET", "/v1/programs/looks", nil)
	p.send(tree{"type": "start", "ref": "r", "graph": shown["graph"], "inputs": tree{"topic": "fog"}, "seed": 3})
	last := map[string]float64{}
	for ended := 0; ended < runs; {
		m := p.next()
		id, _ := m["run"].(string)
		switch m["type"] {
		case "started":
			if m["ref"] != "r" {
				t.Error(m)
			}
			last[id] = 0
		case "event":
			was, known := last[id]
			if seq := at(m, "event", "seq").(float64); !known || seq != was+1 {
				t.Fatalf("run %s: event %v after %v", id, seq, was)
			}
			last[id]++
		case "end":
			ended++
			if m["status"] != "finished" || m["seq"] != last[id] {
				t.Error(m)
			}
		default:
			t.Fatal(m)
		}
	}
	if len(last) != runs {
		t.Error(last)
	}
}

// After a drop a client goes on from a number and gets exactly what it missed.
func TestResumeOnANewSocket(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, nil)
	c.ok("/v1/programs", looks)
	p := c.dial()
	p.send(tree{"type": "start", "program": "looks", "inputs": tree{"topic": "fog"}, "detach": true})
	id := p.typed("started")["run"].(string)
	var seen []float64
	for range 3 {
		seen = append(seen, at(p.typed("event"), "event", "seq").(float64))
	}
	p.conn.Close()
	gate.Open()
	for range 2 { // a second drop changes nothing
		p = c.dial()
		p.send(tree{"type": "watch", "ref": "w", "run": id, "after": len(seen)})
		if m := p.next(); m["type"] != "ok" || m["ref"] != "w" {
			t.Fatal(m)
		}
		for range 2 {
			seen = append(seen, at(p.typed("event"), "event", "seq").(float64))
		}
		p.conn.Close()
	}
	p = c.dial()
	p.send(tree{"type": "watch", "run": id, "after": len(seen)})
	var value any
	p.until(func(m tree) bool {
		if m["type"] == "event" {
			seen = append(seen, at(m, "event", "seq").(float64))
			value = at(m, "event", "value")
		}
		return m["type"] == "end"
	})
	for i, seq := range seen {
		if seq != float64(i+1) {
			t.Fatalf("numbers %v", seen)
		}
	}
	if value != "take it" {
		t.Error(value)
	}
}

func TestSocketCommands(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, func(c *Config) { c.Limits.Watches = 1 })
	c.ok("/v1/programs", looks)
	p := c.dial()
	for _, bad := range []string{
		"x", "[]", "{}", `{"type":"dance"}`, `{"type":"watch","run":"none"}`, `{"type":"watch","run":7}`, `{"type":"start"}`,
		`{"type":"start","program":"none"}`, `{"type":"start","program":"looks"}`, `{"type":"start","program":"looks","graph":{}}`,
		`{"type":"start","graph":{}}`, `{"type":"start","program":"looks","inputs":7}`, `{"type":"watch","run":"x","after":-1}`, `{"type":"a","type":"b"}`,
	} {
		if err := p.conn.WriteMessage(websocket.TextMessage, []byte(bad)); err != nil {
			t.Fatal(err)
		}
		if m := p.next(); m["type"] != "error" || at(m, "error", "message") == "" {
			t.Errorf("%s: %v", bad, m)
		}
	}
	p.send(tree{"type": "start", "ref": "s", "program": "looks", "inputs": tree{"topic": "x"}, "detach": true})
	id := p.typed("started")["run"]
	p.send(tree{"type": "watch", "ref": "again", "run": id})
	if m := p.typed("error"); m["ref"] != "again" {
		t.Error(m)
	}
	p.send(tree{"type": "start", "ref": "full", "program": "looks", "inputs": tree{"topic": "y"}})
	if m := p.typed("error"); m["ref"] != "full" || at(m, "error", "code") != "too_many_watches" {
		t.Error(m)
	}
	p.send(tree{"type": "unwatch", "ref": "u", "run": id})
	if m := p.typed("ok"); m["ref"] != "u" {
		t.Error(m)
	}
	p.send(tree{"type": "cancel", "ref": "c", "run": id})
	if m := p.typed("ok"); m["ref"] != "c" {
		t.Error(m)
	}
	if got := c.ok("/v1/runs/"+id.(string)+"/cancel", nil); got["status"] != "cancelled" {
		t.Error(got)
	}
}

// A run that was started to be watched does not outlive its last watcher for
// longer than the grace; one that was detached does.
func TestOrphans(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, func(c *Config) { c.Limits.OrphanGrace = time.Nanosecond })
	c.ok("/v1/programs", looks)
	ids := map[bool]string{}
	p := c.dial()
	for _, detach := range []bool{false, true} {
		p.send(tree{"type": "start", "program": "looks", "inputs": tree{"topic": "x"}, "detach": detach})
		ids[detach] = p.typed("started")["run"].(string)
	}
	if err := gate.HeldCount(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	p.conn.Close()
	r, err := c.srv.tenants.anyone.run(t.Context(), ids[false])
	if err != nil {
		t.Fatal(err)
	}
	<-r.done
	if r.status() != runCancelled {
		t.Error(r.status(), r.err)
	}
	gate.Open()
	r, _ = c.srv.tenants.anyone.run(t.Context(), ids[true])
	<-r.done
	if r.status() != runFinished {
		t.Error(r.status(), r.err)
	}
}

// Only pages that are listed may open a socket, whatever the address is, and the
// same holds for all other requests.
func TestOrigins(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Origins = []string{"https://app.example", "http://localhost:5173/"} })
	host := strings.TrimPrefix(c.url, "http://")
	for origin, want := range map[string]bool{
		"": true, "https://app.example": true, "http://localhost:5173": true, "HTTPS://APP.EXAMPLE": true,
		"http://" + host: true, "https://" + host: false, "https://app.example.evil.test": false, "https://app.example:8443": false, "http://app.example": false,
		"null": false, "http://localhost": false, "http://localhost:8080": false, "https://evil.test": false, "https://app.example/x": false,
	} {
		h := http.Header{}
		if origin != "" {
			h.Set("Origin", origin)
		}
		conn, resp, err := websocket.DefaultDialer.Dial("ws://"+host+"/v1/ws", h)
		if (err == nil) != want || !want && resp.StatusCode != http.StatusForbidden {
			t.Errorf("origin %q: %v %v", origin, resp.Status, err)
		}
		if conn != nil {
			conn.Close()
		}
		for _, method := range []string{"GET", "OPTIONS"} {
			resp := c.do(method, "/v1/models", nil, "Origin", origin, "Access-Control-Request-Method", "POST")
			resp.Body.Close()
			allowed := resp.Header.Get("Access-Control-Allow-Origin")
			if origin != "" && ((allowed == origin) != want || !want && resp.StatusCode != http.StatusForbidden) {
				t.Errorf("%s with origin %q: %s, allowed %q", method, origin, resp.Status, allowed)
			}
		}
	}
	shut := serveFor(t, looksModel(), nil)
	resp := shut.do("POST", "/v1/completions", tree{"prompt": "x"}, "Origin", "http://localhost:3000", "Content-Type", "text/plain")
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Error(resp.Status)
	}
}

// tight makes the buffers of accepted connections small.
type tight struct{ net.Listener }

func (l tight) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		c.(*net.TCPConn).SetWriteBuffer(4096)
	}
	return c, err
}

// A client that does not read is closed after a while; the others, and the run,
// never notice it.
func TestSlowSocket(t *testing.T) {
	m, gate := puppet.New(), puppet.NewGate()
	m.SetGate(gate)
	text := strings.Repeat("words and more words ", 300)
	m.OnAny().Reply(text)
	srv, err := New(Config{Backend: m, Limits: Limits{WriteTimeout: time.Hour, Deltas: 100000}})
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(srv)
	ts.Listener = tight{ts.Listener}
	ts.Start()
	defer func() {
		srv.Close()
		ts.Close()
		noneLeft(t)
	}()
	c := &client{t: t, srv: srv, url: ts.URL}
	c.ok("/v1/programs", "coppice: 1\nname: long\nsteps:\n  - user: go on\n  - gen: {name: x, max_tokens: 100000}\n  - return: x\n")
	_, begun := c.post("/v1/programs/long/runs", tree{})
	id := begun["id"].(string)

	dialer := websocket.Dialer{NetDial: func(network, addr string) (net.Conn, error) {
		conn, err := net.Dial(network, addr)
		if err == nil {
			conn.(*net.TCPConn).SetReadBuffer(4096)
		}
		return conn, err
	}}
	slow, _, err := dialer.Dial("ws"+strings.TrimPrefix(ts.URL, "http")+"/v1/ws", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if err := slow.WriteJSON(tree{"type": "watch", "run": id}); err != nil {
		t.Fatal(err)
	}
	var held *socket
	srv.sockets.mu.Lock()
	for held = range srv.sockets.open {
	}
	srv.sockets.mu.Unlock()
	const readers = 5
	peers := make([]*peer, readers)
	for i := range peers {
		peers[i] = c.dial()
		peers[i].send(tree{"type": "watch", "run": id})
		peers[i].typed("ok")
	}
	gate.Open()
	var all sync.WaitGroup
	got := make([]string, readers)
	for i, p := range peers {
		all.Go(func() {
			var b strings.Builder
			for {
				var m struct {
					Type  string
					Event struct{ Kind, Text string }
				}
				_, data, err := p.conn.ReadMessage()
				if err != nil || json.Unmarshal(data, &m) != nil || m.Type == "end" {
					break
				}
				if m.Event.Kind == "delta" {
					b.WriteString(m.Event.Text)
				}
			}
			got[i] = b.String()
		})
	}
	all.Wait()
	for i, s := range got {
		if s != text {
			t.Errorf("reader %d has %d bytes of %d", i, len(s), len(text))
		}
	}
	for held.ctx.Err() == nil { // the slow one is given up at the end of its time, which is now
		held.conn.NetConn().SetWriteDeadline(time.Now())
		goruntime.Gosched()
	}
	if n := c.metric("coppice_websockets_slow_total"); n != 1 {
		t.Errorf("%v slow connections are counted", n)
	}
	for _, p := range peers {
		p.conn.Close()
	}
}

// Pings, events of many runs and closes from both sides meet on one connection.
func TestPingsAndCloses(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Limits.PingEvery = time.Millisecond })
	c.ok("/v1/programs", looks)
	for round := range 4 {
		p := c.dial()
		for range 6 {
			p.send(tree{"type": "start", "program": "looks", "inputs": tree{"topic": "x"}, "detach": true})
		}
		p.typed("started")
		switch round {
		case 0:
			p.conn.Close()
		case 1:
			p.conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
		case 2:
			p.conn.WriteMessage(websocket.BinaryMessage, []byte{1})
			for {
				if _, _, err := p.conn.ReadMessage(); err != nil {
					if !websocket.IsCloseError(err, websocket.CloseUnsupportedData) {
						t.Error(err)
					}
					break
				}
			}
		case 3:
			c.srv.Close()
			for {
				if _, _, err := p.conn.ReadMessage(); err != nil {
					if !websocket.IsCloseError(err, websocket.CloseGoingAway) {
						t.Error(err)
					}
					break
				}
			}
		}
	}
}

// A peer that is gone without a word is found out by pings.
func TestDeadPeer(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Limits.PingEvery, c.Limits.PongWait = time.Millisecond, 5*time.Millisecond })
	p := c.dial()
	p.conn.SetPingHandler(func(string) error { return nil }) // never answers
	for {
		if _, _, err := p.conn.ReadMessage(); err != nil {
			break
		}
	}
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTooLongMessage(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Limits.MessageBytes, c.Limits.Sockets = 1000, 1 })
	p := c.dial()
	if _, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/v1/ws", nil); err == nil || resp.StatusCode != 429 {
		t.Error("a second socket:", err)
	}
	p.send(tree{"type": strings.Repeat("x", 2000)})
	if _, _, err := p.conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Error(err)
	}
	if status, _ := c.call("GET", "/v1/ws", nil); status != http.StatusUpgradeRequired {
		t.Error(status)
	}
}

// Compression is not offered: a message is as long as it is sent, so none grows
// beyond the limit when it is read. One that is compressed all the same is an error of
// the protocol, and pieces of one message count together.
func TestNoMessageGrows(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Limits.MessageBytes = 1000 })
	dial := func() *websocket.Conn {
		d := websocket.Dialer{EnableCompression: true}
		conn, resp, err := d.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/v1/ws", nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if x := resp.Header.Get("Sec-WebSocket-Extensions"); x != "" {
			t.Errorf("the server agreed to %q", x)
		}
		return conn
	}
	conn := dial()
	// A masked text frame with the bit of a compressed one, and a mask of zeros.
	if _, err := conn.NetConn().Write([]byte{0xC1, 0x82, 0, 0, 0, 0, '{', '}'}); err != nil {
		t.Fatal(err)
	}
	if _, data, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseProtocolError) {
		t.Errorf("%s %v", data, err)
	}
	conn = dial()
	w, err := conn.NextWriter(websocket.TextMessage)
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // the client's buffer is larger: it is flushed as frames of its own
		w.Write([]byte(strings.Repeat(" ", 5000)))
	}
	w.Close()
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseMessageTooBig) {
		t.Error(err)
	}
}

// Many connections, of which some never read and some go away at once, get in
// nobody's way.
func TestStalledSockets(t *testing.T) {
	const conns = 60
	m, gate := puppet.New(), puppet.NewGate()
	m.SetGate(gate)
	text := strings.Repeat("some more words ", 40)
	m.OnAny().Reply(text)
	c := serveFor(t, m, func(c *Config) { c.Limits.WriteTimeout = time.Hour })
	c.ok("/v1/programs", "coppice: 1\nname: long\nsteps:\n  - user: go on\n  - gen: {name: x, max_tokens: 100000}\n  - return: x\n")
	_, begun := c.post("/v1/programs/long/runs", tree{})
	peers := make([]*peer, conns)
	for i := range peers {
		peers[i] = c.dial()
		peers[i].send(tree{"type": "watch", "run": begun["id"]})
		if i%3 != 1 { // who stalls does not even look whether that was heard
			peers[i].typed("ok")
		}
	}
	gate.Open()
	var all sync.WaitGroup
	for i, p := range peers {
		all.Go(func() {
			switch i % 3 {
			case 0: // reads to the end
				var b strings.Builder
				for {
					var m struct {
						Type  string
						Event struct{ Kind, Text string }
					}
					if err := p.conn.ReadJSON(&m); err != nil {
						t.Errorf("connection %d: %v", i, err)
						return
					}
					if m.Event.Kind == "delta" {
						b.WriteString(m.Event.Text)
					}
					if m.Type == "end" {
						break
					}
				}
				if b.String() != text {
					t.Errorf("connection %d has %d bytes of %d", i, b.Len(), len(text))
				}
			case 2: // goes away without a word
				p.conn.NetConn().Close()
			}
		})
	}
	all.Wait()
	if _, out := c.call("GET", "/v1/runs/"+begun["id"].(string), nil); out["status"] != "finished" {
		t.Error(out["status"])
	}
}
