package grammar

import (
	"bytes"
	"slices"
)

// testBPE is a byte-pair encoder learned from a small text, with the merges in
// order of rank and no splitting beforehand, so that merges cross everything.
type testBPE struct {
	tokens [][]byte
	rank   map[[2]int32]int32 // pair -> merged token
}

const eosToken = 0

func learnBPE(text string, merges int) *testBPE {
	t := &testBPE{tokens: [][]byte{nil}, rank: map[[2]int32]int32{}}
	for b := range 256 {
		t.tokens = append(t.tokens, []byte{byte(b)})
	}
	var ids []int32
	for _, b := range []byte(text) {
		ids = append(ids, int32(b)+1)
	}
	for range merges {
		count := map[[2]int32]int{}
		for i := 1; i < len(ids); i++ {
			count[[2]int32{ids[i-1], ids[i]}]++
		}
		var best [2]int32
		n := 1
		for p, c := range count {
			if c > n || (c == n && n > 1 && (p[0] < best[0] || (p[0] == best[0] && p[1] < best[1]))) {
				best, n = p, c
			}
		}
		if n == 1 {
			break
		}
		id := int32(len(t.tokens))
		t.tokens = append(t.tokens, slices.Concat(t.tokens[best[0]], t.tokens[best[1]]))
		t.rank[best] = id
		ids = mergePair(ids, best, id)
	}
	return t
}

func mergePair(ids []int32, p [2]int32, id int32) []int32 {
	out := ids[:0:0]
	for i := 0; i < len(ids); i++ {
		if i+1 < len(ids) && ids[i] == p[0] && ids[i+1] == p[1] {
			out = append(out, id)
			i++
			continue
		}
		out = append(out, ids[i])
	}
	return out
}

func (t *testBPE) encode(text []byte) []int32 {
	ids := make([]int32, len(text))
	for i, b := range text {
		ids[i] = int32(b) + 1
	}
	for {
		best := int32(-1)
		var pair [2]int32
		for i := 1; i < len(ids); i++ {
			p := [2]int32{ids[i-1], ids[i]}
			if id, ok := t.rank[p]; ok && (best < 0 || id < best) {
				best, pair = id, p
			}
		}
		if best < 0 {
			return ids
		}
		ids = mergePair(ids, pair, best)
	}
}

func (t *testBPE) decode(ids []int32) []byte {
	var b bytes.Buffer
	for _, id := range ids {
		b.Write(t.tokens[id])
	}
	return b.Bytes()
}

func (t *testBPE) vocab() *Vocab {
	v, err := NewVocab(t.tokens, VocabOptions{EndTokens: []int32{eosToken}, Encode: t.encode})
	if err != nil {
		panic(err)
	}
	return v
}

const bpeText = `{"pod":"payment-worker-7d9f8b-x2k9p","reason":"OOMKilled","oom_killed":true,"recommended_action":"raise the memory limit"}` +
	`{"pod":"api-gateway-55c","reason":"CrashLoopBackOff","oom_killed":false,"recommended_action":"look at the logs of the pod and the events of the node"}` +
	`{"reservation_holder":"Ann","special_requests":["window seat","late check out"]}{"name":"tool","arguments":{"city":"Oslo","days":[1,2,30],"unit":"cm"}}` +
	`{"orderId":12,"orderName":"a","orders":[{"id":1.5},{"id":-2}]} the quick brown fox "jumps" over, the lazy dog: yes or no? true false null`
