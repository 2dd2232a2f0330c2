# %% words
import numpy as np
import torch

rng = np.random.default_rng(0)
x = torch.tensor(rng.normal(size=(5, 512)), dtype=torch.float32)  # five words with their positions

# %% projections
w_q, w_k, w_v, w_o = torch.tensor(rng.normal(size=(4, 512, 512)), dtype=torch.float32) / 512**0.5


def split(x):  # (L, 512) -> (8, L, 64)
    return x.unflatten(1, (8, 64)).transpose(0, 1)


# %% attend
def attend(x, y):  # queries from x, keys and values from y
    q, k, v = split(x @ w_q.T), split(y @ w_k.T), split(y @ w_v.T)
    weights = torch.softmax(q @ k.transpose(1, 2) / 8, dim=-1)  # 8 is the root of 64
    heads = weights @ v  # (8, L of x, 64)
    return weights, heads, heads.transpose(0, 1).flatten(1) @ w_o.T


weights, heads, output = attend(x, x)
print(tuple(weights.shape), tuple(heads.shape), tuple(output.shape))


# %% around


def normed(y):  # each vector to mean 0 and deviation 1
    return torch.nn.functional.layer_norm(y, (512,))


first = normed(x + output)  # the words themselves go on beside what attention found
deviations = [part.std(correction=0) for part in (x, x + output, first)]
print("deviation: x {:.2f}, x + attention {:.2f}, normed {:.2f}".format(*deviations))

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

# %% cross
read = torch.tensor(rng.normal(size=(7, 512)), dtype=torch.float32)  # seven words, as an encoder gives them
cross_weights, _, cross = attend(first, read)
print(tuple(cross_weights.shape), tuple(cross.shape))
