# %% sizes
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

rng = np.random.default_rng(0)
queries = jnp.asarray(rng.normal(size=(2, 4, 100)), jnp.float32)  # two items, 4 queries
keys = jnp.asarray(rng.normal(size=(2, 6, 100)), jnp.float32)  # 6 keys
w_q, w_k, w_v, w_o = jnp.asarray(rng.normal(size=(4, 100, 100)) / 10, jnp.float32)
valid_lens = jnp.array([3, 2])  # of the 6 keys of each item so many are words, the others padding

# %% project
projected_q, projected_k, projected_v = queries @ w_q.T, keys @ w_k.T, keys @ w_v.T
one_by_one = jax.vmap(lambda key: w_k @ key)(keys.reshape(12, 100))
same = jnp.allclose(projected_k.reshape(12, 100), one_by_one, atol=1e-5)
print(projected_k.shape, "as W times each of 12 vectors:", same)


# %% split
def transpose_qkv(x, num_heads):
    x = x.reshape(*x.shape[:2], num_heads, -1)  # (2, 4, 5, 20)
    x = x.swapaxes(1, 2)  # (2, 5, 4, 20)
    return x.reshape(-1, *x.shape[2:])  # (10, 4, 20)


q, k, v = (transpose_qkv(x, 5) for x in (projected_q, projected_k, projected_v))
print(projected_q.shape, "->", q.shape, "and", projected_k.shape, "->", k.shape)


# %% attend
def attend(q, k, v, allowed):
    scores = jnp.where(allowed, q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    return weights, weights @ v


lengths = jnp.repeat(valid_lens, 5)  # one for each of the 10
allowed = (jnp.arange(6) < lengths[:, None])[:, None]  # (10, 1, 6)
weights, heads = attend(q, k, v, allowed)
print("lengths", lengths, "weights", weights.shape, "heads", heads.shape)

# %% repeat
print("repeat:", jnp.repeat(valid_lens, 5))
print("tile:  ", jnp.tile(valid_lens, 5))


# %% merge
def transpose_output(x, num_heads):
    x = x.reshape(-1, num_heads, *x.shape[1:])  # (2, 5, 4, 20)
    x = x.swapaxes(1, 2)  # (2, 4, 5, 20)
    return x.reshape(*x.shape[:2], -1)  # (2, 4, 100)


merged = transpose_output(heads, 5)
output = merged @ w_o.T
print(heads.shape, "->", merged.shape, "->", output.shape)


# %% class
class MultiHeadAttention(nn.Module):
    num_hiddens: int
    num_heads: int
    dropout: float = 0.0

    @nn.compact
    def __call__(self, queries, keys, values, valid_lens, training=False):
        def project(name, x):  # it knows the width of x, for `init` runs it on an example
            return nn.Dense(self.num_hiddens, use_bias=False, name=name)(x)

        projected = (project("w_q", queries), project("w_k", keys), project("w_v", values))
        q, k, v = (transpose_qkv(x, self.num_heads) for x in projected)
        lengths = jnp.repeat(valid_lens, self.num_heads)
        allowed = (jnp.arange(k.shape[1]) < lengths[:, None])[:, None]
        weights, _ = attend(q, k, v, allowed)
        weights = nn.Dropout(self.dropout, deterministic=not training)(weights)
        return project("w_o", transpose_output(weights @ v, self.num_heads))


# %% call
layer = MultiHeadAttention(100, 5, dropout=0.5)
print("before: no parameters, but", layer.num_hiddens, "and", layer.num_heads)
variables = layer.init(jax.random.key(0), queries, keys, keys, valid_lens)
print("after: ", [parameter.shape for parameter in jax.tree.leaves(variables)])
first = np.asarray(layer.apply(variables, queries, keys, keys, valid_lens))
assert first.shape == (2, 4, 100)

# %% same
matrices = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
variables = {"params": {name: {"kernel": matrix.T} for name, matrix in matrices.items()}}  # Flax keeps (in, out)
made = np.asarray(layer.apply(variables, queries, keys, keys, valid_lens))
print("as step by step:", np.allclose(made, output, atol=1e-5))

# %% grouped
two_k, two_v = jnp.repeat(k[:2], 2, axis=0), jnp.repeat(v[:2], 2, axis=0)
grouped_heads = attend(q[:4], two_k, two_v, jnp.ones((1, 1, 6), bool))[1]
grouped = transpose_output(grouped_heads, 4)[0]
print(q[:4].shape, "and two heads of keys", k[:2].shape, "->", grouped.shape)

# %% linear_o
num_heads, d_model, length = 4, 16, 6
concatenated = jnp.concatenate([jnp.ones((length, d_model // num_heads)) for _ in range(num_heads)], axis=1)
linear_o = jnp.ones((num_heads * d_model, d_model))  # as printed: it takes 64 numbers
try:
    concatenated @ linear_o
except TypeError:
    print(f"does not fit: {concatenated.shape} and {linear_o.shape}")
linear_o = jnp.ones((num_heads * (d_model // num_heads), d_model))  # right: as wide as the heads side by side
print("fits:", (concatenated @ linear_o).shape)
