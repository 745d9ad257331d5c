package runtime_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func record(t *testing.T, opts ...runtime.Option) (*runtime.Log, []runtime.Event) {
	t.Helper()
	m := puppet.New()
	m.OnID("severity").Scores(map[string]float64{"low": -2, "high": -2, "critical": -3})
	m.OnID("verdict").Reply(`{"pod":"p","reason":"r","oom_killed":true}`)
	m.OnAny().Reply("größer als vorher")
	log := runtime.NewLog(0)
	opts = append(opts, runtime.WithSink(log), runtime.WithClock(nil), runtime.WithRun("r"))
	if _, err := runtime.Run(t.Context(), m, triage, lang.Args{"alert": "x"}, opts...); err != nil {
		t.Fatal(err)
	}
	var events []runtime.Event
	for e := range log.Events(t.Context(), 0) {
		events = append(events, e)
	}
	return log, events
}

func TestEventsAreDenseAndDeltasMakeUpTheText(t *testing.T) {
	log, events := record(t)
	texts := map[string]string{}
	kinds := map[runtime.EventKind]int{}
	for i, e := range events {
		if e.Seq != uint64(i+1) {
			t.Fatalf("event %d has number %d", i, e.Seq)
		}
		kinds[e.Kind]++
		switch e.Kind {
		case runtime.TextDelta:
			if e.Offset != len(texts[e.Task]) {
				t.Fatalf("%s: delta at %d, the text has %d bytes", e.Task, e.Offset, len(texts[e.Task]))
			}
			texts[e.Task] += e.Text
		case runtime.NodeFinished:
			if got, ok := texts[e.Task]; ok && got != e.Text {
				t.Errorf("%s: deltas make %q, the text is %q", e.Task, got, e.Text)
			}
			if e.Task == "severity" {
				if len(e.Scores) != 3 || e.Text != "low" || e.Scores[0].P != e.Scores[1].P || e.Scores[0].P < 0.4 || e.Scores[0].P > 0.5 {
					t.Errorf("scores %+v", e.Scores)
				}
			}
		}
	}
	if texts["looks[2]/finding"] != "größer als vorher" {
		t.Errorf("texts %q", texts)
	}
	for kind, want := range map[runtime.EventKind]int{
		runtime.RunStarted: 1, runtime.RunFinished: 1, runtime.BranchStarted: 3, runtime.BranchFinished: 3,
		runtime.NodeStarted: 5, runtime.NodeFinished: 5, runtime.RunFailed: 0,
	} {
		if kinds[kind] != want {
			t.Errorf("%d events of kind %s, want %d", kinds[kind], kind, want)
		}
	}
	if events[0].Kind != runtime.RunStarted || events[len(events)-1].Kind != runtime.RunFinished {
		t.Error("the run does not begin and end the stream")
	}
	if again, over := log.Since(uint64(len(events) - 2)); len(again) != 2 || !over {
		t.Errorf("Since gives %d events", len(again))
	}
}

func TestEventJSONIsStable(t *testing.T) {
	_, events := record(t, runtime.WithConcurrency(1))
	var b strings.Builder
	seen := map[runtime.EventKind]bool{}
	for _, e := range events {
		if seen[e.Kind] {
			continue
		}
		seen[e.Kind] = true
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\n", text)
		var back runtime.Event
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
	}
	want := `{"seq":1,"kind":"run_started","run":"r","program":"triage"}
{"seq":2,"kind":"branch_started","branch":"looks[0]","label":"memory"}
{"seq":5,"kind":"node_started","task":"looks[0]/finding","node":"looks/finding","branch":"looks[0]","does":"gen"}
{"seq":6,"kind":"delta","task":"looks[0]/finding","node":"looks/finding","branch":"looks[0]","text":"g","tokens":[103]}
`
	if got := b.String(); !strings.HasPrefix(got, want) {
		t.Errorf("got\n%s", got)
	}
}

func TestSlowReadersMissDeltasButNothingElse(t *testing.T) {
	log := runtime.NewLog(10)
	seq := uint64(0)
	emit := func(e runtime.Event) {
		seq++
		e.Seq = seq
		log.Emit(e)
	}
	emit(runtime.Event{Kind: runtime.RunStarted})
	whole := ""
	for i := range 100 {
		piece := fmt.Sprintf("%d,", i)
		emit(runtime.Event{Kind: runtime.TextDelta, Task: "a", Text: piece, Offset: len(whole)})
		whole += piece
		if i == 50 {
			emit(runtime.Event{Kind: runtime.NodeFinished, Task: "b", Text: "B"})
		}
	}
	read := func(after uint64) (text string, finished []string, markers int, n int) {
		events, _ := log.Since(after)
		last := after
		for _, e := range events {
			if e.Kind == runtime.Dropped {
				if e.First != last+1 || e.Seq < e.First {
					t.Errorf("marker %d..%d after %d", e.First, e.Seq, last)
				}
				markers++
				if s, ok := e.Texts["a"]; ok {
					text = s
				}
			} else if e.Seq != last+1 {
				t.Errorf("gap: %d after %d", e.Seq, last)
			}
			last = e.Seq
			switch e.Kind {
			case runtime.TextDelta:
				if e.Offset+len(e.Text) > len(text) {
					text = text[:e.Offset] + e.Text
				}
			case runtime.NodeFinished:
				finished = append(finished, e.Task)
			}
		}
		return text, finished, markers, len(events)
	}
	text, finished, markers, n := read(0)
	if text != whole || fmt.Sprint(finished) != "[b]" || markers == 0 {
		t.Errorf("text %q, finished %v, %d markers", text, finished, markers)
	}
	if n > 30 {
		t.Errorf("%d events are kept", n)
	}
	if events, _ := log.Since(seq - 3); len(events) != 3 || events[0].Kind == runtime.Dropped {
		t.Error("a reader that is up to date was told of drops")
	}
}

func TestReadersComeAndGoWhileTheRunIsOn(t *testing.T) {
	noLeaks(t)
	log := runtime.NewLog(5)
	m := puppet.New()
	m.OnAny().Reply(strings.Repeat("text ", 40))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			n := 0
			for e := range log.Events(t.Context(), 0) {
				n++
				_ = e
			}
			if n == 0 {
				t.Error("a reader saw nothing")
			}
		})
		wg.Go(func() {
			for range log.Events(t.Context(), 0) {
				break
			}
		})
	}
	if _, err := runtime.Run(t.Context(), m, fork8, nil, runtime.WithSink(log)); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range runtime.NewLog(0).Events(ctx, 0) {
		t.Error("an empty log has an event")
	}
}

func TestEventsCarryTheTimeOfTheGivenClock(t *testing.T) {
	at := time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)
	var got runtime.Event
	_, err := runtime.Run(t.Context(), puppet.Null{}, oneGen, nil, runtime.WithClock(func() time.Time { return at }),
		runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) { got = e })))
	if err != nil || !got.Time.Equal(at) || got.Kind != runtime.RunFinished {
		t.Errorf("%v %+v", err, got)
	}
}

func TestFailedRunEndsTheStreamWithItsError(t *testing.T) {
	m := puppet.New()
	m.OnAny().Fail(backend.ErrOverloaded)
	log := runtime.NewLog(0)
	if _, err := runtime.Run(t.Context(), m, fork3(), nil, runtime.WithSink(log)); err == nil {
		t.Fatal("no error")
	}
	var last runtime.Event
	for e := range log.Events(t.Context(), 0) {
		last = e
	}
	if last.Kind != runtime.RunFailed || !strings.Contains(last.Error, "f[") {
		t.Errorf("%+v", last)
	}
}
