"""Two recordings of all modules: the wrong ones, and those that follow from them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import mha
from mha_core import SpecError
from tests.mha.substitution.recorded.three_layers import said_of

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

LENGTHS = np.array([4, 7])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 4, batch_first=True)
        self.inner, self.act, self.outer = nn.Linear(12, 17), nn.GELU(), nn.Linear(17, 12)
        self.norm1, self.norm2 = nn.LayerNorm(12), nn.LayerNorm(12)
        self.factor, self.masked = 1.0, True

    def forward(self, x, padding):
        mask = padding if self.masked else None
        x = self.norm1(self.factor * x + self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0])
        return self.norm2(x + self.outer(self.act(self.inner(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x, padding):
        for block in self.blocks:
            x = block(x, padding)
        return x


def recorded(model, path):
    x = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))
    padding = torch.arange(7) >= torch.from_numpy(LENGTHS)[:, None]
    with mha.capture(model, path, modules=True, overwrite=True), torch.no_grad():
        model(x, padding)
    return path


@pytest.fixture
def both(tmp_path):
    """A model, and what records a port of it and compares them."""
    torch.manual_seed(0)
    original = Model().eval()
    path = recorded(original, tmp_path / "original.safetensors")

    def compared(change, **options):
        port = copy.deepcopy(original)
        change(port.blocks)
        return mha.where(path, recorded(port, tmp_path / "port.safetensors"), **options)

    return compared


def states(found):
    return {one.name: one.status for one in found.results}


def test_a_right_port_is_equal(both):
    found = both(lambda blocks: None)
    assert (found.equal, set(states(found).values()), found.original) == (True, {"equal"}, "recording")
    assert said_of(found) == "Equal: 15 pairs agree, in inputs, masks, settings, weights and outputs."
    assert found.undetectable is not None


def test_the_wrong_module_and_what_follows(both):
    found = both(lambda blocks: setattr(blocks[0], "act", nn.GELU("tanh")))
    assert found.wrong == ("blocks.0.act",)
    assert states(found) == {
        **{"": "through its parts", "blocks.0": "through its parts", "blocks.1": "caused upstream"},
        **{f"blocks.0.{name}": "equal" for name in ("attention", "norm1", "inner")},
        **{f"blocks.0.{name}": "caused upstream" for name in ("outer", "norm2")},
        **{f"blocks.1.{name}": "caused upstream" for name in ("attention", "norm1", "inner", "act", "outer", "norm2")},
        "blocks.0.act": "wrong",
    }
    assert "blocks.0.act (torch.nn.modules.activation.GELU) differs in outputs: its output differs" in said_of(found)


def test_a_line_between_right_modules(both):
    found = both(lambda blocks: setattr(blocks[1], "factor", 0.9))
    assert found.wrong == ("blocks.1",)
    (wrong,) = (one for one in found.results if one.status == "wrong")
    assert wrong.own_lines
    assert "its own lines are wrong, since what it gives to blocks.1.norm1 differs already" in said_of(found)


def test_masks_and_weights_of_attention_are_said(both):
    def change(blocks):
        blocks[1].masked = False
        with torch.no_grad():
            blocks[0].attention.in_proj_weight[12:24] = blocks[0].attention.in_proj_weight[12:24].T.clone()

    found = both(change, pairs={"blocks.0.attention": "blocks.0.attention", "blocks.1.attention": "blocks.1.attention"})
    assert found.wrong == ("blocks.0.attention", "blocks.1.attention")
    said = said_of(found)
    assert "blocks.0.attention (torch.nn.modules.activation.MultiheadAttention) differs in weights" in said
    assert "k_proj.weight is the original's transposed" in said
    assert "it forgets the mask" in said


def test_what_can_not_be_compared(both, tmp_path):
    both(lambda blocks: None)
    bare = nn.Sequential(nn.Linear(6, 5), nn.GELU()).eval()
    with mha.capture(bare, tmp_path / "bare.safetensors", modules=True):
        bare(torch.ones(2, 6))
    assert mha.where(tmp_path / "bare.safetensors", tmp_path / "bare.safetensors").equal
    layer, x = nn.MultiheadAttention(12, 4).eval(), torch.ones(3, 2, 12)
    with mha.capture(layer, tmp_path / "layer.safetensors"):
        layer(x, x, x)
    with pytest.raises(SpecError, match="one recording holds modules and no attention layer"):
        mha.where(tmp_path / "bare.safetensors", tmp_path / "layer.safetensors")
    with pytest.raises(SpecError, match="inputs are what a live original is called with"):
        mha.where(tmp_path / "bare.safetensors", tmp_path / "bare.safetensors", inputs={"input": np.ones((2, 6))})
