# %% words
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = tf.constant(rng.normal(size=(len(vocabulary), 512)), tf.float32)
tokens = tf.constant([vocabulary[word] for word in sentence])
vectors = tf.gather(embedding, tokens)
print(tokens.numpy(), vectors.shape)

# %% positions
steps = tf.range(5.0)[:, None] / 10000 ** (tf.range(0.0, 512, 2) / 512)  # (5, 256)
positions = tf.reshape(tf.stack([tf.sin(steps), tf.cos(steps)], axis=-1), (5, 512))  # sine and cosine in turn

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", tf.reshape(wrong, (1, -1, 512)).shape)

# %% added
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
