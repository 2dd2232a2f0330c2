"""Attention in Flax NNX for `mha check`, equal as it stands.

mha check --subject mine:attention    (the function)
mha check --subject mine:Layer        (the class, with its gradients)

Put your own code where "yours" stands, and run it again.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.subject import WIDTHS, Capabilities

jax.config.update("jax_enable_x64", True)  # else JAX makes float32 of float64


class Attention(nnx.Module):
    """Yours: a module."""

    def __init__(self, num_heads, shapes, biased, dtype):
        """`shapes`: (out, in) of each projection by its name; `biased`: the names of those with a bias."""
        self.num_heads = num_heads
        how = {"dtype": dtype, "param_dtype": dtype, "rngs": nnx.Rngs(0)}
        for name, (width, width_in) in shapes.items():
            setattr(self, name, nnx.Linear(width_in, width, use_bias=name in biased, **how))

    def __call__(self, queries, keys, values, mask):
        """`mask` is bool (B, H, Lq, Lk), True = may attend. Returns the output and the weights."""

        def split(x):  # (B, L, H * d) -> (B, L, H, d)
            return x.reshape(*x.shape[:2], self.num_heads, x.shape[2] // self.num_heads)

        q, k, v = split(self.q_proj(queries)), split(self.k_proj(keys)), split(self.v_proj(values))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
        # A finite number here, and zeros afterwards: -inf would give NaN gradients in a row that is all masked.
        scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
        weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
        heads = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return self.out_proj(heads.reshape(*heads.shape[:2], heads.shape[2] * heads.shape[3])), weights


def with_weights(weights, num_heads):
    """The module with copies of these weights: a kernel is the transpose of a weight."""
    shapes = {name: weights[f"{name}.weight"].shape for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    biased = [name for name in shapes if f"{name}.bias" in weights]
    module = Attention(num_heads, shapes, biased, weights["q_proj.weight"].dtype)
    for name, array in weights.items():
        projection, kind = name.split(".")
        linear = getattr(module, projection)
        if kind == "weight":
            linear.kernel = nnx.Param(jnp.array(array.T))
        else:
            linear.bias = nnx.Param(jnp.array(array))
    return module


# mha check --subject mine:attention
def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """A function: NumPy arrays in, the output (B, Lq, Do) out. Further parameters: docs/subjects.md."""
    keys, values = (np.where(padding[:, :, None], 0, x) for x in (keys, values))  # what is padding may be NaN
    return np.asarray(with_weights(weights, num_heads)(*map(jnp.asarray, (queries, keys, values, mask)))[0])


# mha check --subject mine:Layer
class Layer:
    """`Attention` behind prepare(config, weights) -> run(inputs) -> answer, differentiated."""

    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    def prepare(self, config, weights):
        """The module with these weights."""
        graph, parameters = nnx.split(with_weights(weights, config.num_heads))

        @jax.jit
        def forward(parameters, given, mask, padding):
            keys, values = (jnp.where(padding[:, :, None], 0, given[name]) for name in ("keys", "values"))
            return nnx.merge(graph, parameters)(given["queries"], keys, values, mask)

        def run(inputs):
            sizes = inputs.check(config)
            # Bool (B, H, Lq, Lk): lengths, causal mask and the rest combined.
            mask, padding = allowed_keys(inputs.mask, sizes, config.num_heads), padding_keys(inputs.mask, sizes)
            given = {name: jnp.asarray(getattr(inputs, name)) for name in ("queries", "keys", "values")}

            masked = partial(forward, mask=mask, padding=padding)
            output, backward, attention_weights = jax.vjp(masked, parameters, given, has_aux=True)
            answer = {"output": np.asarray(output), "weights": np.asarray(attention_weights)}
            if inputs.cotangent is not None:
                changed, of_inputs = backward(jnp.asarray(inputs.cotangent))
                gradients = {name: np.asarray(x) for name, x in of_inputs.items()}
                found = nnx.merge(graph, changed)
                for name in weights:
                    projection, kind = name.split(".")
                    linear = getattr(found, projection)
                    gradients[name] = np.asarray((linear.kernel if kind == "weight" else linear.bias)[...]).T
                answer["gradients"] = gradients
            return answer

        return run
