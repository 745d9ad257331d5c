package engine

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// A ledger remembers all logits that models computed, by all tokens before them. The
// same tokens must have the same logits, bit for bit, however and by whichever of the
// models they are computed: rows for guesses and options that are dropped count too.
type ledger struct {
	mu   sync.Mutex
	seed maphash.Seed
	seen map[uint64]uint64 // hash of logits by hash of tokens
}

func newLedger() *ledger { return &ledger{seed: maphash.MakeSeed(), seen: map[uint64]uint64{}} }

// ledgerModel is a model whose passes go through a ledger.
type ledgerModel struct {
	*cpuModel
	*ledgerPage
}

// ledgerPage is what one engine adds to a ledger.
type ledgerPage struct {
	*ledger
	tb    testing.TB
	again int // logits that were known
}

// ledgerKV knows which token is where, as the model's pages do.
type ledgerKV struct {
	*cpuKV
	page  *ledgerPage
	slots [][model.PageSize]backend.Token
}

func (m *ledgerModel) NewKV(pages int) (KV, error) {
	kv, err := m.cpuModel.NewKV(pages)
	if err != nil {
		return nil, err
	}
	own := kv.(*cpuKV)
	return &ledgerKV{own, m.ledgerPage, make([][model.PageSize]backend.Token, own.Pages())}, nil
}

func (kv *ledgerKV) CopyPage(dst, src int32, tokens int) {
	kv.cpuKV.CopyPage(dst, src, tokens)
	copy(kv.slots[dst][:tokens], kv.slots[src][:tokens])
}

func (kv *ledgerKV) Forward(b *model.Batch, logits [][]float32) error {
	if err := kv.cpuKV.Forward(b, logits); err != nil {
		return err
	}
	out := 0
	for _, row := range b.Rows {
		for i, token := range row.Tokens {
			kv.slots[row.Pages[(row.Start+i)/model.PageSize]][(row.Start+i)%model.PageSize] = token
		}
		var h maphash.Hash
		h.SetSeed(kv.page.seed)
		pos := 0
		for _, i := range row.Outputs {
			for ; pos <= row.Start+i; pos++ {
				token := kv.slots[row.Pages[pos/model.PageSize]][pos%model.PageSize]
				h.Write(binary.LittleEndian.AppendUint32(nil, uint32(token)))
			}
			kv.page.add(h.Sum64(), pos, logits[out])
			out++
		}
	}
	return nil
}

// add compares the logits behind n tokens with those that are known.
func (p *ledgerPage) add(tokens uint64, n int, logits []float32) {
	bits := make([]byte, 0, 4*len(logits))
	for _, l := range logits {
		bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(l))
	}
	got := maphash.Bytes(p.seed, bits)
	p.mu.Lock()
	defer p.mu.Unlock()
	want, ok := p.seen[tokens]
	if !ok {
		p.seen[tokens] = got
		return
	}
	if p.again++; got != want {
		p.tb.Errorf("the logits behind %d tokens are others than before", n)
	}
}

// known is how many logits were compared so far.
func (p *ledgerPage) known() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.again
}
