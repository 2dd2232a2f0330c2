"""What `mha convert` knows of a .keras archive: the class of a layer, and the settings that change what it computes."""

import json
import zipfile

import numpy as np
import pytest

pytestmark = [
    # Keras' own, of what it saves of the state of dropout, with NumPy 2.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
    pytest.mark.usefixtures("without_frameworks"),
]

keras = pytest.importorskip("backends.tf.ops.framework").keras

from mha.convert.convert import convert, list_layers  # noqa: E402
from mha.formats import open_checkpoint  # noqa: E402
from mha.formats.find import find_layers  # noqa: E402
from mha.formats.layer import read_layer  # noqa: E402
from mha_core import AttentionInputs, reference  # noqa: E402
from mha_core.layouts import get  # noqa: E402
from tests.mha.convert.weight_files import refused  # noqa: E402

MHA = keras.layers.MultiHeadAttention


def saved(folder, build, shape=(5, 12)):
    """A model of the layers that `build` applies to its input, in an archive."""
    inputs = keras.Input(shape)
    keras.Model(inputs, build(inputs)).save(folder / "model.keras")
    return folder / "model.keras"


def test_layers_of_keras_are_known_by_their_class_also_in_a_model_within_a_model(tmp_path):
    inner_input = keras.Input((5, 12))
    inner = keras.Model(inner_input, keras.layers.MultiHeadAttention(2, 3, value_dim=5)(inner_input, inner_input))

    def build(x):
        y = MHA(3, 4, dropout=0.1)(x, x)
        y = keras.layers.Dense(12)(y)
        y = keras.layers.MultiHeadAttention(2, 6, attention_axes=(1,), use_bias=False)(y, x)
        y = keras.layers.GroupQueryAttention(3, 4, 2, dropout=0.2)(y, x)
        return keras.Sequential([keras.Input((5, 12)), inner])(y)

    path = saved(tmp_path, build)
    done = convert(path, to_layout="llama", out=tmp_path / "o.npz", every=True)
    multi_head = ("keras", "the archive names keras.layers.MultiHeadAttention")
    assert {layer.prefix: (layer.from_layout, layer.standing.why) for layer in done.layers} == {
        "layers/grouped_query_attention": ("keras-gqa", "the archive names keras.layers.GroupQueryAttention"),
        "layers/multi_head_attention": multi_head,
        "layers/multi_head_attention_1": multi_head,
        "layers/sequential/layers/functional/layers/multi_head_attention": multi_head,
    }
    assert {layer.standing.word for layer in done.layers} == {"known"}


class Mine(keras.layers.MultiHeadAttention):
    """A class of somebody's own computes what it will."""


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (lambda x: MHA(3, 4, sliding_window=2)(x, x), (5, 12), "sliding_window is 2, and"),
        (lambda x: keras.layers.GroupQueryAttention(4, 4, 2, sliding_window=3)(x, x), (5, 12), "sliding_window is 3"),
        (lambda x: MHA(3, 4, attention_axes=(2,))(x, x), (5, 7, 12), r"attention_axes is \[2\]"),
        (lambda x: MHA(3, 4)(x, x), (5, 7, 12), r"attention_axes is \[1, 2\]"),
        (lambda x: Mine(3, 4)(x, x), (5, 12), "lists no attention layer of keras.layers there"),
    ],
)
def test_what_computes_something_else_is_not_known(build, shape, message, tmp_path):
    path, out = saved(tmp_path, build, shape), tmp_path / "o.npz"
    refused(path, f"neither proved nor known: .*{message}", out=out)
    assert not out.exists()
    assert convert(path, to_layout="canonical", out=out, moved=True).layers[0].standing.word == "moved"


def test_a_gate_stops_the_layer_by_its_setting_and_its_arrays(tmp_path):
    path = saved(tmp_path, lambda x: MHA(3, 4, use_gate=True)(x, x))
    refused(path, "neither proved nor known: use_gate is True")
    refused(path, r"no part of its layout: .*gate.* \(a gate\)", moved=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layer: layer.update(module="mine"), "its class is mine.MultiHeadAttention, not the one of keras"),
        (lambda layer: layer.update(registered_name="mine>MultiHeadAttention"), "not the one of keras.layers"),
        (lambda layer: layer["config"].update(alibi=True), "it has the setting alibi, which is not known here"),
        (lambda layer: layer["config"]["dtype"].update(class_name="QuantPolicy"), "its dtype policy is a QuantPolicy"),
        (lambda layer: layer["config"].update(num_heads=4), r"says heads and width \(4, 4\), and its arrays \(3, 4\)"),
        (lambda layer: layer.pop("config"), "its config.json can't be read: KeyError"),
    ],
)
def test_a_config_that_says_something_else_is_believed(change, message, tmp_path):
    path = saved(tmp_path, lambda x: MHA(3, 4)(x, x))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(members["config.json"])
    change(config["config"]["layers"][1])
    members["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    refused(path, message)


def test_the_state_of_dropout_stops_no_weights(tmp_path):
    """A file of weights names no class; the random numbers of its dropout do not change what it computes."""
    layer = MHA(3, 4, dropout=0.1)
    model_input = keras.Input((5, 12))
    keras.Model(model_input, layer(model_input, model_input)).save_weights(tmp_path / "a.weights.h5")
    assert [layer.prefix for layer in list_layers(tmp_path / "a.weights.h5")] == ["layers/multi_head_attention"]
    refused(tmp_path / "a.weights.h5", "its names fit layers of several classes, and there is no config.json beside it")
    assert convert(tmp_path / "a.weights.h5", to_layout="canonical", out=tmp_path / "o.npz", moved=True).layers


class HeadsFirst(keras.layers.Layer):
    """Projections as those of KerasHub's Gemma, whose kernels have the heads first."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.query_dense = keras.layers.EinsumDense("btd,ndh->btnh", (None, 4, 5), name="query")
        self.key_dense = keras.layers.EinsumDense("bsd,kdh->bskh", (None, 2, 5), name="key")
        self.value_dense = keras.layers.EinsumDense("bsd,kdh->bskh", (None, 2, 5), name="value")
        self.output_dense = keras.layers.EinsumDense("btnh,nhd->btd", (None, 12), name="attention_output")

    def call(self, x):
        q, k, v = (np.asarray(one(x)) for one in (self.query_dense, self.key_dense, self.value_dense))
        k, v = (np.repeat(one, 2, axis=2) for one in (k, v))
        scores = np.einsum("btnh,bsnh->bnts", q, k) / 5**0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.output_dense(np.einsum("bnts,bsnh->btnh", weights, v))


class Holding(keras.Model):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def call(self, x):
        return self.attention(x)


def test_kernels_with_their_heads_first_are_read(tmp_path):
    keras.utils.set_random_seed(0)
    model, x = Holding(HeadsFirst()), np.random.default_rng(0).normal(size=(2, 7, 12)).astype("float32")
    expected = np.asarray(model(x))
    model.save_weights(tmp_path / "model.weights.h5")
    with open_checkpoint(tmp_path / "model.weights.h5") as checkpoint:
        (found,) = find_layers(checkpoint)
        assert found.layouts == ("keras-heads-first",)
        config, weights, _ = read_layer(checkpoint, get("keras-heads-first"), found.prefix)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 5)
    trace = reference.run(config, weights, AttentionInputs(x, x, x))
    np.testing.assert_allclose(trace.output, expected, rtol=1e-5, atol=1e-5)
