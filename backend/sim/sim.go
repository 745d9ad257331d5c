package sim

import (
	"fmt"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// Options describe the device and its host.
type Options struct {
	// A step of n tokens takes Step + n*Token.
	Step, Token time.Duration
	// Plan is how long the planning of a step takes, besides what it really does.
	Plan time.Duration
	// Sequential makes a device that the engine waits for, as it does for a
	// processor that it shares; otherwise it plans meanwhile.
	Sequential bool
	// Virtual makes time a count: results are exact and there at once. What the
	// engine really takes is not in it.
	Virtual bool
	// Copy is how long it takes to copy a page to the engine's second tier or back; the
	// device does nothing else meanwhile. See engine.Config.TierBytes.
	Copy time.Duration
	// Next is the token that follows one at a position, if it is set: below 256, a byte
	// of the text. Otherwise letters follow as if by chance.
	Next func(token int32, pos int) int32
	// Context is the number of tokens that a sequence may have, 8192 by default.
	Context int
	// Engine may hold other settings of the engine. Model, Tokenizer, Fingerprint,
	// Planning and Clock are set.
	Engine engine.Config
}

// New starts an engine on a simulated device. The caller closes the engine.
func New(o Options) (*engine.Engine, *Device, error) {
	if o.Step < 0 || o.Token < 0 || o.Plan < 0 || o.Copy < 0 || o.Context < 0 {
		return nil, nil, fmt.Errorf("sim: %w: a negative time or size", backend.ErrInvalid)
	}
	if o.Context == 0 {
		o.Context = 8192
	}
	if o.Next == nil {
		o.Next = letter
	}
	d := &Device{o: o, fresh: true}
	if o.Virtual {
		d.clock = &virtualClock{}
	} else {
		d.clock = realClock{time.Now()}
	}
	cfg := o.Engine
	cfg.Model, cfg.Tokenizer, cfg.Fingerprint = &simModel{d}, letters{}, "sim"
	if cfg.Name == "" {
		cfg.Name = "sim"
	}
	cfg.Planning, cfg.Clock = nil, d.clock.now
	if o.Plan > 0 {
		cfg.Planning = func() { d.clock.sleepUntil(d.clock.now() + o.Plan) }
	}
	e, err := engine.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	return e, d, nil
}

// vocab is 256 bytes and the end of the text.
const (
	vocab    = 257
	endToken = 256
)

// PageBytes is what a page of 16 tokens counts as.
const PageBytes = 1 << 10

type simModel struct{ d *Device }

func (m *simModel) VocabSize() int     { return vocab }
func (m *simModel) ContextLength() int { return m.d.o.Context }
func (m *simModel) PageBytes() int     { return PageBytes }
func (m *simModel) Close()             {}

// TokenCost implements engine.Coster.
func (m *simModel) TokenCost(int) float64 {
	if m.d.o.Step+m.d.o.Token == 0 {
		return 0
	}
	return float64(m.d.o.Token) / float64(m.d.o.Step+m.d.o.Token)
}

func (m *simModel) NewKV(int) (engine.KV, error) {
	k := kv{d: m.d, vocab: vocab}
	if m.d.o.Sequential {
		return &k, nil
	}
	return &launching{k}, nil
}

// letters is a tokenizer whose tokens are bytes.
type letters struct{}

func (letters) Size() int { return vocab }

func (letters) EncodePieces(pieces []tokenizer.Piece) (ids []backend.Token) {
	for _, p := range pieces {
		for i := range len(p.Text) {
			ids = append(ids, backend.Token(p.Text[i]))
		}
	}
	return ids
}

func (letters) Bytes(id backend.Token) []byte {
	if id < endToken {
		return []byte{byte(id)}
	}
	return nil
}

func (letters) IsControl(id backend.Token) bool { return id == endToken }
func (letters) EndTokens() []backend.Token      { return []backend.Token{endToken} }
func (letters) BOS() (backend.Token, bool)      { return 0, false }
func (letters) EOS() (backend.Token, bool)      { return endToken, true }
func (letters) AddBOS() bool                    { return false }
func (letters) AddSpacePrefix() bool            { return false }
