// Package open turns a URL into a backend, so that swapping the model under a
// program is a matter of one string:
//
//	engine:///path/model.gguf    our engine on a model file
//	path/model.gguf              the same
//	engine://NAME, NAME          our engine on an embedded model, see Options
//	openai+http://host:port/v1   any OpenAI-compatible server; so does http://...
//	vllm+http://host:port/v1     vLLM
//	sglang+http://host:port      SGLang
//	llama+http://host:port       llama.cpp's llama-server
//	ollama+http://host:port      Ollama
//	anthropic+https://host       Anthropic's Messages API
//
// Each http may be https. What a server's URL may hold besides, such as
// ?model=NAME, is said in package remote. An engine's may hold threads=N,
// memory=BYTES for keys and values, with the units KiB, MiB and GiB, tier=BYTES for
// those that do not fit there any more, see engine.Config.TierBytes, kv=q8 for
// keys and values in 8 bits, weights=f32 for weights that are expanded and
// activations that are not rounded, see model.Options.Float32Weights, attention=f32
// for its Float32Attention, and arithmetic=ggml for logits that are llama.cpp's bit
// for bit, see model.GGML. These go before what Options say of the same; only
// memory= beside Options.Engine.TotalBytes, which bounds more than keys and values,
// is an error.
package open
