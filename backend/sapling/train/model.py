"""A small Llama: RMSNorm, rotary positions, grouped heads, SwiGLU, tied output.

It is run as the runtime serves it: the runbook's keys and values are computed
once and shared by all rows (alerts) that follow it. Attention over the shared
part and over a row's own tree are two flash-attention calls whose results are
merged by their log-sum-exp; the backward pass of each call, given the merged
output and log-sum-exp, yields exactly its share of the gradient.
"""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = dict(vocab=1024, dim=256, layers=4, heads=4, kv_heads=4, head_dim=64,
              ffn=512, theta=1e6, eps=1e-5, context=8192)

flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
flash_back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class SharedAttention(torch.autograd.Function):
    """q, k, v: (rows, heads, T, D) of the rows, k and v already repeated to
    heads; bk, bv: (books, kv, L, D); rows of a book are neighbours."""

    @staticmethod
    def forward(ctx, q, k, v, bk, bv, mask):
        rows, heads, t, d = q.shape
        books, kv, length, _ = bk.shape
        n, g = rows // books, heads // kv

        def to_book(x):
            return x.view(books, n, kv, g, t, -1).permute(0, 2, 3, 1, 4, 5).reshape(books, kv, g * n * t, -1)

        def to_rows(x):
            return x.view(books, kv, g, n, t, -1).permute(0, 3, 1, 2, 4, 5).reshape(rows, heads, t, -1)

        ctx.to_book, ctx.mask = to_book, mask
        ctx.to_rows = to_rows
        o1, l1 = flash(to_book(q), bk, bv, 0.0, False)
        o2, l2 = flash(q, k, v, 0.0, False, attn_mask=mask)
        l1 = to_rows(l1.unsqueeze(-1))
        l2 = l2.unsqueeze(-1)
        lse = torch.logaddexp(l1, l2)
        out = to_rows(o1) * (l1 - lse).exp() + o2 * (l2 - lse).exp()
        ctx.save_for_backward(q, k, v, bk, bv, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, bk, bv, out, lse = ctx.saved_tensors
        b = ctx.to_book
        grad = grad.contiguous()
        dq1, dbk, dbv = flash_back(b(grad), b(q), bk, bv, b(out), b(lse).squeeze(-1), 0.0, False)
        dq2, dk, dv = flash_back(grad, q, k, v, out, lse.squeeze(-1), 0.0, False, attn_mask=ctx.mask)
        return ctx.to_rows(dq1) + dq2, dk, dv, dbk, dbv, None


def rotate(x, cos, sin):
    """(n, t, heads, D) to (n, heads, t, D), turned. Half-rotation; export
    reorders the rows of q and k to llama.cpp's pairs."""
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).transpose(1, 2).contiguous()


def norm(x, w, eps: float, kind: torch.dtype):
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w).to(kind)


def swiglu(gate, up):
    return F.silu(gate) * up


def fuse():
    """Compiles the element-wise steps; the training is a tenth faster."""
    global rotate, norm, swiglu
    rotate, norm, swiglu = (torch.compile(f, dynamic=True) for f in (rotate, norm, swiglu))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        d, h, k = c["dim"], c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
        self.attn_norm = nn.Parameter(torch.ones(d))
        self.ffn_norm = nn.Parameter(torch.ones(d))
        self.q, self.k, self.v = (nn.Parameter(torch.randn(n, d) * d ** -0.5) for n in (h, k, k))
        self.o = nn.Parameter(torch.randn(d, h) * h ** -0.5 * 0.1)
        self.gate, self.up = (nn.Parameter(torch.randn(c["ffn"], d) * d ** -0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(d, c["ffn"]) * c["ffn"] ** -0.5 * 0.1)

    def qkv(self, x, cos, sin):
        c = self.c
        n, t, _ = x.shape
        y = norm(x, self.attn_norm, c["eps"], self.kind)
        w = torch.cat((self.q, self.k, self.v)).to(self.kind)
        z = F.linear(y, w).view(n, t, -1, c["head_dim"])
        h, k = c["heads"], c["kv_heads"]
        q, k, v = z.split((h, k, k), 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v.float().transpose(1, 2).contiguous()

    def finish(self, x, o):
        n, t, _ = x.shape
        o = o.transpose(1, 2).reshape(n, t, -1).to(self.kind)
        x = x + F.linear(o, self.o.to(self.kind)).float()
        y = norm(x, self.ffn_norm, self.c["eps"], self.kind)
        z = swiglu(F.linear(y, self.gate.to(self.kind)), F.linear(y, self.up.to(self.kind)))
        return x + F.linear(z, self.down.to(self.kind)).float()


class Sapling(nn.Module):
    def __init__(self, config=CONFIG, kind=torch.bfloat16):
        super().__init__()
        self.c = c = dict(config)
        self.embed = nn.Parameter(torch.randn(c["vocab"], c["dim"]) * 0.05)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c["layers"]))
        self.out_norm = nn.Parameter(torch.ones(c["dim"]))
        half = c["head_dim"] // 2
        self.freq = c["theta"] ** (-torch.arange(half).double() / half)
        head_start(self)
        self.set_kind(kind)

    def set_kind(self, kind):
        """The number type of the matrix products; all else is float32."""
        for b in self.blocks:
            b.kind = kind
        self.kind = kind

    def angles(self, pos):
        a = (pos.double().unsqueeze(-1) * self.freq)
        return a.cos().float().unsqueeze(2), a.sin().float().unsqueeze(2)

    def logits(self, x):
        x = norm(x, self.out_norm, self.c["eps"], self.kind)
        return F.linear(x, self.embed.to(self.kind)).float()

    def forward(self, book, book_pos, ids, pos, mask, book_out=False, still=False):
        """Hidden states of the rows (and of the books, if asked)."""
        g = self.c["heads"] // self.c["kv_heads"]
        bc, bs = self.angles(book_pos)
        rc, rs = self.angles(pos)
        x, y = F.embedding(book, self.embed), F.embedding(ids, self.embed)
        for i, blk in enumerate(self.blocks):
            # still: a long runbook passes on no gradient, which is a third cheaper.
            with torch.set_grad_enabled(torch.is_grad_enabled() and not still):
                q, bk, bv = blk.qkv(x, bc, bs)
                if book_out or i + 1 < len(self.blocks):
                    o = F.scaled_dot_product_attention(
                        q, bk.repeat_interleave(g, 1), bv.repeat_interleave(g, 1), is_causal=True)
                    x = blk.finish(x, o)
            if still:
                x, bk, bv = x.detach(), bk.detach(), bv.detach()
            q, k, v = blk.qkv(y, rc, rs)
            o = SharedAttention.apply(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), bk, bv, mask)
            y = blk.finish(y, o)
        return y, x

    def rows(self, cache, ids, pos, mask):
        """Hidden states of rows after one book whose cache is at hand."""
        g = self.c["heads"] // self.c["kv_heads"]
        cos, sin = self.angles(pos)
        y = F.embedding(ids, self.embed)
        for blk, (bk, bv) in zip(self.blocks, cache):
            q, k, v = blk.qkv(y, cos, sin)
            o = SharedAttention.apply(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1), bk, bv, mask)
            y = blk.finish(y, o)
        return y

    # Serving: one stream with a cache, used by the evaluation.
    def extend(self, ids, pos, cache, causal=True):
        """ids (n, t) after cache [(k, v)] per layer, batch n or 1; returns the
        hidden states and the longer cache."""
        g = self.c["heads"] // self.c["kv_heads"]
        cos, sin = self.angles(pos)
        x = F.embedding(ids, self.embed)
        n, t = ids.shape
        new = []
        for i, blk in enumerate(self.blocks):
            q, k, v = blk.qkv(x, cos, sin)
            if cache:
                pk, pv = cache[i]
                k = torch.cat((pk.expand(n, -1, -1, -1), k), 2)
                v = torch.cat((pv.expand(n, -1, -1, -1), v), 2)
            new.append((k, v))
            past = k.shape[2] - t
            mask = None
            if past and t > 1:
                mask = torch.ones(t, past + t, dtype=torch.bool).tril(past)
            o = F.scaled_dot_product_attention(q, k.repeat_interleave(g, 1), v.repeat_interleave(g, 1),
                                               attn_mask=mask, is_causal=mask is None and t > 1)
            x = blk.finish(x, o)
        return x, new


def frame(n, m):
    """n random directions at right angles, as rows of length m."""
    return torch.linalg.qr(torch.randn(m, n))[0].T


@torch.no_grad()
def head_start(model, shared=2.0, fast=2.5, pass_on=0.25, match=3.0):
    """Ties the random weights of the first two blocks together so that copying
    ("what came after this the last time?") is half there before training, which
    saves hours on two cores. All numbers are random draws; no text is used.

    All embeddings share a random part, which stands in for the bias that q and k
    lack. Head i of block 0 sees only that part, and its q is its k turned by i+1
    positions: it looks i+1 tokens back and passes on what it sees, into a space
    of its own. Head i of block 1 looks for a place before which stand the query's
    own token and the i tokens before it, and copies the token found there. Compare
    Trockman and Kolter, Mimetic initialization (2023), arXiv:2305.09828."""
    c, first, second = model.c, model.blocks[0], model.blocks[1]
    h, d, dim = c["heads"], c["head_dim"], c["dim"]
    half = d // 2
    if c["kv_heads"] != h or h * d > dim:
        return
    mean = torch.randn(dim)
    axis = mean / mean.norm()
    off = torch.eye(dim) - torch.outer(axis, axis)
    model.embed.copy_((torch.randn(c["vocab"], dim) @ off + shared * mean) * 0.05)

    # Only the fast frequencies tell near places apart.
    scale = torch.where(torch.arange(half) < half // 4, fast, 0.1).repeat(2).unsqueeze(1)
    k = scale * torch.outer(torch.randn(h * d), axis).view(h, d, dim)
    first.k.copy_(k.view(-1, dim))
    seen = frame(d, dim) @ off
    first.v.copy_(seen.repeat(h, 1))
    spaces = torch.einsum("ab,bhd->ahd", off, frame(h * d, dim).T.reshape(dim, h, d))
    first.o.copy_(pass_on * spaces.reshape(dim, -1))
    for i in range(h):
        a, b = k[i].chunk(2)
        turn = -model.freq.float() * (1 + i)
        cos, sin = turn.cos().unsqueeze(1), turn.sin().unsqueeze(1)
        first.q.view(h, d, dim)[i] = torch.cat((a * cos - b * sin, b * cos + a * sin))

    # Only the slow frequencies let far places match.
    scale = match * torch.where(torch.arange(half) >= half // 2, 1.0, 0.1).repeat(2).unsqueeze(1)
    for i in range(h):
        found, turn = frame(d, dim) @ off, frame(d, d)
        second.v.view(h, d, dim)[i] = found
        second.o.view(dim, h, d)[:, i] = found.T
        back = [spaces[:, n].T for n in range(h)]
        mix = [frame(d, d) for _ in range(i + 1)]
        key = sum(m @ back[n] for n, m in enumerate(mix))
        query = mix[0] @ (pass_on * seen) + sum(m @ back[n - 1] for n, m in enumerate(mix) if n)
        second.k.view(h, d, dim)[i] = scale * (turn @ key)
        second.q.view(h, d, dim)[i] = scale * (turn @ query)


def tree_mask(seg):
    """(rows, 1, T, T) additive: a token sees what is before it in its own
    segment and in the segment that begins its tree (100, 200, ... for the
    segments from there on). Padding (3) sees itself, to stay finite."""
    t = seg.shape[1]
    a, b = seg.unsqueeze(2), seg.unsqueeze(1)
    ok = (a == b) | ((b == a // 100 * 100) & (a != 3))
    ok &= torch.ones(t, t, dtype=torch.bool).tril()
    return torch.zeros(ok.shape).masked_fill_(~ok, float("-inf")).unsqueeze(1)
