"""Checks that the shared forward pass equals plain attention over one text."""
import torch
from data import Maker
from model import Sapling, tree_mask
torch.manual_seed(0)
m = Sapling(kind=torch.float32)
b = Maker(0, fillers=50).batch(2, 3, 300, spread=0)
t = {k: torch.from_numpy(v) for k, v in b.items() if hasattr(v, "shape")}
y, _ = m(t["book"], t["book_pos"], t["ids"], t["pos"], tree_mask(t["seg"]))
grad = torch.autograd.grad(y[4][t["ans"][4] > 0].pow(2).sum(), [m.blocks[1].k, m.blocks[0].q, m.embed])
seg = t["seg"][4]
one = torch.cat((t["book"][1], t["ids"][4][(seg == 0) | (seg == 2)])).unsqueeze(0)
x, _ = m.extend(one, torch.arange(one.shape[1]).unsqueeze(0), None)
want = x[0, t["book"].shape[1]:][(seg == 2)[(seg == 0) | (seg == 2)]]
print("forward", (y[4][seg == 2] - want).abs().max().item())
br = torch.cat((t["book"][1], t["ids"][4][(seg == 0) | (seg == 1)])).unsqueeze(0)
xb, _ = m.extend(br, torch.arange(br.shape[1]).unsqueeze(0), None)
wb = xb[0, t["book"].shape[1]:][(seg == 1)[(seg == 0) | (seg == 1)]]
full = torch.zeros_like(y[4])
loss = x[0, t["book"].shape[1]:][(t["ans"][4] > 0)[(seg == 0) | (seg == 2)]].pow(2).sum() + \
    xb[0, t["book"].shape[1]:][(t["ans"][4] > 0)[(seg == 0) | (seg == 1)]].pow(2).sum()
g2 = torch.autograd.grad(loss, [m.blocks[1].k, m.blocks[0].q, m.embed])
print("gradient", [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(grad, g2)])
