# %% dots
import numpy as np
import torch

rng = np.random.default_rng(0)


def tell(name, w):  # on average: the largest weight of a query, and the slope of a weight
    print(f"{name}: largest {w.amax(dim=-1).mean():.2f}, slope {(w * (1 - w)).mean():.3f}")


queries, keys = torch.tensor(rng.normal(size=(2, 10, 1)), dtype=torch.float32)  # ten of each, with 1 dimension
long_queries, long_keys = torch.tensor(rng.normal(size=(2, 10, 100)), dtype=torch.float32)  # and with 100
scores = queries @ keys.T  # (10, 10)
long_scores = long_queries @ long_keys.T
weights, long_weights = torch.softmax(scores, dim=-1), torch.softmax(long_scores, dim=-1)
tell("1 dimension", weights)
tell("100 dimensions", long_weights)

# %% scaled
scaled_weights = torch.softmax(long_scores / 100**0.5, dim=-1)
tell("100 dimensions, divided by 10", scaled_weights)

# %% deviation
for size in (1, 4, 16, 64, 256):
    a, b = torch.tensor(rng.normal(size=(2, 10_000, size)), dtype=torch.float32)
    products = (a * b).sum(dim=-1)
    print(f"{size:4} dimensions: deviation {products.std():6.2f}, root {size**0.5:6.2f}")
