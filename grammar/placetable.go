package grammar

import "slices"

// placeTable finds a place by what it is made of. It grows by one chain at a
// time: no token waits until a table of thousands of places is moved.
type placeTable struct {
	chains []*place // linked by place.chain
	size   int
	half   uint64 // a power of two: chains from split to half are not divided yet
	split  uint64
}

func hashConfigs(configs []config, canEnd bool) uint64 {
	const odd = 0x9E3779B97F4A7C15
	h := uint64(len(configs))
	if canEnd {
		h |= 1 << 32
	}
	for _, c := range configs {
		h = (h ^ uint64(uint32(c.node)) ^ uint64(uint32(c.act))<<32) * odd
		h = (h ^ h>>29 ^ stackID(c.stack)) * odd
	}
	return h ^ h>>32
}

func (t *placeTable) at(hash uint64) uint64 {
	i := hash & (t.half - 1)
	if i < t.split {
		i = hash & (2*t.half - 1)
	}
	return i
}

// find is the place of these configs, nil when there is none.
func (t *placeTable) find(hash uint64, configs []config, canEnd bool) *place {
	if t.size == 0 {
		return nil
	}
	for p := t.chains[t.at(hash)]; p != nil; p = p.chain {
		if p.hash == hash && p.canEnd == canEnd && slices.Equal(p.configs, configs) {
			return p
		}
	}
	return nil
}

func (t *placeTable) insert(p *place) {
	if t.half == 0 {
		t.half = 16
		t.chains = make([]*place, t.half, 4*t.half)
	}
	i := t.at(p.hash)
	p.chain, t.chains[i] = t.chains[i], p
	if t.size++; t.size <= len(t.chains) {
		return
	}
	var stay, move *place
	for q := t.chains[t.split]; q != nil; {
		next := q.chain
		if q.hash&t.half == 0 {
			q.chain, stay = stay, q
		} else {
			q.chain, move = move, q
		}
		q = next
	}
	t.chains[t.split] = stay
	t.chains = append(t.chains, move)
	if t.split++; t.split == t.half {
		t.half, t.split = 2*t.half, 0
	}
}
