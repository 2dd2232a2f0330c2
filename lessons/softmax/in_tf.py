# %% textbook
import tensorflow as tf


def textbook_softmax(scores):
    powers = tf.exp(scores - tf.reduce_max(scores))  # the maximum of the whole matrix
    return powers / tf.reduce_sum(powers, axis=-1, keepdims=True)


queries = tf.constant([[1.0], [1000.0]])
keys = tf.constant([[1.0], [2.0], [3.0]])
scores = tf.matmul(queries, keys, transpose_b=True)  # a row of small scores beside a row of large ones
print(scores.numpy())
print(textbook_softmax(scores).numpy().round(4))


# %% rows
def softmax(scores):
    return tf.nn.softmax(scores, axis=-1)  # of each row its own


weights = softmax(scores)
print(weights.numpy().round(4))

# %% empty
allowed = tf.constant([[True, True, False], [False, False, False]])  # the second query may look at nothing
masked = tf.where(allowed, scores, -float("inf"))
print(softmax(masked).numpy().round(4))

# %% guarded
has_key = tf.reduce_any(allowed, axis=-1, keepdims=True)
guarded = tf.where(allowed, softmax(tf.where(has_key, masked, 0.0)), 0.0)
print(guarded.numpy().round(4))

# %% padding
values = tf.constant([[10.0], [20.0], [float("nan")]])  # nobody may look at the third, which is padding
print((guarded @ values).numpy())
output = guarded @ tf.where(tf.reduce_any(allowed, axis=0)[:, None], values, 0.0)
print(output.numpy().round(4))
