# %% masks
import numpy as np
import torch

x = torch.tensor(np.random.default_rng(0).normal(size=(5, 4)), dtype=torch.float32)  # five words
x[4] *= 10  # the last of them is long: most scores with it are large
causal = torch.ones(5, 5, dtype=torch.bool).tril()  # query i may attend to keys 0 to i
lengths = (torch.arange(5) < 3).expand(5, 5)  # only the first three keys are words, the others padding
print(lengths.int())


# %% attend
def masked_softmax(scores, allowed):
    return torch.softmax(scores.masked_fill(~allowed, -torch.inf), dim=-1)


scores = x @ x.T / 4**0.5
everything = masked_softmax(scores, torch.ones(5, 5, dtype=torch.bool))
causal_weights = masked_softmax(scores, causal)
length_weights = masked_softmax(scores, lengths)
causal_output, length_output = causal_weights @ x, length_weights @ x
print(f"largest score: {scores.max():.1f} its weight behind the mask: {length_weights[:, 4].max()}")

# %% batch
valid_lens = torch.tensor([3, 5])  # of two items
allowed_keys = torch.arange(5) < valid_lens[:, None, None, None]  # (2, 1, 1, 5)
many_scores = torch.stack([scores, scores])[:, None]  # (2, 1, 5, 5): two items, one head, five queries and keys
many_weights = masked_softmax(many_scores, allowed_keys)
print(
    tuple(allowed_keys.shape), tuple(many_weights.shape), f"padding of the first item: {many_weights[0, ..., 3:].max()}"
)

# %% empty
queries = torch.tensor([[1.0], [1000.0]])
keys = torch.tensor([[1.0], [2.0], [3.0]])
allowed = torch.tensor([[True, True, False], [False, False, False]])  # the second query may look at nothing
print(masked_softmax(queries @ keys.T, allowed))

# %% guarded
has_key = allowed.any(dim=-1, keepdim=True)
guarded = masked_softmax(queries @ keys.T, allowed | ~has_key).masked_fill(~allowed, 0)
print(guarded)

# %% broken
nan_score = torch.tensor([[torch.nan, 2.0, 3.0]])  # of the first query, which may not look at the third key
found = masked_softmax(nan_score, allowed[:1])
print("by row:", found.masked_fill(~has_key[:1], 0))
print("by key:", found.masked_fill(~allowed[:1], 0))

# %% padding
values = torch.tensor([[10.0], [20.0], [torch.nan]])  # nobody may look at the third, which is padding
print(guarded @ values)
output = guarded @ values.masked_fill(~allowed.any(dim=0)[:, None], 0)
print(output)
