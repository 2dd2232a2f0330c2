"""`mha convert`: configs in metadata, dtypes, and what has no place on the other side."""

import json
import os
import tracemalloc

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mha.convert.convert import list_layers
from mha.formats import open_checkpoint
from mha_core import AttentionConfig, SpecError, load_weights, save_weights
from tests.mha.convert.weight_files import (
    GROUPED,
    PREFIXES,
    arrays_of,
    assert_holds,
    move,
    refused,
    weights_of,
    write,
)

pytestmark = pytest.mark.usefixtures("without_frameworks")


def test_files_of_save_weights_are_read_and_ours_are_loaded_with_scale_and_dropout(tmp_path):
    config = AttentionConfig(12, 3, bias={"q_proj": True}, scale=0.3, dropout=0.1)
    weights = weights_of(config, 0)
    save_weights(tmp_path / "theirs.safetensors", config, weights)
    move(tmp_path / "theirs.safetensors", to_layout="canonical", out=tmp_path / "ours.safetensors")
    loaded_config, loaded = load_weights(tmp_path / "ours.safetensors")
    assert loaded_config == config
    assert all(loaded[name].tobytes() == array.tobytes() for name, array in weights.items())


def test_an_additive_score_keeps_its_weights(tmp_path):
    config = AttentionConfig(12, 3, score="additive", score_dim=5)
    save_weights(tmp_path / "a.safetensors", config, weights_of(config, 0))
    move(tmp_path / "a.safetensors", to_layout="canonical", out=tmp_path / "b.safetensors", to_prefix="attn")
    assert load_file(tmp_path / "b.safetensors")["attn.score.vector"].shape == (5,)
    with pytest.raises(SpecError, match="layout 'keras' belongs to layers that scale by .* Got score='additive'"):
        move(tmp_path / "b.safetensors", to_layout="keras", out=tmp_path / "c.weights.h5")


@pytest.mark.parametrize(("fields", "message"), [({"scale": 0.3}, "Got scale=0.3"), ({"softcap": 5}, "Got softcap=5")])
def test_what_a_config_says_and_no_array_can_is_not_dropped(fields, message, tmp_path):
    config = AttentionConfig(12, 3, **fields)
    save_weights(tmp_path / "a.safetensors", config, weights_of(config, 0))
    for layout, out in (("torch", "b.pt"), ("canonical", "b.npz")):
        refused(tmp_path / "a.safetensors", message, to_layout=layout, out=tmp_path / out, moved=True)


def test_several_layers_keep_a_config_each_and_need_no_heads_the_next_time(source, tmp_path):
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    move(source, to_layout="bert", out=first, every=True, num_heads=3)
    with safe_open(first, framework="numpy") as file:
        metadata = file.metadata()
    assert metadata.pop("mha_seal")
    configs = {key: text for key, text in metadata.items() if key.startswith("mha_config")}
    assert {key: json.loads(text)["num_heads"] for key, text in configs.items()} == {
        f"mha_config:{prefix}": 3 for prefix in PREFIXES
    }
    move(first, to_layout="torch", out=second, prefix=PREFIXES[1])
    assert_holds(second, arrays_of("torch", seed=1))
    assert [layer.num_heads for layer in list_layers(first)] == [3, 3]


WIDER = json.dumps(AttentionConfig(24, 3).to_dict())


@pytest.mark.parametrize(
    ("layout", "text", "message"),
    [
        ("canonical", WIDER, "must have shape|hold '"),
        ("bert", WIDER, "the config in the file's metadata does not fit"),
        ("bert", "{", "the config 'mha_config' in its metadata is not JSON"),
        ("bert", "[3]", r"the config 'mha_config' in its metadata must be a JSON object. Got \[3\]\."),
        ("bert", '{"heads": 3}', "heads"),
        ("bert", '{"embed_dim": 12, "num_heads": "3"}', "num_heads must be"),
    ],
)
def test_a_config_that_is_none_or_does_not_fit_the_arrays_is_refused(layout, text, message, tmp_path):
    save_file(arrays_of(layout), tmp_path / "a.safetensors", metadata={"mha_config": text})
    refused(tmp_path / "a.safetensors", message, to_layout="torch", moved=True)
    assert os.listdir(tmp_path) == ["a.safetensors"]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "layout"),
    [("file.pt", "bert"), ("file.weights.h5", "keras"), ("file.msgpack", "linen"), ("file.safetensors", "keras")],
)
def test_every_dtype_arrives_to_the_bit(dtype, name, layout, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    arrays = {own: array.astype(numpy_dtype) for own, array in arrays_of("torch").items()}
    save_file(arrays, tmp_path / "a.safetensors")
    done = move(tmp_path / "a.safetensors", to_layout=layout, out=tmp_path / name, num_heads=3)
    assert done.layers[0].dtype == dtype
    assert_holds(tmp_path / name, {own: array.astype(numpy_dtype) for own, array in arrays_of(layout).items()})


def test_a_dtype_is_cast_only_when_asked_for_and_if_it_has_the_range(tmp_path):
    arrays = arrays_of("torch")
    save_file({**arrays, "out_proj.weight": arrays["out_proj.weight"].astype("float64")}, tmp_path / "a.safetensors")
    with pytest.raises(SpecError, match=r"several dtypes; say which it shall have \(--dtype\). Got float32, float64."):
        move(tmp_path / "a.safetensors", to_layout="bert", out=tmp_path / "b.npz", num_heads=3)
    move(tmp_path / "a.safetensors", to_layout="bert", out=tmp_path / "b.npz", num_heads=3, dtype="float16")
    assert_holds(tmp_path / "b.npz", {name: array.astype("float16") for name, array in arrays_of("bert").items()})
    arrays["out_proj.bias"][3] = 70000.0
    save_file(arrays, tmp_path / "a.safetensors")
    said = "out_proj.bias has numbers beyond the range of float16, such as 70000"
    refused(tmp_path / "a.safetensors", said, to_layout="torch", num_heads=3, dtype="float16", moved=True)


@pytest.mark.parametrize(("name", "layout"), [("b.npz", "torch"), ("b.params", "mxnet-selfatt")])
def test_a_dtype_that_a_format_cannot_hold_is_refused(name, layout, tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    arrays = {own: array.astype(ml_dtypes.bfloat16) for own, array in arrays_of("torch").items()}
    save_file(arrays, tmp_path / "a.safetensors")
    with pytest.raises(SpecError, match=r"files can't hold bfloat16 \(they can: float64, float32, float16\)"):
        move(tmp_path / "a.safetensors", to_layout=layout, out=tmp_path / name, num_heads=3)
    move(tmp_path / "a.safetensors", to_layout=layout, out=tmp_path / name, num_heads=3, dtype="float32")
    rounded = {own: array.astype(ml_dtypes.bfloat16).astype("float32") for own, array in arrays_of(layout).items()}
    assert_holds(tmp_path / name, rounded)


def test_missing_biases_become_zeros_and_are_named(tmp_path):
    config = AttentionConfig(12, 3, bias={"q_proj": True, "v_proj": True, "out_proj": True})
    save_file(arrays_of("canonical", config, "decoder.attn"), tmp_path / "whisper.safetensors")
    done = move(tmp_path / "whisper.safetensors", to_layout="keras", out=tmp_path / "b.weights.h5", num_heads=3)
    assert done.layers[0].notes == ("zeros for biases that were not found there: k_proj.bias",)
    with open_checkpoint(tmp_path / "b.weights.h5") as checkpoint:
        assert not checkpoint.array("key/bias").any()


@pytest.mark.parametrize(
    ("layout", "extra", "meaning"),
    [
        ("torch", "attn.bias_k", "an extra key"),
        ("llama", "attn.q_norm.weight", "a norm of queries"),
        ("linen", "attn/query_ln/scale", "a norm of queries"),
        ("canonical", "attn.rotary_emb.inv_freq", "rotary positions"),
        ("canonical", "attn.score.vector", "a score function"),
        ("bert", "attn.output.LayerNorm.weight", ""),
        ("bert", "attn.anything.at.all", ""),
    ],
)
def test_unknown_arrays_beside_a_layer_stop_it_unless_they_are_to_be_left(layout, extra, meaning, tmp_path):
    source, out = tmp_path / "a.safetensors", tmp_path / "b.npz"
    arrays = {**arrays_of(layout, prefix="attn"), extra: np.ones(12, "float32"), "attention.x": np.ones(2, "float32")}
    save_file(arrays, source)
    name = extra[len("attn.") :]
    with pytest.raises(SpecError, match="arrays that are no part of its layout: " + name) as caught:
        move(source, to_layout="torch", out=out, num_heads=3)
    assert meaning in str(caught.value)
    assert f"--leave '{name}'" in str(caught.value)
    with pytest.raises(SpecError, match=r"leave 'q_nrm\.\*' fits no array"):
        move(source, to_layout="torch", out=out, num_heads=3, leave=[name, "q_nrm.*"])
    assert not out.exists()
    caveat = "the Llama family also turns queries and keys by their position, which no array says"
    for pattern in (name, extra, name[:3] + "*"):
        done = move(source, to_layout="torch", out=out, num_heads=3, leave=[pattern], force=True)
        left = f"left behind, no part of the layout: {name}"
        assert done.layers[0].notes == ((caveat, left) if layout == "llama" else (left,))


def test_grouped_heads_go_where_they_have_a_place(tmp_path):
    save_file(arrays_of("llama", GROUPED), tmp_path / "a.safetensors")
    done = move(tmp_path / "a.safetensors", to_layout="keras-gqa", out=tmp_path / "b.weights.h5", num_heads=4)
    assert done.layers[0].config == GROUPED
    assert [(layer.num_heads, layer.num_kv_heads) for layer in list_layers(tmp_path / "b.weights.h5")] == [(4, 2)]
    back = move(tmp_path / "b.weights.h5", to_layout="llama", out=tmp_path / "c.safetensors")
    assert back.layers[0].from_layout == "keras-gqa", "keras.layers.MultiHeadAttention has no groups"
    assert_holds(tmp_path / "c.safetensors", arrays_of("llama", GROUPED))
    said = "layout 'keras' has as many key heads as query heads. Got num_heads=4"
    refused(tmp_path / "a.safetensors", said, to_layout="keras", num_heads=4, moved=True)


@pytest.mark.parametrize(
    ("name", "layout"),
    [("a.pt", "d2l-torch"), ("a.params", "d2l-mxnet"), ("a.msgpack", "linen"), ("a.weights.h5", "keras")],
)
def test_of_layouts_that_are_read_in_the_same_way_the_one_of_the_files_framework_is_taken(name, layout, tmp_path):
    path = write(tmp_path / name, arrays_of(layout), layout)
    assert len(list_layers(path)[0].layouts) == 2
    done = move(path, to_layout="bert", out=tmp_path / "b.npz", num_heads=3)
    assert done.layers[0].from_layout == layout
    assert_holds(tmp_path / "b.npz", arrays_of("bert"))


@pytest.mark.nightly("files are converted", every=2)
@pytest.mark.parametrize(
    ("name", "layout"), [("b.weights.h5", "keras"), ("b.npz", "bert"), ("b.params", "mxnet-selfatt")]
)
def test_a_file_is_converted_layer_by_layer(name, layout, tmp_path):
    config = AttentionConfig(96, 3, bias=True)
    arrays = {key: a for i in range(24) for key, a in arrays_of("torch", config, f"layer.{i}", seed=i).items()}
    save_file(arrays, tmp_path / "a.safetensors")
    size = sum(array.nbytes for array in arrays.values())
    del arrays
    move(tmp_path / "a.safetensors", to_layout=layout, out=tmp_path / name, prefix="layer.0", num_heads=3)  # imports
    tracemalloc.start()
    try:
        move(tmp_path / "a.safetensors", to_layout=layout, out=tmp_path / name, every=True, num_heads=3, force=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size
