package model

import (
	"fmt"
	"math"

	"github.com/coppice-run/coppice/backend/compute"
)

// A KVType is a way to hold keys and values.
type KVType string

const (
	// BFloat16 takes two bytes a value.
	BFloat16 KVType = "bf16"
	// Int8 takes one byte a value, and two for the scale of each 32 dimensions of a
	// key and of each value vector. The cache holds nearly twice as many tokens and
	// a step reads half as much of it, for some loss: see compute.PagedInt8, and
	// 'coppice perplexity --kv q8 --compare' for how much it is.
	Int8 KVType = "q8"
)

// Float16 is how the arithmetic GGML holds keys and values, and only it: two bytes
// a value.
const Float16 KVType = "f16"

// ParseKVType reads the name of a KVType; the empty name is that of BFloat16.
func ParseKVType(name string) (KVType, error) {
	switch t := KVType(name); t {
	case "":
		return BFloat16, nil
	case BFloat16, Int8:
		return t, nil
	}
	return "", fmt.Errorf("model: keys and values as %q: known are %s and %s", name, BFloat16, Int8)
}

// A KV is a pool of pages for keys and values, all layers, as bfloat16, half floats
// or 8-bit integers.
//
// Pages come in groups. In a group those of a head and layer lie together, the keys
// of a span of attention and then its values: keys of a page as [HeadDim/2][16
// tokens][2], values as [8 pairs of tokens][HeadDim][2], as compute.Paged wants them;
// integers as compute.PagedInt8 does, keys, values and scales each on their own. So
// a sequence on consecutive pages is read as one stream per head, in the order in
// which attention needs it, which is what memory does best, and a short sequence
// touches little memory.
//
// Memory is reserved at once and used as pages are written. A KV belongs to
// the Model that made it. Its methods may not run during a Forward on it.
type KV struct {
	m     *Model
	pages int
	group int // pages of a group
	parts int // runs of a group's pages in data, or in each of the others
	block int // keys of so many pages are followed by their values; 0 if these lie elsewhere
	mem   *compute.Memory
	data  []uint16 // bfloat16, half floats: [group][layer][kv head][block][keys, values][page]

	keys   []uint8  // integers: [group][layer][kv head][page]
	values []int8   // the same
	scales []uint16 // the same, of keys and values

	full   *compute.Memory // not rounded, if the model asks for it
	floats []float32       // [layer][kv head][page][position][keys, values]
}

// NewKV returns a KV of the given number of pages.
func (m *Model) NewKV(pages int) (*KV, error) {
	if pages <= 0 {
		return nil, fmt.Errorf("model: a KV needs at least one page, got %d", pages)
	}
	n, group, room := m.storedPage(), groupOf(pages), ReservedPages(pages)
	if m.tooMany(room) {
		return nil, fmt.Errorf("model: a KV of %d pages of %d bytes is too large", pages, n)
	}
	mem, err := compute.NewMemory(room * n)
	if err != nil {
		return nil, fmt.Errorf("model: memory for %d KV pages of %d bytes: %w", pages, n, err)
	}
	k := &KV{m: m, pages: pages, group: group, parts: 2 * m.cfg.Layers * m.cfg.KVHeads, mem: mem}
	if m.kvType == Int8 {
		k.parts /= 2
		data, _ := compute.Int8Page(m.cfg.HeadDim)
		data *= room * m.cfg.Layers * m.cfg.KVHeads
		k.keys, k.values = mem.Bytes()[:data], mem.Int8s()[data:2*data]
		k.scales = mem.Uint16s()[data:]
	} else {
		k.data = mem.Uint16s()
		k.block = min(spanPages, k.group)
	}
	if m.reference {
		if k.full, err = compute.NewMemory(pages * m.layerPage() * m.cfg.Layers * 4); err != nil {
			mem.Free()
			return nil, fmt.Errorf("model: memory for %d KV pages in float32: %w", pages, err)
		}
		k.floats = k.full.Float32s()
	}
	return k, nil
}

// tooMany reports whether so much room is more than there are addresses, or more runs
// than slots of 32 bits can tell.
func (m *Model) tooMany(room int) bool {
	return room > (1<<46)/m.storedPage() || room > math.MaxInt32/(2*m.cfg.Layers*m.cfg.KVHeads)
}

// PageGroup is the number of pages of a group. A pool of few pages has smaller ones,
// so that less than a fifth of a pool is not a whole group.
const PageGroup = 32

func groupOf(pages int) int {
	group := PageGroup
	for group > 1 && pages < 4*group {
		group /= 2
	}
	return group
}

// ReservedPages returns how many pages a pool of so many takes memory for: what its
// last group lacks is reserved too.
func ReservedPages(pages int) int {
	group := groupOf(pages)
	return (pages + group - 1) / group * group
}

// WholePages returns the largest pool of whole groups with no more pages.
func WholePages(pages int) int { return pages - pages%groupOf(pages) }

// slot returns the place of a page's first run, in runs of one page.
func (k *KV) slot(page int32) int32 {
	g, b := int32(k.group), int32(k.block)
	in := page % g
	if b > 0 {
		in = in/b*2*b + in%b
	}
	return page/g*g*int32(k.parts) + in
}

// run returns the place of the run of a part's page that slot gives.
func (k *KV) run(part int, slot int32) int {
	if k.block == 0 {
		return part*k.group + int(slot)
	}
	return part/2*2*k.group + part%2*k.block + int(slot)
}

// exact returns the key (part 0) or value (part 1) of a position in float32.
func (k *KV) exact(layer, head, page, pos, part int) []float32 {
	hd := k.m.cfg.HeadDim
	at := ((((layer*k.m.cfg.KVHeads+head)*k.pages+page)*PageSize+pos)*2 + part) * hd
	return k.floats[at:][:hd]
}

// layerPage returns the number of values that one page has in one layer.
func (m *Model) layerPage() int { return 2 * PageSize * m.cfg.HeadDim * m.cfg.KVHeads }

// storedPage returns the bytes of a page over all layers.
func (m *Model) storedPage() int {
	if m.kvType == Int8 {
		data, scales := compute.Int8Page(m.cfg.HeadDim)
		return 2 * (data + scales) * m.cfg.KVHeads * m.cfg.Layers
	}
	return 2 * m.layerPage() * m.cfg.Layers
}

// Pages returns the number of pages of the pool.
func (k *KV) Pages() int { return k.pages }

// PageBytes returns the size in bytes of one page over all layers.
func (k *KV) PageBytes() int {
	n := k.m.storedPage()
	if k.m.reference {
		n += 4 * k.m.layerPage() * k.m.cfg.Layers
	}
	return n
}

// CopyPage copies the keys and values of the first tokens positions of page
// src to page dst, in all layers. What dst holds at later positions is
// unspecified afterwards: they must be computed before they are read.
func (k *KV) CopyPage(dst, src int32, tokens int) {
	if tokens <= 0 || dst == src {
		return
	}
	k.CopyFrom(dst, k, src)
}

// CopyFrom copies all of page src of another pool of the same model to page dst.
func (k *KV) CopyFrom(dst int32, o *KV, src int32) {
	for part := range k.parts {
		from, to := o.run(part, o.slot(src)), k.run(part, k.slot(dst))
		if k.m.kvType == Int8 {
			data, scales := compute.Int8Page(k.m.cfg.HeadDim)
			copyPage(k.keys, o.keys, data, to, from)
			copyPage(k.values, o.values, data, to, from)
			copyPage(k.scales, o.scales, scales, to, from)
			continue
		}
		copyPage(k.data, o.data, k.m.cfg.HeadDim*PageSize, to, from)
	}
	if k.m.reference {
		for part := range k.m.cfg.Layers * k.m.cfg.KVHeads {
			copyPage(k.floats, o.floats, 2*k.m.cfg.HeadDim*PageSize, part*k.pages+int(dst), part*o.pages+int(src))
		}
	}
}

// copyPage copies one page of n elements.
func copyPage[T any](to, from []T, n, dst, src int) { copy(to[dst*n:][:n], from[src*n:][:n]) }

// head returns where the pages of a head lie; they are numbered by slot.
func (k *KV) head(layer, head int) compute.Paged {
	n := k.m.cfg.HeadDim * PageSize
	part := (layer*k.m.cfg.KVHeads + head) * 2
	return compute.Paged{
		Data: k.data, Keys: k.run(part, 0) * n, Values: k.run(part+1, 0) * n,
		Stride: n, Dim: k.m.cfg.HeadDim,
	}
}

// headInt8 is head for integers.
func (k *KV) headInt8(layer, head int) compute.PagedInt8 {
	data, scales := compute.Int8Page(k.m.cfg.HeadDim)
	first := (layer*k.m.cfg.KVHeads + head) * k.group
	return compute.PagedInt8{
		Keys: k.keys[first*data:], Values: k.values[first*data:], Scales: k.scales[first*scales:], Dim: k.m.cfg.HeadDim,
	}
}

// Close gives the memory back. The KV must not be used afterwards.
func (k *KV) Close() {
	if k.mem != nil {
		k.mem.Free()
		k.mem, k.data, k.keys, k.values, k.scales = nil, nil, nil, nil, nil
	}
	if k.full != nil {
		k.full.Free()
		k.full, k.floats = nil, nil
	}
}
