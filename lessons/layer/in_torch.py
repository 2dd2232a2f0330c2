# %% sizes
import numpy as np
import torch

rng = np.random.default_rng(0)
queries = torch.tensor(rng.normal(size=(2, 4, 100)), dtype=torch.float32)  # two items, 4 queries
keys = torch.tensor(rng.normal(size=(2, 6, 100)), dtype=torch.float32)  # 6 keys
w_q, w_k, w_v, w_o = torch.tensor(rng.normal(size=(4, 100, 100)) / 10, dtype=torch.float32)
valid_lens = torch.tensor([3, 2])  # of the 6 keys of each item so many are words, the others padding

# %% project
projected_q, projected_k, projected_v = queries @ w_q.T, keys @ w_k.T, keys @ w_v.T
one_by_one = torch.stack([w_k @ key for key in keys.reshape(12, 100)])
same = torch.allclose(projected_k.reshape(12, 100), one_by_one, atol=1e-5)
print(tuple(projected_k.shape), "as W times each of 12 vectors:", same)


# %% split
def transpose_qkv(x, num_heads):
    x = x.unflatten(2, (num_heads, -1))  # (2, 4, 5, 20)
    x = x.transpose(1, 2)  # (2, 5, 4, 20)
    return x.flatten(0, 1)  # (10, 4, 20)


q, k, v = (transpose_qkv(x, 5) for x in (projected_q, projected_k, projected_v))
print(tuple(projected_q.shape), "->", tuple(q.shape), "and", tuple(projected_k.shape), "->", tuple(k.shape))


# %% attend
def attend(q, k, v, allowed):
    scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    return weights, weights @ v


lengths = valid_lens.repeat_interleave(5)  # one for each of the 10
allowed = (torch.arange(6) < lengths[:, None])[:, None]  # (10, 1, 6)
weights, heads = attend(q, k, v, allowed)
print("lengths", lengths.numpy(), "weights", tuple(weights.shape), "heads", tuple(heads.shape))

# %% repeat
print("repeat_interleave:", valid_lens.repeat_interleave(5).numpy())
print("repeat:           ", valid_lens.repeat(5).numpy())


# %% merge
def transpose_output(x, num_heads):
    x = x.unflatten(0, (-1, num_heads))  # (2, 5, 4, 20)
    x = x.transpose(1, 2)  # (2, 4, 5, 20)
    return x.flatten(2)  # (2, 4, 100)


merged = transpose_output(heads, 5)
output = merged @ w_o.T
print(tuple(heads.shape), "->", tuple(merged.shape), "->", tuple(output.shape))


# %% class
class MultiHeadAttention(torch.nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.w_q = torch.nn.LazyLinear(num_hiddens, bias=False)  # lazy: only the first call tells the input's width
        self.w_k = torch.nn.LazyLinear(num_hiddens, bias=False)
        self.w_v = torch.nn.LazyLinear(num_hiddens, bias=False)
        self.w_o = torch.nn.LazyLinear(num_hiddens, bias=False)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens):
        projected = (self.w_q(queries), self.w_k(keys), self.w_v(values))
        q, k, v = (transpose_qkv(x, self.num_heads) for x in projected)
        lengths = valid_lens.repeat_interleave(self.num_heads)
        allowed = (torch.arange(k.shape[1]) < lengths[:, None])[:, None]
        weights, _ = attend(q, k, v, allowed)
        weights = self.dropout(weights)  # in training alone
        return self.w_o(transpose_output(weights @ v, self.num_heads))


# %% call
layer = MultiHeadAttention(100, 5, dropout=0.5).eval()  # in use, not in training
print("before:", layer.w_q.weight)
first = layer(queries, keys, keys, valid_lens)
print("after: ", [tuple(parameter.shape) for parameter in layer.parameters()])
assert first.shape == (2, 4, 100)

# %% same
layer.load_state_dict({"w_q.weight": w_q, "w_k.weight": w_k, "w_v.weight": w_v, "w_o.weight": w_o})
made = layer(queries, keys, keys, valid_lens).detach()
print("as step by step:", torch.allclose(made, output, atol=1e-5))

# %% grouped
two_k, two_v = k[:2].repeat_interleave(2, dim=0), v[:2].repeat_interleave(2, dim=0)
grouped_heads = attend(q[:4], two_k, two_v, torch.ones(1, 1, 6, dtype=torch.bool))[1]
grouped = transpose_output(grouped_heads, 4)[0]
print(tuple(q[:4].shape), "and two heads of keys", tuple(k[:2].shape), "->", tuple(grouped.shape))

# %% linear_o
num_heads, d_model, length = 4, 16, 6
concatenated = torch.cat([torch.ones(length, d_model // num_heads) for _ in range(num_heads)], dim=1)
linear_o = torch.nn.Linear(num_heads * d_model, d_model)  # as printed: it takes 64 numbers
try:
    linear_o(concatenated)
except RuntimeError as error:
    print(f"does not fit: {error}")
linear_o = torch.nn.Linear(num_heads * (d_model // num_heads), d_model)  # right: as wide as the heads side by side
print("fits:", tuple(linear_o(concatenated).shape))
