// Package backend says what a language model must offer so that a program can
// run on it, and nothing about how it does so.
//
// Three types matter. A [Request] asks for one generation: a prompt as turns,
// limits, sampling, and possibly a [Constraint] on the output. A [Result] is
// what came back, with the exact token ids and a [Usage] that says what was
// computed and what was not. A [Backend] takes the first to the second.
//
// Prompts are lists of [Turn], not strings: a backend that works on token ids
// keeps the ids it generated, so that text a model wrote is never tokenised
// again, and a backend that works on chat messages can send them as messages.
//
// Implementations live in the packages below this one: engine (our own),
// remote (any OpenAI-compatible server by URL), puppet (a scripted model for
// tests). Package open turns a URL into one of them.
package backend
