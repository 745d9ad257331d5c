package model

import (
	"strings"
	"testing"
)

func TestKVTypes(t *testing.T) {
	f := tinySpecs()["llama"].open(t, 1)
	for _, o := range []Options{{KV: "q4"}, {KV: Int8, Float32Attention: true}} {
		if m, err := Load(f, o); err == nil {
			m.Close()
			t.Errorf("%+v: no error", o)
		} else if !strings.Contains(err.Error(), "keys and values as") {
			t.Error(err)
		}
	}
	bytes := map[KVType]int{}
	for _, kind := range []KVType{"", BFloat16, Int8} {
		s := tinySpecs()["gemma3"]
		s.kv = kind
		m := s.load(t, 1, 1)
		kv, err := m.NewKV(3)
		if err != nil {
			t.Fatal(err)
		}
		defer kv.Close()
		bytes[m.KVType()] = kv.PageBytes()
	}
	if wide, narrow := bytes[BFloat16], bytes[Int8]; len(bytes) != 2 || narrow <= wide/2 || narrow > wide*6/10 {
		t.Errorf("a page takes %v bytes", bytes)
	}
}
