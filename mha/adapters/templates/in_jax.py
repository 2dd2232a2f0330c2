"""Attention in JAX for `mha check`, equal as it stands.

mha check --subject mine:attention    (the function)
mha check --subject mine:Layer        (the class, with its gradients)

Put your own code where "yours" stands, and run it again.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.subject import WIDTHS, Capabilities

jax.config.update("jax_enable_x64", True)  # else JAX makes float32 of float64


def attend(queries, keys, values, mask):
    """Yours: heads (B, H, L, d) and a bool mask, True = may attend -> heads (B, H, Lq, dv), weights (B, H, Lq, Lk)."""
    scores = queries @ keys.swapaxes(2, 3) * queries.shape[-1] ** -0.5
    # A finite number here, and zeros afterwards: -inf would give NaN gradients in a row that is all masked.
    scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
    weights = jnp.where(mask, jax.nn.softmax(scores, axis=-1), 0)
    return weights @ values, weights


@partial(jax.jit, static_argnames="num_heads")
def layer(weights, queries, keys, values, mask, padding, num_heads):
    """Yours: arrays of JAX in, the output (B, Lq, Do) and the weights out."""

    def project(name, x):
        projected = x @ weights[f"{name}.weight"].T
        return projected + weights[f"{name}.bias"][None, None] if f"{name}.bias" in weights else projected

    def split(x):  # (B, L, H * d) -> (B, H, L, d)
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    keys, values = (jnp.where(padding[:, :, None], 0, x) for x in (keys, values))  # what is padding may be NaN
    q, k, v = split(project("q_proj", queries)), split(project("k_proj", keys)), split(project("v_proj", values))
    heads, attention_weights = attend(q, k, v, mask)
    heads = heads.swapaxes(1, 2)
    return project("out_proj", heads.reshape(*heads.shape[:2], heads.shape[2] * heads.shape[3])), attention_weights


# mha check --subject mine:attention
def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """A function: NumPy arrays in, the output (B, Lq, Do) out. Further parameters: docs/subjects.md."""
    weights = {name: jnp.asarray(array) for name, array in weights.items()}
    return np.asarray(layer(weights, *map(jnp.asarray, (queries, keys, values, mask, padding)), num_heads)[0])


# mha check --subject mine:Layer
class Layer:
    """`layer` behind prepare(config, weights) -> run(inputs) -> answer, differentiated."""

    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    def prepare(self, config, weights):
        """The layer with copies of these weights, under the names that docs/subjects.md lists."""
        parameters = {name: jnp.array(array) for name, array in weights.items()}

        def run(inputs):
            sizes = inputs.check(config)
            # Bool (B, H, Lq, Lk): lengths, causal mask and the rest combined.
            mask, padding = allowed_keys(inputs.mask, sizes, config.num_heads), padding_keys(inputs.mask, sizes)
            given = {name: jnp.asarray(getattr(inputs, name)) for name in ("queries", "keys", "values")}

            def forward(parameters, given):
                floats = given["queries"], given["keys"], given["values"]  # JAX sorts a dict by its keys
                return layer(parameters, *floats, mask, padding, config.num_heads)

            output, backward, attention_weights = jax.vjp(forward, parameters, given, has_aux=True)
            answer = {"output": np.asarray(output), "weights": np.asarray(attention_weights)}
            if inputs.cotangent is not None:
                of_weights, of_inputs = backward(jnp.asarray(inputs.cotangent))
                answer["gradients"] = {name: np.asarray(x) for name, x in {**of_weights, **of_inputs}.items()}
            return answer

        return run
