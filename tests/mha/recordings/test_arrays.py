"""Calls as plain arrays, which anything can write, read as a recording of modules."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import mha
from mha.convert.original import load_recorded
from mha.recordings.modules.arrays import ArraysRecording
from mha.recordings.modules.names import holds_arrays
from mha.recordings.recording import Recording
from mha_core import SpecError


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.up, self.norm = nn.Embedding(11, 6), nn.Linear(6, 5), nn.LayerNorm(5)

    def forward(self, ids):
        return torch.tanh(self.norm(self.up(self.words(ids))))


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = Model().eval()
    with torch.no_grad():
        for one in made.parameters():
            one.add_(0.1 * torch.randn_like(one))
    return made


def port_of(model, epsilon=1e-5):
    """The arrays of a port in NumPy."""
    own = {name: array.detach().numpy() for name, array in model.state_dict().items()}
    ids = np.arange(8).reshape(2, 4)
    looked = own["words.weight"][ids]
    x = looked @ own["up.weight"].T + own["up.bias"]
    y = x - x.mean(-1, keepdims=True)
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + np.float32(epsilon)) * own["norm.weight"] + own["norm.bias"]
    return {
        "0/inputs/0": ids,
        "0/outputs/logits": np.tanh(y),
        "table/1/inputs/ids": ids,
        "table/1/outputs/rows": looked,
        "table/parameters/rows": own["words.weight"],
        "dense/2/inputs/x": looked,
        "dense/2/outputs/y": x,
        "dense/parameters/w": own["up.weight"].T.copy(),
        "dense/parameters/b": own["up.bias"],
        "norm/3/inputs/x": x,
        "norm/3/outputs/y": y,
        "norm/parameters/scale": own["norm.weight"],
        "norm/parameters/bias": own["norm.bias"],
    }


def write(path, arrays):
    np.savez(path, **arrays) if path.suffix == ".npz" else save_file(arrays, path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("epsilon", [1e-5, 1e-2])
@pytest.mark.parametrize("live", [True, False])
def test_a_port_of_arrays_is_judged_like_one_of_modules(model, tmp_path, suffix, epsilon, live):
    path = write(tmp_path / f"port{suffix}", port_of(model, epsilon))
    original = model
    if not live:
        original = tmp_path / "original.safetensors"
        with mha.capture(model, original, modules=True):
            model(torch.arange(8).view(2, 4))
    report = mha.where(original, path)
    assert report.wrong == (("norm",) if epsilon == 1e-2 else ())
    assert report.equal is (epsilon == 1e-5)
    assert report.pairs == {"": "", "words": "table", "up": "dense", "norm": "norm"}


def test_a_call_was_made_within_the_last_one_of_the_module_around(tmp_path):
    x = np.ones(3, np.float32)
    calls = ["0", "block/1", "block/attn/2", "block/3", "block/attn/4"]
    arrays = {f"{one}/{side}/x": x for one in calls for side in ("inputs", "outputs")}
    found = ArraysRecording(write(tmp_path / "port.npz", arrays | {"block/attn/4/outputs/past/1": x}))
    assert [one.name for one in found.modules] == ["", "block", "block/attn"]
    assert [call.within for call in found.calls] == [None, 0, 1, 0, 3]
    assert [at.place for at in found.calls[4].gave] == [("x",), ("past", "1")]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": 1.0, "0/outputs/y": 1.0}, "whose names must be MODULE/CALL/inputs/NAME, .* Got 'x'"),
        ({"0/inputs/x": 1.0}, "call 0 of the model has inputs and no outputs"),
        ({"up/parameters/w": 1.0}, "holds no call: its arrays must have the names MODULE/CALL"),
    ],
)
def test_other_names_are_refused(tmp_path, arrays, message):
    path = write(tmp_path / "port.npz", {name: np.array(one) for name, one in arrays.items()})
    with pytest.raises(SpecError, match=message):
        ArraysRecording(path)


def test_what_has_no_attention_layer_is_said_to_be_for_where(model, tmp_path):
    path = write(tmp_path / "port.npz", port_of(model))
    with pytest.raises(SpecError, match=r"calls as plain arrays, and holds no call of an attention layer: `mha where`"):
        Recording.load(path)
    with mha.capture(model, tmp_path / "modules.safetensors", modules=True):
        model(torch.arange(8).view(2, 4))
    with pytest.raises(SpecError, match=r"a recording of modules, and holds no call of an attention layer"):
        Recording.load(tmp_path / "modules.safetensors")
    with pytest.raises(SpecError, match=r"a recording of modules, .* layers=\{NAME: mha.Projections"):
        load_recorded(tmp_path / "modules.safetensors")
    assert not holds_arrays(tmp_path / "modules.safetensors")


class Cached(nn.Module):
    """Running sums, with what came before as a cache; a port may count its positions from 0 again."""

    def __init__(self, *, counts=True):
        super().__init__()
        self.words, self.places, self.last = nn.Embedding(11, 6), nn.Embedding(9, 6), nn.Linear(6, 5)
        self.counts = counts

    def forward(self, ids, cache=None):
        start = 0 if cache is None or not self.counts else cache["length"].item()
        x = self.words(ids) + self.places(torch.arange(start, start + ids.shape[1]))
        total = x.cumsum(1) + (0 if cache is None else cache["sums"][0])
        length = torch.tensor(ids.shape[1] + (0 if cache is None else cache["length"].item()))
        return self.last(total), {"sums": (total[:, -1:],), "length": length}


class Steps(nn.Module):
    """The whole text in two steps, the second with the cache of the first."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        first, cache = self.model(ids[:, :5])
        second, _ = self.model(ids[:, 5:], cache)
        return torch.cat([first, second], dim=1)


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("steps", [True, False])
def test_several_calls_and_one_with_a_cache_are_judged(tmp_path, counts, steps):
    torch.manual_seed(0)
    model, port = Cached().eval(), Cached(counts=counts).eval()
    port.load_state_dict(model.state_dict())
    ids = torch.arange(8).view(1, 8)
    own, theirs = (Steps(model).eval(), Steps(port).eval()) if steps else (model, port)
    cache = None if steps else model(ids[:, :5])[1]
    with mha.capture(theirs, tmp_path / "port.safetensors", modules=True):
        theirs(ids) if steps else theirs(ids[:, 5:], cache)
    report = mha.where(own, tmp_path / "port.safetensors")
    assert report.wrong == (() if counts else ("model",) if steps else ("",))
    assert report.equal is counts
