"""Writes a checkpoint as GGUF (Q8_0 matrices, F32 norms) and reads it back.

    python export.py RUN/last.pt sapling.gguf
"""

import json
import os
import sys

import gguf
import numpy as np
import torch
from gguf import quants

from model import CONFIG, Sapling
from tok import END, PATH, SPECIAL

Q8 = gguf.GGMLQuantizationType.Q8_0
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
            "+ '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

NAMES = {"attn_norm": "attn_norm", "ffn_norm": "ffn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v",
         "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}


def pairs(w, dim):
    """Rows of q and k from (i, i + D/2) to neighbours (2i, 2i + 1)."""
    return w.reshape(-1, 2, dim // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def halves(w, dim):
    """The way back."""
    return w.reshape(-1, dim // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def tensors(state):
    yield "token_embd.weight", state["embed"]
    yield "output_norm.weight", state["out_norm"]
    for name, w in state.items():
        if name.startswith("blocks."):
            _, i, part = name.split(".")
            yield f"blk.{i}.{NAMES[part]}.weight", w


def write(ck, path):
    c, state = ck["config"], {k: v.float().numpy() for k, v in ck["model"].items()}
    w = gguf.GGUFWriter(path + ".tmp", "llama")
    w.add_name("sapling")
    w.add_description("A small model grown with coppice for its on-call demo")
    w.add_license("apache-2.0")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    w.add_context_length(c["context"])
    w.add_embedding_length(c["dim"])
    w.add_block_count(c["layers"])
    w.add_feed_forward_length(c["ffn"])
    w.add_head_count(c["heads"])
    w.add_head_count_kv(c["kv_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_dimension_count(c["head_dim"])
    w.add_rope_freq_base(c["theta"])
    w.add_layer_norm_rms_eps(c["eps"])
    w.add_vocab_size(c["vocab"])
    t = json.load(open(PATH))
    vocab = sorted(t["model"]["vocab"], key=t["model"]["vocab"].get)
    assert len(vocab) == c["vocab"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(vocab)
    w.add_token_types([3 if x in SPECIAL else 1 for x in vocab])
    w.add_token_merges([" ".join(m) if isinstance(m, list) else m for m in t["model"]["merges"]])
    w.add_bos_token_id(0)
    w.add_eos_token_id(END)
    w.add_pad_token_id(0)
    w.add_add_bos_token(False)
    w.add_chat_template(TEMPLATE)
    for name, x in tensors(state):
        if x.ndim == 1:
            w.add_tensor(name, x.astype(np.float32))
            continue
        if "attn_q" in name or "attn_k" in name:
            x = pairs(x, c["head_dim"])
        w.add_tensor(name, quants.quantize(np.ascontiguousarray(x), Q8), raw_dtype=Q8)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    os.replace(path + ".tmp", path)


def read(path):
    """A float32 model with the file's rounded weights."""
    r = gguf.GGUFReader(path)

    def value(key):
        return r.get_field(key).contents()

    c = dict(vocab=value("llama.vocab_size"), dim=value("llama.embedding_length"), layers=value("llama.block_count"),
             heads=value("llama.attention.head_count"), kv_heads=value("llama.attention.head_count_kv"),
             head_dim=value("llama.attention.key_length"), ffn=value("llama.feed_forward_length"),
             theta=value("llama.rope.freq_base"), eps=value("llama.attention.layer_norm_rms_epsilon"),
             context=value("llama.context_length"))
    m = Sapling(c, kind=torch.float32)
    state, back = {}, {v: k for k, v in NAMES.items()}
    for t in r.tensors:
        x = quants.dequantize(t.data, t.tensor_type)
        x = x.reshape([int(n) for n in reversed(t.shape)])
        if "attn_q" in t.name or "attn_k" in t.name:
            x = halves(x, c["head_dim"])
        if t.name.startswith("blk."):
            _, i, part, _ = t.name.split(".")
            name = f"blocks.{i}.{back[part]}"
        else:
            name = {"token_embd.weight": "embed", "output_norm.weight": "out_norm"}[t.name]
        state[name] = torch.from_numpy(np.array(x, dtype=np.float32))
    m.load_state_dict(state)
    return m.eval()


if __name__ == "__main__":
    ck = torch.load(sys.argv[1], weights_only=False, map_location="cpu")
    write(ck, sys.argv[2])
    m = read(sys.argv[2])
    whole = Sapling(ck["config"], kind=torch.float32)
    whole.load_state_dict(ck["model"])
    ids = torch.randint(3, ck["config"]["vocab"], (1, 64))
    pos = torch.arange(64).unsqueeze(0)
    with torch.no_grad():
        a, b = (x.logits(x.extend(ids, pos, None)[0]) for x in (whole, m))
    print(f"{os.path.getsize(sys.argv[2])} bytes, minute {ck['minutes']:.1f}, step {ck['step']}; "
          f"largest difference of a logit after rounding {(a - b).abs().max():.3f} of {a.abs().max():.1f}")
