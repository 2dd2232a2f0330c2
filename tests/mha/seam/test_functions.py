"""Calls of the frameworks' own attention functions inside a model of somebody's: recorded and judged."""

import warnings

import numpy as np
import pytest

import mha
from mha.coverage import UnreadWarning
from mha.recordings.replay import judge_recording
from mha_core import SpecError
from mha_core.seam import Handover, in_place_of

B, LQ, H, G, D = 2, 5, 4, 2, 3


def captured(model, run):
    """The recording of one run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreadWarning)
        with mha.capture(model) as seen:
            run()
    assert {result.status for result in judge_recording(seen.recording)} == {"equal"}
    return seen.recording


class TestTorch:
    @pytest.fixture
    def attention(self):
        torch = pytest.importorskip("torch")
        from torch.nn.functional import scaled_dot_product_attention as attend

        class Attention(torch.nn.Module):
            """One matrix for queries, keys and values, whose name says nothing; `settings` go to the function."""

            def __init__(self, **settings):
                super().__init__()
                self.one, self.last = torch.nn.Linear(12, (H + 2 * G) * D), torch.nn.Linear(H * D, 12)
                self.settings = settings

            def forward(self, x):
                q, k, v = self.one(x).unflatten(-1, (-1, D)).transpose(1, 2).split((H, G, G), dim=1)
                found = attend(q, k, v, enable_gqa=True, **self.settings)
                return self.last(found.transpose(1, 2).flatten(2))

        return Attention

    @pytest.mark.parametrize("kind", ["plain", "causal", "bool", "additive", "scale", "empty"])
    def test_a_call_by_another_name_is_recorded_to_the_bit(self, attention, kind):
        import torch

        allowed = torch.rand(B, 1, LQ, LQ) < 0.6
        allowed[..., 0] = True
        empty = allowed.clone()
        empty[1, :, 3] = False
        settings = {
            "plain": {},
            "causal": {"is_causal": True},
            "bool": {"attn_mask": allowed},
            "additive": {"attn_mask": torch.randn(H, LQ, LQ).masked_fill(~allowed[0], -torch.inf)},
            "scale": {"scale": 0.3},
            "empty": {"attn_mask": empty},
        }[kind]
        model = torch.nn.Sequential(attention(), attention(**settings)).eval()
        x = torch.randn(B, LQ, 12)
        with torch.no_grad():
            wanted = model(x)
            seen = []
            recording = captured(model, lambda: seen.append(model(x)))
        assert torch.equal(seen[0], wanted)
        assert recording.names == ("0", "1")
        config, mask = recording.layers[1].config, recording.calls[1].inputs.mask
        assert (config.num_heads, config.num_kv_heads, config.head_dim) == (H, G, D)
        assert config.scale == {"scale": 0.3}.get(kind)
        assert mask.causal == (kind == "causal")
        assert (mask.allowed is not None) == (kind in ("bool", "additive", "empty"))

    def test_layers_that_are_read_otherwise_are_recorded_once(self, attention):
        import torch

        layer = torch.nn.MultiheadAttention(12, 4, batch_first=True)
        model = torch.nn.ModuleDict({"own": layer, "other": attention()}).eval()
        x = torch.randn(B, LQ, 12)
        with torch.no_grad():
            recording = captured(model, lambda: model["other"](model["own"](x, x, x)[0]))
        assert [one.is_at_seam for one in recording.layers] == [False, True]
        assert recording.names == ("own", "other")

    def test_what_can_not_be_read_is_refused(self, attention):
        import torch

        model, x = attention(dropout_p=0.4), torch.randn(B, LQ, 12)
        with pytest.raises(SpecError, match=r"nothing to record: the model: dropout=0.4 is active; call model.eval"):
            captured(model, lambda: model(x))
        with (
            pytest.raises(SpecError, match="nothing to record: .*torch.autocast"),
            torch.autocast("cpu", torch.bfloat16),
        ):
            captured(attention(), lambda: attention()(x))

    @pytest.mark.parametrize("said", [False, True])
    def test_parameters_handed_to_multi_head_attention_forward_are_read_in_it(self, said):
        import torch

        class Functional(torch.nn.Module):
            def __init__(self, need_weights):
                super().__init__()
                self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(12, 12) for _ in range(4))
                self.num_heads, self.need_weights = H, need_weights

            def forward(self, x, padding):
                own = {f"{one}_proj_weight": getattr(self, f"{one}_proj").weight for one in "qkv"}
                bias = torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias])
                last, settings = self.o_proj, {"training": False, "need_weights": self.need_weights}
                rest = 12, H, None, bias, None, None, False, 0.0, last.weight, last.bias
                settings |= {"use_separate_proj_weight": True, "key_padding_mask": padding}
                return torch.nn.functional.multi_head_attention_forward(x, x, x, *rest, **settings, **own)[0]

        x, padding = torch.randn(LQ, B, 12), torch.arange(LQ) >= torch.tensor([[LQ], [3]])
        layers = {"": mha.Projections("q_proj", "k_proj", "v_proj", "o_proj")} if said else ("*",)
        model = Functional(False).eval()
        with torch.no_grad(), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", UnreadWarning)
            wanted = model(x, padding)
            with mha.capture(model, layers=layers) as seen:
                found = model(x, padding)
        assert torch.equal(found, wanted)
        (call,), (layer,) = seen.recording.calls, seen.recording.layers
        assert layer.is_at_seam
        assert layer.config.num_heads == H
        assert np.array_equal(call.inputs.mask.allowed[:, 0, 0], ~padding.numpy())
        assert {result.status for result in judge_recording(seen.recording)} == {"equal"}
        assert "recorded at the attention function" in str(heard[0].message)
        refused, words = Functional(True).eval(), "computes its weights itself, .*; say need_weights=False"
        with pytest.raises(SpecError, match=words), torch.no_grad(), mha.capture(refused, layers=layers):
            refused(x, padding)

    def test_other_layers_than_those_asked_for_are_left(self, attention):
        import torch

        model, x = torch.nn.Sequential(attention(), attention()).eval(), torch.randn(B, LQ, 12)
        with torch.no_grad(), pytest.warns(UnreadWarning, match=": 1$"), mha.capture(model, layers=["1"]) as seen:
            model(x)
        assert seen.recording.names == ("1",)


class TestJax:
    def test_linen_and_nnx(self):
        pytest.importorskip("flax")
        import flax.linen as nn
        import jax
        import jax.numpy as jnp
        from flax import nnx

        class Attention(nn.Module):
            @nn.compact
            def __call__(self, x):
                q, k, v = (nn.DenseGeneral((n, D), name=f"p{i}")(x) for i, n in enumerate((H, G, G)))
                lens = jnp.array([LQ - 1, LQ])
                settings = {"is_causal": True, "local_window_size": (2, 0), "key_value_seq_lengths": lens}
                return jax.nn.dot_product_attention(q, k, v, scale=0.3, **settings)

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return Attention(name="first")(x).reshape(B, LQ, -1)

        x = jnp.asarray(np.random.default_rng(0).normal(size=(B, LQ, 12)), jnp.float32)
        model = Model()
        bound = model.bind(model.init(jax.random.key(0), x))
        recording = captured(bound, lambda: bound(x))
        assert recording.names == ("first",)
        mask = recording.calls[0].inputs.mask
        assert (mask.causal, np.sum(mask.allowed[0, 0, 4]), np.sum(mask.allowed[1, 0, 4])) == (True, 2, 3)

        class Own(nnx.Module):
            def __init__(self, rngs):
                self.one = nnx.Linear(12, 3 * H * D, rngs=rngs)

            def __call__(self, x):
                q, k, v = jnp.split(self.one(x).reshape(B, LQ, 3 * H, D), 3, axis=2)
                return jax.nn.dot_product_attention(q, k, v, bias=jnp.arange(LQ, dtype=jnp.float32)[None, None, None])

        own = Own(nnx.Rngs(0))
        assert captured(own, lambda: own(x)).calls[0].inputs.mask.bias.shape == (1, 1, 1, LQ)
        with pytest.raises(SpecError, match="a call that JAX traces"):
            captured(own, lambda: nnx.jit(own)(x))


class TestKeras:
    def test_a_layer(self):
        keras = pytest.importorskip("keras")

        class Attention(keras.Layer):
            def __init__(self):
                super().__init__()
                self.one = keras.layers.Dense((H + 2 * G) * D)

            def call(self, x):
                split = keras.ops.reshape(self.one(x), (B, LQ, -1, D))
                q, k, v = split[:, :, :H], split[:, :, H : H + G], split[:, :, H + G :]
                found = keras.ops.dot_product_attention(q, k, v, scale=0.4, is_causal=True)
                return keras.ops.reshape(found, (B, LQ, H * D))

        model = keras.Sequential([Attention(), Attention()])
        x = np.random.default_rng(0).normal(size=(B, LQ, 12)).astype(np.float32)
        wanted = model(x)
        seen = []
        recording = captured(model, lambda: seen.append(model(x)))
        assert np.array_equal(seen[0], wanted)
        assert [layer.config.num_kv_heads for layer in recording.layers] == [G, G]
        assert recording.calls[1].inputs.mask.causal


def test_arrays_that_fit_nothing_are_refused():
    x = np.ones((1, 2, 3, 4))
    with pytest.raises(SpecError, match=r"the output of an attention function must be \(1, 2, 3, 4\)"):
        Handover(x, x, x, x[:, :, :2], "float64").read()
    with pytest.raises(
        SpecError, match=r"the keys of an attention function must be \(B, heads, L, d\). Got \(1, 2, 3\)"
    ):
        Handover(x, x[..., 0], x, x, "float64").read()
    with pytest.raises(SpecError, match="the mask of an attention function must be bool or floating-point. Got int64"):
        Handover(x, x, x, x, "float64", masks=(np.ones((3, 3), int),)).read()


def test_a_row_of_lowest_numbers_alone_is_their_mean():
    x = np.random.default_rng(1).normal(size=(1, 1, 3, 4)).astype(np.float32)
    lowest = np.finfo(np.float32).min
    mask = np.array([[0.0, lowest, lowest], [lowest, lowest, lowest], [0.0, 0.0, 0.0]], np.float32)
    config, inputs = Handover(x, x, x, None, "float32", masks=(mask,)).given()
    assert inputs.mask.allowed[0, 0].tolist() == [[True, False, False], [True, True, True], [True, True, True]]
    from mha_core.reference import pipeline as reference

    np.testing.assert_allclose(reference.run(config, {}, inputs).output[0, 1], x[0, 0].mean(axis=0), rtol=1e-6)


def test_a_name_that_stands_for_a_function_is_restored():
    import mha_core.seam as module

    right = module.windowed
    with in_place_of(right, None):
        assert module.windowed is None
    assert module.windowed is right
