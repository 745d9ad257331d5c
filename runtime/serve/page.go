package serve

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// pageFiles is the page as web/build.mjs makes it of web/src. It is committed,
// so that the go command alone builds the server.
//
//go:embed web/dist
var pageFiles embed.FS

// pagePolicy lets the page load only what the server itself has, and nobody
// frame it.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// page adds the web page at / to the routes that need no key: it holds no data,
// and asks for a key if one is needed.
func page(mux *http.ServeMux) {
	serve := func(pattern, name string) {
		data, err := pageFiles.ReadFile("web/dist/" + name)
		if err != nil {
			panic(err) // embedded: it was there when this was compiled
		}
		sum := sha256.Sum256(data)
		etag := `"` + hex.EncodeToString(sum[:8]) + `"`
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("ETag", etag)
			h.Set("Cache-Control", "no-cache") // ask, and get 304 unless it changed
			h.Set("Content-Security-Policy", pagePolicy)
			h.Set("Referrer-Policy", "no-referrer")
			http.ServeContent(w, r, path.Base(name), time.Time{}, bytes.NewReader(data))
		})
	}
	serve("GET /{$}", "index.html")
	assets, err := fs.Glob(pageFiles, "web/dist/assets/*")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for _, name := range assets {
		serve("GET /assets/"+path.Base(name), "assets/"+path.Base(name))
	}
}

// ownOrigin tells whether a request comes from the page that the server itself
// serves at the address that it was sent to. Another site can point its name
// here, and then both the origin and the Host header say that name; so a name
// counts only if a certificate vouches for it. An address cannot be pointed
// elsewhere, and browsers resolve localhost to this machine.
func ownOrigin(r *http.Request) bool {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	if !strings.EqualFold(r.Header.Get("Origin"), scheme+r.Host) {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	return r.TLS != nil || strings.EqualFold(host, "localhost") || net.ParseIP(strings.Trim(host, "[]")) != nil
}

// keyProtocol is how a page sends its key with a websocket, of which it can set
// no header but the list of protocols: the prefix, and the key in hexadecimal.
const keyProtocol = "coppice.key."

// socketKey returns the key among the protocols of a websocket's handshake.
func socketKey(r *http.Request) string {
	for _, p := range websocket.Subprotocols(r) {
		if digits, ok := strings.CutPrefix(p, keyProtocol); ok {
			key, _ := hex.DecodeString(digits) // what is none is no key
			return string(key)
		}
	}
	return ""
}
