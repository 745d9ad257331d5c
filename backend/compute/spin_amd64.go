package compute

// spinHint stands for the processor's spin-wait instruction.
//
//go:noinline
func spinHint() {}
