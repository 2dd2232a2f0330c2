"""What stands in the place of another array in a wrong line of a module, and what finds the cause in a layer."""

import pytest
import torch
from torch import nn

from mha.substitution.reports.text import findings
from tests.mha.substitution.structures.original import WIDTH, attended


class Attention(nn.Module):
    def __init__(self, scale=0.5):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = scale

    def forward(self, q, k, v):
        return self.out_proj(attended(self.q_proj(q), self.k_proj(k), self.v_proj(v), scale=self.scale))


class Block(nn.Module):
    def __init__(self, fault="", scale=0.5):
        super().__init__()
        self.fault, self.norm, self.norm2 = fault, nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(scale)

    def forward(self, x, memory):
        y = self.norm(x)
        keys, values = (2.0 * memory, memory) if self.fault == "exchanged" else (memory, 2.0 * memory)
        before = y if self.fault == "residual" else x
        return self.norm2(before + self.attention(y, keys, values))


PROJECTIONS = (
    'mha.capture(port, "layer.safetensors", layers={\'attention\': mha.Projections(query="q_proj", key="k_proj", '
    'value="v_proj", output="out_proj")}), with batch_first, num_heads, mask'
)
SUMS = (
    "what it gives to norm2 is the sum of what norm gives and what attention gives; in the original it is the sum "
    "of its input x and what attention gives"
)


@pytest.mark.parametrize(
    ("fault", "scale", "words"),
    [
        ("exchanged", 0.5, ["it gives attention the v where the k is due, and the reverse: exchange them"]),
        ("residual", 0.5, [SUMS]),
        ("", 0.4, [PROJECTIONS, "then `mha diagnose layer.safetensors`"]),
        ("", 0.5, None),
    ],
    ids=["exchanged arguments", "a residual of another array", "a layer unlike its projections", "equal"],
)
def test_what_stands_in_the_place_of_another_array_is_named(judged, fault, scale, words):
    torch.manual_seed(3)
    model, port = Block().eval(), Block(fault, scale).eval()
    with torch.no_grad():
        model.norm.weight.normal_()  # else both norms are alike
    port.load_state_dict(model.state_dict())
    said = "\n".join(findings(judged(model, port, torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH))))
    assert said == "" if words is None else all(one in said for one in words), said
