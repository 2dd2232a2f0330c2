"""Small layers in files, for the tests of `mha convert`."""

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

import mha.convert.verify as verify
from mha.cli.porter.convert import convert as command
from mha.convert.convert import convert
from mha.formats import create, format_of, open_checkpoint
from mha_core import AttentionConfig, SpecError, init_weights
from mha_core.layouts import get

CONFIG = AttentionConfig(12, 3, bias=True)
FOUR_HEADS = AttentionConfig(12, 4, bias=True)
GROUPED = AttentionConfig(20, 4, num_kv_heads=2, bias=True)
PREFIXES = ("encoder.layers.0.attn", "encoder.layers.1.attn")


def weights_of(config, seed, dtype="float32"):
    return {name: array.astype(dtype) for name, array in init_weights(config, seed, bias_scale=1.0).items()}


def config_for(layout):
    """A config that a layer of this layout can have: CodeGen's packs heads by four."""
    return FOUR_HEADS if layout == "codegen" else CONFIG


def arrays_of(layout, config=CONFIG, prefix="", seed=0, dtype="float32"):
    written = get(layout).write(config, weights_of(config, seed, dtype))
    return {f"{prefix}{get(layout).separator}{name}" if prefix else name: array for name, array in written.items()}


def two_layers(layout, config=CONFIG):
    separator = get(layout).separator
    prefixes = [prefix.replace(".", separator) for prefix in PREFIXES]
    first, second = (arrays_of(layout, config, prefix, seed) for seed, prefix in enumerate(prefixes))
    return {**first, **second}


def write(path, arrays, layout):
    with create(path, format_of(path), layout=layout, configs={}) as add:
        for name, array in arrays.items():
            add(name, array)
    return path


def assert_holds(path, wanted):
    with open_checkpoint(path) as checkpoint:
        assert set(checkpoint.entries) == set(wanted)
        for name, array in wanted.items():
            found = checkpoint.array(name)
            assert (found.dtype, found.shape) == (array.dtype, array.shape), name
            assert found.tobytes() == array.tobytes(), name


def move(source, **arguments):
    """`convert` for tests of bits alone: what the original computes is neither proved nor known."""
    return convert(source, moved=True, **arguments)


def refused(source, message, *, error=SpecError, to_layout="canonical", out=None, **arguments):
    """Nothing is written, for this reason."""
    target = source.parent / "refused.npz" if out is None else out
    with pytest.raises(error, match=message):
        convert(source, to_layout=to_layout, out=target, **arguments)
    assert out is not None or not target.exists()


def mha(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(command, [str(argument) for argument in arguments])


def torch_source(folder):
    """Two layers of torch's own layout, side by side with something else."""
    path = folder / "source.safetensors"
    save_file({**two_layers("torch"), "encoder.norm.weight": np.ones(12, "float32")}, path)
    return path


def verify_in_numpy(monkeypatch):
    """For tests of everything but who verifies."""
    monkeypatch.setattr(verify, "_subjects", lambda layout, framework, dtype: [verify._Numpy()])
