# %% data
import numpy as np

rng = np.random.default_rng(0)
keys = np.sort(rng.uniform(0, 5, size=(40, 1)), axis=0)  # where something was measured
values = 2 * np.sin(keys) + keys**0.8 + 0.5 * rng.normal(size=(40, 1))  # and what was found there
queries = np.linspace(0, 5, 51)[:, None]  # where we want to know it
truth = 2 * np.sin(queries) + queries**0.8
print(f"the mean of all values is off by {np.abs(values.mean() - truth).mean():.2f} on average")

# %% kernel
distances = queries - keys.T  # (51, 40)
kernel = np.exp(-(distances**2) / (2 * 0.5**2))  # 1 where a key is the query, near 0 where it is far
weights = kernel / kernel.sum(axis=-1, keepdims=True)
estimate = weights @ values
print(f"Nadaraya-Watson is off by {np.abs(estimate - truth).mean():.2f}")
row = weights[25]
print(f"weights of the query at 2.5: from {row.min():.4f} to {row.max():.4f}, sum {row.sum():.4f}")

# %% attention
products = queries @ keys.T / 0.5**2
bias = np.broadcast_to(-(keys.T**2) / (2 * 0.5**2), products.shape)  # a larger key gets less
powers = np.exp(products + bias)
attention = powers / powers.sum(axis=-1, keepdims=True)
output = attention @ values
print("the same weights:", np.allclose(attention, weights, atol=1e-5))

# %% many
many_weights = np.stack([weights, weights[::-1]])[:, None]  # (2, 1, 51, 40): two items, one head
many_values = np.stack([values, 10 * values])[:, None]  # (2, 1, 40, 1)
answers = many_weights @ many_values
alone = weights[::-1] @ (10 * values)
print(answers.shape, "the second item alone:", np.allclose(answers[1, 0], alone))
