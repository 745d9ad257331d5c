package cache

// pool counts who uses each page. A page is in exactly one of three states:
//
//	hold > 0               held
//	hold == 0, tree > 0    evictable
//	hold == 0, tree == 0   free, and in the free list
type pool struct {
	hold      []int32 // pinned nodes that have the page, plus sequences that allocated it
	tree      []int32 // nodes that have the page
	free      []int32 // a stack
	held      int
	evictable int
}

func newPool(n int) pool {
	p := pool{hold: make([]int32, n), tree: make([]int32, n), free: make([]int32, n)}
	for i := range p.free {
		p.free[i] = int32(n - 1 - i) // page 0 is taken first
	}
	return p
}

// take pops a free page and holds it. There must be one.
func (p *pool) take() int32 {
	id := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.hold[id] = 1
	p.held++
	return id
}

func (p *pool) addHold(id int32) {
	if p.hold[id] == 0 {
		p.held++
		p.evictable-- // pages are only ever held again out of the tree
	}
	p.hold[id]++
}

func (p *pool) dropHold(id int32) {
	p.hold[id]--
	if p.hold[id] > 0 {
		return
	}
	p.held--
	if p.tree[id] > 0 {
		p.evictable++
	} else {
		p.free = append(p.free, id)
	}
}

// addTree notes one more node with the page. The page must not be free.
func (p *pool) addTree(id int32) { p.tree[id]++ }

// dropTree notes one node less and reports whether that freed the page.
func (p *pool) dropTree(id int32) bool {
	p.tree[id]--
	if p.tree[id] > 0 || p.hold[id] > 0 {
		return false
	}
	p.evictable--
	p.free = append(p.free, id)
	return true
}
