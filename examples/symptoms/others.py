"""Ports of `models.py` of SKILL.md with faults on purpose; run it to record them (docs/symptoms.md)."""

import copy

import torch
from models import original
from torch import nn

import mha_parity as mha


class Detached(type(original)):
    def forward(self, x, padding):
        x = x.detach() + self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        return self.out(self.norm(x))


class FromTheLeft(type(original)):
    def forward(self, x, padding):  # as many keys as there are words, counted from the left
        return super().forward(x, torch.arange(x.shape[1]) >= (~padding).sum(dim=1, keepdim=True))


class Cached(nn.Module):
    """Causal attention whose keys and values are kept; a port may count the new queries from 0."""

    def __init__(self, counts=True):
        super().__init__()
        self.q, self.kv, self.out, self.counts = nn.Linear(12, 12), nn.Linear(12, 24), nn.Linear(12, 12), counts

    def forward(self, x, past=None):
        k, v = kept = self.kv(x).chunk(2, dim=-1) if past is None else torch.cat([past, self.kv(x)], 1).chunk(2, dim=-1)
        before = k.shape[1] - x.shape[1] if self.counts else 0
        mask = torch.ones(x.shape[1], k.shape[1]).tril(before).bool()
        heads = nn.functional.scaled_dot_product_attention(self.q(x), k, v, attn_mask=mask)
        return self.out(heads), torch.cat(kept, -1)


class Steps(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        first, past = self.layer(x[:, :5])
        return torch.cat([first, self.layer(x[:, 5:], past)[0]], 1)


torch.manual_seed(0)
steps, wrong = Steps(Cached()).eval(), Steps(Cached(counts=False)).eval()
wrong.load_state_dict(steps.state_dict())
detached, counted = Detached().eval(), FromTheLeft().eval()
for port in (detached, counted):
    port.load_state_dict(original.state_dict())
half, one = copy.deepcopy(original).to(torch.bfloat16), copy.deepcopy(original.attention)
nn.init.normal_(one.out_proj.bias)
two = copy.deepcopy(one)
two.out_proj.bias.data *= 2  # each device has some of the heads, and adds the bias
x, padding = torch.randn(2, 7, 12), torch.arange(7) < torch.tensor([[0], [3]])

if __name__ == "__main__":
    with mha.capture(detached, "detached.safetensors", modules=True, gradients=True):
        detached(x.requires_grad_(), padding).square().sum().backward()
    with torch.no_grad():
        calls = {"steps": (wrong, x), "half": (half, x.bfloat16(), padding), "left": (counted, x, padding)}
        for name, (port, *given) in calls.items():
            with mha.capture(port, f"{name}.safetensors", modules=True):
                port(*given)
        for name, layer in (("one", one), ("two", two)):
            with mha.capture(layer, f"{name}.safetensors"):
                layer(x, x, x, key_padding_mask=padding)
