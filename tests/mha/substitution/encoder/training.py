"""One backward pass of a model in each API, of the sum of what it gives times `weights`."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def train(
    api: str, port: Any, inputs: list[NDArray], weights: NDArray, within: AbstractContextManager[Any]
) -> tuple[NDArray, list[NDArray]]:
    """What the model gives, and the gradients of its parameters; all within a context."""
    return {"torch": _torch, "keras": _keras, "gluon": _gluon, "linen": _linen, "nnx": _nnx}[api](
        port, inputs, weights, within
    )


def _torch(port, inputs, weights, within):
    port.zero_grad()
    with within:
        found = port(*map(torch.from_numpy, inputs))
        (found * torch.from_numpy(weights)).sum().backward()
    return found.detach().numpy(), [one.grad.numpy().copy() for one in port.parameters() if one.grad is not None]


def _keras(port, inputs, weights, within):
    import tensorflow as tf

    with within:
        with tf.GradientTape() as tape:
            found = port(*inputs)
            loss = tf.reduce_sum(found * weights)
        gradients = tape.gradient(loss, port.trainable_variables)
    return found.numpy(), [tf.convert_to_tensor(one).numpy() for one in gradients if one is not None]


def _gluon(port, inputs, weights, within):
    from backends.mxnet.ops.framework import mx
    from tests.mha.substitution.encoder.ports import legacy

    with within:
        with mx.autograd.record(train_mode=False):
            found = port(*(legacy(one, "int32" if number == 0 else "float32") for number, one in enumerate(inputs)))
            loss = (found * legacy(weights)).sum()
        loss.backward()
    return found.asnumpy(), [one.grad().asnumpy() for one in port.collect_params().values()]


def _jax(function, params, weights, within):
    import jax

    def loss(params):
        found = function(params)
        return (found * weights).sum(), found

    with within:
        gradients, found = jax.grad(loss, has_aux=True)(params)
    return np.asarray(found), [np.asarray(one) for one in jax.tree.leaves(gradients)]


def _linen(port, inputs, weights, within):
    module, variables = port.unbind()
    return _jax(lambda own: module.apply(own, *map(_as_jax, inputs)), variables, weights, within)


def _nnx(port, inputs, weights, within):
    from flax import nnx

    definition, params = nnx.split(port)
    return _jax(lambda own: nnx.merge(definition, own)(*map(_as_jax, inputs)), params, weights, within)


def _as_jax(array: NDArray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(array)
