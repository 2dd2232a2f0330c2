# %% split
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
rng = numpy.random.default_rng(0)
queries = np.array(rng.normal(size=(4, 12)))  # 4 queries, 3 heads of width 4
keys, values = np.array(rng.normal(size=(2, 6, 12)))  # 6 keys and values


def split(x, num_heads):  # (L, H * d) -> (H, L, d)
    return x.reshape(len(x), num_heads, -1).swapaxes(0, 1)


def merge(x):  # (H, L, d) -> (L, H * d)
    return x.swapaxes(0, 1).reshape(x.shape[1], -1)


print(queries.shape, "->", split(queries, 3).shape, "->", merge(split(queries, 3)).shape)
print("the same again:", (merge(split(queries, 3)) == queries).all().item())
print("without the exchange of axes:", (queries.reshape(3, 4, 4) == split(queries, 3)).all().item())


# %% loop
def attend(queries, keys, values):  # (..., Lq, d), (..., Lk, d), (..., Lk, d) -> (..., Lq, d)
    scores = np.matmul(queries, keys.swapaxes(-1, -2)) / queries.shape[-1] ** 0.5
    return np.matmul(npx.softmax(scores, axis=-1), values)


parts = []
for head in range(3):
    mine = slice(4 * head, 4 * head + 4)  # the columns of this head
    parts.append(attend(queries[:, mine], keys[:, mine], values[:, mine]))
looped = np.concatenate(parts, axis=1)

# %% fused
fused = merge(attend(split(queries, 3), split(keys, 3), split(values, 3)))
print(fused.shape)
print("as the loop:", np.abs(fused - looped).max().item() < 1e-6)

# %% repeat
groups = np.array([0, 1])  # 2 heads of keys for 4 heads of queries
print("repeat:", np.repeat(groups, 2))
print("tile:  ", np.tile(groups, 2))

# %% grouped
few_keys, few_values = keys[:, :8], values[:, :8]  # 2 heads of width 4
many_queries = np.array(rng.normal(size=(4, 16)))  # 4 heads of width 4
grouped = merge(
    attend(
        split(many_queries, 4),
        np.repeat(split(few_keys, 2), 2, axis=0),
        np.repeat(split(few_values, 2), 2, axis=0),
    )
)
print(grouped.shape)
