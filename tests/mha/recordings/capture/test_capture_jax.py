"""Capture of Flax' attention layers, linen and nnx."""

import numpy as np
import pytest

import mha
from mha.coverage import UnreadWarning
from tests.mha.recordings.capture.live_calls import LK, LQ, B, assert_equal, masks, numbers, refused, some
from tests.mha.recordings.capture.test_capture_mixed import assert_mixed


def test_what_linen_can_not_say_in_weights_is_refused(jax):
    import flax.linen as nn

    layer, x = nn.MultiHeadDotProductAttention(4, normalize_qk=True), numbers(B, LQ, 8)
    variables = layer.init(jax.random.key(0), x)
    refused("normalize_qk must be False", layer, lambda: layer.apply(variables, x))


def test_nnx_layers_are_found_by_name(jax):
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.cross = nnx.MultiHeadAttention(4, 7, 8, 6, in_kv_features=9, decode=False, rngs=rngs)
            self.own = nnx.MultiHeadAttention(2, 6, dropout_rate=0.25, decode=False, rngs=rngs)

        def __call__(self, x, y, deterministic=True, mask=None):
            return self.own(self.cross(x, y, mask=mask), deterministic=deterministic)

    model, mask = Model(nnx.Rngs(0)), some(4, LQ, LK)
    x, y = map(jax.numpy.asarray, (numbers(B, LQ, 7), numbers(B, LK, 9)))
    before = nnx.MultiHeadAttention.__call__
    with mha.capture(model) as seen:
        model(x, y, mask=mask)
    recording = assert_equal(seen.recording)
    assert recording.names == ("cross", "own")
    np.testing.assert_array_equal(masks(recording)[0].allowed, mask)
    refused("dropout=0.25 is active", model, lambda: model(x, y, deterministic=False))
    assert nnx.MultiHeadAttention.__call__ is before


def test_nnx_containers_are_looked_into(jax):
    """Their parts have numbers and keys for names."""
    from flax import nnx

    def layer():
        return nnx.MultiHeadAttention(4, 12, decode=False, rngs=nnx.Rngs(0))

    class Model(nnx.Module):
        def __init__(self):
            self.own = nnx.List([layer(), layer()])
            self.more = nnx.Sequential(nnx.Linear(12, 12, rngs=nnx.Rngs(1)), layer())
            self.named = nnx.Dict({"last": layer()})

        def __call__(self, x):
            for own in self.own:
                x = x + own(x)
            return self.named["last"](self.more(x))

    model = Model()
    with mha.capture(model) as seen:
        model(numbers(B, LQ, 12))
    assert assert_equal(seen.recording).names == ("own/0", "own/1", "more/layers/1", "named/last")


@pytest.mark.parametrize(("library", "call"), [("equinox._module", "Call it in"), ("haiku._src", "Call transform")])
def test_models_of_libraries_without_hooks_get_the_next_step_and_it_works(jax, library, call):
    """Neither is installed here: a class of such a module stands for them."""
    import jax.numpy as jnp
    from flax import nnx

    class Model:
        def __call__(self, x):
            q, k, v = jnp.split(x.reshape(*x.shape[:-1], 9, 4), 3, axis=-2)
            return jax.nn.dot_product_attention(q, k, v)

    Model.__module__ = library
    refused(rf"{library.split('.')[0]}\. {call}.*class Held\(nnx.Module\)", Model(), lambda: None)

    class Held(nnx.Module):
        def __call__(self, x):
            return Model()(x)

    with pytest.warns(UnreadWarning, match="recorded at the attention function"), mha.capture(held := Held()) as seen:
        held(jnp.linspace(-1.0, 1.0, 2 * 5 * 36).reshape(2, 5, 36))
    assert seen.recording.layers[0].is_at_seam


@pytest.mark.nightly("layers are recorded in each framework")
def test_linen_layers_are_found_by_name(jax):
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, y, mask=None, deterministic=True):
            x = nn.MultiHeadDotProductAttention(4, qkv_features=8, out_features=6, name="cross")(x, y, mask=mask)
            own = nn.MultiHeadDotProductAttention(2, dropout_rate=0.25, name="own")
            return own(x, deterministic=deterministic)

    model, x, y = Model(), numbers(B, LQ, 7), numbers(B, LK, 9)
    variables = model.init(jax.random.key(0), x, y)
    mask = some(B, 1, LQ, LK)
    with mha.capture(model) as seen:
        model.apply(variables, x, y)
        model.apply(variables, x, y, mask.astype(np.float32))
    recording = assert_equal(seen.recording)
    assert recording.names == ("cross#1", "own#1", "cross#2", "own#2")
    np.testing.assert_array_equal(masks(recording)[2].allowed, mask)
    training = {"deterministic": False, "rngs": {"dropout": jax.random.key(1)}}
    refused("dropout=0.25 is active", model, lambda: model.apply(variables, x, y, **training))
    refused("that JAX traces", model, lambda: jax.jit(model.apply)(variables, x, y))
    refused("nothing to record", nn.MultiHeadDotProductAttention(4), lambda: model.apply(variables, x, y))


@pytest.mark.nightly("layers are recorded in each framework")
def test_nnx_layers_and_ours_with_a_dtype_of_their_own(jax, tmp_path):
    from flax import nnx

    from backends.jax import MultiHeadAttention

    x, y = numbers(B, LQ, 12), numbers(B, LK, 12)
    dtype = "float16"  # XLA can run nnx's attention in it on CPUs, and not compile it: the probe runs it all the same
    layer = nnx.MultiHeadAttention(4, 12, dtype=dtype, decode=False, rngs=nnx.Rngs(0))
    with mha.capture(layer) as seen:
        layer(*map(jax.numpy.asarray, (x, y)))
    assert_mixed(seen.recording, dtype, "float32", tmp_path / "calls.safetensors")
    dtype = "bfloat16"
    own = MultiHeadAttention(12, 4, dtype=dtype)
    variables = own.init(jax.random.key(0), x, y, y)
    with mha.capture(own) as seen:
        own.apply(variables, x, y, y, valid_lens=np.array([2, 5]))
    assert_mixed(seen.recording, dtype, "float32", tmp_path / "calls.safetensors")
