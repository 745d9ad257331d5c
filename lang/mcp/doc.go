// Package mcp makes the tools of MCP servers (Model Context Protocol) tools of
// agents.
//
// [Tools] takes a session of the official Go SDK, whatever its transport, and
// returns its tools as [lang.Tool] values, which stand beside Go functions in a
// lang.Toolbox. The caller owns the session and closes it after the runs that use
// it.
//
// A tool that its server does not call read-only or idempotent is Unsafe: a
// resumed run that does not know whether it was called stops and says so, instead
// of calling it twice.
//
// The package is apart from lang and runtime, which do not need the SDK.
package mcp
