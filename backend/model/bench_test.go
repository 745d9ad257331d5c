//go:build unix

package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/coppice-run/coppice/backend/gguf"
)

// saplingSpec has the shape of the embedded model.
func saplingSpec() tinySpec {
	return tinySpec{arch: "llama", layers: 4, dim: 256, heads: 4, kvHeads: 4, headDim: 64, ffn: 704, vocab: 2048,
		context: 8192, types: []gguf.Type{gguf.Q8_0}, tied: true}
}

// benchModels calls f for a random model of sapling's shape, and for SmolLM2
// when COPPICE_MODELS names a folder that has it.
func benchModels(b *testing.B, threads int, f func(b *testing.B, m *Model)) {
	b.Run("sapling", func(b *testing.B) { f(b, saplingSpec().load(b, 1, threads)) })
	dir := os.Getenv(modelsVariable)
	names, _ := filepath.Glob(filepath.Join(dir, "*.gguf"))
	for _, name := range names {
		if dir == "" {
			break
		}
		b.Run(filepath.Base(name), func(b *testing.B) {
			file, err := gguf.Open(name)
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			m, err := Load(file, Options{Threads: threads})
			if err != nil {
				b.Fatal(err)
			}
			defer m.Close()
			f(b, m)
		})
	}
}

// repeats is how often a step of a prompt is timed.
const repeats = 1

var started = time.Now()

// clock returns the processor time of the process for a model with one thread,
// which does not count what else the machine does, and else the time.
func clock(m *Model) time.Duration {
	var u unix.Rusage
	if m.pool.Threads() > 1 || unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return time.Since(started)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// filled returns a KV with a sequence of n random tokens, and the fastest time
// of each step of 256 tokens, added up.
func filled(b *testing.B, m *Model, n, extra int) (*KV, []int32, time.Duration) {
	kv, err := m.NewKV((n + extra + PageSize) / PageSize)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(kv.Close)
	var pages []int32
	for p := range kv.Pages() {
		pages = append(pages, int32(p))
	}
	tokens := randTokens(rand.New(rand.NewPCG(1, 1)), n, m.cfg.Vocab)
	total := time.Duration(0)
	for at := 0; at < n; at += chunkTokens {
		row := Row{Tokens: tokens[at:min(n, at+chunkTokens)], Start: at, Pages: pages}
		best := time.Duration(math.MaxInt64)
		for range repeats {
			start := clock(m)
			if err := m.Forward(kv, &Batch{Rows: []Row{row}}, nil); err != nil {
				b.Fatal(err)
			}
			best = min(best, clock(m)-start)
		}
		total += best
	}
	return kv, pages, total
}

// BenchmarkPrefill computes prompts without using the cache.
func BenchmarkPrefill(b *testing.B) {
	for _, threads := range []int{1, runtime.NumCPU()} {
		benchModels(b, threads, func(b *testing.B, m *Model) {
			for _, n := range []int{512, 6000} {
				if n > m.cfg.ContextLength || (n > 512 && m.cfg.Layers > 4 && testing.Short()) {
					continue
				}
				b.Run(fmt.Sprintf("%dtokens/%dthreads", n, threads), func(b *testing.B) {
					for range b.N {
						_, _, d := filled(b, m, n, 0)
						b.ReportMetric(float64(n)/d.Seconds(), "tok/s")
						b.ReportMetric(d.Seconds(), "s/prompt")
					}
				})
			}
		})
	}
}

// BenchmarkDecode computes one token for each of some branches of a shared
// prefix. The figure is the fastest step.
func BenchmarkDecode(b *testing.B) {
	for _, threads := range []int{1, runtime.NumCPU()} {
		benchModels(b, threads, func(b *testing.B, m *Model) {
			for _, depth := range []int{0, 3000} {
				const most = 32
				kv, pages, _ := filled(b, m, max(depth, 16), most*PageSize)
				shared := max(depth, 16) / PageSize
				for _, n := range []int{1, 8, most} {
					b.Run(fmt.Sprintf("depth%d/%dbranches/%dthreads", depth, n, threads), func(b *testing.B) {
						var batch Batch
						var logits [][]float32
						for i := range n {
							own := append([]int32(nil), pages[:shared]...)
							own = append(own, pages[shared+i])
							batch.Rows = append(batch.Rows, Row{Tokens: []int32{int32(i)}, Start: shared * PageSize, Pages: own, Outputs: []int{0}})
							logits = append(logits, make([]float32, m.cfg.Vocab))
						}
						best := math.MaxFloat64
						for b.Loop() {
							start := clock(m)
							if err := m.Forward(kv, &batch, logits); err != nil {
								b.Fatal(err)
							}
							best = min(best, (clock(m) - start).Seconds())
						}
						b.ReportMetric(1e3*best, "ms/step")
						b.ReportMetric(float64(n)/best, "tok/s")
					})
				}
			}
		})
	}
}

// BenchmarkLoad packs the weights of a file that is in the page cache.
func BenchmarkLoad(b *testing.B) {
	names, _ := filepath.Glob(filepath.Join(os.Getenv(modelsVariable), "*.gguf"))
	for _, name := range names {
		b.Run(filepath.Base(name), func(b *testing.B) {
			for b.Loop() {
				f, err := gguf.Open(name)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(f.Size()))
				m, err := Load(f, Options{Threads: 1})
				if err != nil {
					b.Fatal(err)
				}
				m.Close()
				f.Close()
			}
		})
	}
}
