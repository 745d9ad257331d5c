package sim

import (
	"sync"
	"time"

	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/model"
)

// Usage is what a device did.
type Usage struct {
	Steps  int
	Tokens int
	Busy   time.Duration // from the launch of a step to its end
	Idle   time.Duration // between the end of a step and the launch of the next
}

// IdleShare is the part of the time that the device waited, 0 to 1.
func (u Usage) IdleShare() float64 {
	if u.Busy+u.Idle == 0 {
		return 0
	}
	return float64(u.Idle) / float64(u.Busy+u.Idle)
}

// Device is a simulated accelerator. It does one step after the other.
type Device struct {
	o     Options
	clock clock

	mu    sync.Mutex
	usage Usage
	end   time.Duration // of the last step, on the clock
	fresh bool          // no step since the last Reset
}

// Reset forgets what the device did. What it waits until the next step does not
// count.
func (d *Device) Reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage, d.fresh = Usage{}, true
}

// Usage returns what the device did since the last Reset.
func (d *Device) Usage() Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usage
}

// Now is the time on the device's clock.
func (d *Device) Now() time.Duration { return d.clock.now() }

// Advance waits on the device's clock until t. On a virtual clock it is then t, if
// it was earlier: between steps, that is for who plays the clients.
func (d *Device) Advance(t time.Duration) { d.clock.sleepUntil(t) }

// begin starts a step now and returns when it will be done.
func (d *Device) begin(tokens int) (end time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	start := d.clock.now()
	if !d.fresh {
		d.usage.Idle += start - d.end
	}
	cost := d.o.Step + time.Duration(tokens)*d.o.Token
	d.usage.Steps++
	d.usage.Tokens += tokens
	d.usage.Busy += cost
	d.end, d.fresh = start+cost, false
	return d.end
}

// kv is the memory of the device. It holds nothing: what follows a token depends
// on the token and its position alone.
type kv struct {
	d     *Device
	vocab int
}

func (k *kv) Close()                     {}
func (k *kv) CopyPage(_, _ int32, _ int) {}

// NewTier implements engine.Tiered.
func (k *kv) NewTier(int) (engine.Tier, error) { return tier{k.d}, nil }

type tier struct{ d *Device }

func (t tier) Close()                {}
func (t tier) Save(_, _ int32) error { return t.copy() }
func (t tier) Load(_, _ int32) error { return t.copy() }

func (t tier) copy() error {
	t.d.clock.sleepUntil(t.d.clock.now() + t.d.o.Copy)
	return nil
}

func (k *kv) Forward(b *model.Batch, logits [][]float32) error { return k.start(b, logits)() }

func (k *kv) start(b *model.Batch, logits [][]float32) (wait func() error) {
	tokens := 0
	for i := range b.Rows {
		tokens += len(b.Rows[i].Tokens)
	}
	end := k.d.begin(tokens)
	return func() error {
		out := 0
		for i := range b.Rows {
			row := &b.Rows[i]
			for _, o := range row.Outputs {
				clear(logits[out])
				logits[out][k.d.o.Next(row.Tokens[o], row.Start+o)] = 1
				out++
			}
		}
		k.d.clock.sleepUntil(end)
		return nil
	}
}

// letter is the token that follows one at pos.
func letter(token int32, pos int) int32 {
	x := uint64(token)*0x9e3779b97f4a7c15 + uint64(pos)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return 'a' + int32(x>>32%26)
}

// launching is a kv that works while the engine does something else.
type launching struct{ kv }

var _ engine.Launcher = (*launching)(nil)

func (k *launching) Launch(b *model.Batch, logits [][]float32) (wait func() error) {
	return k.start(b, logits)
}

// clock tells the time since some start.
type clock interface {
	now() time.Duration
	sleepUntil(t time.Duration)
}

// realClock is the wall clock.
type realClock struct{ start time.Time }

func (c realClock) now() time.Duration { return time.Since(c.start) }

// sleepUntil sleeps most of the time and spins at the end: the system wakes a
// thread up to a millisecond late.
func (c realClock) sleepUntil(t time.Duration) {
	const spin = 1500 * time.Microsecond
	if left := t - c.now(); left > spin {
		time.Sleep(left - spin)
	}
	for c.now() < t {
	}
}

// virtualClock moves on only when somebody waits. The engine's loop is the one
// goroutine that does.
type virtualClock struct {
	mu sync.Mutex
	t  time.Duration
}

func (c *virtualClock) now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *virtualClock) sleepUntil(t time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = max(c.t, t)
}
