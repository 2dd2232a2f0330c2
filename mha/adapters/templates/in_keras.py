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

    def __init__(self, num_heads, shapes, biased, dtype):
        """`shapes`: (out, in) of each projection by its name; `biased`: the names of those with a bias."""
        super().__init__(dtype=dtype)
        self.num_heads = num_heads
        for name, (width, width_in) in shapes.items():
            dense = keras.layers.Dense(width, use_bias=name in biased, dtype=dtype)
            dense.build((None, None, width_in))
            setattr(self, name, dense)
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


def with_weights(weights, num_heads):
    """The layer with these weights: a kernel is the transpose of a weight."""
    shapes = {name: weights[f"{name}.weight"].shape for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    biased = [name for name in shapes if f"{name}.bias" in weights]
    layer = Attention(num_heads, shapes, biased, weights["q_proj.weight"].dtype.name)
    for name, array in weights.items():
        projection, kind = name.split(".")
        dense = getattr(layer, projection)
        (dense.kernel if kind == "weight" else dense.bias).assign(array.T if kind == "weight" else array)
    return layer


# mha check --subject mine:attention
def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """A function: NumPy arrays in, the output (B, Lq, Do) out. Further parameters: docs/subjects.md."""
    keys, values = (np.where(padding[:, :, None], 0, x) for x in (keys, values))  # what is padding may be NaN
    given = map(ops.convert_to_tensor, (queries, keys, values, mask))
    return ops.convert_to_numpy(with_weights(weights, num_heads)(*given)[0])


# mha check --subject mine:Layer
class Layer:
    """`Attention` behind prepare(config, weights) -> run(inputs) -> answer."""

    capabilities = Capabilities("head_dim", "value_head_dim", *WIDTHS)  # of all features beside the plain layer

    def prepare(self, config, weights):
        """The layer with these weights."""
        layer = with_weights(weights, config.num_heads)

        def run(inputs):
            sizes = inputs.check(config)
            # Bool (B, H, Lq, Lk): lengths, causal mask and the rest combined.
            mask, padding = allowed_keys(inputs.mask, sizes, config.num_heads), padding_keys(inputs.mask, sizes)
            keys, values = (np.where(padding[:, :, None], 0, x) for x in (inputs.keys, inputs.values))
            found = layer(*map(ops.convert_to_tensor, (inputs.queries, keys, values, mask)))
            return {name: ops.convert_to_numpy(x) for name, x in zip(("output", "weights"), found, strict=True)}

        return run
