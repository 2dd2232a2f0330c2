# %% dots
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
rng = numpy.random.default_rng(0)


def tell(name, w):  # on average: the largest weight of a query, and the slope of a weight
    largest, slopes = w.max(axis=-1), w * (1 - w)
    print(f"{name}: largest {largest.mean().item():.2f}, slope {slopes.mean().item():.3f}")


queries, keys = np.array(rng.normal(size=(2, 10, 1)))  # ten of each, with 1 dimension
long_queries, long_keys = np.array(rng.normal(size=(2, 10, 100)))  # and with 100
scores = np.matmul(queries, keys.T)  # (10, 10)
long_scores = np.matmul(long_queries, long_keys.T)
weights, long_weights = npx.softmax(scores), npx.softmax(long_scores)
tell("1 dimension", weights)
tell("100 dimensions", long_weights)

# %% scaled
scaled_weights = npx.softmax(long_scores / 100**0.5)
tell("100 dimensions, divided by 10", scaled_weights)

# %% deviation
for size in (1, 4, 16, 64, 256):
    a, b = np.array(rng.normal(size=(2, 10_000, size)))
    products = (a * b).sum(axis=-1)
    print(f"{size:4} dimensions: deviation {products.std().item():6.2f}, root {size**0.5:6.2f}")
