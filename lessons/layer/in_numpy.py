# %% sizes
import numpy as np

rng = np.random.default_rng(0)
queries, keys = rng.normal(size=(2, 4, 100)), rng.normal(size=(2, 6, 100))  # 2 items, 4 queries, 6 keys
w_q, w_k, w_v, w_o = rng.normal(size=(4, 100, 100)) / 10
valid_lens = np.array([3, 2])  # of the 6 keys of each item so many are words, the others padding

# %% project
projected_q, projected_k, projected_v = queries @ w_q.T, keys @ w_k.T, keys @ w_v.T
one_by_one = np.stack([w_k @ key for key in keys.reshape(12, 100)])
same = np.allclose(projected_k.reshape(12, 100), one_by_one)
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
    scores = np.where(allowed, q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return weights, weights @ v


lengths = np.repeat(valid_lens, 5)  # one for each of the 10
allowed = (np.arange(6) < lengths[:, None])[:, None]  # (10, 1, 6)
weights, heads = attend(q, k, v, allowed)
print("lengths", lengths, "weights", weights.shape, "heads", heads.shape)

# %% repeat
print("repeat:", np.repeat(valid_lens, 5))
print("tile:  ", np.tile(valid_lens, 5))


# %% merge
def transpose_output(x, num_heads):
    x = x.reshape(-1, num_heads, *x.shape[1:])  # (2, 5, 4, 20)
    x = x.swapaxes(1, 2)  # (2, 4, 5, 20)
    return x.reshape(*x.shape[:2], -1)  # (2, 4, 100)


merged = transpose_output(heads, 5)
output = merged @ w_o.T
print(heads.shape, "->", merged.shape, "->", output.shape)


# %% class
class MultiHeadAttention:
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        self.num_hiddens, self.num_heads, self.dropout = num_hiddens, num_heads, dropout
        self.parameters = {}  # lazy: only the first call tells how wide the inputs are

    def project(self, name, x):
        if name not in self.parameters:
            self.parameters[name] = rng.normal(size=(self.num_hiddens, x.shape[-1])) / x.shape[-1] ** 0.5
        return x @ self.parameters[name].T

    def __call__(self, queries, keys, values, valid_lens, training=False):
        projected = (self.project("w_q", queries), self.project("w_k", keys), self.project("w_v", values))
        q, k, v = (transpose_qkv(x, self.num_heads) for x in projected)
        lengths = np.repeat(valid_lens, self.num_heads)
        allowed = (np.arange(k.shape[1]) < lengths[:, None])[:, None]
        weights, _ = attend(q, k, v, allowed)
        if training:
            weights = weights * (rng.random(weights.shape) >= self.dropout) / (1 - self.dropout)
        return self.project("w_o", transpose_output(weights @ v, self.num_heads))


# %% call
layer = MultiHeadAttention(100, 5, dropout=0.5)
print("before:", layer.parameters)
first = layer(queries, keys, keys, valid_lens)
print("after: ", [parameter.shape for parameter in layer.parameters.values()])
assert first.shape == (2, 4, 100)

# %% same
layer.parameters = {"w_q": w_q, "w_k": w_k, "w_v": w_v, "w_o": w_o}
made = layer(queries, keys, keys, valid_lens)
print("as step by step:", np.allclose(made, output, atol=1e-5))

# %% grouped
two_k, two_v = np.repeat(k[:2], 2, axis=0), np.repeat(v[:2], 2, axis=0)
grouped_heads = attend(q[:4], two_k, two_v, np.ones((1, 1, 6), bool))[1]
grouped = transpose_output(grouped_heads, 4)[0]
print(q[:4].shape, "and two heads of keys", k[:2].shape, "->", grouped.shape)

# %% linear_o
num_heads, d_model, length = 4, 16, 6
concatenated = np.concatenate([rng.normal(size=(length, d_model // num_heads)) for _ in range(num_heads)], axis=1)
linear_o = rng.normal(size=(d_model, num_heads * d_model))  # as printed: it takes 64 numbers
try:
    concatenated @ linear_o.T
except ValueError:
    print(f"does not fit: {concatenated.shape} and {linear_o.T.shape}")
linear_o = rng.normal(size=(d_model, num_heads * (d_model // num_heads)))  # right: 16, as the heads together
print("fits:", (concatenated @ linear_o.T).shape)
