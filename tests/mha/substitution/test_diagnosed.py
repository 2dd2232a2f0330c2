"""What the attention of a wrong module shows as a layer."""

import numpy as np
import pytest
import torch
from torch import nn

import mha
from backends.torch.layers import MultiHeadAttention
from mha.coverage import UnreadWarning


class Unscaled(MultiHeadAttention):
    """Scores are not divided by the root of the width."""

    def _project(self, call, mask):
        queries, keys, values = super()._project(call, mask)
        return queries * 3**0.5, keys, values


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(kind(12, 4, query_dim=12, key_dim=12, value_dim=12) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            gave = layer(x, x, x)
            x = x + (gave[0] if isinstance(gave, tuple) else gave)
        return x


class Own(nn.Module):
    """Attention of a class that nothing knows."""

    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


@pytest.fixture
def original():
    torch.manual_seed(0)
    return Model(MultiHeadAttention).eval()


def report_of(original, port, path):
    port.eval()
    with mha.capture(port, path, modules=True):
        port(torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)))
    return mha.where(original, path)


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_a_fault_of_a_layer_is_named_once(original, tmp_path):
    port = Model(Unscaled)
    port.load_state_dict(original.state_dict())
    report = report_of(original, port, tmp_path / "port.safetensors")
    assert report.wrong == ("layers.0", "layers.1")
    assert list(report.diagnosed) == ["layers.0"]
    told = report.diagnosed["layers.0"]
    assert told.startswith("As a layer it does not follow the definition of its own weights: output differs")
    assert "scale-missing: Scores are not scaled." in told
    assert told.endswith("And 1 more alike: layers.1.")
    assert report.to_dict()["diagnosed"] == report.diagnosed


def test_a_layer_that_is_right_by_its_own_weights_gets_no_cause(tmp_path):
    def stock(width, heads, **widths):
        return nn.MultiheadAttention(width, heads, batch_first=True)

    original, port = Model(stock).eval(), Model(stock)
    port.load_state_dict(original.state_dict())
    with torch.no_grad():
        port.layers[1].in_proj_weight[:12].mul_(-1)
    report = report_of(original, port, tmp_path / "port.safetensors")
    (told,) = report.diagnosed.values()
    assert "follows the definition of its own weights (4 heads, no mask): so its parameters" in told


@pytest.mark.filterwarnings("ignore::mha.coverage.UnreadWarning")
def test_what_was_not_recorded_is_said(tmp_path):
    class Attention(Own):
        def forward(self, x):
            return 2 * super().forward(x)

    report = report_of(nn.Sequential(Own()).eval(), nn.Sequential(Attention()), tmp_path / "port.safetensors")
    assert report.wrong == ("0",)
    assert report.diagnosed["0"].startswith("Its attention was not recorded: nothing here knows its class")


def test_a_layer_that_fails_its_probe_is_recorded_beside_modules_and_said(original, tmp_path):
    class Doubled(nn.MultiheadAttention):
        def forward(self, query, key, value, **rest):
            return super().forward(2 * query, key, value, **rest)

    layer, x = Doubled(12, 4, batch_first=True).eval(), torch.randn(1, 3, 12)
    said = "is recorded, but: Doubled does not compute what its weights say"
    with (
        pytest.warns(UnreadWarning, match=said),
        mha.capture(layer, tmp_path / "calls.safetensors", modules=True),
    ):
        layer(x, x, x)
    assert len(mha.Recording.load(tmp_path / "calls.safetensors").calls) == 1
