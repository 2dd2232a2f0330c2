"""A small model in five APIs that is right forward in all, and wrong backward as asked: see `FAULTS`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

WORDS, WIDTH = 7, 6
IDS = np.array([[1, 2, 3, 3], [0, 6, 5, 4]])
WEIGHTS = np.cos(np.arange(2 * 4 * WIDTH, dtype=np.float32)).reshape(2, 4, WIDTH)
"""The loss is the sum of these times what the model gives."""

FAULTS = ("residual", "gelu", "variance", "embedding", "bias")
"""A residual that is detached; a GELU straight through; a norm's variance without gradient; an embedding's gradient
halved; a bias detached."""


class Words(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.table, self.fault = nn.Parameter(torch.randn(WORDS, WIDTH)), fault

    def forward(self, ids):
        found = self.table[ids]
        return found.detach() + 0.5 * (found - found.detach()) if self.fault == "embedding" else found


class Norm(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.scale, self.shift, self.fault = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH)), fault

    def forward(self, x):
        variance = x.var(-1, keepdim=True, unbiased=False)
        variance = variance.detach() if self.fault == "variance" else variance
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(variance + 1e-5) * self.scale + self.shift


class Dense(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.weight, self.bias, self.fault = (
            nn.Parameter(torch.randn(WIDTH, WIDTH)),
            nn.Parameter(torch.randn(6)),
            fault,
        )

    def forward(self, x):
        return x @ self.weight.T + (self.bias.detach() if self.fault == "bias" else self.bias)


class Block(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.dense, self.norm, self.fault = Dense(fault), Norm(fault), fault

    def forward(self, x):
        inner = self.dense(x)
        given = nn.functional.gelu(inner)
        given = inner + (given - inner).detach() if self.fault == "gelu" else given
        return self.norm(given + (x.detach() if self.fault == "residual" else x))


class Model(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.words, self.block = Words(fault), Block(fault)

    def forward(self, ids):
        return self.block(self.words(ids))


def original() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def state_of(model: nn.Module) -> dict[str, NDArray]:
    return {name: array.detach().numpy() for name, array in model.state_dict().items()}


def torch_port(state: dict[str, NDArray], fault: str) -> Any:
    port = Model(fault).eval()
    port.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    return port


def _flax(stop: Any, jnp: Any, jax: Any) -> dict[str, Any]:
    """What the modules of linen and nnx compute."""

    def words(table: Any, ids: Any, fault: str) -> Any:
        found = table[ids]
        return stop(found) + 0.5 * (found - stop(found)) if fault == "embedding" else found

    def norm(scale: Any, shift: Any, x: Any, fault: str) -> Any:
        variance = x.var(-1, keepdims=True)
        variance = stop(variance) if fault == "variance" else variance
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(variance + 1e-5) * scale + shift

    def dense(kernel: Any, bias: Any, x: Any, fault: str) -> Any:
        return x @ kernel + (stop(bias) if fault == "bias" else bias)

    def between(x: Any, inner: Any, fault: str) -> Any:
        given = jax.nn.gelu(inner, approximate=False)
        given = inner + stop(given - inner) if fault == "gelu" else given
        return given + (stop(x) if fault == "residual" else x)

    return {"words": words, "norm": norm, "dense": dense, "between": between}


def linen_port(state: dict[str, NDArray], fault: str) -> Any:
    import flax.linen as fnn
    import jax
    import jax.numpy as jnp

    does = _flax(jax.lax.stop_gradient, jnp, jax)
    zeros = fnn.initializers.zeros

    class LWords(fnn.Module):
        @fnn.compact
        def __call__(self, ids):
            return does["words"](self.param("table", zeros, (WORDS, WIDTH)), ids, fault)

    class LNorm(fnn.Module):
        @fnn.compact
        def __call__(self, x):
            return does["norm"](self.param("scale", zeros, (WIDTH,)), self.param("shift", zeros, (WIDTH,)), x, fault)

    class LDense(fnn.Module):
        @fnn.compact
        def __call__(self, x):
            kernel, bias = self.param("kernel", zeros, (WIDTH, WIDTH)), self.param("bias", zeros, (WIDTH,))
            return does["dense"](kernel, bias, x, fault)

    class LBlock(fnn.Module):
        @fnn.compact
        def __call__(self, x):
            return LNorm(name="norm")(does["between"](x, LDense(name="dense")(x), fault))

    class LModel(fnn.Module):
        @fnn.compact
        def __call__(self, ids):
            return LBlock(name="block")(LWords(name="words")(ids))

    dense = {"kernel": state["block.dense.weight"].T, "bias": state["block.dense.bias"]}
    norm = {"scale": state["block.norm.scale"], "shift": state["block.norm.shift"]}
    params = {"words": {"table": state["words.table"]}, "block": {"dense": dense, "norm": norm}}
    return LModel().bind({"params": jax.tree.map(jnp.asarray, params)})


def nnx_port(state: dict[str, NDArray], fault: str) -> Any:
    import jax
    import jax.numpy as jnp
    from flax import nnx

    does = _flax(jax.lax.stop_gradient, jnp, jax)

    def param(name: str, *, turned: bool = False) -> Any:
        return nnx.Param(jnp.asarray(state[name].T if turned else state[name]))

    class NWords(nnx.Module):
        def __init__(self) -> None:
            self.table = param("words.table")

        def __call__(self, ids):
            return does["words"](self.table[...], ids, fault)

    class NNorm(nnx.Module):
        def __init__(self) -> None:
            self.scale, self.shift = param("block.norm.scale"), param("block.norm.shift")

        def __call__(self, x):
            return does["norm"](self.scale[...], self.shift[...], x, fault)

    class NDense(nnx.Module):
        def __init__(self) -> None:
            self.kernel, self.bias = param("block.dense.weight", turned=True), param("block.dense.bias")

        def __call__(self, x):
            return does["dense"](self.kernel[...], self.bias[...], x, fault)

    class NBlock(nnx.Module):
        def __init__(self) -> None:
            self.dense, self.norm = NDense(), NNorm()

        def __call__(self, x):
            return self.norm(does["between"](x, self.dense(x), fault))

    class NModel(nnx.Module):
        def __init__(self) -> None:
            self.words, self.block = NWords(), NBlock()

        def __call__(self, ids):
            return self.block(self.words(ids))

    return NModel()


def keras_port(state: dict[str, NDArray], fault: str) -> Any:
    import keras
    import tensorflow as tf

    def added(layer: Any, name: str, array: NDArray) -> Any:
        return layer.add_weight(shape=array.shape, initializer=lambda *_, **__: array, name=name)

    class KWords(keras.layers.Layer):
        def build(self, shape):
            self.table = added(self, "table", state["words.table"])

        def call(self, ids):
            found = tf.gather(self.table.value, ids)
            stop = tf.stop_gradient(found)
            return stop + 0.5 * (found - stop) if fault == "embedding" else found

    class KNorm(keras.layers.Layer):
        def build(self, shape):
            self.scale = added(self, "scale", state["block.norm.scale"])
            self.shift = added(self, "shift", state["block.norm.shift"])

        def call(self, x):
            mean, variance = tf.nn.moments(x, -1, keepdims=True)
            variance = tf.stop_gradient(variance) if fault == "variance" else variance
            return (x - mean) * tf.math.rsqrt(variance + 1e-5) * self.scale + self.shift

    class KDense(keras.layers.Layer):
        def build(self, shape):
            self.kernel = added(self, "kernel", state["block.dense.weight"].T)
            self.bias = added(self, "bias", state["block.dense.bias"])

        def call(self, x):
            bias = self.bias.value
            return tf.matmul(x, self.kernel) + (tf.stop_gradient(bias) if fault == "bias" else bias)

    class KBlock(keras.layers.Layer):
        def __init__(self, **rest: Any) -> None:
            super().__init__(**rest)
            self.dense, self.norm = KDense(name="dense"), KNorm(name="norm")

        def call(self, x):
            inner = self.dense(x)
            given = tf.nn.gelu(inner)
            given = inner + tf.stop_gradient(given - inner) if fault == "gelu" else given
            return self.norm(given + (tf.stop_gradient(x) if fault == "residual" else x))

    class KModel(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="model")
            self.words, self.block = KWords(name="words"), KBlock(name="block")

        def call(self, ids):
            return self.block(self.words(ids))

    port = KModel()
    port(IDS)
    return port


def gluon_port(state: dict[str, NDArray], fault: str) -> Any:
    from backends.mxnet.ops.framework import mx

    F = mx.nd

    def param(block: Any, name: str) -> Any:
        array = state[name]
        made = block.params.get(name.rpartition(".")[2], shape=array.shape)
        made.initialize()
        made.set_data(legacy(array))
        return made

    class GWords(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.table = param(self, "words.table")

        def forward(self, ids):
            found = F.take(self.table.data(), ids)
            stop = F.BlockGrad(found)
            return stop + 0.5 * (found - stop) if fault == "embedding" else found

    class GNorm(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = param(self, "block.norm.scale"), param(self, "block.norm.shift")

        def forward(self, x):
            x = F.broadcast_sub(x, F.mean(x, axis=-1, keepdims=True))
            variance = F.mean(x * x, axis=-1, keepdims=True)
            variance = F.BlockGrad(variance) if fault == "variance" else variance
            normed = F.broadcast_mul(x, F.rsqrt(variance + 1e-5))
            return F.broadcast_add(F.broadcast_mul(normed, self.scale.data()), self.shift.data())

    class GDense(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = param(self, "block.dense.weight"), param(self, "block.dense.bias")

        def forward(self, x):
            bias = F.BlockGrad(self.bias.data()) if fault == "bias" else self.bias.data()
            return F.broadcast_add(F.dot(x, self.weight.data(), transpose_b=True), bias)

    class GBlock(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.norm = GDense(), GNorm()

        def forward(self, x):
            inner = self.dense(x)
            given = F.LeakyReLU(inner, act_type="gelu")
            given = inner + F.BlockGrad(given - inner) if fault == "gelu" else given
            return self.norm(given + (F.BlockGrad(x) if fault == "residual" else x))

    class GModel(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.block = GWords(), GBlock()

        def forward(self, ids):
            return self.block(self.words(ids))

    return GModel()


def legacy(array: NDArray, dtype: str = "float32") -> Any:
    """An mx.nd array."""
    from backends.mxnet.ops.framework import mx

    return mx.np.array(array, dtype=dtype).as_nd_ndarray()


PORTS = {"torch": torch_port, "linen": linen_port, "nnx": nnx_port, "keras": keras_port, "gluon": gluon_port}
