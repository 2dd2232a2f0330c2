"""Layers whose parameters are stacked along a first axis, as flax's scan and torch's stack_module_state do."""

import numpy as np
import pytest

from mha.convert.convert import convert, list_layers
from mha.convert.verify import VerificationFailed
from mha.formats import open_checkpoint
from mha_core import AttentionConfig, AttentionInputs
from mha_core.layouts import get
from mha_core.reference import pipeline as reference
from tests.mha.convert.weight_files import CONFIG, arrays_of, refused, weights_of, write

LAYERS = 5
WAYS = {
    "linen": ("params/layers", "attn", "w.msgpack"),
    "llama-kernel": ("params/h", "block/self_attn", "w.msgpack"),
    "canonical": ("", "attn", "w.safetensors"),
    "bart-kernel": ("model/stack", "attn", "w.npz"),
}
"""Layout -> what stands before the stack's names, and in them; and the file."""


def stacked(layout, config=CONFIG):
    before, within, _ = WAYS[layout]
    separator = get(layout).separator
    each = [arrays_of(layout, config, seed=seed) for seed in range(LAYERS)]
    names = {name: np.stack([one[name] for one in each]) for name in each[0]}
    found = {separator.join(filter(None, (before, within, name))): array for name, array in names.items()}
    norm = separator.join(filter(None, (before, "norm", "scale")))
    return found | {norm: np.ones((LAYERS, 12), np.float32)}


def prefixes(layout):
    before, within, _ = WAYS[layout]
    separator = get(layout).separator
    return [separator.join(filter(None, (before, str(layer), within))) for layer in range(LAYERS)]


@pytest.mark.parametrize("layout", WAYS)
@pytest.mark.parametrize("config", [CONFIG, AttentionConfig(12, 3)], ids=["biases", "no biases"])
def test_each_layer_of_a_stack_is_found_and_converted(layout, config, tmp_path):
    beside = {"head" + get(layout).separator + "kernel": np.ones((12, 7), np.float32)}
    source = write(tmp_path / WAYS[layout][2], stacked(layout, config) | beside, layout)
    before = "" if WAYS[layout][0] else "attn"  # nothing is called after layers: all below one name are a stack
    found = list_layers(source)
    wanted = prefixes(layout) if not before else [f"attn.{layer}" for layer in range(LAYERS)]
    assert [layer.prefix for layer in found] == wanted
    out = tmp_path / "out.safetensors"
    convert(source, every=True, to_layout="canonical", out=out, moved=True, num_heads=3, to_prefix="layer.{index}")
    with open_checkpoint(out) as written:
        for layer in range(LAYERS):
            for name, array in weights_of(config, layer).items():
                assert np.array_equal(written.array(f"layer.{layer}.{name}"), array), name


def calls(order, layout="linen"):
    found = {}
    for layer, seed in enumerate(order):
        x = np.random.default_rng(seed).standard_normal((2, 6, 12)).astype(np.float32)
        inputs = AttentionInputs(*(x.astype(np.float64),) * 3)
        weights = {name: array.astype(np.float64) for name, array in weights_of(CONFIG, seed).items()}
        y = reference.run(CONFIG, weights, inputs).output.astype(np.float32)
        at = f"{prefixes(layout)[layer]}/0"
        found |= {f"{at}/queries": x, f"{at}/output": y, f"{at}/causal": np.array(False)}
    return found


def test_calls_prove_the_layers_of_a_stack_each(tmp_path):
    source, out = write(tmp_path / "w.msgpack", stacked("linen"), "linen"), tmp_path / "out.safetensors"
    np.savez(tmp_path / "calls.npz", **calls(range(LAYERS)))
    done = convert(source, every=True, to_layout="canonical", out=out, recorded=tmp_path / "calls.npz")
    assert [layer.standing.word for layer in done.layers] == ["proved"] * LAYERS
    np.savez(tmp_path / "exchanged.npz", **calls([0, 2, 1, 3, 4]))
    with pytest.raises(VerificationFailed, match="layers/1/attn"):
        convert(source, every=True, to_layout="canonical", out=out, force=True, recorded=tmp_path / "exchanged.npz")


def test_layers_that_stand_by_themselves_and_stacks_of_others_are_no_layers(tmp_path):
    stack = np.ones((5, 12, 3, 4), np.float32)
    arrays = arrays_of("linen", prefix="layers/0/attn") | {"layers/1/attn/query/kernel": stack}
    (found,) = list_layers(write(tmp_path / "w.msgpack", arrays, "linen"))
    assert found.prefix == "layers/0/attn"
    arrays = {"layers/up/kernel": np.ones((5, 12, 20), np.float32), "layers/up/bias": np.ones((5, 20), np.float32)}
    source = write(tmp_path / "w.msgpack", arrays, "linen")
    assert list_layers(source) == []
    refused(source, "no attention layer of a layout that is known", out=tmp_path / "out.safetensors")
