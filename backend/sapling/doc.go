// Package sapling holds the small language model that is part of the binary.
//
// Sapling is a Llama of 2.6 million parameters, trained from random weights for
// one program, the on-call triage of examples/triage, so that the demo runs
// with nothing to download. MODEL_CARD.md says what it can do and what not;
// train holds all that is needed to grow it again.
package sapling
