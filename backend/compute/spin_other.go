//go:build !amd64 && !arm64

package compute

// spinHint stands for the processor's spin-wait instruction.
//
//go:noinline
func spinHint() {}

// fetchLines stands for the processor's instruction to fetch memory ahead of its use.
func fetchLines(*byte) {}
