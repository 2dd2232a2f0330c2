"""Multi-head attention in TensorFlow, on one screen; the files beside it are the same steps in other frameworks.

Left out, so that nothing stands between the formula and its stages: how lengths, a causal rule and windows become the
one `mask` (True = may attend), layers that learn their sizes at the first call, blocks that save memory, and every
feature beyond the plain layer; the command below lists these, with cases that need them. `backends/tf` has all.

What is here is judged on every case that it can express: `mha check --subject lessons.plain.in_tf:attention`.
"""

import numpy as np
import tensorflow as tf


def multi_head_attention(parameters, queries, keys, values, mask, padding, *, num_heads):
    """Queries (B, Lq, Dq), keys (B, Lk, Dk), values (B, Lk, Dv) -> the seven stages, of which output (B, Lq, Do)."""

    def project(x, name):  # (B, L, D) -> (B, L, H * d)
        return tf.matmul(x, parameters[f"{name}.weight"], transpose_b=True) + parameters.get(f"{name}.bias", 0)

    def split(x):  # (B, L, H * d) -> (B, H, L, d)
        return tf.transpose(tf.reshape(x, [*x.shape[:2], num_heads, x.shape[2] // num_heads]), [0, 2, 1, 3])

    def softmax(x):  # over the keys
        powers = tf.exp(x - tf.reduce_max(x, axis=-1, keepdims=True))  # tf.nn.softmax loses NaN: oneDNN, float32
        return powers / tf.reduce_sum(powers, axis=-1, keepdims=True)

    keys = tf.where(padding[:, :, None], 0, keys)  # (B, Lk, Dk)
    values = tf.where(padding[:, :, None], 0, values)  # (B, Lk, Dv)
    q = split(project(queries, "q_proj"))  # (B, H, Lq, d)
    k = split(project(keys, "k_proj"))  # (B, H, Lk, d)
    v = split(project(values, "v_proj"))  # (B, H, Lk, dv)
    scores = tf.matmul(q, k, transpose_b=True) * q.shape[-1] ** -0.5  # (B, H, Lq, Lk)
    has_key = tf.reduce_any(mask, axis=-1, keepdims=True)  # (B, H, Lq, 1)
    masked = tf.where(~mask & has_key, -np.inf, scores)  # (B, H, Lq, Lk)
    weights = tf.where(mask, softmax(masked), 0)  # (B, H, Lq, Lk)
    heads = tf.matmul(weights, v)  # (B, H, Lq, dv)
    merged = tf.reshape(tf.transpose(heads, [0, 2, 1, 3]), [*queries.shape[:2], num_heads * heads.shape[3]])
    output = project(merged, "out_proj")  # (B, Lq, Do)
    return dict(queries=q, keys=k, values=v, scores=scores, weights=weights, heads=heads, output=output)


def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """The layer on NumPy arrays, as the judge calls it."""
    parameters = {name: tf.constant(array) for name, array in weights.items()}
    arrays = [tf.constant(array) for array in (queries, keys, values, mask, padding)]
    stages = multi_head_attention(parameters, *arrays, num_heads=num_heads)
    return {name: stage.numpy() for name, stage in stages.items()}
