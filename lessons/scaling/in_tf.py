# %% dots
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)

queries, keys = tf.constant(rng.normal(size=(2, 10, 1)), tf.float32)  # ten of each, with 1 dimension
long_queries, long_keys = tf.constant(rng.normal(size=(2, 10, 100)), tf.float32)  # and with 100
scores = tf.matmul(queries, keys, transpose_b=True)  # (10, 10)
long_scores = tf.matmul(long_queries, long_keys, transpose_b=True)
weights, long_weights = tf.nn.softmax(scores), tf.nn.softmax(long_scores)
print("largest weight of a query, on average:")
print(f"  1 dimension:    {tf.reduce_mean(tf.reduce_max(weights, axis=-1)):.3f}")
print(f"  100 dimensions: {tf.reduce_mean(tf.reduce_max(long_weights, axis=-1)):.3f}")

# %% scaled
scaled_weights = tf.nn.softmax(long_scores / 100**0.5)
print(f"  100 dimensions, divided by 10: {tf.reduce_mean(tf.reduce_max(scaled_weights, axis=-1)):.3f}")

# %% deviation
for size in (1, 4, 16, 64, 256):
    a, b = tf.constant(rng.normal(size=(2, 10_000, size)), tf.float32)
    products = tf.reduce_sum(a * b, axis=-1)
    print(f"{size:4} dimensions: deviation {tf.math.reduce_std(products):6.2f}, root {size**0.5:6.2f}")
