# %% layer
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
x = tf.constant(rng.normal(size=(8, 32)), tf.float32)  # 8 words; 4 heads of width 8
w_q, w_k, w_v, w_o = rng.normal(size=(4, 32, 32)) / 32**0.5
w_q[8:16] *= 8  # sharp weights for head 1,
w_o[:, 8:16] *= 0.1  # and a small block of W_o
w_o[:, 24:] *= 0.5
w_q, w_k, w_v, w_o = (tf.constant(w, tf.float32) for w in (w_q, w_k, w_v, w_o))


def layer(w_q, w_k, w_v, w_o, num_heads):
    projected = (tf.matmul(x, w, transpose_b=True) for w in (w_q, w_k, w_v))
    q, k, v = (tf.transpose(tf.reshape(y, (8, num_heads, 8)), (1, 0, 2)) for y in projected)
    weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 8**0.5)
    merged = tf.reshape(tf.transpose(weights @ v, (1, 0, 2)), (8, -1))
    return weights, tf.matmul(merged, w_o, transpose_b=True)


weights, output = layer(w_q, w_k, w_v, w_o, 4)

# %% look
largest = tf.reduce_mean(tf.reduce_max(weights, axis=-1), axis=-1)
print("largest weight of a query, by head:", largest.numpy().round(2))

# %% importance
found = []
for head in range(4):
    there = tf.repeat(tf.one_hot(head, 4, on_value=0.0, off_value=1.0), 8)  # 0 for the channels of this head
    change = layer(w_q, w_k, w_v, w_o * there, 4)[1] - output
    found.append(tf.norm(change) / tf.norm(output))
importance = tf.stack(found)
print("change of the output without it:   ", importance.numpy().round(2))

# %% cut
kept = tf.sort(tf.argsort(importance)[2:])  # the two that matter most
rows = tf.reshape(8 * kept[:, None] + tf.range(8), (-1,))  # their channels
cut_q, cut_k, cut_v, cut_o = (tf.gather(w, rows, axis=a) for w, a in ((w_q, 0), (w_k, 0), (w_v, 0), (w_o, 1)))
cut_weights, cut = layer(cut_q, cut_k, cut_v, cut_o, 2)
there = tf.reduce_sum(tf.one_hot(rows, 32), axis=0)
masked = layer(w_q, w_k, w_v, w_o * there, 4)[1]
same = np.allclose(cut, masked, atol=1e-5)
print("heads", kept.numpy(), "of", w_q.shape, "are", cut_q.shape)
print("equal:", same)
