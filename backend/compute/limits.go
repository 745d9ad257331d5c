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
	Int8GMACs float64 // 8-bit multiply-adds, 10^9 per second; with AVX2 those of 4 bits can be faster
	F32GMACs  float64 // float32 multiply-adds, 10^9 per second
	BF16GMACs float64 // bfloat16 multiply-adds into float32, 10^9 per second; F32GMACs where there are none
}

// MACTimes estimates the time that a multiply-add takes, as a share of that of a byte from
// memory, in the matrix products of a few tokens and in their attention, where part of it is
// done while the memory is waited for. They are such that steps of 1, 2 and 4 sequences, at a
// depth of 64 and of 3,000, take about as long as "coppice bench decode --branches 1,2,4
// --shared-tokens 3000" says on two cores of a server (AVX-512: Zen 4, AVX2: Zen 1), and go by
// the kernels in use, so that they are the same on all machines that have these.
func MACTimes() (product, attention float64) {
	switch Tier() {
	case "avx512bf16", "avx512":
		return 0.085, 0.34
	case "avx2", "neon": // those of AVX2 for want of a measurement
		return 0.5, 0.65
	}
	return 10, 10 // nothing but the products counts
}

// MeasureLimits measures with the given number of threads, 0 for one per core.
// It takes about a third of a second and 256 MiB of memory. Figures are the best
// of several runs, so that other work on the machine disturbs them little.
func MeasureLimits(threads int) (Limits, error) {
	r, err := NewReadMeter(threads)
	if err != nil {
		return Limits{}, err
	}
	defer r.Close()
	p := r.pool
	l := Limits{Threads: p.Threads()}
	l.ReadGBs = readPart / measure(2*len(r.mem.Bytes())/readPart, r.read)
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

// A ReadMeter measures how fast memory can be read at the moment: on a machine that
// others use too the rate changes from second to second, so that what is to be
// compared with it is measured between two of its figures.
type ReadMeter struct {
	mem  *Memory
	pool *Pool
	at   int
}

// Each read is of another part, so that none of it is in a cache.
const readSize, readPart, readPiece = 256 << 20, 32 << 20, 1 << 20

// NewReadMeter returns a meter that reads with the given number of threads, 0 for one
// per core. It takes 256 MiB until it is closed.
func NewReadMeter(threads int) (*ReadMeter, error) {
	mem, err := NewMemory(readSize)
	if err != nil {
		return nil, err
	}
	b := mem.Bytes()
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1 // make it resident
	}
	return &ReadMeter{mem: mem, pool: NewPool(threads)}, nil
}

// Close frees the memory and ends the threads.
func (r *ReadMeter) Close() {
	r.pool.Close()
	r.mem.Free()
}

// Rate reads for d and returns 10^9 bytes per second, pauses included that the
// threads made because the machine had other work.
func (r *ReadMeter) Rate(d time.Duration) float64 {
	start, n := time.Now(), 0
	for n == 0 || time.Since(start) < d {
		r.read()
		n++
	}
	return float64(n) * readPart / float64(time.Since(start).Nanoseconds())
}

func (r *ReadMeter) read() {
	from := r.mem.Bytes()[r.at:][:readPart]
	r.at = (r.at + readPart) % readSize
	r.pool.Run(readPart/readPiece, func(_, i int) { readPeak(from[i*readPiece:][:readPiece]) })
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
