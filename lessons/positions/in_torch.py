# %% words
import numpy as np
import torch

rng = np.random.default_rng(0)
sentence = ["time", "flies", "like", "an", "arrow"]
vocabulary = {word: row for row, word in enumerate(sorted(sentence))}
embedding = torch.tensor(rng.normal(size=(len(vocabulary), 512)), dtype=torch.float32)
tokens = torch.tensor([vocabulary[word] for word in sentence])  # their numbers
vectors = embedding[tokens]
print(tokens, vectors.shape)


# %% order
def attend(x, y):  # queries from x, keys and values from y
    weights = torch.softmax(x @ y.T / 512**0.5, dim=-1)
    return weights, weights @ y


shuffled = torch.tensor([4, 2, 0, 3, 1])  # arrow like time an flies
weights, output = attend(vectors, vectors)
print("without positions:", torch.allclose(attend(vectors, vectors[shuffled])[1], output, atol=1e-5))

# %% positions
steps = torch.arange(50)[:, None] / 10000 ** (torch.arange(0, 512, 2) / 512)  # (50, 256)
table = torch.zeros(50, 512)
table[:, 0::2] = torch.sin(steps)
table[:, 1::2] = torch.cos(steps)
positions = table[:5]  # of our five words

# %% added
x = vectors + positions
print(x.shape)

# %% seen
seen_weights, seen = attend(x, x)
again = vectors[shuffled] + positions  # the same words in another order
print("with positions:", torch.allclose(attend(x, again)[1], seen, atol=1e-5))
print("the first position with itself and the next four:", positions @ positions[0])

# %% offset
old, fresh = 3, 2
place = old + torch.arange(fresh)[:, None]  # (2, 1): the new words stand at 3 and 4
print((torch.arange(old + fresh) <= place).int())

# %% broadcast
wrong = vectors + positions[:, None, :]  # (5, 512) + (5, 1, 512), as in the script
print(wrong.shape, "->", wrong.reshape(1, -1, 512).shape)
