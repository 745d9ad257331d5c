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
	seen map[uint64]logged // by hash of tokens
}

// logged is a hash of logits, and whose model computed them first.
type logged struct {
	logits uint64
	by     *ledgerEntry
}

func newLedger() *ledger { return &ledger{seed: maphash.MakeSeed(), seen: map[uint64]logged{}} }

// ledgerModel is a model whose passes go through a ledger.
type ledgerModel struct {
	*cpuModel
	*ledgerEntry
}

// ledgerEntry is what one engine adds to a ledger.
type ledgerEntry struct {
	*ledger
	tb    testing.TB
	again int // logits that another had computed before
}

// ledgerKV knows which token is where, as the model's pages do.
type ledgerKV struct {
	*cpuKV
	entry *ledgerEntry
	slots [][model.PageSize]backend.Token
}

func (m *ledgerModel) NewKV(pages int) (KV, error) {
	kv, err := m.cpuModel.NewKV(pages)
	if err != nil {
		return nil, err
	}
	own := kv.(*cpuKV)
	return &ledgerKV{own, m.ledgerEntry, make([][model.PageSize]backend.Token, own.Pages())}, nil
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
		h.SetSeed(kv.entry.seed)
		pos := 0
		for _, i := range row.Outputs {
			for ; pos <= row.Start+i; pos++ {
				token := kv.slots[row.Pages[pos/model.PageSize]][pos%model.PageSize]
				h.Write(binary.LittleEndian.AppendUint32(nil, uint32(token)))
			}
			kv.entry.add(h.Sum64(), pos, logits[out])
			out++
		}
	}
	return nil
}

// add compares the logits behind n tokens with those that are known.
func (e *ledgerEntry) add(tokens uint64, n int, logits []float32) {
	bits := make([]byte, 0, 4*len(logits))
	for _, l := range logits {
		bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(l))
	}
	got := maphash.Bytes(e.seed, bits)
	e.mu.Lock()
	defer e.mu.Unlock()
	want, ok := e.seen[tokens]
	if !ok {
		e.seen[tokens] = logged{got, e}
		return
	}
	if want.by != e {
		e.again++
	}
	if got != want.logits {
		e.tb.Errorf("the logits behind %d tokens are others than before", n)
	}
}

// known is how many logits were compared so far with those of another.
func (e *ledgerEntry) known() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.again
}
