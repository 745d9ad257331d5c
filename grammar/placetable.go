package grammar

import "slices"

// placeTable finds a place by what it is made of.
type placeTable struct{ table hashTable[*place] }

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

// find is the place of these configs, nil when there is none.
func (t *placeTable) find(hash uint64, configs []config, canEnd bool) *place {
	for e := t.table.first(hash); e != nil; e = e.next {
		if p := e.is; e.hash == hash && p.canEnd == canEnd && slices.Equal(p.configs, configs) {
			return p
		}
	}
	return nil
}

func (t *placeTable) insert(hash uint64, p *place) { t.table.insert(hash, p) }

func (t *placeTable) len() int { return t.table.size }
