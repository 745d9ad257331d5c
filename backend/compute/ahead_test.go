package compute

import (
	"sync/atomic"
	"testing"
	"unsafe"
)

// TestAhead: what is fetched for a panel starts where its weights lie, of each kind of
// data its share, and ends with the matrix.
func TestAhead(t *testing.T) {
	for _, kind := range []Kind{Float32, Float16, Int8, Int8Half, Int5, Int5Min, Int4, Int4Min} {
		const rows, cols = 7 * PanelRows, 96
		buf := make([]byte, MatrixBytes(kind, rows, cols))
		m := NewMatrix(kind, rows, cols, buf)
		sizes := 0
		for p := range m.Panels() {
			// A panel alone, and then all that follow.
			one := m.Ahead(p, m.Bytes()/m.Panels()+1)
			for i, b := range m.Ahead(p, m.Bytes()) {
				if unsafe.SliceData(b) != unsafe.SliceData(one[i]) {
					t.Errorf("%v: panel %d starts at two places", kind, p)
				}
				if rest := len(b) / (m.Panels() - p); len(one[i]) < rest || len(one[i]) > rest+rest/8+1 {
					t.Errorf("%v: panel %d of %d: %d bytes alone, %d with those after it", kind, p, m.Panels(), len(one[i]), len(b))
				}
				if p == 0 {
					sizes += len(b)
				}
			}
		}
		if sizes > len(buf) || sizes < len(buf)-64 {
			t.Errorf("%v: %d bytes of %d", kind, sizes, len(buf))
		}
	}
}

// TestFetcher: a fetcher goes through all of what it is given once, and starts again
// with another.
func TestFetcher(t *testing.T) {
	a, b := Ahead{make([]byte, 3*fetchBytes), make([]byte, 5), nil, make([]byte, fetchBytes+9)}, Ahead{make([]byte, fetchBytes)}
	var f fetcher
	steps := func(a *Ahead) (n int) {
		for f.step(a) {
			n++
		}
		return n
	}
	for _, x := range []struct {
		of   *Ahead
		want int
	}{{nil, 0}, {&a, 4}, {&a, 0}, {&b, 1}, {nil, 0}, {&b, 1}, {&a, 4}} {
		if got := steps(x.of); got != x.want {
			t.Errorf("%d steps, want %d", got, x.want)
		}
	}
}

// TestPoolAhead: sections are the same with something to fetch between them.
func TestPoolAhead(t *testing.T) {
	p := NewPool(3)
	defer p.Close()
	ahead := make([]Ahead, p.Threads())
	for i := range ahead {
		ahead[i] = Ahead{make([]byte, 100*fetchBytes)}
	}
	for i := range 300 {
		switch i % 3 {
		case 0:
			p.Ahead(ahead)
		case 1:
			p.Ahead(nil)
		}
		var n atomic.Int64
		p.Run(17, func(_, task int) { n.Add(int64(task)) })
		if n.Load() != 17*16/2 {
			t.Fatalf("section %d: sum %d", i, n.Load())
		}
	}
}
