package remote

import (
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// One generation of 64 pieces, client and fake server together, per dialect.
func BenchmarkGenerate(b *testing.B) {
	answer := make([]string, 64)
	for i := range answer {
		answer[i] = "the "
	}
	for _, scheme := range []string{"vllm+http", "sglang+http", "llama+http"} {
		b.Run(scheme, func(b *testing.B) {
			f := (&fake{answer: answer, prompt: 10}).start(b)
			be := f.open(scheme, Options{})
			req := &backend.Request{Turns: rawTurns("hi"), MaxTokens: 99}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := be.Generate(b.Context(), req, func(backend.Delta) {}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
