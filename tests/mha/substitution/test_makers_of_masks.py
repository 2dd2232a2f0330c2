"""A module that uses the mask it is given is not accused of it: the module that makes the mask is."""

import numpy as np
import pytest
import torch
from torch import nn

from mha.substitution.reports.text import findings
from tests.mha.substitution.structures.original import HEADS, WIDTH


class Attention(nn.Module):
    def __init__(self, own_mask):
        super().__init__()
        self.own_mask = own_mask
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        if self.own_mask == "nothing":
            mask = torch.ones_like(mask)
        causal = self.own_mask == "causal"
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=None if causal else mask, is_causal=causal)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, own_mask):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), Attention(own_mask)

    def forward(self, x, *mask):
        return x + self.attn(self.norm(x), *mask)


class Model(nn.Module):
    def __init__(self, own_mask, made):
        super().__init__()
        self.made, self.blocks = made, nn.ModuleList(Block(own_mask) for _ in range(2))

    def forward(self, x):
        ones = torch.ones(x.shape[0], 1, x.shape[1], x.shape[1], dtype=torch.bool)
        mask = {"none": (), "causal": (ones.tril(),), "ones": (ones,)}[self.made]
        for block in self.blocks:
            x = block(x, *mask)
        return x


@pytest.mark.parametrize(
    ("own_mask", "made", "wrong"),
    [("given", "causal", ()), ("given", "ones", ("",)), ("nothing", "causal", ("blocks.0.attn", "blocks.1.attn"))],
)
def test_the_maker_of_a_mask_is_named_where_the_original_makes_its_own(judged, own_mask, made, wrong):
    torch.manual_seed(0)
    original, port = Model("causal", "none").eval(), Model(own_mask, made).eval()
    port.load_state_dict(original.state_dict())
    x = torch.tensor(np.random.default_rng(1).normal(size=(2, 5, WIDTH)), dtype=torch.float32)
    report = judged(original, port, x)
    said = "\n".join(findings(report))
    assert report.wrong == wrong, said
    if wrong == ("",):
        assert "the mask that it gives to blocks.0 excludes other keys" in said
        assert "in item 0, head 0, query 0 may attend to key 1" in said
