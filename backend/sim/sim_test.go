package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/sim"
)

func Example() {
	e, device, err := sim.New(sim.Options{Step: 10 * time.Millisecond, Plan: 5 * time.Millisecond, Virtual: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer e.Close()
	r, err := e.Generate(context.Background(), &backend.Request{
		Turns: []backend.Turn{{Parts: []backend.Part{{Text: "once"}}}}, MaxTokens: 12,
	}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	u := device.Usage()
	fmt.Println(len(r.Part.Text), u.Steps, u.Busy, u.Idle)
	// Output: 12 12 120ms 0s
}

// burst runs the same requests on a device and returns what it did, and the texts.
func burst(t *testing.T, o sim.Options, requests, tokens int) (sim.Usage, []string) {
	t.Helper()
	o.Virtual = true
	o.Engine.Check = true
	e, d, err := sim.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	texts := make([]string, requests)
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			r, err := e.Generate(context.Background(), &backend.Request{
				Turns:     []backend.Turn{{Parts: []backend.Part{{Text: fmt.Sprint("request ", i)}}}},
				MaxTokens: tokens + i,
			}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			texts[i] = r.Part.Text
		})
	}
	wg.Wait()
	return d.Usage(), texts
}

func TestDeviceIdle(t *testing.T) {
	o := sim.Options{Step: 10 * time.Millisecond, Plan: 5 * time.Millisecond}
	overlapped, texts := burst(t, o, 8, 200)
	o.Sequential = true
	sequential, same := burst(t, o, 8, 200)
	if !reflect.DeepEqual(texts, same) {
		t.Errorf("texts %q, without overlap %q", texts, same)
	}
	if got := overlapped.IdleShare(); got >= 0.01 {
		t.Errorf("the device waits %.2f%% of the time, want less than 1%%", 100*got)
	}
	if got := sequential.IdleShare(); math.Abs(got-1.0/3) > 0.01 {
		t.Errorf("without overlap the device waits %.2f%% of the time, want a third", 100*got)
	}
}

// TestPlanningLongerThanAStep: then the device waits for what does not fit.
func TestPlanningLongerThanAStep(t *testing.T) {
	u, _ := burst(t, sim.Options{Step: 5 * time.Millisecond, Plan: 10 * time.Millisecond}, 1, 300)
	if got := u.IdleShare(); math.Abs(got-0.5) > 0.01 {
		t.Errorf("the device waits %.2f%% of the time, want half", 100*got)
	}
}

func TestTokensTakeTime(t *testing.T) {
	u, _ := burst(t, sim.Options{Step: time.Millisecond, Token: time.Microsecond}, 1, 10)
	if want := time.Duration(u.Steps)*time.Millisecond + time.Duration(u.Tokens)*time.Microsecond; u.Busy != want || u.Tokens < 10 {
		t.Errorf("%+v, want busy %v", u, want)
	}
}

func TestBadOptions(t *testing.T) {
	if _, _, err := sim.New(sim.Options{Step: -1}); !errors.Is(err, backend.ErrInvalid) {
		t.Error(err)
	}
	if _, _, err := sim.New(sim.Options{Engine: engine.Config{MaxSeqs: -1}}); err == nil {
		t.Error("no error")
	}
}
