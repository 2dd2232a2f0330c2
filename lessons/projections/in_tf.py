# %% words
import numpy as np
import tensorflow as tf

words = ["the", "cat", "sleeps", "because", "it", "is", "tired"]
kinds = {"noun": 0, "verb": 1, "pronoun": 2, "other": 3}
kind_of = ["other", "noun", "verb", "other", "pronoun", "verb", "other"]
own = 0.5 * tf.constant(np.random.default_rng(0).normal(size=(7, 8)), tf.float32)  # 8 numbers a word
kind = tf.one_hot([kinds[kind] for kind in kind_of], 4)
x = tf.concat([kind, own[:, 4:]], axis=1)  # the first four say what kind of word it is

# %% alone
alone = tf.nn.softmax(tf.matmul(x, x, transpose_b=True) / 8**0.5)
alone_output = alone @ x
print("it:", dict(zip(words, alone[4].numpy().astype(float).round(2).tolist(), strict=True)))
both = tf.matmul(x, x, transpose_b=True)
print("symmetric scores:", np.allclose(both, tf.transpose(both)))

# %% projected
w_q = tf.scatter_nd([[0, 1], [0, 2]], [12.0, 12.0], (8, 8))  # verbs and pronouns ask for a noun
w_k = tf.scatter_nd([[0, 0]], [1.0], (8, 8))  # nouns say that they are one
w_v = tf.linalg.diag([0.0] * 4 + [1.0] * 4)  # what is handed over is the word itself, not its kind
w_o = tf.eye(8)
q, k, v = (tf.matmul(x, w, transpose_b=True) for w in (w_q, w_k, w_v))
weights = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 8**0.5)
output = tf.matmul(weights @ v, w_o, transpose_b=True)
print("it: ", dict(zip(words, weights[4].numpy().astype(float).round(2).tolist(), strict=True)))
print("cat:", dict(zip(words, weights[1].numpy().astype(float).round(2).tolist(), strict=True)))

# %% training
asking = [2, 4, 5]  # sleeps, it, is
learned_q, learned_k = tf.unstack(tf.constant(np.random.default_rng(1).normal(size=(2, 8, 8)) / 8**0.5, tf.float32))


def weights_of(x, w_q, w_k):
    queries, keys = tf.matmul(x, w_q, transpose_b=True), tf.matmul(x, w_k, transpose_b=True)
    return tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True) / 8**0.5)


for step in range(21):
    with tf.GradientTape() as tape:
        tape.watch((learned_q, learned_k))
        found = tf.gather(weights_of(x, learned_q, learned_k), asking)
        error = -tf.reduce_mean(tf.math.log(found[:, 1]))
    if step in (0, 5, 20):
        print(f"step {step:2}: error {error:.3f}, weight of cat for it {found[1, 1]:.2f}")
    slope_q, slope_k = tape.gradient(error, (learned_q, learned_k))
    learned_q, learned_k = learned_q - slope_q, learned_k - slope_k
learned = weights_of(x, learned_q, learned_k)
