# %% masks
import numpy as np
import tensorflow as tf

x = np.random.default_rng(0).normal(size=(5, 4))  # five words, each a query, a key and a value
x[4] *= 10  # the last of them is long: most scores with it are large
x = tf.constant(x, tf.float32)
causal = tf.range(5)[:, None] >= tf.range(5)  # query i may attend to keys 0 to i
lengths = tf.broadcast_to(tf.range(5) < 3, (5, 5))  # only the first three keys are words, the others padding
print(tf.cast(lengths, tf.int32).numpy())


# %% attend
def masked_softmax(scores, allowed):
    return tf.nn.softmax(tf.where(allowed, scores, -float("inf")))


scores = tf.matmul(x, x, transpose_b=True) / 4**0.5
everything = masked_softmax(scores, tf.ones((5, 5), tf.bool))
causal_weights = masked_softmax(scores, causal)
length_weights = masked_softmax(scores, lengths)
causal_output, length_output = causal_weights @ x, length_weights @ x
most = tf.reduce_max(length_weights[:, 4])
print(f"largest score: {tf.reduce_max(scores):.1f} its weight behind the mask: {most}")

# %% batch
valid_lens = tf.constant([3, 5])  # of two items
allowed_keys = tf.range(5) < valid_lens[:, None, None, None]  # (2, 1, 1, 5)
many_scores = tf.stack([scores, scores])[:, None]  # (2, 1, 5, 5): two items, one head, five queries and keys
many_weights = masked_softmax(many_scores, allowed_keys)
most = tf.reduce_max(many_weights[0, ..., 3:])
print(allowed_keys.shape, many_weights.shape, f"padding of the first item: {most}")

# %% empty
queries = tf.constant([[1.0], [1000.0]])
keys = tf.constant([[1.0], [2.0], [3.0]])
allowed = tf.constant([[True, True, False], [False, False, False]])  # the second query may look at nothing
few_scores = tf.matmul(queries, keys, transpose_b=True)
print(masked_softmax(few_scores, allowed).numpy().round(4))

# %% guarded
has_key = tf.reduce_any(allowed, axis=-1, keepdims=True)
guarded = tf.where(allowed, masked_softmax(few_scores, allowed | ~has_key), 0.0)
print(guarded.numpy().round(4))

# %% broken
nan_score = tf.constant([[float("nan"), 2.0, 3.0]])  # of the first query, which may not look at the third key
powers = tf.exp(tf.where(allowed[:1], nan_score, -float("inf")))
found = powers / tf.reduce_sum(powers, axis=-1, keepdims=True)
print("tf.nn.softmax loses the second NaN:", masked_softmax(nan_score, allowed[:1]).numpy())
print("by row:", tf.where(has_key[:1], found, 0.0).numpy())
print("by key:", tf.where(allowed[:1], found, 0.0).numpy())

# %% padding
values = tf.constant([[10.0], [20.0], [float("nan")]])  # nobody may look at the third, which is padding
print((guarded @ values).numpy())
output = guarded @ tf.where(tf.reduce_any(allowed, axis=0)[:, None], values, 0.0)
print(output.numpy().round(4))
