package model

import (
	"fmt"

	"github.com/coppice-run/coppice/backend/compute"
)

// A KV is a pool of pages for keys and values, all layers, as bfloat16.
//
// Keys and values of a head and layer lie apart, page after page: keys of a page
// as [HeadDim/2][16 tokens][2], values as [8 pairs of tokens][HeadDim][2], as
// compute.Paged wants them. So a sequence on consecutive pages is read as two
// streams per head, 16 pages of each at a time, which is what memory does best.
//
// Memory is reserved at once and used as pages are written. A KV belongs to
// the Model that made it. Its methods may not run during a Forward on it.
type KV struct {
	m     *Model
	pages int
	mem   *compute.Memory
	data  []uint16 // [layer][kv head][keys, values][page]

	full   *compute.Memory // not rounded, if the model asks for it
	floats []float32       // [layer][kv head][page][position][keys, values]
}

// NewKV returns a KV of the given number of pages.
func (m *Model) NewKV(pages int) (*KV, error) {
	if pages <= 0 {
		return nil, fmt.Errorf("model: a KV needs at least one page, got %d", pages)
	}
	n := m.layerPage() * m.cfg.Layers
	if pages > (1<<46)/(2*n) {
		return nil, fmt.Errorf("model: a KV of %d pages of %d bytes is too large", pages, 2*n)
	}
	mem, err := compute.NewMemory(pages * n * 2)
	if err != nil {
		return nil, fmt.Errorf("model: memory for %d KV pages of %d bytes: %w", pages, 2*n, err)
	}
	k := &KV{m: m, pages: pages, mem: mem, data: mem.Uint16s()}
	if m.reference {
		if k.full, err = compute.NewMemory(pages * n * 4); err != nil {
			mem.Free()
			return nil, fmt.Errorf("model: memory for %d KV pages in float32: %w", pages, err)
		}
		k.floats = k.full.Float32s()
	}
	return k, nil
}

// exact returns the key (part 0) or value (part 1) of a position in float32.
func (k *KV) exact(layer, head, page, pos, part int) []float32 {
	hd := k.m.cfg.HeadDim
	at := ((((layer*k.m.cfg.KVHeads+head)*k.pages+page)*PageSize+pos)*2 + part) * hd
	return k.floats[at:][:hd]
}

// layerPage returns the number of values that one page has in one layer.
func (m *Model) layerPage() int { return 2 * PageSize * m.cfg.HeadDim * m.cfg.KVHeads }

// Pages returns the number of pages of the pool.
func (k *KV) Pages() int { return k.pages }

// PageBytes returns the size in bytes of one page over all layers.
func (k *KV) PageBytes() int {
	n := 2
	if k.m.reference {
		n += 4
	}
	return n * k.m.layerPage() * k.m.cfg.Layers
}

// CopyPage copies the keys and values of the first tokens positions of page
// src to page dst, in all layers. What dst holds at later positions is
// unspecified afterwards: they must be computed before they are read.
func (k *KV) CopyPage(dst, src int32, tokens int) {
	if tokens <= 0 || dst == src {
		return
	}
	n := k.m.cfg.HeadDim * PageSize
	for part := range k.m.cfg.Layers * k.m.cfg.KVHeads * 2 {
		p := k.data[part*k.pages*n:][:k.pages*n]
		copy(p[int(dst)*n:][:n], p[int(src)*n:][:n])
	}
	if k.m.reference {
		for part := range k.m.cfg.Layers * k.m.cfg.KVHeads {
			p := k.floats[part*k.pages*2*n:][:k.pages*2*n]
			copy(p[int(dst)*2*n:][:2*n], p[int(src)*2*n:][:2*n])
		}
	}
}

// head returns where the pages of a head lie.
func (k *KV) head(layer, head int) compute.Paged {
	n := k.m.cfg.HeadDim * PageSize
	part := (layer*k.m.cfg.KVHeads + head) * 2
	return compute.Paged{
		Data: k.data, Keys: part * k.pages * n, Values: (part + 1) * k.pages * n,
		Stride: n, Dim: k.m.cfg.HeadDim,
	}
}

// Close gives the memory back. The KV must not be used afterwards.
func (k *KV) Close() {
	if k.mem != nil {
		k.mem.Free()
		k.mem, k.data = nil, nil
	}
	if k.full != nil {
		k.full.Free()
		k.full, k.floats = nil, nil
	}
}
