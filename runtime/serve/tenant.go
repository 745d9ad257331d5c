package serve

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// tenant is whoever uses one API key, or anyone where none is asked for. It owns
// programs and runs.
type tenant struct {
	name string // empty for anyone
	hash [32]byte
	// shared is the salt that the key shares with others, if it does.
	shared string
	sees   bool // what concerns all tenants
	flush  bool // may empty the cache of all
	quota  *quota

	shelf    *shelf        // nil if nothing is kept
	changing chan struct{} // holds one value while programs change
	mu       sync.Mutex
	programs map[string]Program
	sizes    map[string]int // of programs that are kept, in bytes
	runs     map[string]*run
	order    []*run // oldest first
}

// tenants are all there are; they do not change.
type tenants struct {
	all    []*tenant
	anyone *tenant // nil if a key is needed
}

func newTenants(keys []Key, now func() time.Time) (*tenants, error) {
	one := func(name string, hash [32]byte, limits KeyLimits) *tenant {
		return &tenant{name: name, hash: hash, quota: newQuota(limits, now), changing: make(chan struct{}, 1), programs: map[string]Program{}, sizes: map[string]int{}, runs: map[string]*run{}}
	}
	t := &tenants{}
	if len(keys) == 0 {
		t.anyone = one("", [32]byte{}, KeyLimits{})
		t.anyone.sees, t.anyone.flush = true, true
		t.all = []*tenant{t.anyone}
		return t, nil
	}
	seen := map[[32]byte]bool{}
	for i, k := range keys {
		hash := sha256.Sum256([]byte(k.Secret))
		switch {
		case len(k.Secret) < 8:
			return nil, fmt.Errorf("serve: key %d is shorter than 8 characters", i+1)
		case seen[hash]:
			return nil, fmt.Errorf("serve: key %d is there twice", i+1)
		}
		seen[hash] = true
		name := k.Name
		if name == "" {
			name = fmt.Sprintf("key-%d", i+1)
		}
		x := one(name, hash, k.Limits)
		x.shared, x.sees, x.flush = k.Salt, k.Operator || len(keys) == 1, k.Operator
		t.all = append(t.all, x)
	}
	return t, nil
}

// keptBytes is what the tenant's programs and runs take of the
// folder that they are kept in. t.mu is held.
func (t *tenant) keptBytes() int64 {
	n := int64(0)
	for _, size := range t.sizes {
		n += int64(size)
	}
	for _, r := range t.order {
		n += r.keptBytes()
	}
	return n
}

// full reports whether the tenant keeps as much as it may, with more bytes. t.mu is
// held.
func (t *tenant) full(more int) bool {
	most := t.quota.limits.KeptBytes
	return t.shelf != nil && most > 0 && t.keptBytes()+int64(more) > int64(most)
}

// errFull answers who wants to keep more than it may.
func (t *tenant) errFull() *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRate, Code: "storage_full", Message: fmt.Sprintf("this key keeps as many bytes of programs and runs as it may, %d; delete programs, or cancel runs that were interrupted", t.quota.limits.KeptBytes)}
}

// busyRuns counts the runs that a server which stops waits for. One that waits for
// an answer and is kept can as well go on later, and one elsewhere goes on.
func (t *tenants) busyRuns() int {
	n := 0
	for _, x := range t.all {
		x.mu.Lock()
		for _, r := range x.order {
			if !r.over() && (x.shelf == nil || !r.asks.any() && (r.files == nil || !r.files.meta.Elsewhere)) {
				n++
			}
		}
		x.mu.Unlock()
	}
	return n
}

func (t *tenants) activeRuns() int {
	n := 0
	for _, x := range t.all {
		x.mu.Lock()
		n += x.active()
		x.mu.Unlock()
	}
	return n
}

// active counts the runs at work. t.mu is held.
func (t *tenant) active() int {
	n := 0
	for _, r := range t.order {
		if !r.over() {
			n++
		}
	}
	return n
}
