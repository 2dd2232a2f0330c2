# %% words
import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = tf.constant(rng.normal(size=(len(vocabulary), 512)), tf.float32)
tokens = tf.constant([vocabulary[word] for word in sentence])  # their numbers
vectors = tf.gather(embedding, tokens)
print(tokens.numpy(), vectors.shape)


# %% order
def attend(x, y):  # queries from x, keys and values from y
    weights = tf.nn.softmax(tf.matmul(x, y, transpose_b=True) / 512**0.5)
    return weights, weights @ y


shuffled = tf.constant([4, 2, 0, 3, 1])  # arrow like time an flies
weights, output = attend(vectors, vectors)
print("without positions:", np.allclose(attend(vectors, tf.gather(vectors, shuffled))[1], output, atol=1e-5))

# %% positions
steps = tf.range(50.0)[:, None] / 10000 ** (tf.range(0.0, 512, 2) / 512)  # (50, 256)
table = tf.reshape(tf.stack([tf.sin(steps), tf.cos(steps)], axis=-1), (50, 512))  # sine and cosine in turn
positions = table[:5]  # of our five words

# %% added
x = vectors + positions
print(x.shape)

# %% seen
seen_weights, seen = attend(x, x)
again = tf.gather(vectors, shuffled) + positions  # the same words in another order
print("with positions:", np.allclose(attend(x, again)[1], seen, atol=1e-5))
print("the first position with itself and the next four:", tf.linalg.matvec(positions, positions[0]).numpy().round(1))

# %% offset
old, fresh = 3, 2
place = old + tf.range(fresh)[:, None]  # (2, 1): the new words stand at 3 and 4
print(tf.cast(tf.range(old + fresh) <= place, tf.int32).numpy())

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", tf.reshape(wrong, (1, -1, 512)).shape)
