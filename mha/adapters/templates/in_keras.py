"""Attention in Keras for `mha check`, equal as it stands.

mha check --subject mine:attention    (the function)
mha check --subject mine:Layer        (the class)

Put your own code where "yours" stands, and run it again.
"""

import keras
import numpy as np
from keras import ops

from mha_core.call.masks import allowed_keys, padding_keys
from mha_core.subject import WIDTHS, Capabilities


class Attention(keras.layers.Layer):
    """Yours: a layer."""

    def __init__(self, config, dtype):
        super().__init__(dtype=dtype)
        self.num_heads = config.num_heads
        width, value_width = config.num_heads * config.head_dim, config.num_heads * config.value_head_dim
        self.q_proj = keras.layers.Dense(width, use_bias=config.bias.q_proj, dtype=dtype)
        self.k_proj = keras.layers.Dense(width, use_bias=config.bias.k_proj, dtype=dtype)
        self.v_proj = keras.layers.Dense(value_width, use_bias=config.bias.v_proj, dtype=dtype)
        self.out_proj = keras.layers.Dense(config.output_dim, use_bias=config.bias.out_proj, dtype=dtype)
        self.q_proj.build((None, None, config.query_dim))
        self.k_proj.build((None, None, config.key_dim))
        self.v_proj.build((None, None, config.value_dim))
        self.out_proj.build((None, None, value_width))
        self.built = True

    def call(self, queries, keys, values, allowed):
        """`allowed` is bool (B, H, Lq, Lk), True = may attend. Returns the output and the weights."""

        def split(x):  # (B, L, H * d) -> (B, H, L, d)
            heads = ops.reshape(x, (*x.shape[:2], self.num_heads, x.shape[2] // self.num_heads))
            return ops.transpose(heads, (0, 2, 1, 3))

        q, k, v = split(self.q_proj(queries)), split(self.k_proj(keys)), split(self.v_proj(values))
        scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * q.shape[-1] ** -0.5
        scores = ops.where(allowed, scores, float(np.finfo(self.compute_dtype).min))
        # Not ops.softmax: with oneDNN, TensorFlow's in float32 hides a NaN.
        e = ops.exp(scores - ops.max(scores, axis=-1, keepdims=True, initial=float(np.finfo(self.compute_dtype).min)))
        e = ops.where(allowed, e, 0.0)
        total = ops.sum(e, axis=-1, keepdims=True)
        weights = ops.where(allowed, e / ops.where(total == 0, 1.0, total), 0.0)  # a row without an allowed key is 0
        heads = ops.transpose(ops.matmul(weights, v), (0, 2, 1, 3))
        return self.out_proj(ops.reshape(heads, (*heads.shape[:2], heads.shape[2] * heads.shape[3]))), weights


def with_weights(config, weights):
    """The layer with these weights: a kernel is the transpose of a weight."""
    layer = Attention(config, next(iter(weights.values())).dtype.name)
    for name, array in weights.items():
        projection, kind = name.split(".")
        dense = getattr(layer, projection)
        (dense.kernel if kind == "weight" else dense.bias).assign(array.T if kind == "weight" else array)
    return layer


# mha check --subject mine:attention
def attention(weights, queries, keys, values, mask, *, config, padding):
    """A function: NumPy arrays in, the output (B, Lq, Do) out. Further parameters: docs/subjects.md."""
    keys, values = (np.where(padding[:, :, None], 0, x) for x in (keys, values))  # what is padding may be NaN
    given = map(ops.convert_to_tensor, (queries, keys, values, mask))
    return ops.convert_to_numpy(with_weights(config, weights)(*given)[0])


# mha check --subject mine:Layer
class Layer:
    """`Attention` behind prepare(config, weights) -> run(inputs) -> answer."""

    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    def prepare(self, config, weights):
        """The layer with these weights."""
        layer = with_weights(config, weights)

        def run(inputs):
            sizes = inputs.check(config)
            # Bool (B, H, Lq, Lk): lengths, causal mask and the rest combined.
            mask, padding = allowed_keys(inputs.mask, sizes, config.num_heads), padding_keys(inputs.mask, sizes)
            keys, values = (np.where(padding[:, :, None], 0, x) for x in (inputs.keys, inputs.values))
            found = layer(*map(ops.convert_to_tensor, (inputs.queries, keys, values, mask)))
            return {name: ops.convert_to_numpy(x) for name, x in zip(("output", "weights"), found, strict=True)}

        return run
