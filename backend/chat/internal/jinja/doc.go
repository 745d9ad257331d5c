// Package jinja runs chat templates: the part of the Jinja language that they use,
// with the settings of Hugging Face's renderer (trim_blocks, lstrip_blocks, a plain
// tojson, raise_exception, strftime_now, break and continue).
//
// It exists because a rendered prompt must remember where each byte came from. Every
// string carries marks ([Text]), and every operation (concatenation, slicing, split,
// trim, replace, case, format, tojson) keeps them. So the caller can tell the text
// of the template from text that a user wrote, even after a template has taken it
// apart. A renderer of plain strings cannot give that.
//
// Three types matter:
//
//   - [Template] is a parsed template, immutable and safe for concurrent use.
//   - [Text] is a string with marks.
//   - [Value] is anything a template handles; [Dict] keeps the order of its keys.
//
// Invariants: a template can neither loop for ever nor exhaust memory or stack.
// Parsing bounds the depth of the syntax, running bounds steps, bytes and the depth
// of macro calls and of printed values; beyond a bound the error matches [ErrLimit].
// Nothing outside is reachable: no files, no imports, no Go methods.
//
// Not supported, with an error that says so: include, import, extends, block, call,
// recursive loops.
package jinja
