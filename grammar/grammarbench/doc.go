// Package grammarbench measures package grammar on JSON schemas with the
// vocabulary of a real tokenizer.
//
// [ReadTokenizer] reads a tokenizer.json. [Run] compiles every schema of a file
// and walks the texts of its tests, asking for a mask before every token;
// [Micro] does the same with small cases that are known to be hard. Times are of
// one goroutine, in microseconds; pieces of work so long that they may hold
// waiting count as processor time of the thread, where the system tells it.
package grammarbench
