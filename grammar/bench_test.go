package grammar

import (
	"bufio"
	"context"
	"encoding/json"
	"testing"
)

// BenchmarkCompileDev compiles every schema of the development sample.
func BenchmarkCompileDev(b *testing.B) {
	var schemas [][]byte
	sc := bufio.NewScanner(sharedFile(b, "data/grammar/maskbench_dev.jsonl.gz"))
	sc.Buffer(nil, 64<<20)
	for sc.Scan() {
		var l checkLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			b.Fatal(err)
		}
		schemas = append(schemas, l.Schema)
	}
	vocab := ByteVocab()
	for b.Loop() {
		for _, s := range schemas {
			Compile(context.Background(), Spec{JSONSchema: s}, vocab)
		}
	}
}
