# %% one
import numpy as np
import torch

pairs = torch.tensor([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])  # three sentences: what stands at the two places that matter
print("one head, half and half:", pairs @ torch.tensor([0.5, 0.5]))
two = torch.stack([pairs @ torch.tensor([1.0, 0.0]), pairs @ torch.tensor([0.0, 1.0])], dim=1)  # a head for each
print("two heads, then W_o:    ", two @ torch.tensor([1.0, -1.0]))

# %% loop
rng = np.random.default_rng(0)
x = torch.tensor(rng.normal(size=(5, 12)), dtype=torch.float32)
w_q, w_k, w_v = torch.tensor(rng.normal(size=(3, 3, 4, 12)) / 12**0.5, dtype=torch.float32)  # of 3 heads a (4, 12) each
w_o = torch.tensor(rng.normal(size=(12, 12)) / 12**0.5, dtype=torch.float32)


def attend(q, k, v):  # (..., L, d) each
    weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    return weights, weights @ v


parts = [attend(x @ w_q[head].T, x @ w_k[head].T, x @ w_v[head].T)[1] for head in range(3)]
merged = torch.cat(parts, dim=1)
print([tuple(part.shape) for part in parts], "->", tuple(merged.shape))

# %% fused
fused_q, fused_k, fused_v = w_q.flatten(0, 1), w_k.flatten(0, 1), w_v.flatten(0, 1)  # one below the other


def split(y):  # (L, H * d) -> (H, L, d)
    return y.unflatten(1, (3, 4)).transpose(0, 1)


weights, heads = attend(split(x @ fused_q.T), split(x @ fused_k.T), split(x @ fused_v.T))
print("as the loop:", torch.allclose(heads.transpose(0, 1).flatten(1), merged, atol=1e-6))

# %% output
output = merged @ w_o.T
summed = sum(parts[head] @ w_o[:, 4 * head : 4 * head + 4].T for head in range(3))  # a block of W_o for each head
print(tuple(output.shape), "as the sum over heads:", torch.allclose(summed, output, atol=1e-6))

# %% cost
for count in (1, 3, 6, 12):  # W_q, W_k, W_v and W_o: 12 by the channels of all heads
    print(f"{count:2} heads of width {12 // count:2}: {4 * (count * (12 // count)) * 12} parameters")
