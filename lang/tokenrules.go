package lang

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
)

// ids reads a list of token ids.
func (d *decoder) ids(t *tree, what string) []int32 {
	if t == nil {
		return nil
	}
	if t.kind != treeList {
		d.errorf(t.line, "write a list of ids such as [2, 107]", "%s is %s", what, t.describe())
		return nil
	}
	out := []int32{}
	for _, v := range t.vals {
		n, err := strconv.ParseInt(v.text, 10, 32)
		if v.kind != treeNumber || err != nil {
			d.errorf(v.line, "write the id of a token", "%s: %s", what, v.describe())
			continue
		}
		out = append(out, int32(n))
	}
	return out
}

func (d *decoder) tokenRules(f *fields) (r TokenRules) {
	t := f.get("tokens")
	if t == nil {
		return r
	}
	tf := d.fields(t, f.what+": tokens")
	r.Stop, r.Allowed = d.ids(tf.get("stop"), "stop"), d.ids(tf.get("allowed"), "allowed")
	if b := tf.get("banned"); b != nil {
		if b.kind != treeList {
			d.errorf(b.line, "write a list of lists such as [[5, 7]]", "banned is %s", b.describe())
		}
		for _, v := range b.vals {
			r.Banned = append(r.Banned, d.ids(v, "banned"))
		}
	}
	tf.done()
	return r
}

func (d *decoder) logitBias(f *fields) map[int32]float64 {
	t := f.get("logit_bias")
	if t == nil {
		return nil
	}
	if t.kind != treeMap {
		d.errorf(t.line, "write {ID: number}", "%s: logit_bias is %s", f.what, t.describe())
		return nil
	}
	out := map[int32]float64{}
	for i, k := range t.keys {
		id, err := strconv.ParseInt(k, 10, 32)
		x, xerr := strconv.ParseFloat(t.vals[i].text, 64)
		if err != nil || xerr != nil || t.vals[i].kind != treeNumber {
			d.errorf(t.at[i], "write the id of a token and a number", "%s: logit_bias: %s: %s", f.what, clip(k, 40), t.vals[i].describe())
			continue
		}
		out[int32(id)] = x
	}
	return out
}

func idTree(ids []int32) *tree {
	t := listTree()
	t.flow = true
	for _, id := range ids {
		t.vals = append(t.vals, intTree(int(id)))
	}
	return t
}

func (e encoder) tokenRules(m *tree, r *TokenRules) {
	t := &tree{kind: treeMap, flow: true}
	if len(r.Stop) > 0 {
		t.put("stop", idTree(r.Stop))
	}
	if r.Allowed != nil {
		t.put("allowed", idTree(r.Allowed))
	}
	if len(r.Banned) > 0 {
		b := listTree()
		b.flow = true
		for _, ids := range r.Banned {
			b.vals = append(b.vals, idTree(ids))
		}
		t.put("banned", b)
	}
	if len(t.keys) > 0 {
		m.put("tokens", t)
	}
}

func (e encoder) logitBias(m *tree, bias map[int32]float64) {
	if len(bias) == 0 {
		return
	}
	t := &tree{kind: treeMap, flow: true}
	for _, id := range slices.Sorted(maps.Keys(bias)) {
		t.put(strconv.Itoa(int(id)), floatTree(bias[id]))
	}
	m.put("logit_bias", t)
}

func (c *analysis) tokenRules(n *Node, r *TokenRules) {
	lists := append([][]int32{r.Stop, r.Allowed}, r.Banned...)
	for _, ids := range lists {
		for _, id := range ids {
			if id < 0 {
				c.fail(n, fmt.Sprintf("tokens: the id %d", id), "ids begin at 0")
			}
		}
	}
	if r.Allowed != nil && len(r.Allowed) == 0 {
		c.fail(n, "tokens: none is allowed", "list some, or remove it")
	}
	for _, ids := range r.Banned {
		if len(ids) == 0 {
			c.fail(n, "tokens: an empty sequence is banned", "remove it")
		}
	}
	if len(r.Stop) == 0 {
		r.Stop = nil
	}
}

func (c *analysis) logitBias(n *Node, bias map[int32]float64) {
	for _, id := range slices.Sorted(maps.Keys(bias)) {
		if x := bias[id]; id < 0 || math.IsNaN(x) || math.Abs(x) > 100 {
			c.fail(n, fmt.Sprintf("logit_bias: %d: %g", id, x), "use ids from 0 and numbers from -100 to 100")
		}
	}
}
