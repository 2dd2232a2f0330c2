"""`mha convert`: any layout in any file into any other, the same to the bit, run on both sides, or not at all."""

import os
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

import mha.convert.verify as verify
from conformance.deviations import known as deviations
from mha.convert.verify import VerificationFailed
from mha_core import AttentionConfig, check_weights
from mha_core.files.declared import declared
from mha_core.layouts import LAYOUTS, get
from tests.mha.convert.weight_files import (
    CONFIG,
    GROUPED,
    PREFIXES,
    arrays_of,
    assert_holds,
    config_for,
    mha,
    move,
    refused,
    two_layers,
)

FILES = {
    "canonical": "file.safetensors",
    "bert": "file.pt",
    "keras": "file.weights.h5",
    "linen": "file.msgpack",
    "nnx": "file.npz",
    "mxnet-selfatt": "file.params",
}


@pytest.mark.usefixtures("without_frameworks")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_goes_to_canonical_and_back_to_the_bit(layout, tmp_path):
    config = config_for(layout)
    first, canonical, back = (tmp_path / f"{name}.safetensors" for name in "abc")
    save_file(two_layers(layout, config), first)
    move(first, from_layout=layout, to_layout="canonical", out=canonical, num_heads=config.num_heads, every=True)
    assert_holds(canonical, two_layers("canonical", config))
    move(canonical, to_layout=layout, out=back, every=True)
    assert_holds(back, two_layers(layout, config))


@pytest.mark.usefixtures("without_frameworks")
@pytest.mark.parametrize(("layout", "name"), FILES.items())
def test_every_format_is_written_and_read(layout, name, source, tmp_path):
    path = tmp_path / name
    done = move(source, to_layout=layout, out=path, num_heads=3, every=True)
    assert [layer.prefix for layer in done.layers] == list(PREFIXES)
    assert {(layer.config, layer.from_layout, layer.dtype) for layer in done.layers} == {(CONFIG, "torch", "float32")}
    assert_holds(path, two_layers(layout))
    back = tmp_path / "back.safetensors"
    move(path, from_layout=layout, to_layout="torch", out=back, num_heads=3, every=True)
    assert_holds(back, two_layers("torch"))
    assert sorted(os.listdir(tmp_path)) == sorted(["source.safetensors", name, "back.safetensors"])


def test_a_keras_model_loads_all_layers_numbered_as_keras_counts(source, tmp_path):
    keras = pytest.importorskip("backends.tf.ops.framework").keras
    out = tmp_path / "model.weights.h5"
    prefix = "layers/multi_head_attention{_index}"
    result = mha(source, "--to", "keras", "--out", out, "--all", "--num-heads", 3, "--to-prefix", prefix, "--moved")
    assert result.exit_code == 0, result.output
    assert "source run by torch.nn.MultiheadAttention in float32" in result.output
    assert "target run by keras.layers.MultiHeadAttention in float32" in result.output
    layers = [keras.layers.MultiHeadAttention(3, 4) for _ in PREFIXES]
    inputs = keras.Input((5, 12))
    model = keras.Model(inputs, layers[1](layers[0](inputs, inputs), inputs))
    model.load_weights(out)
    for seed, layer in enumerate(layers):
        found = {"/".join(variable.path.split("/")[-2:]): np.asarray(variable) for variable in layer.weights}
        wanted = arrays_of("keras", seed=seed)
        assert set(found) == set(wanted)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("layout", ["keras", "keras-gqa"])
def test_a_float64_layer_of_keras_is_judged_with_the_scale_that_it_rounds(layout, tmp_path, monkeypatch):
    """Heads of 5: float32 does not hold 1 / sqrt(5). Heads of 4: it holds 1 / 2, and there is nothing to say."""
    pytest.importorskip("backends.tf.ops.framework")
    options = {"to_layout": layout, "num_heads": 3, "force": True}
    out = tmp_path / "b.weights.h5"
    for width, rounded in ((4, False), (5, True)):
        config = AttentionConfig(3 * width, 3, bias=True)
        save_file(arrays_of("torch", config, dtype="float64"), tmp_path / "a.safetensors")
        (layer,) = move(tmp_path / "a.safetensors", out=out, **options).layers
        assert layer.target.ratio <= 1.0
        said = [note for note in layer.notes if "rounds it to float32" in note]
        assert len(said) == rounded
        if rounded:
            assert f"keras-{'mha' if layout == 'keras' else 'gqa'}-scale-in-float32" in said[0]
            assert "the scale 0.4472135901451111 where the definition has 0.4472135954999579" in said[0]
    # Another scale than the rounded one is an error all the same.
    right = verify.ask

    def wrong(subject, problem):
        trace = right(subject, problem)
        return replace(trace, output=trace.output * (1 + 1e-8)) if "keras" in subject.name else trace

    monkeypatch.setattr(verify, "ask", wrong)
    with pytest.raises(VerificationFailed, match="the target differs from the reference in keras"):
        move(tmp_path / "a.safetensors", out=out, **options)


def test_the_listed_deviations_of_the_scale_are_there():
    listed = {entry.id: entry for entry in deviations.load().entries}
    for subject, identifier in verify.SCALE_IN_FLOAT32.items():
        assert (listed[identifier].subject, "float64" in listed[identifier].dtypes) == (subject, True)


SUBJECTS = declared(verify.ENTRY_POINT_GROUP, "a subject for the layout")


@pytest.mark.parametrize("layout", SUBJECTS)
def test_the_layer_that_verifies_a_layout_is_there_and_is_used(layout, tmp_path, backend_names):
    entry_point = SUBJECTS[layout]
    framework = get(layout).framework
    assert entry_point.module.split(".")[1] == framework
    if framework not in backend_names:
        pytest.skip(f"{framework} is not among the backends under test")
    subject = entry_point.load()
    save_file(arrays_of(layout, GROUPED if layout == "keras-gqa" else CONFIG), tmp_path / "a.safetensors")
    heads = {"num_heads": None if get(layout).carries_heads else 3}
    done = move(tmp_path / "a.safetensors", from_layout=layout, to_layout="canonical", out=tmp_path / "b.npz", **heads)
    (layer,) = done.layers
    assert layer.source.engine == subject.name
    assert layer.target.engine == f"backend {framework}"
    for side in (layer.source, layer.target):
        assert 0.0 < side.ratio <= 1.0


@pytest.mark.usefixtures("without_frameworks")
def test_a_side_that_computes_something_else_ends_it_with_status_1_and_nothing_written(source, tmp_path, monkeypatch):
    right = verify.ask

    def wrong(subject, problem):
        trace = right(subject, problem)
        is_wrong = subject.name == "the reference in NumPy"
        return replace(trace, output=trace.output * np.float32(1.001)) if is_wrong else trace

    monkeypatch.setattr(verify, "ask", wrong)
    result = mha(source, "--to", "keras", "--out", tmp_path / "o.weights.h5", "--all", "--num-heads", 3, "--moved")
    assert result.exit_code == 1
    said = "encoder.layers.0.attn: the source differs from the reference in the reference in NumPy: output"
    assert said in result.output
    assert "nothing was written" in result.output
    assert os.listdir(tmp_path) == ["source.safetensors"]


@pytest.mark.usefixtures("without_frameworks")
@pytest.mark.parametrize("layout", ["keras", "linen", "canonical", "mxnet-selfatt"])
def test_a_layout_that_mixes_up_heads_is_caught_by_reading_it_back(layout, source, tmp_path, monkeypatch):
    """What goes into the file is not what came out of the other: the first number of one array is another."""
    right = type(get(layout)).write

    def wrong(self, config, weights):
        arrays = right(self, config, weights)
        first = next(iter(arrays.values()))
        first[(0,) * first.ndim] += 1.0
        return arrays

    monkeypatch.setattr(type(get(layout)), "write", wrong)
    refused(source, "has other numbers in", to_layout=layout, num_heads=3, every=True, moved=True)
    assert os.listdir(tmp_path) == ["source.safetensors"]


@pytest.mark.parametrize(("layout", "name"), [("keras", "o.weights.h5"), ("linen", "o.msgpack"), ("torch", "o.pt")])
def test_a_wrong_fact_in_a_layout_is_caught_by_running_it(layout, name, tmp_path, monkeypatch, backend_names):
    """Heads counted backwards, both when writing and when reading: the arrays come back the same to the bit."""
    if get(layout).framework not in backend_names:
        pytest.skip(f"{get(layout).framework} is not among the backends under test")
    kind = type(get(layout))
    right_write, right_read = kind.write, kind.read

    def backwards(config, weights):
        rows = np.arange(12).reshape(3, 4)[::-1].reshape(-1)  # of the value heads alone, so that it does not cancel out
        return {key: array[rows] if key.startswith("v_proj") else array for key, array in weights.items()}

    def read(self, arrays, **heads):
        config, weights = right_read(self, arrays, **heads)
        return config, check_weights(config, backwards(config, weights))

    monkeypatch.setattr(
        kind, "write", lambda self, config, weights: right_write(self, config, backwards(config, weights))
    )
    monkeypatch.setattr(kind, "read", read)
    save_file(arrays_of("canonical"), tmp_path / "a.safetensors")
    with pytest.raises(VerificationFailed, match="the target differs from the reference"):
        move(tmp_path / "a.safetensors", to_layout=layout, out=tmp_path / name, num_heads=3)
    assert os.listdir(tmp_path) == ["a.safetensors"]
