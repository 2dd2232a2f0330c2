"""A small encoder in PyTorch, and ports of it to five APIs with other module trees, each with some faults by name."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

VOCABULARY, WIDTH, HIDDEN, HEADS, LENGTH = 11, 12, 20, 3, 7


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, hidden, mask):
        q, k, v = (one(hidden).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(heads.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.inner, self.act, self.outer = nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)

    def forward(self, hidden, mask):
        hidden = self.norm1(hidden + self.attention(hidden, mask))
        return self.norm2(hidden + self.outer(self.act(self.inner(hidden))))


class Encoder(nn.Module):
    """The original: token ids (B, L) and their mask (B, L), 1 for words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, ids, mask):
        hidden = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None, :].bool())
        return hidden


def original(seed: int = 0) -> Encoder:
    """The original with weights that differ everywhere."""
    torch.manual_seed(seed)
    model = Encoder().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def state_of(model: nn.Module) -> dict[str, NDArray]:
    return {name: array.detach().numpy().copy() for name, array in model.state_dict().items()}


def batch(seed: int = 1) -> dict[str, NDArray]:
    """Two sentences, the second one shorter."""
    rng = np.random.default_rng(seed)
    mask = np.ones((2, 5), dtype=np.int64)
    mask[1, 3:] = 0
    return {"ids": rng.integers(0, VOCABULARY, (2, 5)), "mask": mask}


FAULTS: dict[str, dict[str, str]] = {
    "eps": {
        "keras": "encoder/layer_1/second_norm",
        "linen": "layers_1/norm2",
        "nnx": "layers/1/norm2",
        "gluon": "layers.1.norm2",
    },
    "gelu": {"keras": "encoder/layer_0", "linen": "layers_0", "nnx": "layers/0", "gluon": "layers.0"},
    "residual": {"keras": "encoder/layer_1", "linen": "layers_1", "nnx": "layers/1", "gluon": "layers.1"},
    "scale": {
        "keras": "encoder/layer_0/attention",
        "linen": "layers_0/attend",
        "nnx": "layers/0/attention",
        "gluon": "layers.0.attention",
    },
    "bias": {
        "keras": "encoder/layer_1/outer",
        "linen": "layers_1/outer",
        "nnx": "layers/1/feed/outer",
        "gluon": "layers.1.outer",
    },
    "mask": {"keras": "", "linen": "", "nnx": "", "gluon": ""},
}
"""Fault -> the module of each port that it is in; "" is the model itself."""


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
            self.tanh, self.residual = (number, fault) == (0, "gelu"), (number, fault) != (1, "residual")

        def call(self, x, mask):
            x = self.first_norm(self.attention(x, mask) + (x if self.residual else 0.0))
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
            x = attended if (self.number, fault) == (1, "residual") else x + attended
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
        made.kernel.value, made.bias.value = jnp.asarray(state[f"{name}.weight"].T), jnp.asarray(state[f"{name}.bias"])
        return made

    def norm(name: str, eps: float = 1e-12) -> Any:
        made = nnx.LayerNorm(WIDTH, epsilon=eps, rngs=rngs)
        made.scale.value, made.bias.value = jnp.asarray(state[f"{name}.weight"]), jnp.asarray(state[f"{name}.bias"])
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
                self.outer.bias.value = jnp.zeros(WIDTH)

        def __call__(self, x):
            return self.outer(jax.nn.gelu(self.inner(x), approximate=self.tanh))

    class NLayer(nnx.Module):
        def __init__(self, number: int) -> None:
            start = f"layers.{number}."
            scale = 1.0 if (number, fault) == (0, "scale") else (WIDTH // HEADS) ** -0.5
            self.attention, self.feed = NAttention(start + "attention", scale), NFeed(number)
            eps = 1e-3 if (number, fault) == (1, "eps") else 1e-12
            self.norm1, self.norm2 = norm(start + "norm1"), norm(start + "norm2", eps)
            self.residual = (number, fault) != (1, "residual")

        def __call__(self, x, mask):
            attended = self.attention(x, mask)
            x = self.norm1(x + attended if self.residual else attended)
            return self.norm2(x + self.feed(x))

    class NEncoder(nnx.Module):
        def __init__(self) -> None:
            self.words, self.places = (
                nnx.Embed(VOCABULARY, WIDTH, rngs=rngs),
                nnx.Embed(LENGTH, WIDTH, rngs=rngs),
            )
            self.words.embedding.value = jnp.asarray(state["words.weight"])
            self.places.embedding.value = jnp.asarray(state["places.weight"])
            self.norm = norm("norm")
            self.layers = nnx.List([NLayer(0), NLayer(1)]) if hasattr(nnx, "List") else [NLayer(0), NLayer(1)]

        def __call__(self, ids, mask):
            x = self.norm(self.words(ids) + self.places(jnp.arange(ids.shape[1])))
            allowed = jnp.ones_like(mask, bool) if fault == "mask" else mask.astype(bool)
            for layer in self.layers:
                x = layer(x, allowed)
            return x

    return NEncoder()


def _legacy(mx: Any, array: NDArray, dtype: str = "float32") -> Any:
    """An mx.nd array; `mx.nd.array` asks scipy for names that are gone."""
    return mx.np.array(array, dtype=dtype).as_nd_ndarray()


def gluon_port(state: dict[str, NDArray], fault: str = "") -> Any:
    from backends.mxnet.ops.framework import mx

    gluon, F = mx.gluon.nn, mx.nd
    array = partial(_legacy, mx)

    def dense(units: int, name: str) -> Any:
        made = gluon.Dense(units, flatten=False, in_units=state[f"{name}.weight"].shape[1])
        made.initialize()
        made.weight.set_data(array(state[f"{name}.weight"]))
        made.bias.set_data(array(state[f"{name}.bias"]))
        return made

    def norm(name: str, eps: float = 1e-12) -> Any:
        made = gluon.LayerNorm(epsilon=eps, in_channels=WIDTH)
        made.initialize()
        made.gamma.set_data(array(state[f"{name}.weight"]))
        made.beta.set_data(array(state[f"{name}.bias"]))
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
            self.tanh, self.residual = (number, fault) == (0, "gelu"), (number, fault) != (1, "residual")

        def act(self, x):
            if self.tanh:
                return 0.5 * x * (1 + F.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
            return F.LeakyReLU(x, act_type="gelu")

        def forward(self, x, mask):
            attended = self.attention(x, mask)
            x = self.norm1(x + attended if self.residual else attended)
            return self.norm2(x + self.outer(self.act(self.inner(x))))

    class GEncoder(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = gluon.Embedding(VOCABULARY, WIDTH), gluon.Embedding(LENGTH, WIDTH)
            self.words.initialize()
            self.places.initialize()
            self.words.weight.set_data(array(state["words.weight"]))
            self.places.weight.set_data(array(state["places.weight"]))
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
        from backends.mxnet.ops.framework import mx

        model(_legacy(mx, given["ids"], "int32"), _legacy(mx, given["mask"], "float32"))
    else:
        import jax.numpy as jnp

        model(jnp.asarray(given["ids"]), jnp.asarray(given["mask"]))


PORTS = {"keras": keras_port, "linen": linen_port, "nnx": nnx_port, "gluon": gluon_port}
