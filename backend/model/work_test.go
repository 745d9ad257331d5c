package model

import "testing"

func TestWork(t *testing.T) {
	s := tinySpecs()["gemma3"] // 7 layers, one of them global; window 40
	m := s.load(t, 1, 1)
	w, deep := m.Work(10), m.Work(100)
	qd, kd := s.heads*s.headDim, s.kvHeads*s.headDim
	if want := s.layers * (2*qd*s.dim + 2*kd*s.dim + 3*s.ffn*s.dim); w.MatrixMACs != want || w.OutputMACs != s.vocab*s.dim {
		t.Errorf("%+v, want %d multiply-adds in matrices", w, want)
	}
	if w.WeightBytes != 4*(w.MatrixMACs+w.OutputMACs) { // float32, tied
		t.Errorf("%d bytes of weights, want %d", w.WeightBytes, 4*(w.MatrixMACs+w.OutputMACs))
	}
	if w.KVBytes != 7*10*kd*4 || deep.KVBytes != (6*40+100)*kd*4 {
		t.Errorf("%d and %d bytes of keys and values", w.KVBytes, deep.KVBytes)
	}
	if w.AttentionMACs != 7*10*qd*2 || deep.AttentionMACs != (6*40+100)*qd*2 {
		t.Errorf("%d and %d multiply-adds of attention", w.AttentionMACs, deep.AttentionMACs)
	}
	if got := m.Bytes(); got < int64(w.WeightBytes) {
		t.Errorf("the model takes %d bytes, its weights alone %d", got, w.WeightBytes)
	}
	if d, err := m.Products(9); err != nil || d <= 0 {
		t.Errorf("%v %v", d, err)
	}
	// In 8 bits a head of 32 takes 32 bytes and a scale of two, each for key and value.
	if w := s.int8().load(t, 1, 1).Work(100); w.KVBytes != (6*40+100)*s.kvHeads*2*(s.headDim+2) {
		t.Errorf("%d bytes of keys and values in 8 bits", w.KVBytes)
	}
	if _, err := m.Products(chunkTokens + 1); err == nil {
		t.Error("no error for too many tokens")
	}
}
