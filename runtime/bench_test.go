package runtime_test

import (
	"context"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

var oneGen = lang.Define("one", func(p *lang.Program) lang.Var[string] {
	p.User("Say ok.")
	return p.Gen("x")
})

var fork8 = lang.Define("fork8", func(p *lang.Program) lang.Var[string] {
	p.User("Plan?")
	tips := lang.Fork(p, "tips", lang.Each("a", "b", "c", "d", "e", "f", "g", "h"),
		func(b *lang.Branch, tip lang.Var[string]) lang.Var[string] {
			b.User("Expand ", tip)
			return b.Gen("text")
		})
	p.User("All:\n", lang.Join(tips, "\n"))
	return p.Gen("summary")
})

func benchmark(b *testing.B, def *lang.Def[string], opts ...runtime.Option) {
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := runtime.Run(ctx, puppet.Null{}, def, nil, opts...); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOneGen(b *testing.B)   { benchmark(b, oneGen) }
func BenchmarkFork8Gen(b *testing.B) { benchmark(b, fork8) }

func BenchmarkOneGenWithEvents(b *testing.B) {
	benchmark(b, oneGen, runtime.WithSink(runtime.SinkFunc(func(runtime.Event) {})))
}

func BenchmarkFork8GenWithEvents(b *testing.B) {
	benchmark(b, fork8, runtime.WithSink(runtime.SinkFunc(func(runtime.Event) {})))
}
