# %% shares
import tensorflow as tf


def unsafe_softmax(scores):
    powers = tf.exp(scores)
    return powers / tf.reduce_sum(powers, axis=-1, keepdims=True)


row = tf.constant([[2.0, 1.0, -1.0]])
print("divided by their sum:", (row / tf.reduce_sum(row)).numpy())
print("softmax:             ", unsafe_softmax(row).numpy().round(3))
print("all scores + 10:     ", unsafe_softmax(row + 10).numpy().round(3))

# %% factors
factors = tf.linspace(0.0, 4.0, 9)[:, None]
offered = tf.constant([[0.0], [1.0], [2.0], [2.5]])  # four scores
shares = unsafe_softmax(tf.matmul(factors, offered, transpose_b=True))  # (9, 4)
mean = shares @ offered
for at in (0, 2, 8):
    print(f"scores times {factors[at, 0]:.0f}:", shares[at].numpy().round(3))


# %% textbook
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
