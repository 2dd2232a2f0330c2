"""Two recordings of all modules: the wrong ones, and those that follow from them."""

import copy

import numpy as np
import pytest

import mha
from mha.recordings.modules.arrays import open_modules
from mha.substitution.recorded.modules import modules_apart
from mha.substitution.reports.report import WhereReport
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


class Split(nn.Module):
    """The attention of a Block with a module for each projection."""

    names = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, packed):
        super().__init__()
        self.num_heads = packed.num_heads
        weights, biases = packed.in_proj_weight.chunk(3), packed.in_proj_bias.chunk(3)
        every = zip(self.names, (*weights, packed.out_proj.weight), (*biases, packed.out_proj.bias), strict=True)
        for name, weight, bias in every:
            setattr(self, name, nn.Linear(12, 12))
            getattr(self, name).load_state_dict({"weight": weight, "bias": bias})

    def forward(self, x, *_, key_padding_mask, need_weights):
        *each, out = (getattr(self, name) for name in self.names)
        q, k, v = (one(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for one in each)
        y = nn.functional.scaled_dot_product_attention(q, k, v, ~key_padding_mask[:, None, None])
        return (out(y.transpose(1, 2).flatten(2)),)


class Renamed(Block):
    """A Block whose attention has another name, and no bias in its third projection."""

    def __init__(self, block):
        super().__init__()
        attention = Split(block.attention)
        del self.attention
        self.load_state_dict(block.state_dict(), strict=False)
        self.mixer = attention
        nn.init.zeros_(attention.v_proj.bias)

    def __getattr__(self, name):
        return super().__getattr__("mixer" if name == "attention" else name)


def without_a_bias():
    """A model, and a port of it whose attentions lack one bias and have a module for each projection."""
    torch.manual_seed(0)
    original = Model().eval()
    for block in original.blocks:
        nn.init.normal_(block.attention.in_proj_bias)
        nn.init.normal_(block.attention.out_proj.bias)
    port = copy.deepcopy(original)
    for number in range(2):
        port.blocks[number] = Renamed(port.blocks[number]).eval()
    return original, port


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_attention_without_an_original_module_is_not_called_lines_of_the_module_around(tmp_path, read):
    original, port = without_a_bias()
    path = recorded(original, tmp_path / "original.safetensors")
    port = recorded(port, tmp_path / "port.safetensors")
    no_layers = WhereReport((), (), "float32", {}, original="recording")
    found = mha.where(path, port) if read else modules_apart(open_modules(path), open_modules(port), no_layers)
    said = said_of(found)
    if read:
        assert found.wrong == ("blocks.0.mixer", "blocks.1.mixer")
        assert "blocks.0.mixer and 1 more (" in said
        assert "differs in weights: v_proj.bias is missing or all zeros" in said
        assert "own lines" not in said
        return
    assert found.wrong == ("blocks.0",)
    assert (
        "its own lines are wrong, or blocks.0.mixer, which was not compared, since what it gives to "
        "blocks.0.mixer.out_proj differs already; " in said
    )


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_a_live_original_does_not_call_its_own_numbers_others(tmp_path):
    original, port = without_a_bias()
    found = mha.where(original, recorded(port, tmp_path / "port.safetensors"))
    (part,) = (one for one in found.results if one.name == "blocks.0.mixer.out_proj")
    assert part.reason == (
        "its parameters have the numbers of the original's blocks.0.attention.out_proj.weight, "
        "blocks.0.attention.out_proj.bias, and lines of blocks.0, which differ as well, may make up for what it gives "
        "otherwise"
    )
    assert part.status == "not judged"
    assert "parameters are others" not in said_of(found)


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
