# %% split
import numpy as np
import torch

rng = np.random.default_rng(0)
queries = torch.tensor(rng.normal(size=(4, 12)), dtype=torch.float32)  # 4 queries, 3 heads of width 4
keys, values = torch.tensor(rng.normal(size=(2, 6, 12)), dtype=torch.float32)  # 6 keys and values


def split(x, num_heads):  # (L, H * d) -> (H, L, d)
    return x.unflatten(1, (num_heads, -1)).transpose(0, 1)


def merge(x):  # (H, L, d) -> (L, H * d)
    return x.transpose(0, 1).flatten(1)


print(queries.shape, "->", split(queries, 3).shape, "->", merge(split(queries, 3)).shape)
print("the same again:", (merge(split(queries, 3)) == queries).all().item())
print("without the exchange of axes:", (queries.reshape(3, 4, 4) == split(queries, 3)).all().item())


# %% loop
def attend(queries, keys, values):  # (..., Lq, d), (..., Lk, d), (..., Lk, d) -> (..., Lq, d)
    scores = queries @ keys.transpose(-1, -2) / queries.shape[-1] ** 0.5
    return torch.softmax(scores, dim=-1) @ values


parts = []
for head in range(3):
    mine = slice(4 * head, 4 * head + 4)  # the columns of this head
    parts.append(attend(queries[:, mine], keys[:, mine], values[:, mine]))
looped = torch.cat(parts, dim=1)

# %% fused
fused = merge(attend(split(queries, 3), split(keys, 3), split(values, 3)))
print(fused.shape)
print("as the loop:", torch.allclose(fused, looped, atol=1e-6))

# %% repeat
groups = torch.tensor([0, 1])  # 2 heads of keys for 4 heads of queries
print("repeat_interleave:", groups.repeat_interleave(2))
print("repeat:           ", groups.repeat(2))

# %% grouped
few_keys, few_values = keys[:, :8], values[:, :8]  # 2 heads of width 4
many_queries = torch.tensor(rng.normal(size=(4, 16)), dtype=torch.float32)  # 4 heads of width 4
grouped = merge(
    attend(
        split(many_queries, 4),
        split(few_keys, 2).repeat_interleave(2, dim=0),
        split(few_values, 2).repeat_interleave(2, dim=0),
    )
)
print(grouped.shape)
