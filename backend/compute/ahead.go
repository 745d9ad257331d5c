package compute

import "unsafe"

// Ahead is memory that a thread is going to read, in the order in which it does. It
// must not change once a pool has it.
type Ahead [][]byte

// fetchBytes is what fetchLines asks for at once.
const fetchBytes = 4 * 64

// Ahead returns the memory of about the first n bytes that a product reads which
// starts at the panel p: of each kind of data its share.
func (m *Matrix) Ahead(p, n int) Ahead {
	var a Ahead
	for _, b := range [][]byte{bytesOf(m.d), bytesOf(m.m), bytesOf(m.h), bytesOf(m.f), m.q} {
		from := len(b) / m.panels * p
		if to := min(len(b), from+int(int64(len(b))*int64(n)/int64(m.Bytes()))); from < to {
			a = append(a, b[from:to])
		}
	}
	return a
}

func bytesOf[T uint16 | float32](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// Ahead tells what each thread reads after the sections that follow, up to the next
// call; nil if nobody knows. A thread that waits for others, or for a section, fetches
// it meanwhile: the memory would have nothing to do.
func (p *Pool) Ahead(of []Ahead) { p.ahead = of }

// aheadOf is what a thread reads after the current section.
func (p *Pool) aheadOf(worker int) *Ahead {
	if p.ahead == nil {
		return nil
	}
	return &p.ahead[worker]
}

// A fetcher fetches what a thread reads next, little by little.
type fetcher struct {
	of       *Ahead
	part, at int // where it goes on
}

// step fetches some lines of a, if it has not fetched all of it.
func (f *fetcher) step(a *Ahead) bool {
	if a != f.of {
		*f = fetcher{of: a}
	}
	if a == nil {
		return false
	}
	for f.part < len(*a) {
		if b := (*a)[f.part]; f.at+fetchBytes <= len(b) {
			fetchLines(&b[f.at])
			f.at += fetchBytes
			return true
		}
		f.part, f.at = f.part+1, 0
	}
	return false
}
