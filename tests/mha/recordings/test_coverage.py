"""Coverage: what looks like attention in a model and was not read is named wherever layers are found."""

import json
import warnings

import pytest
from click.testing import CliRunner

import mha
from mha.cli.porter.replay import replay
from mha.coverage import (
    Coverage,
    Survey,
    Unread,
    UnreadWarning,
    has_projections,
    named_like_attention,
    unread_of,
)
from mha_core import SpecError
from tests.mha.recordings.capture.live_calls import numbers, refused
from tests.mha.recordings.wrong_ports import layer_of, recording_of

# Live models of all four frameworks: a known layer, a layer of an unknown class, one that is not called ----------


def torch_model():
    import torch

    class Gated(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.proj = torch.nn.Linear(12, 36), torch.nn.Linear(12, 12)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return self.proj((q @ k.mT).softmax(-1) @ v)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.spare = (torch.nn.MultiheadAttention(12, 4, batch_first=True) for _ in range(2))
            self.second = Gated()

        def forward(self, x):
            return self.second(self.first(x, x, x)[0])

    return Model().eval(), lambda model: model(torch.tensor(numbers(2, 3, 12))), True


def tf_model():
    import keras
    import tensorflow as tf

    class Gated(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (keras.layers.Dense(12) for _ in range(3))

        def call(self, x):
            return tf.nn.softmax(self.query(x) @ tf.linalg.matrix_transpose(self.key(x))) @ self.value(x)

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.spare = (keras.layers.MultiHeadAttention(4, 3, name=name) for name in ("first", "spare"))
            self.second = Gated()

        def call(self, x):
            return self.second(self.first(x, x))

    model, x = Model(), numbers(2, 3, 12)
    model.spare(x, x)
    model(x)
    return model, lambda model: model(x), True


def jax_model():
    import flax.linen as nn
    import jax

    class Gated(nn.Module):
        @nn.compact
        def __call__(self, x):
            q, k, v = (nn.Dense(12, name=name)(x) for name in ("query", "key", "value"))
            return nn.softmax(q @ k.swapaxes(1, 2)) @ v

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Gated(name="second")(nn.MultiHeadDotProductAttention(4, name="first")(x))

    model, x = Model(), numbers(2, 3, 12)
    variables = model.init(jax.random.key(0), x)
    return model, lambda model: model.apply(variables, x), False  # linen makes no layer that is not called


def mxnet_model():
    from backends.mxnet.layers import MultiHeadAttention
    from backends.mxnet.ops.framework import mx

    class Gated(mx.gluon.Block):
        def __init__(self):
            super().__init__()
            self.qkv = mx.gluon.nn.Dense(36, in_units=12)

        def forward(self, x):
            return x

    class Model(mx.gluon.Block):
        def __init__(self):
            super().__init__()
            self.first, self.spare, self.second = MultiHeadAttention(12, 4), MultiHeadAttention(12, 4), Gated()

        def forward(self, x):
            return self.second(self.first(x, x, x))

    model = Model()
    mx.util.use_np(model.initialize)()
    return model, mx.util.use_np(lambda model: model(mx.np.array(numbers(2, 3, 12)))), True


MODELS = {"torch": torch_model, "tf": tf_model, "jax": jax_model, "mxnet": mxnet_model}


@pytest.mark.same_on_newest_of("torch", "tf")  # their releases are the same there
def test_modules_of_unknown_classes_are_named_everywhere(backend_name, tmp_path):
    model, call, has_spare = MODELS[backend_name]()
    path = tmp_path / "calls.safetensors"
    with pytest.warns(UnreadWarning, match="look like attention; not: ") as heard, mha.capture(model, path) as seen:
        call(model)
    assert [warning.filename for warning in heard] == [__file__]
    found = seen.coverage
    assert [layer.name for layer in seen.recording.layers] == list(found.read)
    assert len(found.read) == 1
    assert [one.why for one in sorted(found.unread, key=lambda one: one.why)] == ["uncalled"] * has_spare + ["unknown"]
    unknown = next(one for one in found.unread if one.why == "unknown")
    assert unknown.kind.endswith("Gated")
    assert mha.Recording.load(path).coverage == found

    result = CliRunner().invoke(replay, [str(path), "-b", backend_name, "--json", str(tmp_path / "replay.json")])
    assert result.exit_code == 2, result.output  # what was recorded is equal, and that is not all of the model
    assert "results are equal to the reference" in result.output
    assert f"{found.line}.\n" in result.output
    assert f"\n{found.not_judged}\n" in result.output
    assert json.loads((tmp_path / "replay.json").read_text())["coverage"] == found.to_dict()
    result = CliRunner().invoke(replay, [str(path), "-b", backend_name, "-c", "*"])
    assert result.exit_code == 0, result.output  # these calls were asked for, and no others
    result = CliRunner().invoke(replay, [str(path), "-b", backend_name, "--strict"])
    assert result.exit_code == 2
    assert f"Error: {found.line}" in result.output


def test_strict_refuses_and_writes_nothing(backend_name, tmp_path):
    model, call, _ = MODELS[backend_name]()
    path = tmp_path / "calls.safetensors"
    refused("look like attention; not: ", model, lambda: call(model), path, strict=True)
    assert not list(tmp_path.iterdir())
    call(model)  # the hooks are gone


def test_what_was_not_asked_for_is_said_and_no_error():
    pytest.importorskip("torch")
    model, call, _ = torch_model()
    with warnings.catch_warnings(), mha.capture(model, layers=["fir*"], strict=True) as seen:
        warnings.simplefilter("error")
        call(model)
    assert seen.coverage.line == "read 1 of 3 modules that look like attention; not asked for: spare, second"
    refused("never called: spare", model, lambda: call(model), layers=["fir*", "spare"], strict=True)


def test_nnx_modules_are_surveyed():
    nnx = pytest.importorskip("flax.nnx")

    class Gated(nnx.Module):
        def __init__(self, rngs):
            self.to_qkv = nnx.Linear(12, 36, rngs=rngs)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.MultiHeadAttention(4, 12, decode=False, rngs=rngs)
            self.second = Gated(rngs)

        def __call__(self, x):
            return self.first(x)

    model = Model(nnx.Rngs(0))
    line = r"read 1 of 2 modules that look like attention; not: second \("
    with pytest.warns(UnreadWarning, match=line), mha.capture(model, probe=False):
        model(numbers(2, 3, 12))


def test_models_of_transformers_are_surveyed():
    hf = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from mha.recipes import attention_layers
    from tests.mha.recipes.hf_models import model_of

    model = model_of("bert")
    assert len(attention_layers(model, strict=True)) == 2
    sizes = {"num_layers": 2, "num_heads": 3, "d_model": 12, "d_kv": 4, "d_ff": 10, "vocab_size": 23}
    model.more = hf.T5EncoderModel(hf.T5Config(**sizes))
    model.own = torch.nn.MultiheadAttention(12, 4)
    names = ["more.encoder.block.0.layer.0.SelfAttention", "more.encoder.block.1.layer.0.SelfAttention", "own"]
    with pytest.warns(UnreadWarning, match="read 2 of 5 modules") as heard:
        attention_layers(model)
    assert all(name in str(heard[0].message) for name in names)
    with pytest.raises(SpecError, match="read 2 of 5 modules"):
        attention_layers(model, strict=True)


def test_port_says_what_it_read_and_strict_refuses(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    from mha.cli.porter.port import port as command
    from mha.port.model import TrainedModel
    from tests.mha.recipes.hf_models import save_encoder

    folder = save_encoder(tmp_path / "model")
    arguments = [str(folder), "--backend", "torch", "--text", "a train", "--json", str(tmp_path / "port.json")]
    result = CliRunner().invoke(command, [*arguments, "--strict"])
    assert result.exit_code == 0, result.output
    assert "\nread 2 of 2 modules that look like attention.\n" in result.output
    right = TrainedModel.batch

    def with_more(self, texts):
        self.model.more = torch.nn.MultiheadAttention(12, 4)
        return right(self, texts)

    monkeypatch.setattr(TrainedModel, "batch", with_more)
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert "\nread 2 of 3 modules that look like attention; not: more (torch.nn.modules" in result.output
    assert json.loads((tmp_path / "port.json").read_text())["coverage"]["unread"][0]["name"] == "more"
    result = CliRunner().invoke(command, [*arguments, "--strict"])
    assert result.exit_code == 2
    assert "Error: read 2 of 3 modules that look like attention; not: more" in result.output


def test_a_file_of_an_older_release_says_nothing_of_it(tmp_path):
    recording = recording_of(layer_of())
    recording.save(tmp_path / "old.safetensors")
    assert mha.Recording.load(tmp_path / "old.safetensors").coverage is None
    with pytest.raises(SpecError, match="does not say which modules were left out"):
        recording.check_coverage()
    description = [{"name": "x", "kind": "y", "why": "unknown"}]
    assert unread_of(description) == (Unread("x", "y", "unknown"),)
    with pytest.raises(SpecError, match="why must be one of unknown, uncalled, unasked. Got 'tired'"):
        unread_of([{**description[0], "why": "tired"}])


# Names of classes and parts, and which of modules within each other counts ---------------------------


@pytest.mark.parametrize(
    "parts",
    [
        ("query", "key", "value"),
        ("wq", "wk", "wv", "wo"),
        ("W_q", "W_k", "W_v", "W_o"),
        ("q_lin", "k_lin", "v_lin"),
        ("linear_q", "linear_k", "linear_v"),
        ("queryDense", "keyDense", "valueDense"),
        ("_query_dense", "_key_dense", "_value_dense"),
        ("query_key", "value"),
        ("qkv", "proj"),
        ("in_proj_weight",),
    ],
)
def test_projections_are_known_by_their_names(parts):
    assert has_projections(parts)


@pytest.mark.parametrize(
    "parts",
    [("key", "value"), ("query", "norm"), ("fc1", "fc2"), ("q_norm", "k_norm", "v_norm"), ("in_proj", "out_proj"), ()],
)
def test_other_parts_are_no_projections(parts):
    assert not has_projections(parts)


def test_names_of_classes_and_places():
    def named(cls, name="x", parts=("a", "b"), **attributes):
        return named_like_attention(name, type(cls, (), attributes)(), parts)

    assert named("FlashSelfAttention", parts=())
    assert named("CrossAttn")
    assert named("MHABlock")
    assert named("Mixer", "self_attn")
    assert named("Mixer", num_heads=3)
    assert not named("Mixer")
    assert not named("Mixer", "attn_norm")
    assert not named("Mixer", "attn", parts=("dense", "LayerNorm"))
    assert not named("AttentionDropout")
    assert not named("AttentionMask")
    assert not named("Mixer", num_heads=True)
    assert not named("MixerConfig", num_heads=property(lambda self: 1 / 0))


class Tree:
    """A model without a framework: parts by name, some of which hold parameters."""

    def __init__(self, *parameters, **parts):
        self.parameters, self.parts = parameters, parts

    def names(self):
        return [*self.parameters, *(name for name, part in self.parts.items() if part.names())]

    def walk(self, name=""):
        yield name, self
        for key, part in self.parts.items():
            yield from part.walk(f"{name}.{key}" if name else key)


def coverage_of(model, *known):
    survey = Survey(lambda part: (part.names(), lambda: [id(inner) for _, inner in part.walk()]))
    for name, part in model.walk():
        survey.meet(name, part, known=name in known)
    return survey.coverage()


class Attention(Tree):
    pass


def test_of_modules_within_each_other_one_counts():
    inner = Attention("q", "k", "v")
    assert [one.name for one in coverage_of(Tree(a=Attention(part=inner, output=Tree("dense")))).unread] == ["a.part"]
    assert [one.name for one in coverage_of(Tree(a=Attention("qkv", core=Attention()))).unread] == ["a"]
    assert [one.name for one in coverage_of(Tree(a=Attention("odd", core=Attention()))).unread] == ["a"]
    assert [one.name for one in coverage_of(Tree(a=Tree("odd", core=Attention()))).unread] == ["a.core"]
    stack = Attention(x=Attention("odd"), y=Attention("odd"))
    assert [one.name for one in coverage_of(Tree(a=stack)).unread] == ["a.x", "a.y"]


def test_what_wraps_a_read_module_or_is_in_one_is_not_counted():
    model = Tree(a=Attention(part=Attention("q", "k", "v", core=Attention())))
    assert coverage_of(model, "a.part") == Coverage(("a.part",))
    assert coverage_of(model, "a") == Coverage(("a",))
    around = Tree(a=Tree("q", "k", "v", inner=Attention("q", "k", "v")))  # with projections of its own
    assert [one.name for one in coverage_of(around, "a.inner").unread] == ["a"]


def test_the_line_says_why_and_is_cut():
    unread = [Unread(f"blocks.{n}", "mine.Attention", "unknown") for n in range(14)]
    found = Coverage(("x",), (*unread, Unread("y", "known.Layer", "uncalled"), Unread("", "known.Layer", "unasked")))
    assert found.line.startswith("read 1 of 17 modules that look like attention; not: blocks.0 (mine.Attention), ")
    assert "blocks.11 (mine.Attention), 2 more; never called: y; not asked for: the model itself" in found.line
    assert len(found.unseen) == 15
    assert len(found.to_dict()["unread"]) == 16
    assert Coverage(("x",)).line == "read 1 of 1 module that looks like attention"
    with pytest.raises(SpecError, match="read 1 of 17"):
        found.check()
