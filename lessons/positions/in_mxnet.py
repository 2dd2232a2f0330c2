# %% words
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
rng = numpy.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = np.array(rng.normal(size=(len(vocabulary), 512)), dtype="float32")
tokens = np.array([vocabulary[word] for word in sentence], dtype=int)  # their numbers
vectors = embedding[tokens]
print(tokens, vectors.shape)


# %% order
def attend(x, y):  # queries from x, keys and values from y
    weights = npx.softmax(np.dot(x, y.T) / 512**0.5, axis=-1)
    return weights, np.dot(weights, y)


shuffled = np.array([4, 2, 0, 3, 1], dtype=int)  # arrow like time an flies
weights, output = attend(vectors, vectors)
print("without positions:", np.abs(attend(vectors, vectors[shuffled])[1] - output).max().item() < 1e-5)

# %% positions
steps = np.arange(50)[:, None] / 10000 ** (np.arange(0, 512, 2) / 512)  # (50, 256)
table = np.zeros((50, 512))
table[:, 0::2] = np.sin(steps)
table[:, 1::2] = np.cos(steps)
positions = table[:5]  # of our five words

# %% added
x = vectors + positions
print(x.shape)

# %% seen
seen_weights, seen = attend(x, x)
again = vectors[shuffled] + positions  # the same words in another order
print("with positions:", np.abs(attend(x, again)[1] - seen).max().item() < 1e-5)
print("the first position with itself and the next four:", np.dot(positions, positions[0]).asnumpy().round(1))

# %% offset
old, fresh = 3, 2
place = old + np.arange(fresh)[:, None]  # (2, 1): the new words stand at 3 and 4
print((np.arange(old + fresh) <= place).asnumpy().astype(int))

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", wrong.reshape(1, -1, 512).shape)
