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

// TestGuessesPay: on a device whose pass takes longer with each token, texts whose
// guesses are right are faster by them, and no text is much slower: where they are wrong
// they end soon, the sooner the more a token costs. The texts are the same.
func TestGuessesPay(t *testing.T) {
	const tokens = 600
	noise := func(pos int) uint64 {
		x := uint64(pos) * 0x9e3779b97f4a7c15
		x ^= x >> 31
		x *= 0xbf58476d1ce4e5b9
		return x ^ x>>29
	}
	period := func(pos int) int32 { return 'a' + int32(pos%7) }
	// wrong of 100 tokens are others than those that stood there a period before.
	mixed := func(wrong uint64) func(int32, int) int32 {
		return func(_ int32, pos int) int32 {
			if x := noise(pos); x%100 < wrong {
				return 'A' + int32(x>>32%26)
			}
			return period(pos)
		}
	}
	few := func(letters uint64) func(int32, int) int32 { // what follows stood there before, but is right by chance
		return func(_ int32, pos int) int32 { return 'a' + int32(noise(pos)>>32%letters) }
	}
	copied := mixed(0)
	for _, text := range []struct {
		name   string
		next   func(int32, int) int32
		faster float64 // with tokens that cost a tenth of a pass
	}{
		{"copied", copied, 3},
		{"copied with faults", mixed(10), 1.2},
		{"half copied", mixed(50), 0.98},
		{"at random", mixed(100), 0.98},
		{"of three letters", few(3), 0.98},
		{"of eight letters", few(8), 0.98},
		{"of eight letters, then copied", func(token int32, pos int) int32 {
			if pos < 200 {
				return few(8)(token, pos)
			}
			return copied(token, pos)
		}, 1.5},
	} {
		for _, cost := range []float64{0.01, 0.1, 0.3} {
			if testing.Short() && (cost != 0.1 || text.faster == 0.98) {
				continue
			}
			run := func(drafts int) (time.Duration, string) {
				token := time.Duration(cost * float64(time.Millisecond))
				u, texts := burst(t, sim.Options{
					Step: time.Millisecond - token, Token: token, Sequential: true, Next: text.next,
					Engine: engine.Config{Drafts: drafts},
				}, 1, tokens)
				return u.Busy, texts[0]
			}
			plain, want := run(0)
			guessed, got := run(8)
			if got != want || len(got) != tokens {
				t.Errorf("%s: guesses change the text", text.name)
			}
			gain, least := float64(plain)/float64(guessed), 0.98
			if cost == 0.1 {
				least = text.faster
			}
			t.Logf("%s, a token costs %.2f: %.3f times as fast", text.name, cost, gain)
			if gain < least {
				t.Errorf("%s, a token costs %.2f: %.3f times as fast with guesses, want %.2f", text.name, cost, gain, least)
			}
		}
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
