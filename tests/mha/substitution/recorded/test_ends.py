"""What stands behind the last attention layer is judged by what the model gave."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import mha
from mha.cli.main import main
from mha.coverage import Unread
from mha.recordings.ends import RecordedEnd
from mha.recordings.recording import Recording
from mha_core import SpecError
from tests.mha.substitution.recorded.three_layers import layers_of, model, said_of

GIVEN = np.random.default_rng(5).normal(size=(3, 7, 12)).astype(np.float32)


def ending(recording, **arrays):
    """The recording of a model that gave these arrays at its end."""
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    return replace(recording, ends=(RecordedEnd("", "mine.Model", 3, arrays, dtypes),))


def said(original, port):
    found = mha.where(original, port)
    return found, said_of(found)


# What the reference makes up ------------------------------------------------------------------------


def test_another_end_is_a_difference_though_every_layer_agrees(original):
    wrong = GIVEN.copy()
    wrong[1, 2, 3] += 0.5
    one = ending(original, hidden=GIVEN, pooled=GIVEN[:, 0])
    found, text = said(one, ending(original, hidden=wrong, pooled=GIVEN[:, 0]))
    assert (found.equal, found.wrong, found.results[-1].bound > 1e3) == (False, ("",), True)
    assert "the model (mine.Model) differs in outputs: c's outputs agree: look behind it" in text
    assert "hidden by up to 0.5 at [1, 2, 3]" in text
    assert text.endswith("Wrong: the model is the first of 4 pairs to differ, in outputs.")
    found, text = said(one, one)
    assert (found.equal, found.notes) == (True, ())


def test_a_layer_without_a_partner_is_not_acquitted_by_an_end_that_differs(original):
    one, port = ending(original, out=GIVEN), ending(replace(original, calls=original.calls[:2]), out=GIVEN + 1.0)
    port = replace(port, ends=(replace(port.ends[0], after=2),), unread=(Unread("c", "mine.Other", "unknown"),))
    found, text = said(one, port)
    assert found.wrong == ("",)
    assert (
        "the model (mine.Model) differs in outputs: nothing was compared at attention that may stand before it "
        "(c of the original, without a partner; c of the port, not read): look there first" in text
    )
    assert "outputs agree" not in text
    assert text.endswith("in outputs. Not compared: c.")
    # Where both recordings lack it, nothing was compared there either.
    both = [replace(one, unread=port.unread, calls=one.calls[:2], ends=port.ends) for one in (one, port)]
    both[0] = replace(both[0], ends=(replace(port.ends[0], arrays={"out": GIVEN}),))
    assert "(c of the original, not read; c of the port, not read): look there first" in said(*both)[1]


@pytest.mark.parametrize(("factor", "equal"), [(1.0 + 2.0**-21, True), (1.0 + 2.0**-16, False)])
def test_rounding_is_no_difference_and_more_is(factor, equal, original):
    noise = 1.0 + (factor - 1.0) * np.random.default_rng(1).normal(size=GIVEN.shape)
    found, _ = said(ending(original, out=GIVEN), ending(original, out=(GIVEN * noise).astype(np.float32)))
    assert found.equal == equal


def test_what_padding_gave_does_not_count(original):
    other = GIVEN.copy()
    other[0, 4:] += 1.0  # item 0 has 4 keys
    assert said(ending(original, out=GIVEN), ending(original, out=other))[0].equal
    other[0, 3] += 1.0
    assert not said(ending(original, out=GIVEN), ending(original, out=other))[0].equal


def test_the_end_follows_from_an_earlier_difference(original):
    port = model(layers_of(), epsilon=1e-2)
    found, text = said(ending(original, out=GIVEN), ending(port, out=GIVEN + 1.0))
    assert found.results[-1].status == "caused upstream"
    assert "c, the model: given other inputs, caused upstream" in text
    assert "is the first of 4 pairs to differ, in inputs" in text


def test_arrays_without_names_in_common_go_by_their_order(original):
    one, other = ending(original, hidden=GIVEN, pooled=GIVEN[:, 0]), {"0": GIVEN, "1": GIVEN[:, 0]}
    found, _ = said(one, ending(original, **other))
    assert (found.equal, found.results[-1].status, found.notes) == (True, "equal", ())
    assert not said(one, ending(original, **{**other, "1": GIVEN[:, 1]}))[0].equal


def test_what_was_not_compared_is_said(original):
    one = ending(original, hidden=GIVEN, pooled=GIVEN[:, 0])
    for other, reason in (
        (original, "Not judged: code after c. It would show in the model's output, but the recording of the "),
        (ending(original, out=GIVEN[:1]), "the two have other shapes"),
        (ending(original, hidden=GIVEN), "Not judged: 'pooled' of what the model gave, which have no partner."),
    ):
        found, text = said(one, other)
        assert reason in text
        assert found.equal


def test_a_description_of_ends_that_contradicts_itself_is_refused(original, tmp_path):
    wrong = {"out": GIVEN}
    with pytest.raises(SpecError, match="must have a dtype for each array"):
        RecordedEnd("", "mine.Model", 3, wrong, {})
    with pytest.raises(SpecError, match="must hold numbers of bfloat16"):
        RecordedEnd("", "mine.Model", 3, wrong, {"out": "bfloat16"})
    path = tmp_path / "a.safetensors"
    replace(original, ends=(RecordedEnd("", "mine.Model", 4, wrong, {"out": "float32"}),)).save(path)
    with pytest.raises(SpecError, match="an end must stand after 0 to 3 calls. Got 4"):
        Recording.load(path)


# Live models ------------------------------------------------------------------------------------------


@pytest.fixture
def torch(backend_names):
    if "torch" not in backend_names:
        pytest.skip("torch is not under test")
    import torch

    return torch


def torch_model(torch):
    """Two encoder layers, a square pooler and a head."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(12, 4, 17, batch_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.pooler, self.head = torch.nn.Linear(12, 12), torch.nn.Linear(12, 5)

        def forward(self, x):
            hidden = self.encoder(x)
            pooled = torch.tanh(self.pooler(hidden[:, 0]))
            return {"hidden": hidden, "pooled": pooled, "logits": (self.head(pooled), "no array")}

    torch.manual_seed(0)
    return Model().eval()


def recorded(model, x, **options):
    with mha.capture(model, **options) as seen:
        model(x)
    return seen.recording


@pytest.mark.parametrize("place", ["encoder.layers.1.linear2", "encoder.layers.1.norm2", "pooler", "head"])
def test_a_wrong_port_behind_the_last_attention_layer_is_different(place, torch, tmp_path):
    right, x = torch_model(torch), torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))
    wrong = copy.deepcopy(right)
    with torch.no_grad():
        weight = wrong.get_submodule(place).weight
        weight.copy_(weight.T.clone() if place == "pooler" else torch.zeros_like(weight))
    original = recorded(right, x)
    original.save(tmp_path / "a.safetensors")
    recorded(wrong, x).save(tmp_path / "b.safetensors")
    assert mha.where(original, recorded(right, x)).equal
    run = CliRunner().invoke
    files = [str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")]
    done = run(main, ["where", *files, "--json", str(tmp_path / "c.json")])
    assert done.exit_code == 1, done.output
    assert "differs in outputs: encoder.layers.1.self_attn's outputs agree: look behind it" in done.output
    assert not json.loads((tmp_path / "c.json").read_text())["equal"]
    done = run(main, ["diagnose", files[1], "--weights", files[0], "--no-unseen"])
    assert done.exit_code == 1, done.output
    assert "on the inputs and masks that it was given. What differs is said above." in done.output
    assert "nothing to explain" not in done.output


def test_other_modules_are_recorded_by_name(torch):
    model, x = torch_model(torch), torch.ones(2, 7, 12)
    one, other = (recorded(model, x, also=also) for also in (["pooler", "encoder.layers.*.norm?"], ["pooler"]))
    assert [end.name for end in one.ends] == [
        *(f"encoder.layers.{i}.norm{j}" for i in range(2) for j in (1, 2)),
        *("pooler", ""),
    ]
    assert [end.after for end in one.ends] == [1, 1, 2, 2, 2, 2]
    assert set(one.ends[-1].arrays) == {"hidden", "pooled", "logits.0"}
    found, text = said(one, other)
    assert found.equal
    assert "Not judged: encoder.layers.0.norm1, of which one recording alone holds what it gave." in text
    with pytest.raises(SpecError, match="also names 'poolr', and no module that was called has such a name"):
        recorded(model, x, also=["poolr"])


@pytest.mark.nightly("layers are recorded in each framework")
@pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")  # of SciPy, by MXNet
def test_the_other_frameworks_record_what_the_model_gave(backend_names, tmp_path):
    x = np.random.default_rng(0).normal(size=(2, 5, 12)).astype(np.float32)
    found = {}
    if "tf" in backend_names:
        import keras

        given = keras.Input((5, 12))
        hidden = keras.layers.MultiHeadAttention(3, 4)(given, given)
        found["tf"] = recorded(keras.Model(given, [keras.layers.Dense(7)(hidden), hidden]), x)
        assert {place: a.shape for place, a in found["tf"].ends[0].arrays.items()} == {"0": (2, 5, 7), "1": (2, 5, 12)}
    if "jax" in backend_names:
        import jax
        from flax import linen, nnx

        class Linen(linen.Module):
            @linen.compact
            def __call__(self, x):
                return linen.Dense(7)(linen.MultiHeadDotProductAttention(3)(x, x))

        class Nnx(nnx.Module):
            def __init__(self):
                rngs = nnx.Rngs(0)
                self.attention = nnx.MultiHeadAttention(3, 12, decode=False, rngs=rngs)
                self.out = nnx.Linear(12, 7, rngs=rngs)

            def __call__(self, x):
                return self.out(self.attention(x))

        module = Linen()
        variables = module.init(jax.random.key(0), x)
        with mha.capture(module, also=["Dense_0"]) as seen:
            module.apply(variables, x)
        assert [end.name for end in seen.recording.ends] == ["Dense_0", ""]
        found["linen"], found["nnx"] = seen.recording, recorded(Nnx(), x)
    if "mxnet" in backend_names:
        from backends.mxnet.layers import MultiHeadAttention, mx

        class Gluon(mx.gluon.Block):
            def __init__(self):
                super().__init__()
                self.attention = MultiHeadAttention(12, 3)
                self.out = mx.gluon.nn.Dense(7, flatten=False)

            def forward(self, x):
                return self.out(self.attention(x, x, x))

        with mx.util.np_shape(True), mx.util.np_array(True):
            block = Gluon()
            block.initialize()
            found["mxnet"] = recorded(block, mx.np.array(x))
    for name, recording in found.items():
        recording.save(tmp_path / f"{name}.safetensors")
        loaded = Recording.load(tmp_path / f"{name}.safetensors")
        (end,) = [end for end in loaded.ends if not end.name]
        assert end.after == 1
        assert next(iter(end.arrays.values())).shape == (2, 5, 7), name
        assert mha.where(recording, loaded).equal
