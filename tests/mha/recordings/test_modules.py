"""Recordings of every module: what is in the file, and that the model is left as it was."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import mha
from mha.recordings.modules.recording import ModuleRecording
from mha.recordings.modules.stream import ArrayStream
from mha.recordings.recording import Recording
from mha_core import SpecError
from tests.mha.recordings.capture.live_calls import refused


@dataclass
class Gave:
    hidden: torch.Tensor
    note: str = "kept"


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, *, scale=1.0, more=None):
        x += 0.5  # in place: what was given must be recorded before
        return Gave(self.linear(x) * scale)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = Inner(), nn.LayerNorm(6)

    def forward(self, x):
        first = self.inner(x * 1.0, scale=2.0, more={"kind": object()})
        return self.norm(self.inner(first.hidden, scale=0.5).hidden), None


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval()


def recorded(model, path, x, **options):
    with mha.capture(model, path, modules=True, **options):
        gave = model(x)
    return gave, ModuleRecording(path)


def test_calls_stand_in_the_order_in_which_they_begin_bit_for_bit(model, tmp_path):
    x = torch.randn(3, 6)
    with torch.no_grad():
        wanted = model(x)[0]
    gave, found = recorded(model, tmp_path / "all.safetensors", x)
    assert torch.equal(gave[0], wanted)
    names = [found.modules[call.module].name for call in found.calls]
    assert names == ["", "inner", "inner.linear", "inner", "inner.linear", "norm"]
    assert [call.within for call in found.calls] == [None, 0, 1, 0, 3, 0]
    inner = found.calls[1]
    assert np.array_equal(found.array(inner.given[0]), x.numpy())
    assert np.array_equal(found.array(found.calls[2].given[0]), (x + 0.5).numpy())
    assert inner.plain[("scale",)] == 2.0
    assert (("more", "kind"), "builtins.object") in inner.unread
    assert [at.place for at in inner.gave] == [("hidden",)]
    assert found.modules[0].parameters.keys() == dict(model.named_parameters()).keys()
    assert found.dtype == "float32"


@pytest.mark.parametrize(
    ("options", "names"), [({"depth": 1}, ["", "inner", "norm"]), ({"only": ["norm"]}, ["", "norm"])]
)
def test_fewer_modules_on_request(model, tmp_path, options, names):
    _, found = recorded(model, tmp_path / "few.safetensors", torch.randn(3, 6), **options)
    assert [one.name for one in found.modules] == names


def test_attention_layers_stand_beside(tmp_path):
    layer = nn.TransformerEncoderLayer(12, 4, 17, batch_first=True).eval()
    with mha.capture(layer, tmp_path / "both.safetensors", modules=True):
        layer(torch.randn(2, 5, 12))
    assert Recording.load(tmp_path / "both.safetensors").names == ("self_attn",)
    names = [one.name for one in ModuleRecording(tmp_path / "both.safetensors").modules]
    assert names == ["", "self_attn", "dropout1", "norm1", "linear1", "dropout", "linear2", "dropout2", "norm2"]


def test_what_the_recorder_refuses(model, tmp_path):
    target = tmp_path / "none.safetensors"
    refused("needs a file", model, modules=True)
    refused("no module was called", model, lambda: None, target, modules=True)
    refused("at its limit of 100 bytes", model, lambda: model(torch.randn(3, 6)), target, modules=True, limit=100)
    refused("drops out", nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), path=target, modules=True)
    assert list(tmp_path.iterdir()) == []


def test_what_the_reader_refuses(model, tmp_path):
    path = tmp_path / "whole.safetensors"
    recorded(model, path, torch.randn(3, 6))
    with pytest.raises(FileNotFoundError):
        ModuleRecording(tmp_path / "other.safetensors")
    data = path.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(data[:-40])
    (tmp_path / "header.safetensors").write_bytes(data.replace(b'\\"inner.linear\\"', b'\\"inner.linexr\\"', 1))
    for name in ("cut", "header"):
        with pytest.raises(SpecError, match="safetensors"):
            ModuleRecording(tmp_path / f"{name}.safetensors")
    layer = nn.MultiheadAttention(6, 2, batch_first=True).eval()
    with mha.capture(layer, tmp_path / "calls.safetensors"):
        layer(*[torch.randn(1, 3, 6)] * 3)
    with pytest.raises(SpecError, match="holds no modules"):
        ModuleRecording(tmp_path / "calls.safetensors")


def test_equal_arrays_are_written_once(tmp_path):
    stream = ArrayStream(tmp_path / "file", limit=1000)
    ones = np.ones((2, 3), np.float32)
    assert stream.add(ones) == stream.add(ones.copy()) != stream.add(ones.T)
    stream.close()
