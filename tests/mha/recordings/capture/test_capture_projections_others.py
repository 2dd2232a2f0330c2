"""Capture by projections in Keras, Flax nnx, Gluon; of layers in two modules, and of those that turn with positions."""

from typing import Any

import pytest

import mha
from mha.coverage import UnreadWarning
from tests.mha.recordings.capture.live_calls import assert_equal, numbers, refused


def check(layer: Any, x: Any, heads: int, *, causal: bool = False, **options: Any) -> None:
    with mha.capture(layer, **options) as seen:
        layer(x)
    recording = assert_equal(seen.recording)
    assert len(recording.calls) == 1
    assert recording.layers[0].config.num_heads == heads
    assert recording.calls[0].inputs.mask.causal is causal


@pytest.mark.parametrize("einsum", [False, True])
def test_keras(einsum: bool) -> None:
    keras = pytest.importorskip("keras")
    import tensorflow as tf

    class Block(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 3

            def part() -> Any:
                if einsum:
                    return keras.layers.EinsumDense("abc,cde->abde", (None, 3, 4), bias_axes="de")
                return keras.layers.Dense(12)

            self.query_dense, self.key_dense, self.value_dense = part(), part(), part()
            self.combine_heads = keras.layers.Dense(10)

        def call(self, x: Any) -> Any:
            parts = (self.query_dense, self.key_dense, self.value_dense)
            q, k, v = (tf.transpose(tf.reshape(part(x), (2, 5, 3, 4)), (0, 2, 1, 3)) for part in parts)
            weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 2.0)
            heads = tf.transpose(tf.matmul(weights, v), (0, 2, 1, 3))
            return self.combine_heads(tf.reshape(heads, (2, 5, 12)))

    keras.utils.set_random_seed(3)
    layer, x = Block(), tf.constant(numbers(2, 5, 10))
    layer(x)
    check(layer, x, 3)
    # Keras' own names of them, which recordings of modules have, are as good.
    names = [part.name for part in (layer.query_dense, layer.key_dense, layer.value_dense, layer.combine_heads)]
    assert not {*names} & {*vars(layer)}
    check(layer, x, 3, layers={"": mha.Projections(*names)})


def test_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")
    import jax
    import jax.numpy as jnp

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.qkv, self.proj = nnx.Linear(10, 36, rngs=rngs), nnx.Linear(12, 10, rngs=rngs)
            self.num_heads = 3

        def __call__(self, x: Any) -> Any:
            q, k, v = jnp.moveaxis(self.qkv(x).reshape(*x.shape[:2], 3, 3, 4), 2, 0)
            heads = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            return self.proj(heads.reshape(*x.shape[:2], 12))

    check(Block(nnx.Rngs(0)), jnp.asarray(numbers(2, 5, 10)), 3, causal=True)


@pytest.mark.filterwarnings("ignore:Please import:DeprecationWarning")  # by MXNet, as it is imported
def test_gluon() -> None:
    mx = pytest.importorskip("backends.mxnet.ops.framework", exc_type=ImportError).mx

    class Block(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 3
            with self.name_scope():
                for name, width in (("q_proj", 12), ("k_proj", 12), ("v_proj", 12), ("out_proj", 10)):
                    setattr(self, name, mx.gluon.nn.Dense(width, flatten=False))

        def forward(self, x: Any) -> Any:
            parts = (self.q_proj, self.k_proj, self.v_proj)
            q, k, v = (part(x).reshape((2, 5, 3, 4)).transpose((0, 2, 1, 3)).reshape((6, 5, 4)) for part in parts)
            weights = mx.nd.softmax(mx.nd.batch_dot(q, k, transpose_b=True) / 2.0)
            heads = mx.nd.batch_dot(weights, v).reshape((2, 3, 5, 4)).transpose((0, 2, 1, 3)).reshape((2, 5, 12))
            return self.out_proj(heads)

    mx.random.seed(3)
    layer, x = Block(), mx.nd.array(numbers(2, 5, 10))
    layer.initialize(mx.init.Normal(0.4))
    layer(x)
    check(layer, x, 3)


def test_layers_with_rotary_positions_are_refused_at_once() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 30}
    config = transformers.LlamaConfig(**sizes, intermediate_size=20, num_key_value_heads=2)
    model = transformers.LlamaModel(config)
    attention = model.layers[0].self_attn
    attention.__class__ = type("Turning", (type(attention),), {})  # of a class that no recipe lists
    words = r"Turning at layers\.0\.self_attn turns queries and keys with their positions \(rotary positions: rope"
    said = {"layers.*.self_attn": mha.Projections("q_proj", "k_proj", "v_proj", "o_proj", num_heads=4)}
    refused(words, model, layers=said)
    refused(words, model, lambda: None)  # a call would be recorded at its attention function

    class Rotary(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

    own = torch.nn.Module()
    own.attn = torch.nn.ModuleDict({name: torch.nn.Linear(6, 6) for name in ("q_proj", "k_proj", "v_proj", "o_proj")})
    own.rotary_emb = Rotary()
    refused(r"ModuleDict at attn turns .*rotary_emb", own, lambda: None)


def test_the_number_of_heads_may_stand_in_the_module_that_holds_the_projections() -> None:
    """As in the BERT family, where the output projection stands beside that module."""
    torch = pytest.importorskip("torch")

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.output = torch.nn.Module(), torch.nn.Linear(12, 12)
            for name in ("query", "key", "value"):
                setattr(self.attention, name, torch.nn.Linear(12, 12))
            self.attention.num_attention_heads = 3

        def forward(self, x: Any) -> Any:
            own = self.attention
            q, k, v = (y(x).unflatten(2, (3, 4)).transpose(1, 2) for y in (own.query, own.key, own.value))
            weights = (0.5 * q @ k.mT).softmax(dim=-1)
            return x + self.output((weights @ v).transpose(1, 2).flatten(2))

    torch.manual_seed(3)
    model = Wrapped().eval()
    x = torch.from_numpy(numbers(2, 5, 12))
    with torch.no_grad(), pytest.warns(UnreadWarning, match="up to the output projection"):
        check(model, x, 3)
    del model.attention.num_attention_heads
    refused("has no attribute with its number of heads", model, lambda: model(x))
