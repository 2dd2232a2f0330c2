"""Two recordings of real layers: PyTorch's beside Keras', and the example of docs/recordings.md."""

import re
from dataclasses import replace
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


def masked(text):
    """The text with every number as #, and one space between words, up to the names of bugs: roundings order them."""
    text = text.partition("  within the bound")[0]
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "#", text)).strip()


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = PAGE.partition("## Two recordings")[2].partition("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    exec(compile(code, "docs/recordings.md", "exec"), {"__name__": "example"})
    (shown,) = re.findall(r"```\n\$ mha (where .*?)\n(.*?)```", text, re.DOTALL)
    done = CliRunner(env={"COLUMNS": "130"}).invoke(main, shown[0].split())
    assert done.exit_code == 1, done.output
    assert masked(done.output) == masked(shown[1])


def normalised(x):
    centred = x.astype(np.float64) - x.mean(axis=-1, keepdims=True, dtype=np.float64)
    return (centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)).astype(np.float32)


def recorded(layers, call):
    """A recording of each layer on what the one before gave."""
    recordings, x = [], X
    for layer in layers:
        with mha.capture(layer) as seen:
            output = np.asarray(call(layer, x))
        recordings.append(seen.recording)
        x = normalised(x + output)
    named = [replace(one.layers[0], name=f"{i}") for i, one in enumerate(recordings)]
    calls = [replace(one.calls[0], layer=i) for i, one in enumerate(recordings)]
    return mha.Recording(tuple(named), tuple(calls), seen.recording.versions)


@pytest.mark.parametrize(
    ("mask", "part", "words"),
    [
        (~PADDED, None, "Equal: 2 pairs agree"),
        (PADDED, "mask", "its mask is inverted"),
        (None, "mask", "it forgets the mask"),
    ],
)
def test_keras_beside_torch(mask, part, words, backend_names):
    """Two attention layers of PyTorch with biases that are not 0, and their weights in Keras."""
    if not {"torch", "tf"} <= set(backend_names):
        pytest.skip("torch and tf are not both under test")
    import torch

    from backends.tf.native.convert import to_native
    from backends.torch.native.convert import from_native

    torch.manual_seed(0)
    original = [torch.nn.MultiheadAttention(12, 4, batch_first=True).eval() for _ in range(2)]
    for layer in original:
        for bias in (layer.in_proj_bias, layer.out_proj.bias):
            torch.nn.init.normal_(bias)

    def call(layer, x):
        x = torch.from_numpy(x)
        return layer(x, x, x, key_padding_mask=torch.from_numpy(PADDED), need_weights=False)[0].detach().numpy()

    given = {} if mask is None else {"attention_mask": mask[:, None, :]}
    ported = recorded([to_native(*from_native(layer)) for layer in original], lambda layer, x: layer(x, x, **given))
    found = mha.where(recorded(original, call), ported)
    said = said_of(found)
    assert words in said, said
    assert (found.first[1].part if found.first else None) == part
