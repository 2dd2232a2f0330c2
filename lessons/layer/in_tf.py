# %% sizes
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
queries = tf.constant(rng.normal(size=(2, 4, 100)), tf.float32)  # two items, 4 queries
keys = tf.constant(rng.normal(size=(2, 6, 100)), tf.float32)  # 6 keys
w_q, w_k, w_v, w_o = tf.unstack(tf.constant(rng.normal(size=(4, 100, 100)) / 10, tf.float32))
valid_lens = tf.constant([3, 2])  # of the 6 keys of each item so many are words, the others padding


# %% project
def project(x, w):
    return tf.linalg.matmul(x, w, transpose_b=True)


projected_q, projected_k, projected_v = project(queries, w_q), project(keys, w_k), project(keys, w_v)
one_by_one = tf.stack([tf.linalg.matvec(w_k, key) for key in tf.reshape(keys, (12, 100))])
same = np.allclose(tf.reshape(projected_k, (12, 100)), one_by_one, atol=1e-5)
print(projected_k.shape, "as W times each of 12 vectors:", same)


# %% split
def transpose_qkv(x, num_heads):
    x = tf.reshape(x, (*x.shape[:2], num_heads, -1))  # (2, 4, 5, 20)
    x = tf.transpose(x, (0, 2, 1, 3))  # (2, 5, 4, 20)
    return tf.reshape(x, (-1, *x.shape[2:]))  # (10, 4, 20)


q, k, v = (transpose_qkv(x, 5) for x in (projected_q, projected_k, projected_v))
print(projected_q.shape, "->", q.shape, "and", projected_k.shape, "->", k.shape)


# %% attend
def attend(q, k, v, allowed):
    scores = tf.where(allowed, tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5, -float("inf"))
    weights = tf.nn.softmax(scores)
    return weights, weights @ v


lengths = tf.repeat(valid_lens, 5)  # one for each of the 10
allowed = (tf.range(6) < lengths[:, None])[:, None]  # (10, 1, 6)
weights, heads = attend(q, k, v, allowed)
print("lengths", lengths.numpy(), "weights", weights.shape, "heads", heads.shape)

# %% repeat
print("repeat:", tf.repeat(valid_lens, 5).numpy())
print("tile:  ", tf.tile(valid_lens, [5]).numpy())


# %% merge
def transpose_output(x, num_heads):
    x = tf.reshape(x, (-1, num_heads, *x.shape[1:]))  # (2, 5, 4, 20)
    x = tf.transpose(x, (0, 2, 1, 3))  # (2, 4, 5, 20)
    return tf.reshape(x, (*x.shape[:2], -1))  # (2, 4, 100)


merged = transpose_output(heads, 5)
output = project(merged, w_o)
print(heads.shape, "->", merged.shape, "->", output.shape)


# %% class
class MultiHeadAttention(tf.keras.layers.Layer):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = tf.keras.layers.Dense(num_hiddens, use_bias=False)  # its `build` makes the matrix, at the first call
        self.w_k = tf.keras.layers.Dense(num_hiddens, use_bias=False)
        self.w_v = tf.keras.layers.Dense(num_hiddens, use_bias=False)
        self.w_o = tf.keras.layers.Dense(num_hiddens, use_bias=False)
        self.dropout = tf.keras.layers.Dropout(dropout)

    def call(self, queries, keys, values, valid_lens, training=False):
        projected = (self.w_q(queries), self.w_k(keys), self.w_v(values))
        q, k, v = (transpose_qkv(x, self.num_heads) for x in projected)
        lengths = tf.repeat(valid_lens, self.num_heads)
        allowed = (tf.range(k.shape[1]) < lengths[:, None])[:, None]
        weights, _ = attend(q, k, v, allowed)
        weights = self.dropout(weights, training=training)
        return self.w_o(transpose_output(weights @ v, self.num_heads))


# %% call
layer = MultiHeadAttention(100, 5, dropout=0.5)
print("before:", layer.w_q.weights)
first = layer(queries, keys, keys, valid_lens)
print("after: ", [tuple(parameter.shape) for parameter in layer.weights])
assert first.shape == (2, 4, 100)

# %% same
for dense, matrix in ((layer.w_q, w_q), (layer.w_k, w_k), (layer.w_v, w_v), (layer.w_o, w_o)):
    dense.kernel.assign(tf.transpose(matrix))  # Keras keeps (in, out)
made = layer(queries, keys, keys, valid_lens)
print("as step by step:", np.allclose(made, output, atol=1e-5))

# %% grouped
two_k, two_v = tf.repeat(k[:2], 2, axis=0), tf.repeat(v[:2], 2, axis=0)
grouped_heads = attend(q[:4], two_k, two_v, tf.ones((1, 1, 6), tf.bool))[1]
grouped = transpose_output(grouped_heads, 4)[0]
print(q[:4].shape, "and two heads of keys", k[:2].shape, "->", grouped.shape)

# %% linear_o
num_heads, d_model, length = 4, 16, 6
concatenated = tf.concat([tf.ones((length, d_model // num_heads)) for _ in range(num_heads)], axis=1)
linear_o = tf.ones((num_heads * d_model, d_model))  # as printed: it takes 64 numbers
try:
    tf.matmul(concatenated, linear_o)
except tf.errors.InvalidArgumentError:
    print(f"does not fit: {concatenated.shape} and {linear_o.shape}")
linear_o = tf.ones((num_heads * (d_model // num_heads), d_model))  # right: as wide as the heads side by side
print("fits:", tf.matmul(concatenated, linear_o).shape)
