package model

import (
	"fmt"

	"github.com/coppice-run/coppice/backend/compute"
)

// A KV is a pool of pages for keys and values, all layers, as bfloat16.
//
// Within a layer the pages lie one after the other, so that a sequence on
// consecutive pages is read as one stream. A page of a layer holds for each kv
// head the keys as [HeadDim/2][16 tokens][2] and then the values as
// [8 pairs of tokens][HeadDim][2], as compute.Paged wants them: both products of
// attention walk a page in storage order.
//
// Memory is reserved at once and used as pages are written. A KV belongs to
// the Model that made it. Its methods may not run during a Forward on it.
type KV struct {
	m     *Model
	pages int
	mem   *compute.Memory
	data  []uint16 // [layer][page][kv head][K, V]
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
	return &KV{m: m, pages: pages, mem: mem, data: mem.Uint16s()}, nil
}

// layerPage returns the number of values that one page has in one layer.
func (m *Model) layerPage() int { return 2 * PageSize * m.cfg.HeadDim * m.cfg.KVHeads }

// Pages returns the number of pages of the pool.
func (k *KV) Pages() int { return k.pages }

// PageBytes returns the size in bytes of one page over all layers.
func (k *KV) PageBytes() int { return 2 * k.m.layerPage() * k.m.cfg.Layers }

// CopyPage copies the keys and values of the first tokens positions of page
// src to page dst, in all layers. What dst holds at later positions is
// unspecified afterwards: they must be computed before they are read.
func (k *KV) CopyPage(dst, src int32, tokens int) {
	if tokens <= 0 || dst == src {
		return
	}
	n := k.m.layerPage()
	for l := range k.m.cfg.Layers {
		layer := k.data[l*k.pages*n:][:k.pages*n]
		copy(layer[int(dst)*n:][:n], layer[int(src)*n:][:n])
	}
}

// layer returns the pages of layer l.
func (k *KV) layer(l int) []uint16 {
	n := k.m.layerPage() * k.pages
	return k.data[l*n:][:n]
}

// Close gives the memory back. The KV must not be used afterwards.
func (k *KV) Close() {
	if k.mem != nil {
		k.mem.Free()
		k.mem, k.data = nil, nil
	}
}
