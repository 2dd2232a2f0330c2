"""Ports of the small encoder to four APIs, as a porter of each would write them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.mha.substitution.encoder.models import HEADS, HIDDEN, LENGTH, VOCABULARY, WIDTH, batch


def beside(number: int, fault: str, stop: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What a layer adds to its attention: its input, unless that is lost, or has no gradient there."""
    faults = {"residual": lambda x: 0.0 * x, "detached": stop} if number == 1 else {}
    return faults.get(fault, lambda x: x)


def legacy(array: NDArray, dtype: str = "float32") -> Any:
    """An mx.nd array; `mx.nd.array` asks scipy for names that are gone."""
    from backends.mxnet.ops.framework import mx

    return mx.np.array(array, dtype=dtype).as_nd_ndarray()


def keras_port(state: dict[str, NDArray], fault: str = "") -> Any:
    import keras
    from keras import ops

    class KAttention(keras.layers.Layer):
        def __init__(self, scale: float, **rest: Any) -> None:
            super().__init__(**rest)
            self.scale = scale
            self.qkv, self.merge = keras.layers.Dense(3 * WIDTH, name="qkv"), keras.layers.Dense(WIDTH, name="merge")

        def call(self, x, mask):
            shape = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
            q, k, v = ops.unstack(ops.transpose(ops.reshape(self.qkv(x), shape), (2, 0, 3, 1, 4)), axis=0)
            scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * self.scale + mask
            heads = ops.transpose(ops.matmul(ops.softmax(scores, axis=-1), v), (0, 2, 1, 3))
            return self.merge(ops.reshape(heads, x.shape))

    class KLayer(keras.layers.Layer):
        def __init__(self, number: int, **rest: Any) -> None:
            super().__init__(**rest)
            scale = 1.0 if (number, fault) == (0, "scale") else (WIDTH // HEADS) ** -0.5
            self.attention = KAttention(scale, name="attention")
            self.first_norm = keras.layers.LayerNormalization(epsilon=1e-12, name="first_norm")
            eps = 1e-3 if (number, fault) == (1, "eps") else 1e-12
            self.second_norm = keras.layers.LayerNormalization(epsilon=eps, name="second_norm")
            self.inner = keras.layers.Dense(HIDDEN, name="inner")
            self.outer = keras.layers.Dense(WIDTH, name="outer")
            self.tanh, self.beside = (number, fault) == (0, "gelu"), beside(number, fault, ops.stop_gradient)

        def call(self, x, mask):
            x = self.first_norm(self.attention(x, mask) + self.beside(x))
            return self.second_norm(x + self.outer(ops.gelu(self.inner(x), approximate=self.tanh)))

    class KEncoder(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="encoder")
            self.words = keras.layers.Embedding(VOCABULARY, WIDTH, name="words")
            self.places = keras.layers.Embedding(LENGTH, WIDTH, name="places")
            self.norm = keras.layers.LayerNormalization(epsilon=1e-12, name="norm")
            self.blocks = [KLayer(number, name=f"layer_{number}") for number in range(2)]

        def call(self, ids, mask):
            x = self.norm(self.words(ids) + self.places(ops.arange(ids.shape[1])))
            lacking = 0.0 if fault == "mask" else -1e9
            additive = ops.cast(1 - mask[:, None, None, :], "float32") * lacking
            for block in self.blocks:
                x = block(x, additive)
            return x

    model = KEncoder()
    given = batch()
    model(given["ids"], given["mask"])
    model.words.set_weights([state["words.weight"]])
    model.places.set_weights([state["places.weight"]])
    model.norm.set_weights([state["norm.weight"], state["norm.bias"]])
    for number, block in enumerate(model.blocks):
        own = {name.removeprefix(f"layers.{number}."): array for name, array in state.items()}
        packed = np.concatenate([own[f"attention.{part}.weight"] for part in ("query", "key", "value")]).T
        biases = np.concatenate([own[f"attention.{part}.bias"] for part in ("query", "key", "value")])
        block.attention.qkv.set_weights([packed, biases])
        block.attention.merge.set_weights([own["attention.out.weight"].T, own["attention.out.bias"]])
        block.first_norm.set_weights([own["norm1.weight"], own["norm1.bias"]])
        block.second_norm.set_weights([own["norm2.weight"], own["norm2.bias"]])
        block.inner.set_weights([own["inner.weight"].T, own["inner.bias"]])
        lost = 0.0 if (number, fault) == (1, "bias") else 1.0
        block.outer.set_weights([own["outer.weight"].T, own["outer.bias"] * lost])
    return model


def linen_port(state: dict[str, NDArray], fault: str = "") -> Any:
    import flax.linen as fnn
    import jax
    import jax.numpy as jnp

    class LAttention(fnn.Module):
        scale: float

        @fnn.compact
        def __call__(self, x, mask):
            shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
            q, k, v = (fnn.Dense(WIDTH, name=name)(x).reshape(shape) for name in ("query", "key", "value"))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * self.scale
            weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
            return fnn.Dense(WIDTH, name="out")(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))

    class LLayer(fnn.Module):
        number: int

        @fnn.compact
        def __call__(self, x, mask):
            scale = 1.0 if (self.number, fault) == (0, "scale") else (WIDTH // HEADS) ** -0.5
            attended = LAttention(scale, name="attend")(x, mask)
            x = attended + beside(self.number, fault, jax.lax.stop_gradient)(x)
            x = fnn.LayerNorm(epsilon=1e-12, name="norm1")(x)
            inner = jax.nn.gelu(fnn.Dense(HIDDEN, name="inner")(x), approximate=(self.number, fault) == (0, "gelu"))
            use_bias = (self.number, fault) != (1, "bias")
            x = x + fnn.Dense(WIDTH, use_bias=use_bias, name="outer")(inner)
            eps = 1e-3 if (self.number, fault) == (1, "eps") else 1e-12
            return fnn.LayerNorm(epsilon=eps, name="norm2")(x)

    class LEncoder(fnn.Module):
        @fnn.compact
        def __call__(self, ids, mask):
            words, places = fnn.Embed(VOCABULARY, WIDTH, name="words"), fnn.Embed(LENGTH, WIDTH, name="places")
            x = fnn.LayerNorm(epsilon=1e-12, name="norm")(words(ids) + places(jnp.arange(ids.shape[1])))
            allowed = jnp.ones_like(mask, bool) if fault == "mask" else mask.astype(bool)
            for number in range(2):
                x = LLayer(number, name=f"layers_{number}")(x, allowed[:, None, None, :])
            return x

    def norm(name: str) -> dict[str, NDArray]:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def dense(name: str) -> dict[str, NDArray]:
        return {"kernel": state[f"{name}.weight"].T, "bias": state[f"{name}.bias"]}

    params: dict[str, Any] = {
        "words": {"embedding": state["words.weight"]},
        "places": {"embedding": state["places.weight"]},
        "norm": norm("norm"),
    }
    for number in range(2):
        start = f"layers.{number}."
        attend = {name: dense(f"{start}attention.{name}") for name in ("query", "key", "value", "out")}
        layer = {"attend": attend, "norm1": norm(start + "norm1"), "norm2": norm(start + "norm2")}
        layer |= {"inner": dense(start + "inner"), "outer": dense(start + "outer")}
        if (number, fault) == (1, "bias"):
            del layer["outer"]["bias"]
        params[f"layers_{number}"] = layer
    return LEncoder().bind({"params": jax.tree.map(jnp.asarray, params)})


def nnx_port(state: dict[str, NDArray], fault: str = "") -> Any:
    import jax
    import jax.numpy as jnp
    from flax import nnx

    rngs = nnx.Rngs(0)

    def dense(name: str, inputs: int, outputs: int) -> Any:
        made = nnx.Linear(inputs, outputs, rngs=rngs)
        made.kernel[...], made.bias[...] = jnp.asarray(state[f"{name}.weight"].T), jnp.asarray(state[f"{name}.bias"])
        return made

    def norm(name: str, eps: float = 1e-12) -> Any:
        made = nnx.LayerNorm(WIDTH, epsilon=eps, rngs=rngs)
        made.scale[...], made.bias[...] = jnp.asarray(state[f"{name}.weight"]), jnp.asarray(state[f"{name}.bias"])
        return made

    class NAttention(nnx.Module):
        def __init__(self, start: str, scale: float) -> None:
            self.q, self.k, self.v, self.o = (
                dense(f"{start}.{name}", WIDTH, WIDTH) for name in ("query", "key", "value", "out")
            )
            self.scale = scale

        def __call__(self, x, mask):
            shape = (*x.shape[:2], HEADS, WIDTH // HEADS)
            q, k, v = (one(x).reshape(shape) for one in (self.q, self.k, self.v))
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * self.scale
            weights = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, -1e30), axis=-1)
            return self.o(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))

    class NFeed(nnx.Module):
        def __init__(self, number: int) -> None:
            start = f"layers.{number}."
            self.inner, self.outer = dense(start + "inner", WIDTH, HIDDEN), dense(start + "outer", HIDDEN, WIDTH)
            self.tanh = (number, fault) == (0, "gelu")
            if (number, fault) == (1, "bias"):
                self.outer.bias[...] = jnp.zeros(WIDTH)

        def __call__(self, x):
            return self.outer(jax.nn.gelu(self.inner(x), approximate=self.tanh))

    class NLayer(nnx.Module):
        def __init__(self, number: int) -> None:
            start = f"layers.{number}."
            scale = 1.0 if (number, fault) == (0, "scale") else (WIDTH // HEADS) ** -0.5
            self.attention, self.feed = NAttention(start + "attention", scale), NFeed(number)
            eps = 1e-3 if (number, fault) == (1, "eps") else 1e-12
            self.norm1, self.norm2 = norm(start + "norm1"), norm(start + "norm2", eps)
            self.beside = beside(number, fault, jax.lax.stop_gradient)

        def __call__(self, x, mask):
            x = self.norm1(self.attention(x, mask) + self.beside(x))
            return self.norm2(x + self.feed(x))

    class NEncoder(nnx.Module):
        def __init__(self) -> None:
            self.words, self.places = (nnx.Embed(size, WIDTH, rngs=rngs) for size in (VOCABULARY, LENGTH))
            self.words.embedding[...] = jnp.asarray(state["words.weight"])
            self.places.embedding[...] = jnp.asarray(state["places.weight"])
            self.norm = norm("norm")
            self.layers = nnx.List([NLayer(0), NLayer(1)]) if hasattr(nnx, "List") else [NLayer(0), NLayer(1)]

        def __call__(self, ids, mask):
            x = self.norm(self.words(ids) + self.places(jnp.arange(ids.shape[1])))
            allowed = jnp.ones_like(mask, bool) if fault == "mask" else mask.astype(bool)
            for layer in self.layers:
                x = layer(x, allowed)
            return x

    return NEncoder()


def gluon_port(state: dict[str, NDArray], fault: str = "") -> Any:
    from backends.mxnet.ops.framework import mx

    gluon, F = mx.gluon.nn, mx.nd

    def dense(units: int, name: str) -> Any:
        made = gluon.Dense(units, flatten=False, in_units=state[f"{name}.weight"].shape[1])
        made.initialize()
        made.weight.set_data(legacy(state[f"{name}.weight"]))
        made.bias.set_data(legacy(state[f"{name}.bias"]))
        return made

    def norm(name: str, eps: float = 1e-12) -> Any:
        made = gluon.LayerNorm(epsilon=eps, in_channels=WIDTH)
        made.initialize()
        made.gamma.set_data(legacy(state[f"{name}.weight"]))
        made.beta.set_data(legacy(state[f"{name}.bias"]))
        return made

    class GAttention(mx.gluon.Block):
        def __init__(self, start: str, scale: float) -> None:
            super().__init__()
            self.query, self.key, self.value = (dense(WIDTH, start + name) for name in ("query", "key", "value"))
            self.out, self.scale = dense(WIDTH, start + "out"), scale

        def heads(self, x):
            return F.transpose(F.reshape(x, (0, 0, HEADS, -1)), (0, 2, 1, 3))

        def forward(self, x, mask):
            q, k, v = (self.heads(one(x)) for one in (self.query, self.key, self.value))
            scores = F.linalg.gemm2(q, k, transpose_b=True) * self.scale
            scores = F.broadcast_add(scores, (1.0 - mask.expand_dims(1).expand_dims(1)) * -1e9)
            heads = F.linalg.gemm2(F.softmax(scores, axis=-1), v)
            return self.out(F.reshape(F.transpose(heads, (0, 2, 1, 3)), (0, 0, -1)))

    class GLayer(mx.gluon.Block):
        def __init__(self, number: int) -> None:
            super().__init__()
            start = f"layers.{number}."
            scale = 1.0 if (number, fault) == (0, "scale") else (WIDTH // HEADS) ** -0.5
            self.attention = GAttention(start + "attention.", scale)
            eps = 1e-3 if (number, fault) == (1, "eps") else 1e-12
            self.norm1, self.norm2 = norm(start + "norm1"), norm(start + "norm2", eps)
            self.inner, self.outer = dense(HIDDEN, start + "inner"), dense(WIDTH, start + "outer")
            if (number, fault) == (1, "bias"):
                self.outer.bias.set_data(F.zeros(WIDTH))
            self.tanh, self.beside = (number, fault) == (0, "gelu"), beside(number, fault, F.BlockGrad)

        def act(self, x):
            if self.tanh:
                return 0.5 * x * (1 + F.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
            return F.LeakyReLU(x, act_type="gelu")

        def forward(self, x, mask):
            x = self.norm1(self.attention(x, mask) + self.beside(x))
            return self.norm2(x + self.outer(self.act(self.inner(x))))

    class GEncoder(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = gluon.Embedding(VOCABULARY, WIDTH), gluon.Embedding(LENGTH, WIDTH)
            self.words.initialize()
            self.places.initialize()
            self.words.weight.set_data(legacy(state["words.weight"]))
            self.places.weight.set_data(legacy(state["places.weight"]))
            self.norm = norm("norm")
            self.layers = gluon.Sequential()
            self.layers.add(GLayer(0), GLayer(1))

        def forward(self, ids, mask):
            x = self.norm(F.broadcast_add(self.words(ids), self.places(F.arange(ids.shape[1])).expand_dims(0)))
            for layer in self.layers:
                x = layer(x, F.ones_like(mask) if fault == "mask" else mask)
            return x

    return GEncoder()


def call(api: str, model: Any, seed: int = 1) -> None:
    """Call a port on the batch."""
    given = batch(seed)
    if api == "keras":
        model(given["ids"], given["mask"])
    elif api == "gluon":
        model(legacy(given["ids"], "int32"), legacy(given["mask"]))
    else:
        import jax.numpy as jnp

        model(jnp.asarray(given["ids"]), jnp.asarray(given["mask"]))


PORTS = {"keras": keras_port, "linen": linen_port, "nnx": nnx_port, "gluon": gluon_port}
