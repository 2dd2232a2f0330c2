# %% one
import numpy as np
import tensorflow as tf

pairs = tf.constant([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])  # three sentences: what stands at the two places that matter
print("one head, half and half:", tf.linalg.matvec(pairs, [0.5, 0.5]).numpy())
two = tf.stack([tf.linalg.matvec(pairs, [1.0, 0.0]), tf.linalg.matvec(pairs, [0.0, 1.0])], axis=1)  # a head for each
print("two heads, then W_o:    ", tf.linalg.matvec(two, [1.0, -1.0]).numpy())

# %% loop
rng = np.random.default_rng(0)
x = tf.constant(rng.normal(size=(5, 12)), tf.float32)
w_q, w_k, w_v = tf.unstack(tf.constant(rng.normal(size=(3, 3, 4, 12)) / 12**0.5, tf.float32))  # of 3 heads (4, 12) each
w_o = tf.constant(rng.normal(size=(12, 12)) / 12**0.5, tf.float32)


def project(x, w):
    return tf.matmul(x, w, transpose_b=True)


def attend(q, k, v):  # (..., L, d) each
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / q.shape[-1] ** 0.5)
    return weights, weights @ v


parts = [attend(project(x, w_q[head]), project(x, w_k[head]), project(x, w_v[head]))[1] for head in range(3)]
merged = tf.concat(parts, axis=1)
print([tuple(part.shape) for part in parts], "->", tuple(merged.shape))

# %% fused
fused_q, fused_k, fused_v = (tf.reshape(w, (12, 12)) for w in (w_q, w_k, w_v))  # one below the other


def split(y):  # (L, H * d) -> (H, L, d)
    return tf.transpose(tf.reshape(y, (y.shape[0], 3, 4)), (1, 0, 2))


weights, heads = attend(split(project(x, fused_q)), split(project(x, fused_k)), split(project(x, fused_v)))
print("as the loop:", np.allclose(tf.reshape(tf.transpose(heads, (1, 0, 2)), (5, 12)), merged, atol=1e-6))

# %% output
output = project(merged, w_o)
summed = sum(project(parts[head], w_o[:, 4 * head : 4 * head + 4]) for head in range(3))  # a block of W_o for each head
print(tuple(output.shape), "as the sum over heads:", np.allclose(summed, output, atol=1e-6))

# %% cost
for count in (1, 3, 6, 12):  # W_q, W_k, W_v and W_o: 12 by the channels of all heads
    print(f"{count:2} heads of width {12 // count:2}: {4 * (count * (12 // count)) * 12} parameters")
