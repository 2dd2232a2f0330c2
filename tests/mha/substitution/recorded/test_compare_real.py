"""Two recordings of real layers: PyTorch's beside Keras', and the example of docs/recordings.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from mha.cli.main import main
from tests.mha.substitution.recorded.three_layers import said_of

PAGE = (Path(__file__).parents[4] / "docs" / "recordings.md").read_text()
LENGTHS = np.array([4, 7])
PADDED = np.arange(7) >= LENGTHS[:, None]
X = np.random.default_rng(0).normal(size=(2, 7, 12)).astype(np.float32)


@pytest.fixture
def torch(backend_names):
    if "torch" not in backend_names:
        pytest.skip("torch is not under test")
    import torch

    return torch


@pytest.fixture
def keras(backend_names):
    if "tf" not in backend_names:
        pytest.skip("tf is not under test")
    import keras

    return keras


def masked(text):
    """The text with every number as #, and one space between words, up to the names of bugs: roundings order them."""
    text = text.partition("  within the bound")[0]
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", text)).strip()


def test_the_example_of_the_documentation(torch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.partition("## Two recordings")[2].partition("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    exec(compile(code, "docs/recordings.md", "exec"), {"__name__": "example"})
    (shown,) = re.findall(r"```\n\$ mha (where .*?)\n(.*?)```", text, re.DOTALL)
    done = CliRunner(env={"COLUMNS": "130"}).invoke(main, shown[0].split())
    assert done.exit_code == 1, done.output
    assert masked(done.output) == masked(shown[1])


def model_of(torch):
    """Two attention layers of PyTorch with biases that are not 0."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(torch.nn.MultiheadAttention(12, 4, batch_first=True) for _ in range(2))
    for layer in layers:
        for bias in (layer.in_proj_bias, layer.out_proj.bias):
            torch.nn.init.normal_(bias)
    return layers.eval()


def normalised(x):
    centred = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    return (centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)).astype(np.float32)


def recorded(layers, call):
    """A recording of each layer on what the one before gave."""
    calls, found, x = [], [], X
    for i, layer in enumerate(layers):
        with mha.capture(layer) as seen:
            output = np.asarray(call(layer, x))
        (one,) = seen.recording.layers
        found.append(mha.recordings.recording.RecordedLayer(f"{i}", one.kind, one.dtype, one.config, one.weights))
        calls.append(
            mha.recordings.recording.RecordedCall(i, seen.recording.calls[0].inputs, seen.recording.calls[0].outputs)
        )
        x = normalised(x + output)
    return mha.Recording(tuple(found), tuple(calls), seen.recording.versions)


def of_torch(torch, layers):
    padded = torch.from_numpy(PADDED)

    def call(layer, x):
        x = torch.from_numpy(x)
        with torch.no_grad():
            return layer(x, x, x, key_padding_mask=padded, need_weights=False)[0].numpy()

    return recorded(layers, call)


@pytest.mark.parametrize(
    ("mask", "part", "words"),
    [
        (~PADDED, None, "Equal: 2 pairs agree"),
        (PADDED, "mask", "its mask is inverted"),
        (None, "mask", "it forgets the mask"),
    ],
)
def test_keras_beside_torch(torch, keras, mask, part, words):
    from backends.tf.native.convert import to_native
    from backends.torch.native.convert import from_native

    original = model_of(torch)
    port = [to_native(*from_native(layer)) for layer in original]
    given = {} if mask is None else {"attention_mask": mask[:, None, :]}
    ported = recorded(port, lambda layer, x: layer(x, x, **given))
    found = mha.where(of_torch(torch, original), ported)
    said = said_of(found)
    assert words in said, said
    assert (found.first[1].part if found.first else None) == part


def test_the_first_layer_that_holds_anothers_weights(torch, keras):
    from backends.tf.native.convert import to_native
    from backends.torch.native.convert import from_native

    original = model_of(torch)
    port = [to_native(*from_native(layer)) for layer in reversed(original)]
    ported = recorded(port, lambda layer, x: layer(x, x, attention_mask=~PADDED[:, None, :]))
    found = mha.where(of_torch(torch, original), ported)
    assert "differs in weights: the port's layer holds the weights of the original's 1." in said_of(found)
