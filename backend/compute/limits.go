package compute

import (
	"math"
	"time"
)

// Limits are the peaks of the machine, measured by loops that do nothing else.
// Figures of kernels mean little without them: they differ between machines and
// with what else is running.
type Limits struct {
	Threads   int
	ReadGBs   float64 // bytes read from memory, 10^9 per second
	Int8GMACs float64 // 8-bit multiply-adds, 10^9 per second
	F32GMACs  float64 // float32 multiply-adds, 10^9 per second
	BF16GMACs float64 // bfloat16 multiply-adds into float32, 10^9 per second; F32GMACs where there are none
}

// MeasureLimits measures with the given number of threads, 0 for one per core.
// It takes about a third of a second and 256 MiB of memory. Figures are the best
// of several runs, so that other work on the machine disturbs them little.
func MeasureLimits(threads int) (Limits, error) {
	const size = 256 << 20
	mem, err := NewMemory(size)
	if err != nil {
		return Limits{}, err
	}
	defer mem.Free()
	b := mem.Bytes()
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1 // make it resident
	}
	p := NewPool(threads)
	defer p.Close()
	l := Limits{Threads: p.Threads()}
	// Each run reads another part, so that none of it is in a cache.
	const part, piece = 32 << 20, 1 << 20
	next := 0
	read := measure(2*size/part, func() {
		from := b[next*part:][:part]
		next = (next + 1) % (size / part)
		p.Run(part/piece, func(_, i int) { readPeak(from[i*piece:][:piece]) })
	})
	l.ReadGBs = part / read
	const tasks, n = 64, 1000
	dots := measure(30, func() { p.Run(tasks, func(_, _ int) { dotPeak(n) }) })
	l.Int8GMACs = tasks * float64(n*dotPeakMACs) / dots
	floats := measure(30, func() { p.Run(tasks, func(_, _ int) { floatPeak(n) }) })
	l.F32GMACs = tasks * float64(n*floatPeakMACs) / floats
	l.BF16GMACs = l.F32GMACs
	if brainPeakMACs > 0 {
		brains := measure(30, func() { p.Run(tasks, func(_, _ int) { brainPeak(n) }) })
		l.BF16GMACs = tasks * float64(n*brainPeakMACs) / brains
	}
	return l, nil
}

// measure returns the shortest duration of f in nanoseconds.
func measure(times int, f func()) float64 {
	best := math.MaxFloat64
	for range times + 1 {
		start := time.Now()
		f()
		best = min(best, float64(time.Since(start).Nanoseconds()))
	}
	return best
}

// sink keeps the compiler from dropping the measured loops.
var sink struct {
	b uint64
	f float32
}

// readPeakGo reads b once.
func readPeakGo(b []byte) {
	var s uint64
	for i := 0; i+8 <= len(b); i += 8 {
		s += uint64(b[i])
	}
	if s == 1 {
		sink.b++
	}
}

// goPeakMACs is what dotPeakGo(1) and floatPeakGo(1) do.
const goPeakMACs = 64

func dotPeakGo(n int) {
	var s [4]int32
	x := [4]int8{1, -2, 3, int8(n)}
	for range n * goPeakMACs / 4 {
		for i := range s {
			s[i] += int32(x[i]) * int32(x[i])
		}
	}
	if s == [4]int32{} {
		sink.b++
	}
}

func floatPeakGo(n int) {
	var s [4]float32
	x := [4]float32{1, 2, 3, float32(n)}
	for range n * goPeakMACs / 4 {
		for i := range s {
			s[i] += x[i] * x[i]
		}
	}
	if s == [4]float32{} {
		sink.f++
	}
}
