# %% dots
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)


def tell(name, w):  # on average: the largest weight of a query, and the slope of a weight
    largest, slopes = tf.reduce_max(w, axis=-1), w * (1 - w)
    print(f"{name}: largest {tf.reduce_mean(largest):.2f}, slope {tf.reduce_mean(slopes):.3f}")


queries, keys = tf.constant(rng.normal(size=(2, 10, 1)), tf.float32)  # ten of each, with 1 dimension
long_queries, long_keys = tf.constant(rng.normal(size=(2, 10, 100)), tf.float32)  # and with 100
scores = tf.matmul(queries, keys, transpose_b=True)  # (10, 10)
long_scores = tf.matmul(long_queries, long_keys, transpose_b=True)
weights, long_weights = tf.nn.softmax(scores), tf.nn.softmax(long_scores)
tell("1 dimension", weights)
tell("100 dimensions", long_weights)

# %% scaled
scaled_weights = tf.nn.softmax(long_scores / 100**0.5)
tell("100 dimensions, divided by 10", scaled_weights)

# %% deviation
for size in (1, 4, 16, 64, 256):
    a, b = tf.constant(rng.normal(size=(2, 10_000, size)), tf.float32)
    products = tf.reduce_sum(a * b, axis=-1)
    print(f"{size:4} dimensions: deviation {tf.math.reduce_std(products):6.2f}, root {size**0.5:6.2f}")
