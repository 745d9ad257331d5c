package runtime_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/backend/sim"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// twin is a program that is written in each way that can say it.
type twin struct {
	yaml   string
	define func(p *lang.Program) lang.Var[any]
	script func(s *lang.S) (any, error) // nil: no script has what it needs
}

var twins = map[string]twin{
	"nothing to choose": {`
  - system: You look after servers, and are brief.
  - user: "Which?"
  - gen: {name: a, regex: "all of them"}
  - user: "And?"
  - gen: {name: b, regex: "none"}
  - return: a + b`,
		func(p *lang.Program) lang.Var[any] {
			p.System("You look after servers, and are brief.")
			p.User("Which?")
			a := p.Gen("a", lang.Regex("all of them"))
			p.User("And?")
			return lang.Calc[any](a, "+", p.Gen("b", lang.Regex("none")))
		},
		func(s *lang.S) (any, error) {
			s.System("You look after servers, and are brief.")
			s.User("Which?")
			a := s.Gen("a", lang.Regex("all of them"))
			s.User("And?")
			b, err := s.Gen("b", lang.Regex("none")).Get()
			if err != nil {
				return nil, err
			}
			first, err := a.Get()
			return first + b, err
		}},
	"patterns and options in a fork": {`
  - system: You look after servers, and are brief.
  - user: "Which?"
  - fork:
      name: f
      each: [alpha, alphabet, beta]
      steps:
        - user: "Look at ${item}."
        - gen: {name: g, regex: "abc(de|fg)h", max_tokens: 9}
        - select: {name: s, options: ["left", "left side", "right"]}
      yield: g + s
  - gen: {name: z, regex: "xyz", max_tokens: 8}
  - return: '[join(f, " "), z]'`,
		func(p *lang.Program) lang.Var[any] {
			p.System("You look after servers, and are brief.")
			p.User("Which?")
			f := lang.Fork(p, "f", lang.Each("alpha", "alphabet", "beta"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
				b.User("Look at ", item, ".")
				g := b.Gen("g", lang.Regex("abc(de|fg)h"), lang.MaxTokens(9))
				return lang.Calc[string](g, "+", lang.Select(b, "s", "left", "left side", "right"))
			})
			z := p.Gen("z", lang.Regex("xyz"), lang.MaxTokens(8))
			return lang.Calc[any]("[", lang.Join(f, " "), ",", z, "]")
		},
		func(s *lang.S) (any, error) {
			s.System("You look after servers, and are brief.")
			s.User("Which?")
			f, err := lang.Map(s, "f", []string{"alpha", "alphabet", "beta"}, func(b *lang.S, item string) (string, error) {
				b.User("Look at ", item, ".")
				g, err := b.Gen("g", lang.Regex("abc(de|fg)h"), lang.MaxTokens(9)).Get()
				if err != nil {
					return "", err
				}
				side, err := lang.Select(b, "s", "left", "left side", "right").Get()
				return g + side, err
			})
			if err != nil {
				return nil, err
			}
			z, err := s.Gen("z", lang.Regex("xyz"), lang.MaxTokens(8)).Get()
			return []any{strings.Join(f, " "), z}, err
		}},
	"arms, one of them with forks": {`
  - user: "root"
  - fork:
      name: a
      arms:
        - name: one
          steps:
            - fork:
                name: b
                arms:
                  - {name: x, steps: [{user: p}, {gen: {name: g, max_tokens: 3, regex: "[a-z]{3}"}}], yield: g}
                  - {name: y, steps: [{user: q}, {fork: {name: c, over: '[1,2,3]', steps: [{user: "${item}"}, {select: {name: j, options: [n, m]}}], yield: j}}], yield: 'join(c, "")'}
          yield: join(b, "")
        - name: two
          steps:
            - gen: {name: t, max_tokens: 2}
          yield: t
  - return: a`,
		func(p *lang.Program) lang.Var[any] {
			p.User("root")
			a := lang.Arms(p, "a",
				lang.Case("one", func(b *lang.Branch) lang.Var[string] {
					return lang.Join(lang.Arms(b, "b",
						lang.Case("x", func(b *lang.Branch) lang.Var[string] {
							b.User("p")
							return b.Gen("g", lang.MaxTokens(3), lang.Regex("[a-z]{3}"))
						}),
						lang.Case("y", func(b *lang.Branch) lang.Var[string] {
							b.User("q")
							c := lang.Fork(b, "c", lang.Over(lang.Calc[[]int]("[1,2,3]")), func(b *lang.Branch, i lang.Var[int]) lang.Var[string] {
								b.User(i)
								return lang.Select(b, "j", "n", "m")
							})
							return lang.Join(c, "")
						})), "")
				}),
				lang.Case("two", func(b *lang.Branch) lang.Var[string] { return b.Gen("t", lang.MaxTokens(2)) }))
			return lang.Calc[any](a)
		}, nil},
	"a fork in an open turn": {`
  - user: "Plan?"
  - role:
      role: assistant
      steps:
        - text: "So far "
        - fork:
            name: f
            each: [left, right]
            steps:
              - text: "${item} "
              - gen: {name: g, max_tokens: 4}
            yield: g
        - gen: {name: m, max_tokens: 3}
        - select: {name: n, options: ["one more", "one less", "two"]}
  - user: '${join(f, " ")}'
  - gen: {name: x, max_tokens: 3}
  - return: x`,
		func(p *lang.Program) lang.Var[any] {
			p.User("Plan?")
			var f lang.Var[[]string]
			p.Role("assistant", func(p *lang.Program) {
				p.Text("So far ")
				f = lang.Fork(p, "f", lang.Each("left", "right"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
					b.Text(item, " ")
					return b.Gen("g", lang.MaxTokens(4))
				})
				p.Gen("m", lang.MaxTokens(3))
				lang.Select(p, "n", "one more", "one less", "two")
			})
			p.User(lang.Join(f, " "))
			return lang.Calc[any](p.Gen("x", lang.MaxTokens(3)))
		},
		nil}, // an open turn of a script has no Map
}

// measured is what a run did: each node with its tokens and value, and what it cost.
type measured struct {
	nodes []string
	usage map[string]int
	value string
}

func measure(t *testing.T, run func(o ...runtime.Option) (*runtime.Report, error)) measured {
	t.Helper()
	got := map[string]string{}
	sink := runtime.SinkFunc(func(e runtime.Event) {
		switch e.Kind {
		case runtime.TextDelta:
			got[e.Task] += fmt.Sprint(e.Tokens)
		case runtime.NodeFinished:
			got[e.Task] += fmt.Sprintf(" = %s %s %s %s", e.Does, e.Node, e.Text, e.Value)
		}
	})
	report, err := run(runtime.WithSink(sink), runtime.WithSeed(7))
	require.NoError(t, err)
	u := report.Usage
	m := measured{value: string(report.Value), usage: map[string]int{
		"prompt": u.PromptTokens, "computed": u.ComputedTokens, "cached": u.CachedTokens, "forced": u.ForcedTokens, "sampled": u.SampledTokens,
	}}
	for _, task := range slices.Sorted(maps.Keys(got)) {
		m.nodes = append(m.nodes, task+got[task])
	}
	return m
}

func forecast(t *testing.T, g *lang.Graph, be backend.Backend) lang.Forecast {
	t.Helper()
	est, err := runtime.NewEstimator(t.Context(), be)
	require.NoError(t, err)
	ex, err := lang.Explain(g, lang.ExplainOptions{Estimator: est})
	require.NoError(t, err)
	require.False(t, ex.Estimated)
	return ex.Usage
}

// TestProgramsThatAreWrittenInEachWay: a file, the builder and a script of one program
// have the same nodes with the same tokens, on a scripted model as on the engine on a
// simulated device; what explain says of the first two is the same, and what each of
// the three measures lies within it.
func TestProgramsThatAreWrittenInEachWay(t *testing.T) {
	for name, x := range twins {
		for _, model := range []string{"puppet", "sim"} {
			t.Run(name+" "+model, func(t *testing.T) {
				open := func() backend.Backend {
					if model == "puppet" {
						m := puppet.New()
						replies := map[string]string{"a": "all of them", "b": "none", "z": "xyz", "a/one/b/x/g": "abc"}
						m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
							switch reply, ok := replies[p.ID]; {
							case ok:
								return reply, nil
							case strings.HasPrefix(p.ID, "f[") && name == "patterns and options in a fork":
								return "abcfgh", nil
							}
							return "xy", nil
						}).ScoreFunc(func(p *puppet.Prompt, option string) []float64 { return make([]float64, len(option)) })
						return m
					}
					e, _, err := sim.New(sim.Options{Virtual: true})
					require.NoError(t, err)
					t.Cleanup(func() { e.Close() })
					return e
				}
				file, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:"+x.yaml+"\n"), "p.yaml")
				require.NoError(t, err)
				def := lang.Define("p", x.define)
				built, err := def.Compile()
				require.NoError(t, err)
				within := func(measured) {}
				exact := true
				if model == "sim" { // a puppet counts what it was told
					said := forecast(t, file, open())
					require.Equal(t, said, forecast(t, built, open()))
					// Arms that start together compute a short prefix each, or take it from
					// the other that came a step before.
					exact = said.Computed.Min == said.Computed.Max && !said.Computed.Open
					within = func(m measured) {
						t.Helper()
						for what, r := range map[string]lang.Range{"prompt": said.Prompt, "computed": said.Computed, "cached": said.Cached, "forced": said.Forced, "sampled": said.Sampled} {
							if n := m.usage[what]; n < r.Min || n > r.Max && !r.Open {
								t.Errorf("%s: %d, and %s were foreseen", what, n, r)
							}
						}
					}
				}
				want := measure(t, func(o ...runtime.Option) (*runtime.Report, error) {
					return runtime.RunGraph(t.Context(), open(), file, nil, nil, o...)
				})
				within(want)
				got := measure(t, func(o ...runtime.Option) (*runtime.Report, error) {
					return runtime.RunGraph(t.Context(), open(), built, def.Funcs(), nil, o...)
				})
				within(got)
				require.Equal(t, want.nodes, got.nodes)
				require.Equal(t, want.value, got.value)
				if !exact {
					for _, m := range []measured{want, got} {
						m.usage["read"] = m.usage["computed"] + m.usage["cached"]
						delete(m.usage, "computed")
						delete(m.usage, "cached")
					}
				}
				require.Equal(t, want.usage, got.usage)
				if x.script == nil {
					return
				}
				script := lang.Script("p", func(s *lang.S, _ struct{}) (any, error) { return x.script(s) })
				got = measure(t, func(o ...runtime.Option) (*runtime.Report, error) {
					out, err := runtime.RunScript(t.Context(), open(), script, struct{}{}, o...)
					if err != nil {
						return nil, err
					}
					return out.Report, nil
				})
				within(got)
				require.Equal(t, want.nodes, got.nodes)
				require.JSONEq(t, want.value, got.value)
			})
		}
	}
}

// TestEstimatorOfBackendsWithoutTokens: what cannot be counted is not made up.
func TestEstimatorOfBackendsWithoutTokens(t *testing.T) {
	_, err := runtime.NewEstimator(t.Context(), puppet.New())
	require.ErrorIs(t, err, backend.ErrUnsupported)
}
