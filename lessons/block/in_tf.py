# %% words
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
vectors = tf.constant(rng.normal(size=(5, 512)), tf.float32)  # five words
steps = tf.range(5.0)[:, None] / 10000 ** (tf.range(0.0, 512, 2) / 512)  # (5, 256)
positions = tf.reshape(tf.stack([tf.sin(steps), tf.cos(steps)], axis=-1), (5, 512))  # sine and cosine in turn
x = vectors + positions
print(x.shape)

# %% projections
w_q, w_k, w_v, w_o = tf.unstack(tf.constant(rng.normal(size=(4, 512, 512)), tf.float32) / 512**0.5)


def split(x):  # (L, 512) -> (8, L, 64)
    return tf.transpose(tf.reshape(x, (x.shape[0], 8, 64)), (1, 0, 2))


q, k, v = (split(tf.matmul(x, w, transpose_b=True)) for w in (w_q, w_k, w_v))
print(q.shape, k.shape, v.shape)

# %% attend
scores = tf.matmul(q, k, transpose_b=True) / 8  # the root of 64
weights = tf.nn.softmax(scores)
heads = weights @ v  # (8, 5, 64)
output = tf.matmul(tf.reshape(tf.transpose(heads, (1, 0, 2)), (5, 512)), w_o, transpose_b=True)
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    mean, variance = tf.nn.moments(y, axes=[-1], keepdims=True)
    return (y - mean) / tf.sqrt(variance + 1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
deviations = [tf.math.reduce_std(part) for part in (x, x + output, first)]
print("deviation of x {:.2f}, of x + attention {:.2f}\nnormed {:.2f}".format(*deviations))

# %% feed_forward
w_1 = tf.constant(rng.normal(size=(2048, 512)), tf.float32) / 512**0.5
w_2 = tf.constant(rng.normal(size=(512, 2048)), tf.float32) / 2048**0.5
hidden = tf.nn.relu(tf.matmul(first, w_1, transpose_b=True))  # (5, 2048), each position by itself
result = normed(first + tf.matmul(hidden, w_2, transpose_b=True))
print(hidden.shape, "->", result.shape)

# %% alone
moved = tf.gather(first, [4, 2, 0, 3, 1])  # the same vectors in another order
again = normed(moved + tf.matmul(tf.nn.relu(tf.matmul(moved, w_1, transpose_b=True)), w_2, transpose_b=True))
same = np.allclose(again, tf.gather(result, [4, 2, 0, 3, 1]), atol=1e-4)
print("each position by itself:", same)
