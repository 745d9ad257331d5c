package serve

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
)

// withHost refuses requests that came to the loopback interface under a name that
// is not this machine's. A web page whose name somebody points here (DNS
// rebinding) counts as the server's own for a browser, so its requests carry no
// foreign origin, and reading answers is allowed to it; but they carry that name.
// With keys such a page has none, and with TLS it has no certificate.
func (s *Server) withHost(next http.Handler) http.Handler {
	if s.tenants.anyone == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && toLoopback(r) && !s.hostAllowed(r.Host) {
			host := clip(hostName(r.Host))
			s.fail(w, r, &Error{Status: http.StatusForbidden, Type: typePermission, Code: "host_not_allowed", Message: fmt.Sprintf(
				"this server listens on the loopback interface without API keys and takes no requests for the host %q; use localhost or 127.0.0.1, or start it with --allow-host %s or with API keys", host, host)})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// toLoopback reports whether a request came to a loopback address.
func toLoopback(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && addr.IP.IsLoopback()
}

// hostName returns the name of a Host header, without its port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.Trim(host, "[]"), ".")
}

func (s *Server) hostAllowed(header string) bool {
	host := hostName(header)
	if header == "" || strings.EqualFold(host, "localhost") { // browsers always send one
		return true
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
		return true
	}
	return slices.ContainsFunc(s.cfg.Hosts, func(h string) bool { return h == "*" || strings.EqualFold(h, host) })
}

// checkHosts refuses what no Host header can match.
func checkHosts(hosts []string) error {
	for _, h := range hosts {
		if h == "" || h != "*" && (strings.ContainsAny(h, "/*? ") || h != hostName(h)) {
			return fmt.Errorf("serve: %q is no host name; write it as name.example or 192.168.1.5, without scheme and port", h)
		}
	}
	return nil
}
