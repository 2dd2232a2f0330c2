"""A short right answer to each translation into TensorFlow; see `in_numpy`."""

import tensorflow as tf


def split_heads(x, num_heads):
    batch, length, width = x.shape
    return tf.transpose(tf.reshape(x, (batch, length, num_heads, width // num_heads)), (0, 2, 1, 3))


def merge_heads(heads):
    batch, number, length, width = heads.shape
    return tf.reshape(tf.transpose(heads, (0, 2, 1, 3)), (batch, length, number * width))


def dot_score(queries, keys, scale):
    keys = tf.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    return tf.matmul(queries, keys, transpose_b=True) * scale


def cap(scores, softcap):
    return scores if softcap is None else softcap * tf.tanh(scores / softcap)


def softmax(scores):
    return tf.nn.softmax(scores, axis=-1)


def masked_softmax(scores, allowed):
    return tf.nn.softmax(tf.where(allowed, scores, -float("inf")), axis=-1)


def empty_row(scores, allowed):
    weights = tf.nn.softmax(tf.where(allowed, scores, -float("inf")), axis=-1)
    return tf.where(allowed, weights, 0.0)


def weighted_sum(weights, values):
    return tf.matmul(weights, values)


def turn_halves(x, positions, width, base):
    frequencies = base ** (-tf.range(0, width, 2, dtype=x.dtype) / width)
    angles = tf.cast(positions[:, None, :, None], x.dtype) * frequencies
    a, b, rest = tf.split(x, (width // 2, width // 2, x.shape[-1] - width), axis=-1)
    cos, sin = tf.cos(angles), tf.sin(angles)
    return tf.concat([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def turn_pairs(x, positions, width, base):
    frequencies = base ** (-tf.range(0, width, 2, dtype=x.dtype) / width)
    angles = tf.cast(positions[:, None, :, None], x.dtype) * frequencies
    a, b = x[..., 0:width:2], x[..., 1:width:2]
    cos, sin = tf.cos(angles), tf.sin(angles)
    turned = tf.stack([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return tf.concat([tf.reshape(turned, (*x.shape[:-1], width)), x[..., width:]], axis=-1)


def turned_scores(queries, keys, positions, key_positions, base):
    def turned(x, positions):
        width = x.shape[-1]
        frequencies = base ** (-tf.range(0, width, 2, dtype=x.dtype) / width)
        angles = tf.cast(positions[:, None, :, None], x.dtype) * frequencies
        a, b = tf.split(x, 2, axis=-1)
        cos, sin = tf.cos(angles), tf.sin(angles)
        return tf.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return tf.matmul(turned(queries, positions), turned(keys, key_positions), transpose_b=True)


def rms_norm(x, weight, eps):
    return weight * x / tf.sqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + eps)


def norm_and_turn(x, weight, eps, positions, base, order):
    def normed(x):
        return weight * x / tf.sqrt(tf.reduce_mean(tf.square(x), axis=-1, keepdims=True) + eps)

    def turned(x):
        width = x.shape[-1]
        frequencies = base ** (-tf.range(0, width, 2, dtype=x.dtype) / width)
        angles = tf.cast(positions[:, None, :, None], x.dtype) * frequencies
        a, b = tf.split(x, 2, axis=-1)
        cos, sin = tf.cos(angles), tf.sin(angles)
        return tf.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)

    return turned(normed(x)) if order == "before" else normed(turned(x))


class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = tf.keras.layers.Dense(num_hiddens, use_bias=False)
        self.w_k = tf.keras.layers.Dense(num_hiddens, use_bias=False)
        self.w_v = tf.keras.layers.Dense(num_hiddens, use_bias=False)
        self.w_o = tf.keras.layers.Dense(num_hiddens, use_bias=False)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def call(self, queries, keys, values, valid_lens, training=False):
        def split(x):  # (B, H, L, d)
            batch, length, width = x.shape
            x = tf.reshape(x, (batch, length, self.num_heads, width // self.num_heads))
            return tf.transpose(x, (0, 2, 1, 3))

        q, k, v = split(self.w_q(queries)), split(self.w_k(keys)), split(self.w_v(values))
        allowed = tf.range(keys.shape[1]) < valid_lens[:, None, None, None]
        scores = tf.where(allowed, tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5, -float("inf"))
        heads = tf.transpose(self.dropout(tf.nn.softmax(scores), training=training) @ v, (0, 2, 1, 3))
        return self.w_o(tf.reshape(heads, (*heads.shape[:2], -1)))
