# %% data
import numpy as np
import torch

rng = np.random.default_rng(0)
keys = torch.tensor(np.sort(rng.uniform(0, 5, size=(40, 1)), axis=0), dtype=torch.float32)  # where it was measured
noise = torch.tensor(rng.normal(size=(40, 1)), dtype=torch.float32)
values = 2 * torch.sin(keys) + keys**0.8 + 0.5 * noise  # and what was found there
queries = torch.linspace(0, 5, 51)[:, None]  # where we want to know it
truth = 2 * torch.sin(queries) + queries**0.8
print(f"the mean of all values is off by {(values.mean() - truth).abs().mean():.2f} on average")

# %% kernel
distances = queries - keys.T  # (51, 40)
kernel = torch.exp(-(distances**2) / (2 * 0.5**2))  # 1 where a key is the query, near 0 where it is far
weights = kernel / kernel.sum(dim=-1, keepdim=True)
estimate = weights @ values
print(f"Nadaraya-Watson is off by {(estimate - truth).abs().mean():.2f}")
row = weights[25]
print(f"weights of the query at 2.5: from {row.min():.4f} to {row.max():.4f}, sum {row.sum():.4f}")

# %% attention
products = queries @ keys.T / 0.5**2
bias = (-(keys.T**2) / (2 * 0.5**2)).expand(products.shape)  # a larger key gets less
attention = torch.softmax(products + bias, dim=-1)
output = attention @ values
print("the same weights:", torch.allclose(attention, weights, atol=1e-5))

# %% many
many_weights = torch.stack([weights, weights.flip(0)])[:, None]  # (2, 1, 51, 40): two items, one head
many_values = torch.stack([values, 10 * values])[:, None]  # (2, 1, 40, 1)
answers = many_weights @ many_values
alone = weights.flip(0) @ (10 * values)
print(tuple(answers.shape), "the second item alone:", torch.allclose(answers[1, 0], alone, atol=1e-5))
