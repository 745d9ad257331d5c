// Package serve puts a backend and its programs on the network: the OpenAI API,
// SGLang's native API, programs and their runs, event streams over SSE and
// websocket, and metrics.
//
// Three types matter. A [Config] says what is served and within which limits. A
// [Server] is an http.Handler made of it; it owns the runs that it started and
// ends them in Close. An [Error] is what a client is told when something goes
// wrong, with its HTTP status; errors of backends and programs become one in one
// place.
//
//	srv, err := serve.New(serve.Config{Backend: be})
//	http.ListenAndServe("127.0.0.1:8080", srv)
//
// # What is promised
//
// A client that goes away ends its generation within a step. A stream begins
// only when there is something to send, so a request that cannot be carried out
// is answered with a status and never with half a stream. A slow reader holds up
// nobody but itself, at a bounded cost in memory.
//
// Bodies are read strictly: names of fields are case-sensitive, a field that is
// there twice is refused, numbers are neither strings nor out of range, and the
// answer names the field. A field that would change the result and is not
// supported is refused; other unknown fields are ignored, as the APIs' own
// servers do.
//
// With API keys every key is a tenant: it sees its own programs and runs, and
// shares no cached prefix with others.
package serve
