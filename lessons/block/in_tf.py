# %% words
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = tf.constant(rng.normal(size=(5, 512)), tf.float32)  # five words with their positions

# %% projections
w_q, w_k, w_v, w_o = tf.unstack(tf.constant(rng.normal(size=(4, 512, 512)), tf.float32) / 512**0.5)


def split(x):  # (L, 512) -> (8, L, 64)
    return tf.transpose(tf.reshape(x, (x.shape[0], 8, 64)), (1, 0, 2))


# %% attend
def attend(x, y):  # queries from x, keys and values from y
    q, k, v = (split(tf.matmul(z, w, transpose_b=True)) for z, w in ((x, w_q), (y, w_k), (y, w_v)))
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 8)  # the root of 64
    heads = weights @ v  # (8, L of x, 64)
    merged = tf.reshape(tf.transpose(heads, (1, 0, 2)), x.shape)
    return weights, heads, tf.matmul(merged, w_o, transpose_b=True)


weights, heads, output = attend(x, x)
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    mean, variance = tf.nn.moments(y, axes=[-1], keepdims=True)
    return (y - mean) / tf.sqrt(variance + 1e-5)


first = normed(x + output)  # the words themselves go on beside what attention found
deviations = [tf.math.reduce_std(part) for part in (x, x + output, first)]
print("deviation: x {:.2f}, x + attention {:.2f}, normed {:.2f}".format(*deviations))

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

# %% cross
read = tf.constant(rng.normal(size=(7, 512)), tf.float32)  # seven words, as an encoder gives them
cross_weights, _, cross = attend(first, read)
print(cross_weights.shape, cross.shape)
