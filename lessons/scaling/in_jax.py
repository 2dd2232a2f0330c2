# %% dots
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)

queries, keys = jnp.asarray(rng.normal(size=(2, 10, 1)), jnp.float32)  # ten of each, with 1 dimension
long_queries, long_keys = jnp.asarray(rng.normal(size=(2, 10, 100)), jnp.float32)  # and with 100
scores = queries @ keys.T  # (10, 10)
long_scores = long_queries @ long_keys.T
weights, long_weights = jax.nn.softmax(scores), jax.nn.softmax(long_scores)
print("largest weight of a query, on average:")
print(f"  1 dimension:    {weights.max(axis=-1).mean():.3f}")
print(f"  100 dimensions: {long_weights.max(axis=-1).mean():.3f}")

# %% scaled
scaled_weights = jax.nn.softmax(long_scores / jnp.sqrt(100))
print(f"  100 dimensions, divided by 10: {scaled_weights.max(axis=-1).mean():.3f}")

# %% deviation
for size in (1, 4, 16, 64, 256):
    a, b = jnp.asarray(rng.normal(size=(2, 10_000, size)), jnp.float32)
    products = (a * b).sum(axis=-1)
    print(f"{size:4} dimensions: deviation {products.std():6.2f}, root {size**0.5:6.2f}")
