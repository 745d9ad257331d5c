"""Records what PyTorch transformers compute for tiny models of each family.

usage: record.py DIR [NAME ...]     writes DIR/NAME.json for the models below, or those named

Needs torch and transformers (recorded with 5.24). Weights are not stored: each
value is a function of the tensor's name and the index, see value(). A text that
repeats itself, or whose best tokens are nearly as good as the next ones, tells
little, so some models have a prompt of their own, see prompt().
"""
import json, math, sys
import numpy as np
import torch
import transformers as tf

DIM, HEADS, KV, HD, FFN, VOCAB, CTX, WINDOW, EXPERTS, USED = 64, 4, 2, 16, 96, 80, 128, 12, 6, 2
WIDE = 32  # HD of models whose heads are wider than DIM/HEADS
THETA, EPS = 5000.0, 1e-5


def prompt(n=0):
    """40 tokens; n was chosen among the first 200 so that the text varies and its leads are wide"""
    return [(i * 37 + i * i * (11 + n) + 5 + n // VOCAB) % VOCAB for i in range(40)]


def value(name, shape, mean, dev):
    """uniform in mean +- dev: 24 bits of splitmix64(fnv1a(name) + index)"""
    h = 0xcbf29ce484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001b3) & (2**64 - 1)
    n = int(np.prod(shape))
    with np.errstate(over="ignore"):
        x = np.uint64(h) + np.arange(n, dtype=np.uint64)
        x = (x + np.uint64(0x9e3779b97f4a7c15))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        x = x ^ (x >> np.uint64(31))
    u = (x >> np.uint64(40)).astype(np.float64) / 8388608.0 - 1.0
    return torch.from_numpy((mean + dev * u).astype(np.float32)).reshape(tuple(reversed(shape)))


class Model:
    def __init__(self, name, arch, model, layers, **meta):
        self.name, self.arch, self.hf, self.layers = name, arch, model.eval(), layers
        self.sd, self.used, self.tensors = model.state_dict(), set(), []
        self.prompt, self.steps, self.hd = prompt(), 12, model.config.head_dim
        u = lambda k, v: [f"{arch}.{k}", "u32", v]
        self.meta = [["general.architecture", "str", arch], u("block_count", layers), u("embedding_length", DIM),
                     u("feed_forward_length", FFN), u("attention.head_count", HEADS), u("attention.head_count_kv", KV),
                     u("attention.key_length", self.hd), u("attention.value_length", self.hd),
                     u("context_length", model.config.max_position_embeddings),
                     [f"{arch}.attention.layer_norm_rms_epsilon", "f32", model.config.rms_norm_eps], [f"{arch}.rope.freq_base", "f32", THETA]]
        for k, v in meta.items():
            t = "str" if isinstance(v, str) else "f32" if isinstance(v, float) else "u32"
            self.meta.append([f"{arch}." + k.replace("__", "."), t, v])

    def put(self, gguf, shape, mean, dev, data=None):
        t = {"name": gguf, "shape": list(shape), "mean": mean, "dev": dev}
        if data is not None:
            t["data"] = [float(x) for x in data]
        self.tensors.append(t)
        return value(gguf, shape, mean, dev)

    def set(self, hf, w):
        assert self.sd[hf].shape == w.shape, (hf, self.sd[hf].shape, w.shape)
        with torch.no_grad():
            self.sd[hf].copy_(w)
        self.used.add(hf)

    def matrix(self, gguf, cols, rows):
        return self.put(gguf + ".weight", [cols, rows], 0.0, 2.0 / math.sqrt(cols))

    def norm(self, gguf, hf, n=DIM, mean=1.0, dev=0.3):
        w = self.put(gguf + ".weight", [n], mean, dev)
        self.set(hf, w - 1 if self.arch.startswith("gemma") else w)

    def text(self, n, steps=24):
        """asks for prompt n and a longer text"""
        self.prompt, self.steps = prompt(n), steps
        return self

    def fill(self, tied, bias=False, qknorm=False, post=False, fused=False, experts=None, embed=None):
        hd = self.hd
        qd, kd, f = HEADS * hd, KV * hd, FFN
        self.set("model.embed_tokens.weight", self.put("token_embd.weight", [DIM, VOCAB], 0.0, embed or (0.5 if tied else 1.0)))
        if tied:
            # Weights of both signs, or else every token would be followed by itself.
            self.used.add("lm_head.weight")
            self.norm("output_norm", "model.norm.weight", mean=0.0, dev=1.5)
        else:
            self.set("lm_head.weight", self.matrix("output", DIM, VOCAB))
            self.norm("output_norm", "model.norm.weight")
        pairs = lambda w, n: w if self.arch not in ("llama", "smollm3") else w.reshape(n, hd // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
        for i in range(self.layers):
            g, h = f"blk.{i}.", f"model.layers.{i}."
            a, m = h + "self_attn.", h + "mlp."
            self.norm(g + "attn_norm", h + "input_layernorm.weight")
            if post:
                self.norm(g + "post_attention_norm", h + "post_attention_layernorm.weight")
                self.norm(g + "ffn_norm", h + "pre_feedforward_layernorm.weight")
                self.norm(g + "post_ffw_norm", h + "post_feedforward_layernorm.weight")
            else:
                self.norm(g + "ffn_norm", h + "post_attention_layernorm.weight")
            if fused:
                self.set(a + "qkv_proj.weight", self.matrix(g + "attn_qkv", DIM, qd + 2 * kd))
            else:
                self.set(a + "q_proj.weight", pairs(self.matrix(g + "attn_q", DIM, qd), HEADS))
                self.set(a + "k_proj.weight", pairs(self.matrix(g + "attn_k", DIM, kd), KV))
                self.set(a + "v_proj.weight", self.matrix(g + "attn_v", DIM, kd))
            self.set(a + "o_proj.weight", self.matrix(g + "attn_output", qd, DIM))
            if bias:
                for x, n in ("q", qd), ("k", kd), ("v", kd):
                    self.set(a + x + "_proj.bias", self.put(g + f"attn_{x}.bias", [n], 0.0, 0.4))
            if qknorm:
                self.norm(g + "attn_q_norm", a + "q_norm.weight", hd)
                self.norm(g + "attn_k_norm", a + "k_norm.weight", hd)
            if experts:
                f = experts
                self.set(m + "gate.weight", self.matrix(g + "ffn_gate_inp", DIM, EXPERTS))
                gate = self.put(g + "ffn_gate_exps.weight", [DIM, f, EXPERTS], 0.0, 2.0 / math.sqrt(DIM))
                up = self.put(g + "ffn_up_exps.weight", [DIM, f, EXPERTS], 0.0, 2.0 / math.sqrt(DIM))
                self.set(m + "experts.gate_up_proj", torch.cat([gate, up], 1))
                self.set(m + "experts.down_proj", self.put(g + "ffn_down_exps.weight", [f, DIM, EXPERTS], 0.0, 2.0 / math.sqrt(f)))
            elif fused:
                self.set(m + "gate_up_proj.weight", self.matrix(g + "ffn_up", DIM, 2 * FFN))
                self.set(m + "down_proj.weight", self.matrix(g + "ffn_down", FFN, DIM))
            else:
                for x in "gate", "up":
                    self.set(m + x + "_proj.weight", self.matrix(g + "ffn_" + x, DIM, FFN))
                self.set(m + "down_proj.weight", self.matrix(g + "ffn_down", FFN, DIM))
        left = set(self.sd) - self.used
        assert not left, left
        return self

    def record(self, folder):
        if len(sys.argv) > 2 and self.name not in sys.argv[2:]:
            return
        with torch.no_grad():
            logits = self.hf(input_ids=torch.tensor([self.prompt])).logits[0]
            ids, greedy, lead = list(self.prompt), [], math.inf
            for _ in range(self.steps):
                last = self.hf(input_ids=torch.tensor([ids])).logits[0, -1]
                best = last.topk(2).values
                lead = min(lead, float((best[0] - best[1]) / last.square().mean().sqrt()))
                greedy.append(int(last.argmax()))
                ids.append(greedy[-1])
        at = [0, 7, len(self.prompt) - 2, len(self.prompt) - 1]
        lines = [f'{{"transformers":"{tf.__version__}","meta":{json.dumps(self.meta)},', '"tensors":[']
        lines += [json.dumps(t) + ("," if t is not self.tensors[-1] else "") for t in self.tensors]
        lines += [f'],"prompt":{json.dumps(self.prompt)},"greedy":{json.dumps(greedy)},"logits":{{']
        for p in at:
            lines.append(f'"{p}":[' + ",".join(f"{x:.6g}" for x in logits[p].tolist()) + "]" + ("," if p != at[-1] else "}}"))
        open(f"{folder}/{self.name}.json", "w").write("\n".join(lines) + "\n")
        print(f"{self.name}: {len(set(greedy))} of {len(greedy)} tokens are distinct, the smallest lead is {lead:.2g} of the logits' RMS: {greedy}")


def base(rope=None, layers=2, **more):
    d = dict(hidden_size=DIM, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=HD, intermediate_size=FFN, vocab_size=VOCAB,
             num_hidden_layers=layers, max_position_embeddings=CTX, rms_norm_eps=EPS, attn_implementation="eager",
             tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2,
             rope_parameters={"rope_type": "default", "rope_theta": THETA} | (rope or {}))
    return d | more


def llama3_factors(factor, low, high, orig):
    out = []
    for i in range(HD // 2):
        wave = 2 * math.pi * THETA ** (2 * i / HD)
        if wave < orig / high:
            out.append(1.0)
        elif wave > orig / low:
            out.append(factor)
        else:
            s = (orig / wave - low) / (high - low)
            out.append(1 / ((1 - s) / factor + s))
    return out


def main(folder):
    torch.manual_seed(1)
    llama = lambda rope=None, **more: tf.LlamaForCausalLM(tf.LlamaConfig(**base(rope, **more)))
    Model("llama", "llama", llama(), 2).fill(False).record(folder)
    Model("llama_linear", "llama", llama({"rope_type": "linear", "factor": 4.0}), 2,
          rope__scaling__type="linear", rope__scaling__factor=4.0).fill(False).record(folder)
    # An original context that has beta_fast and beta_slow at pairs of their own, and neither at the last one.
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 860}
    Model("llama_yarn", "llama", llama(yarn, max_position_embeddings=3440), 2, rope__scaling__type="yarn", rope__scaling__factor=4.0,
          rope__scaling__original_context_length=860).fill(False).text(65).record(folder)
    l3 = Model("llama_llama3", "llama", llama({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                "original_max_position_embeddings": 64}), 2).fill(False)
    l3.put("rope_freqs.weight", [HD // 2], 0.0, 0.0, llama3_factors(8.0, 1.0, 4.0, 64))
    l3.record(folder)
    # Heads that are wider than their share of the residual stream, as those of Mistral Nemo.
    Model("mistral", "llama", tf.MistralForCausalLM(tf.MistralConfig(**base(sliding_window=None, head_dim=WIDE, rms_norm_eps=1e-3))),
          2).fill(False).text(12).record(folder)
    Model("smollm2", "llama", llama(tie_word_embeddings=True, rms_norm_eps=1e-3), 2).fill(True).text(63).record(folder)
    # Queries and keys of every fourth layer are not rotated.
    Model("smollm3", "smollm3", tf.SmolLM3ForCausalLM(tf.SmolLM3Config(**base(layers=5, tie_word_embeddings=True, rms_norm_eps=1e-3))),
          5).fill(True).text(3).record(folder)
    Model("mixtral", "llama", tf.MixtralForCausalLM(tf.MixtralConfig(**base(num_local_experts=EXPERTS, num_experts_per_tok=USED, sliding_window=None))), 2,
          expert_count=EXPERTS, expert_used_count=USED).fill(False, experts=FFN).record(folder)
    Model("qwen2", "qwen2", tf.Qwen2ForCausalLM(tf.Qwen2Config(**base(tie_word_embeddings=True, rms_norm_eps=1e-3))), 2).fill(True, bias=True).text(68).record(folder)
    Model("qwen3", "qwen3", tf.Qwen3ForCausalLM(tf.Qwen3Config(**base(head_dim=WIDE, rms_norm_eps=1e-3))), 2).fill(False, qknorm=True).text(3).record(folder)
    Model("qwen3moe", "qwen3moe", tf.Qwen3MoeForCausalLM(tf.Qwen3MoeConfig(**base(num_experts=EXPERTS, num_experts_per_tok=USED,
          moe_intermediate_size=32, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]))), 2,
          expert_count=EXPERTS, expert_used_count=USED, expert_feed_forward_length=32).fill(False, qknorm=True, experts=32).record(folder)
    # The embeddings of Gemma are small and scaled by sqrt(DIM).
    Model("gemma2", "gemma2", tf.Gemma2ForCausalLM(tf.Gemma2Config(**base(layers=4, tie_word_embeddings=True, sliding_window=WINDOW, head_dim=WIDE,
          rms_norm_eps=1e-3, query_pre_attn_scalar=WIDE, attn_logit_softcapping=2.0, final_logit_softcapping=1.0))), 4,
          attention__sliding_window=WINDOW, attn_logit_softcapping=2.0, final_logit_softcapping=1.0).fill(True, post=True, embed=0.1).text(110).record(folder)
    # The base of local layers is 10000 where the file does not name one.
    for name, local, n, meta in ("gemma3", 10000.0, 132, {}), ("gemma3_base", 300.0, 118, {"rope__freq_base_swa": 300.0}):
        g3 = base(layers=7, tie_word_embeddings=True, sliding_window=WINDOW, head_dim=WIDE, rms_norm_eps=1e-3, query_pre_attn_scalar=WIDE,
                  layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(7)])
        g3["rope_parameters"] = {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": THETA},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": local}}
        Model(name, "gemma3", tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**g3)), 7, attention__sliding_window=WINDOW,
              rope__scaling__type="linear", rope__scaling__factor=2.0, **meta).fill(True, qknorm=True, post=True, embed=0.1).text(n).record(folder)
    phi = dict(original_max_position_embeddings=CTX, sliding_window=WINDOW)
    Model("phi3", "phi3", tf.Phi3ForCausalLM(tf.Phi3Config(**base(**phi))), 2, attention__sliding_window=WINDOW).fill(False, fused=True).record(folder)
    # Long factors: the prompt is longer than the original context, which is when
    # transformers take them too.
    long = [1.0 + 0.25 * i for i in range(HD // 2)]
    lr = base({"rope_type": "longrope", "short_factor": [1.0] * (HD // 2), "long_factor": long, "original_max_position_embeddings": 32},
              original_max_position_embeddings=32, sliding_window=None)
    m = Model("phi3_longrope", "phi3", tf.Phi3ForCausalLM(tf.Phi3Config(**lr)), 2, rope__scaling__type="longrope",
              rope__scaling__original_context_length=32).fill(False, fused=True)
    m.put("rope_factors_long.weight", [HD // 2], 0.0, 0.0, long)
    m.put("rope_factors_short.weight", [HD // 2], 0.0, 0.0, [1.0] * (HD // 2))
    m.record(folder)
    # Three quarters of a head are rotated, as in Phi-4-mini, by short factors (the context is the original one) and by a
    # magnitude that the file names.
    rot = HD * 3 // 4
    short, long = [1.0 + 0.2 * i for i in range(rot // 2)], [9.0] * (rot // 2)
    pr = base({"rope_type": "longrope", "short_factor": short, "long_factor": long, "original_max_position_embeddings": CTX,
               "partial_rotary_factor": 0.75, "attention_factor": 1.25},
              original_max_position_embeddings=CTX, sliding_window=None, partial_rotary_factor=0.75, tie_word_embeddings=True, rms_norm_eps=1e-3)
    m = Model("phi3_partial", "phi3", tf.Phi3ForCausalLM(tf.Phi3Config(**pr)), 2, rope__dimension_count=rot, rope__scaling__type="longrope",
              rope__scaling__original_context_length=CTX, rope__scaling__attn_factor=1.25).fill(True, fused=True).text(171)
    m.put("rope_factors_long.weight", [rot // 2], 0.0, 0.0, long)
    m.put("rope_factors_short.weight", [rot // 2], 0.0, 0.0, short)
    m.record(folder)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1])
