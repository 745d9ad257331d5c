package engine

import (
	"errors"
	"slices"
	"sync"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

var errFault = errors.New("fault of the test")

// The faults of a round.
const (
	passFails  = iota // once
	passPanics        // once
	poison            // each pass with a certain token at a certain place
	planPanics        // once, which is nobody's fault
	tierFails         // each second time
	tierPanics        // always
	faultKinds
	noFault = -1
)

// world is what happens around an engine in a round.
type world struct {
	launch sync.WaitGroup // the first step waits until all have been asked
	mu     sync.Mutex
	steps  int
	cancel map[int][]func() // by step

	fault  int // which kind
	when   int // pass or plan of the fault
	passes int
	plans  int
	moves  int // of the tier
	pos    int // of the poison, 0 before it is known
	token  backend.Token
}

// at gives a request up at a step.
func (w *world) at(step int, cancel func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancel == nil {
		w.cancel = map[int][]func(){}
	}
	w.cancel[step] = append(w.cancel[step], cancel)
}

// step is called before each.
func (w *world) step() {
	w.launch.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, cancel := range w.cancel[w.steps] {
		cancel()
	}
	w.steps++
}

func (w *world) plan() {
	if w.plans++; w.fault == planPanics && w.plans == w.when {
		panic(errFault)
	}
}

// pass fails as it has to.
func (w *world) pass(b *model.Batch) error {
	w.passes++
	switch {
	case w.fault == passFails && w.passes == w.when:
		return errFault
	case w.fault == passPanics && w.passes == w.when:
		panic(errFault)
	case w.fault != poison || w.passes < w.when:
		return nil
	case w.passes == w.when:
		r := b.Rows[len(b.Rows)-1]
		w.token, w.pos = r.Tokens[len(r.Tokens)-1], r.Start+len(r.Tokens)-1
	}
	for _, r := range b.Rows {
		if i := w.pos - r.Start; i >= 0 && i < len(r.Tokens) && r.Tokens[i] == w.token {
			return errFault
		}
	}
	return nil
}

// mayFail reports whether a call may have failed because of the fault; others are the
// calls that did.
func (w *world) mayFail(want outcome, others int) bool {
	switch w.fault {
	case passFails, passPanics:
		return others == 0
	case poison:
		return want.mayHold(w.token, w.pos)
	}
	return false
}

// watched is a model in a world.
type watched struct {
	Model
	w *world
}

type watchedKV struct {
	KV
	w *world
}

func (m watched) NewKV(pages int) (KV, error) {
	kv, err := m.Model.NewKV(pages)
	return &watchedKV{kv, m.w}, err
}

func (kv *watchedKV) Forward(b *model.Batch, logits [][]float32) error {
	if err := kv.w.pass(b); err != nil {
		return err
	}
	return kv.KV.Forward(b, logits)
}

// NewTier implements [Tiered].
func (kv *watchedKV) NewTier(slots int) (Tier, error) {
	t, err := kv.KV.(Tiered).NewTier(slots)
	return &watchedTier{t, kv.w}, err
}

type watchedTier struct {
	Tier
	w *world
}

func (t *watchedTier) move() error {
	t.w.moves++
	switch t.w.fault {
	case tierFails:
		if t.w.moves%2 == 0 {
			return errFault
		}
	case tierPanics:
		panic(errFault)
	}
	return nil
}

func (t *watchedTier) Save(slot, page int32) error {
	if err := t.move(); err != nil {
		return err
	}
	return t.Tier.Save(slot, page)
}

func (t *watchedTier) Load(page, slot int32) error {
	if err := t.move(); err != nil {
		return err
	}
	return t.Tier.Load(page, slot)
}

// heard is a model that notes what it computes at each position.
type heard struct {
	Model
	held *[][]backend.Token
}

type heardKV struct {
	KV
	held *[][]backend.Token
}

func (m heard) NewKV(pages int) (KV, error) {
	kv, err := m.Model.NewKV(pages)
	return &heardKV{kv, m.held}, err
}

func (kv *heardKV) Forward(b *model.Batch, logits [][]float32) error {
	for _, r := range b.Rows {
		for i, t := range r.Tokens {
			for len(*kv.held) <= r.Start+i {
				*kv.held = append(*kv.held, nil)
			}
			if at := &(*kv.held)[r.Start+i]; !slices.Contains(*at, t) {
				*at = append(*at, t)
			}
		}
	}
	return kv.KV.Forward(b, logits)
}
