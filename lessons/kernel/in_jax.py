# %% data
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
keys = jnp.asarray(np.sort(rng.uniform(0, 5, size=(40, 1)), axis=0), jnp.float32)  # where something was measured
noise = jnp.asarray(rng.normal(size=(40, 1)), jnp.float32)
values = 2 * jnp.sin(keys) + keys**0.8 + 0.5 * noise  # and what was found there
queries = jnp.linspace(0, 5, 51)[:, None]  # where we want to know it
truth = 2 * jnp.sin(queries) + queries**0.8
print(f"the mean of all values is off by {jnp.abs(values.mean() - truth).mean():.2f} on average")

# %% kernel
distances = queries - keys.T  # (51, 40)
kernel = jnp.exp(-(distances**2) / (2 * 0.5**2))  # 1 where a key is the query, near 0 where it is far
weights = kernel / kernel.sum(axis=-1, keepdims=True)
estimate = weights @ values
print(f"Nadaraya-Watson is off by {jnp.abs(estimate - truth).mean():.2f}")
row = weights[25]
print(f"weights of the query at 2.5: from {row.min():.4f} to {row.max():.4f}, sum {row.sum():.4f}")

# %% attention
products = queries @ keys.T / 0.5**2
bias = jnp.broadcast_to(-(keys.T**2) / (2 * 0.5**2), products.shape)  # a larger key gets less
attention = jax.nn.softmax(products + bias, axis=-1)
output = attention @ values
print("the same weights:", jnp.allclose(attention, weights, atol=1e-5))

# %% many
many_weights = jnp.stack([weights, weights[::-1]])[:, None]  # (2, 1, 51, 40): two items, one head
many_values = jnp.stack([values, 10 * values])[:, None]  # (2, 1, 40, 1)
answers = many_weights @ many_values
alone = weights[::-1] @ (10 * values)
print(answers.shape, "the second item alone:", jnp.allclose(answers[1, 0], alone, atol=1e-5))
