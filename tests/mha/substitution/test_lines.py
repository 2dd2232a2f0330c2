"""What stands in the place of another array in a wrong line of a module, and what finds the cause in a layer."""

import torch
from torch import nn

import mha
from mha.substitution.reports.text import findings

WIDTH = 12


class Attention(nn.Module):
    def __init__(self, scale=0.5):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = scale

    def forward(self, q, k, v):
        q, k, v = (
            one(x).unflatten(-1, (3, -1)).transpose(1, 2)
            for one, x in ((self.q_proj, q), (self.k_proj, k), (self.v_proj, v))
        )
        return self.out_proj(((self.scale * q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


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


def found_in(folder, fault="", scale=0.5):
    torch.manual_seed(3)
    model, port = Block().eval(), Block(fault, scale).eval()
    with torch.no_grad():
        model.norm.weight.normal_()  # else both norms are alike
    port.load_state_dict(model.state_dict())
    path = folder / "port.safetensors"
    with torch.no_grad(), mha.capture(port, path, modules=True):
        port(torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH))
    return "\n".join(findings(mha.where(model, path)))


def test_exchanged_arguments_are_named(tmp_path):
    said = found_in(tmp_path, "exchanged")
    assert "it gives attention the v where the k is due, and the reverse: exchange them" in said


def test_a_residual_of_another_array_is_named(tmp_path):
    said = found_in(tmp_path, "residual")
    assert (
        "what it gives to norm2 is the sum of what norm gives and what attention gives; in the original it is the sum "
        "of its input x and what attention gives"
    ) in said


def test_an_equal_port_has_no_such_line(tmp_path):
    assert found_in(tmp_path) == ""


def test_what_records_a_layer_that_differs_from_its_projections_is_said(tmp_path):
    said = found_in(tmp_path, scale=0.4)
    line = (
        'mha.capture(port, "layer.safetensors", layers={\'attention\': mha.Projections(query="q_proj", key="k_proj", '
        'value="v_proj", output="out_proj")}), with batch_first, num_heads, mask'
    )
    assert line in said
    assert "then `mha diagnose layer.safetensors`" in said
