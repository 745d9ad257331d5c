package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// ahead makes a model one whose passes run on their own goroutine, and watches
// that the engine leaves the device alone meanwhile.
type ahead struct {
	Model
	tb testing.TB
}

type aheadKV struct {
	KV
	tb   testing.TB
	busy atomic.Bool
}

func (m ahead) NewKV(pages int) (KV, error) {
	kv, err := m.Model.NewKV(pages)
	return &aheadKV{KV: kv, tb: m.tb}, err
}

func (kv *aheadKV) CopyPage(dst, src int32, tokens int) {
	if kv.busy.Load() {
		kv.tb.Error("a page is copied while the device works")
	}
	kv.KV.CopyPage(dst, src, tokens)
}

func (kv *aheadKV) Launch(b *model.Batch, logits [][]float32) func() error {
	if kv.busy.Swap(true) {
		kv.tb.Error("two steps at once")
	}
	done := make(chan error, 1)
	go func() {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case error:
				done <- fmt.Errorf("panic: %w", r)
			default:
				done <- fmt.Errorf("panic: %v", r)
			}
		}()
		done <- kv.Forward(b, logits)
	}()
	return func() error {
		err := <-done
		kv.busy.Store(false)
		return err
	}
}

func newAhead(tb testing.TB, change func(*Config, *fakeModel)) (*Engine, *fakeModel) {
	var fake *fakeModel
	e := newFake(tb, func(c *Config, m *fakeModel) {
		fake = m
		if change != nil {
			change(c, m)
		}
		c.Model = ahead{c.Model, tb}
	})
	return e, fake
}

// TestPlansWhileTheDeviceWorks: each step but the first is planned before the
// one before it is done.
func TestPlansWhileTheDeviceWorks(t *testing.T) {
	var mu sync.Mutex
	var events []string
	log := func(s string) {
		mu.Lock()
		events = append(events, s)
		mu.Unlock()
	}
	planned := make(chan bool, 100)
	first := true
	e, _ := newAhead(t, func(c *Config, m *fakeModel) {
		c.Planning = func() {
			log("plan")
			planned <- true
		}
		m.before = func(*model.Batch) error {
			if first {
				first = false
				<-planned // its own plan
			}
			<-planned // the engine does not wait for the device to plan the next one
			log("computed")
			return nil
		}
	})
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw("so it")}, MaxTokens: 12, IgnoreEOS: true})
	want := mustGenerate(t, newFake(t, nil), &backend.Request{Turns: []backend.Turn{raw("so it")}, MaxTokens: 12, IgnoreEOS: true})
	if !slices.Equal(r.Part.Tokens, want.Part.Tokens) || r.Usage.ComputedTokens != want.Usage.ComputedTokens {
		t.Errorf("%+v, want %+v", r, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(events[:7], " "); got != "plan plan computed plan computed plan computed" {
		t.Error(got)
	}
}

// TestPassesAreAsMany: forced text and drafts go through as few passes as without
// a device.
func TestPassesAreAsMany(t *testing.T) {
	for _, drafts := range []int{0, 4} {
		req := &backend.Request{Turns: []backend.Turn{raw("ababababab")}, MaxTokens: 60, Constraint: backend.Constraint{JSONSchema: []byte(verdictSchema)}}
		if drafts > 0 {
			req.Constraint, req.IgnoreEOS = backend.Constraint{}, true
		}
		change := func(c *Config, m *fakeModel) {
			c.Drafts = drafts
			if drafts > 0 {
				m.script = func(tokens []backend.Token) backend.Token { return tokens[len(tokens)-2] }
			}
		}
		e, fake := newAhead(t, change)
		plain := newFake(t, change)
		got, want := mustGenerate(t, e, req), mustGenerate(t, plain, req)
		if got.Part.Text != want.Part.Text {
			t.Errorf("%q, want %q", got.Part.Text, want.Part.Text)
		}
		if fake.passes != plain.fake().passes {
			t.Errorf("%d drafts: %d passes, %d without a device", drafts, fake.passes, plain.fake().passes)
		}
	}
}

func TestFailureOfTheDevice(t *testing.T) {
	broken := errors.New("broken")
	var fail atomic.Bool
	e, _ := newAhead(t, func(c *Config, m *fakeModel) {
		m.before = func(b *model.Batch) error {
			if fail.Load() && b.Rows[0].Start > 12 {
				return broken
			}
			return nil
		}
	})
	req := &backend.Request{Turns: []backend.Turn{raw("go on")}, MaxTokens: 40, IgnoreEOS: true}
	want := mustGenerate(t, e, req)
	fail.Store(true)
	var failed sync.WaitGroup
	for range 4 {
		failed.Go(func() {
			_, err := e.Generate(context.Background(), req, nil)
			if !errors.Is(err, broken) || !errors.Is(err, backend.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	failed.Wait()
	fail.Store(false)
	if got := mustGenerate(t, e, req); !slices.Equal(got.Part.Tokens, want.Part.Tokens) {
		t.Errorf("after the fault %v, before %v", got.Part.Tokens, want.Part.Tokens)
	}
}

// TestCallersThatLeaveInFlight: those who go while their tokens are computed
// leave nothing behind, and an engine closed in a step ends all.
func TestCallersThatLeaveInFlight(t *testing.T) {
	e, _ := newAhead(t, func(c *Config, m *fakeModel) { c.Pages = 24 })
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			n := 0
			_, err := e.Generate(ctx, &backend.Request{Turns: []backend.Turn{raw(longText(40) + fmt.Sprint(i))}, MaxTokens: 30, IgnoreEOS: true}, func(backend.Delta) {
				if n++; n == i%7 {
					cancel()
				}
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	left := make(chan error, 1)
	go func() {
		_, err := e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{raw("x")}, MaxTokens: 300, IgnoreEOS: true}, func(backend.Delta) { go e.Close() })
		left <- err
	}()
	if err := <-left; err != nil && !errors.Is(err, backend.ErrClosed) {
		t.Error(err)
	}
}
