// Package grammarbench measures package grammar on a file of JSON schemas with
// the vocabulary of a real tokenizer. It is what 'coppice grammar bench' runs.
//
// A [Tokenizer] is read from a tokenizer.json. [Run] compiles each schema of a
// file and walks the texts of its tests, asking for a mask before every token; a
// [Report] holds the quantiles of the times, in microseconds, and how much of the
// texts was forced. [Micro] times single masks of the same few grammars, so that
// two versions can be compared.
package grammarbench
