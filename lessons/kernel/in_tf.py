# %% data
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
keys = tf.constant(np.sort(rng.uniform(0, 5, size=(40, 1)), axis=0), tf.float32)  # where something was measured
noise = tf.constant(rng.normal(size=(40, 1)), tf.float32)
values = 2 * tf.sin(keys) + keys**0.8 + 0.5 * noise  # and what was found there
queries = tf.linspace(0.0, 5.0, 51)[:, None]  # where we want to know it
truth = 2 * tf.sin(queries) + queries**0.8
print(f"the mean of all values is off by {tf.reduce_mean(tf.abs(tf.reduce_mean(values) - truth)):.2f} on average")

# %% kernel
distances = queries - tf.transpose(keys)  # (51, 40)
kernel = tf.exp(-(distances**2) / (2 * 0.5**2))  # 1 where a key is the query, near 0 where it is far
weights = kernel / tf.reduce_sum(kernel, axis=-1, keepdims=True)
estimate = weights @ values
print(f"Nadaraya-Watson is off by {tf.reduce_mean(tf.abs(estimate - truth)):.2f}")
row = weights[25].numpy()
print(f"weights of the query at 2.5: from {row.min():.4f} to {row.max():.4f}, sum {row.sum():.4f}")

# %% attention
products = tf.matmul(queries, keys, transpose_b=True) / 0.5**2
bias = tf.broadcast_to(-(tf.transpose(keys) ** 2) / (2 * 0.5**2), products.shape)  # a larger key gets less
attention = tf.nn.softmax(products + bias, axis=-1)
output = attention @ values
print("the same weights:", np.allclose(attention, weights, atol=1e-5))

# %% many
many_weights = tf.stack([weights, weights[::-1]])[:, None]  # (2, 1, 51, 40): two items, one head
many_values = tf.stack([values, 10 * values])[:, None]  # (2, 1, 40, 1)
answers = many_weights @ many_values
alone = weights[::-1] @ (10 * values)
print(tuple(answers.shape), "the second item alone:", np.allclose(answers[1, 0], alone, atol=1e-5))
