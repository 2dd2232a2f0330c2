# %% dots
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)


def tell(name, w):  # on average: the largest weight of a query, and the slope of a weight
    print(f"{name}: largest {w.max(axis=-1).mean():.2f}, slope {(w * (1 - w)).mean():.3f}")


queries, keys = jnp.asarray(rng.normal(size=(2, 10, 1)), jnp.float32)  # ten of each, with 1 dimension
long_queries, long_keys = jnp.asarray(rng.normal(size=(2, 10, 100)), jnp.float32)  # and with 100
scores = queries @ keys.T  # (10, 10)
long_scores = long_queries @ long_keys.T
weights, long_weights = jax.nn.softmax(scores), jax.nn.softmax(long_scores)
tell("1 dimension", weights)
tell("100 dimensions", long_weights)

# %% scaled
scaled_weights = jax.nn.softmax(long_scores / jnp.sqrt(100))
tell("100 dimensions, divided by 10", scaled_weights)

# %% deviation
for size in (1, 4, 16, 64, 256):
    a, b = jnp.asarray(rng.normal(size=(2, 10_000, size)), jnp.float32)
    products = (a * b).sum(axis=-1)
    print(f"{size:4} dimensions: deviation {products.std():6.2f}, root {size**0.5:6.2f}")
