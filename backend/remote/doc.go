// Package remote makes a model server reached by URL a [backend.Backend].
//
// [Open] takes a URL and returns a [Backend]:
//
//	be, err := remote.Open(ctx, "vllm+http://127.0.0.1:8000/v1?model=qwen", remote.Options{})
//
// The scheme names the dialect that the server speaks:
//
//	openai+http(s)  any OpenAI-compatible server; so do plain http and https
//	vllm+http(s)    vLLM, with its structured outputs and prompt log-probabilities
//	sglang+http(s)  SGLang, by its native /generate for raw prompts
//	llama+http(s)   llama.cpp's llama-server, by its native /completion
//	ollama+http(s)  Ollama, by its OpenAI route
//	anthropic+http(s)  Anthropic's Messages API, its own service's or another's
//
// Behind openai a server that says in its model list that it is one of the
// others is treated as such; what it said is in [backend.Info] and
// [Backend.Dialect].
//
// # What a server cannot do
//
// Nothing that a request asks for is dropped in silence. A sampling option,
// constraint or prompt shape that the dialect does not have is refused with
// [backend.ErrUnsupported] before a byte is sent. Three things are made up for
// instead, and then named in Result.Emulated: a JSON Schema or regular
// expression is validated here and the model asked again with the error, a
// choice is wrapped in a one-field schema, and a score becomes a constrained
// choice whose options are 0 (taken) or [NotChosen]. [Options.NoEmulation]
// refuses those too. [Backend.Emulations] tells beforehand which will be used.
//
// The Messages API has no raw prompts and no log-probabilities, so a select is a
// constrained choice there. Its schemas hold for some keywords only: others are told
// in words and checked here, as for models from before structured outputs. Stop
// strings of white space, which it refuses, are looked for here, and an answer that
// one ends is left, so its usage is what was seen of it. Models that refuse a
// temperature are asked without, once they have said so. All of that is named in
// Result.Emulated. A prompt that a later request begins with is marked for the
// server's cache. Thoughts are not part of the text.
//
// # What comes back
//
// Deltas are whole characters and never hold a stop string or its beginning. An
// answer under a constraint that the server may not keep, as with a plain
// OpenAI-compatible one, is handed out only after it was checked, in one piece.
//
// Token ids are shown where the server tells them and what model they are of:
// by SGLang for raw prompts and by llama-server. Elsewhere, and where a stop
// string was cut off, Part.Tokens is nil and Logprobs holds one number for each
// token that the server generated. What JSON cannot carry, a log-probability of
// minus infinity, is [Unlikely]. Usage is the server's own count.
//
// # Retries
//
// Exactly one layer retries: this one, by [Retry]. The client library below is
// told not to. A caller with a policy of its own, such as a workflow engine,
// sets Retry.Attempts to 1 and reads [Error.Retryable] and [Error.RetryAfter].
// Output that was handed out is never repeated: a broken stream is restarted
// only if the request is deterministic on that server, and then what comes
// again must be byte-equal to what was handed out, or the call fails.
//
// # Keys
//
// The API key is the URL's user info (https://KEY@host/v1), [Options.APIKey],
// or the environment's COPPICE_API_KEY; OPENAI_API_KEY is read for
// api.openai.com only, and ANTHROPIC_API_KEY for api.anthropic.com. A key is in no error, log or String of this package.
package remote
