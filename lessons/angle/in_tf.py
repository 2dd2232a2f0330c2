# %% vectors
import numpy as np
import tensorflow as tf

angles = tf.range(10, dtype=tf.float32) * 36 * np.pi / 180
vectors = tf.stack([tf.cos(angles), tf.sin(angles)], axis=1)  # (10, 2)
query = tf.constant([[np.cos(np.pi / 4), np.sin(np.pi / 4)]], tf.float32)  # (1, 2), at 45 degrees


# %% attend
def attend(queries, keys, values):
    scores = tf.matmul(queries, keys, transpose_b=True)  # (Lq, Lk)
    weights = tf.nn.softmax(scores, axis=-1)
    return weights, weights @ values


weights, output = attend(query, vectors, vectors)
print(weights[0].numpy().round(3))
print(output[0].numpy())

# %% long
longer = vectors * tf.where(tf.range(10) == 3, 5.0, 1.0)[:, None]  # the one at 108 degrees
long_weights, long_output = attend(query, longer, longer)
print(long_weights[0].numpy().round(3))
print(long_output[0].numpy().round(4))

# %% several
directions = tf.constant([45.0, 150.0, 270.0]) * np.pi / 180
queries = tf.stack([tf.cos(directions), tf.sin(directions)], axis=1)  # (3, 2)
all_weights, outputs = attend(queries, vectors, vectors)
print(outputs.shape, all_weights.shape, tf.reduce_sum(all_weights, axis=-1).numpy().round(5))

# %% additive
rng = np.random.default_rng(0)
w_q, w_k, vector = (tf.constant(rng.normal(size=size), tf.float32) for size in ((8, 2), (8, 2), 8))
asked, offered = tf.matmul(query, w_q, transpose_b=True), tf.matmul(longer, w_k, transpose_b=True)
hidden = tf.tanh(asked[:, None] + offered[None])  # (1, 10, 8), a small network for each pair
additive_scores = tf.reduce_sum(hidden * vector, axis=-1)  # (1, 10)
additive_weights = tf.nn.softmax(additive_scores)
print(additive_weights[0].numpy().round(3))
