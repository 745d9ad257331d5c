// Package chat turns conversations into the text that a model expects, by the chat
// template inside its file, and keeps apart what the template says from what people
// say.
//
// Three types matter:
//
//   - [Template] is a model's chat template. [FromGGUF] reads the one in a file,
//     [Builtin] has common ones for files without. Immutable, safe for concurrent use.
//   - [Message] is one turn.
//   - [Options] are the other inputs of a template: tools, the clock, switches.
//
// The result is a list of tokenizer pieces. Text of the template is special: control
// tokens in it are meant. Text that came from messages and tools is plain, wherever
// the template puts it, so "<|im_end|>" in a user's message is eleven characters and
// not the end of the turn. The pieces joined are what the template prints; they are
// tokenised as one text.
//
// Invariants:
//
//   - Text of a message is never special. The one exception is the name of a
//     well-known role (system, user, assistant, tool ...), since templates build
//     control tokens from it, as in "<|user|>".
//   - Text that [Template.Turn] and [Template.Append] give extends what
//     [Template.Render] gave for the history: a runtime can append it to a stream of
//     tokens without touching what is there. Where a template rewrites earlier turns,
//     the error is [ErrNotIncremental].
//   - A template can neither loop for ever nor exhaust the stack; see the limits in
//     internal/jinja.
//
// # Why a Jinja of our own
//
// Templates trim, split and search the content of messages before they print it, so
// the place of a message in the output cannot be found afterwards by looking for its
// text, and marks put around it would change what the template does. The renderer must
// carry the origin of every byte through all operations, which an engine that prints
// plain strings cannot. internal/jinja is the subset that chat templates use, with
// bounds on time, memory and depth; its tests compare it with results of Jinja2.
package chat
