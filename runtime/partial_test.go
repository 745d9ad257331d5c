package runtime_test

import (
	"encoding/json"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func TestPartialValuesGrowToTheWhole(t *testing.T) {
	def := lang.Define("grow", func(p *lang.Program) lang.Var[reading] {
		p.User("hi")
		p.Gen("other")
		return lang.JSON[reading](p, "r", lang.Retries(2), lang.RetryWait(1, 1))
	})
	m := puppet.New()
	m.OnID("other").Reply("{")
	m.OnID("r").Reply(`{"pod": "web", "count": 12}`).FailCall(1, backend.ErrUnavailable)
	var told []string
	var grown []reading
	out, err := runtime.Run(t.Context(), m, def, nil, runtime.WithPartials(),
		runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
			if e.Kind == runtime.PartialValue {
				if e.Task != "r" || !json.Valid(e.Value) {
					t.Errorf("%+v", e)
				}
				told = append(told, string(e.Value))
			}
		})),
		runtime.OnPartial("r", func(task string, r reading) { grown = append(grown, r) }))
	if err != nil {
		t.Fatal(err)
	}
	if len(told) < 3 || told[len(told)-1] != `{"pod":"web","count":12}` || len(grown) != len(told) {
		t.Errorf("%q %v", told, grown)
	}
	for i, r := range grown {
		if i > 0 && len(r.Pod) < len(grown[i-1].Pod) || r.Count != 0 && r != out.Value {
			t.Errorf("%v", grown)
		}
	}
	// Without a sink too.
	n := 0
	if _, err := runtime.Run(t.Context(), m, def, nil, runtime.OnPartial("r", func(string, reading) { n++ })); err != nil || n != len(grown) {
		t.Error(n, err)
	}
}
