# %% words
import numpy as np
import torch

rng = np.random.default_rng(0)
vectors = torch.tensor(rng.normal(size=(5, 512)), dtype=torch.float32)  # five words
steps = torch.arange(5)[:, None] / 10000 ** (torch.arange(0, 512, 2) / 512)  # (5, 256)
positions = torch.zeros(5, 512)
positions[:, 0::2] = torch.sin(steps)
positions[:, 1::2] = torch.cos(steps)
x = vectors + positions
print(x.shape)

# %% projections
w_q, w_k, w_v, w_o = torch.tensor(rng.normal(size=(4, 512, 512)), dtype=torch.float32) / 512**0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.unflatten(1, (8, 64)).transpose(0, 1)


q, k, v = split(x @ w_q.T), split(x @ w_k.T), split(x @ w_v.T)
print(q.shape, k.shape, v.shape)

# %% attend
scores = q @ k.transpose(1, 2) / 8  # the root of 64
weights = torch.softmax(scores, dim=-1)
heads = weights @ v  # (8, 5, 64)
output = heads.transpose(0, 1).flatten(1) @ w_o.T
print(weights.shape, heads.shape, output.shape)


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return torch.nn.functional.layer_norm(y, (512,))


first = normed(x + output)  # the words themselves go on beside what attention found
deviations = [part.std(correction=0) for part in (x, x + output, first)]
print("deviation of x {:.2f}, of x + attention {:.2f}\nnormed {:.2f}".format(*deviations))

# %% feed_forward
w_1 = torch.tensor(rng.normal(size=(2048, 512)), dtype=torch.float32) / 512**0.5
w_2 = torch.tensor(rng.normal(size=(512, 2048)), dtype=torch.float32) / 2048**0.5
hidden = torch.relu(first @ w_1.T)  # (5, 2048), each position by itself
result = normed(first + hidden @ w_2.T)
print(tuple(hidden.shape), "->", tuple(result.shape))

# %% alone
moved = first[[4, 2, 0, 3, 1]]  # the same vectors in another order
again = normed(moved + torch.relu(moved @ w_1.T) @ w_2.T)
print("each position by itself:", torch.allclose(again, result[[4, 2, 0, 3, 1]], atol=1e-4))
