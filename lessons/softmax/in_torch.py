# %% textbook
import torch


def textbook_softmax(scores):
    powers = torch.exp(scores - scores.max())  # the maximum of the whole matrix
    return powers / powers.sum(dim=-1, keepdim=True)


queries = torch.tensor([[1.0], [1000.0]])
keys = torch.tensor([[1.0], [2.0], [3.0]])
scores = queries @ keys.T  # a row of small scores beside a row of large ones
print(scores)
print(textbook_softmax(scores))


# %% rows
def softmax(scores):
    return torch.softmax(scores, dim=-1)  # of each row its own


weights = softmax(scores)
print(weights)

# %% empty
allowed = torch.tensor([[True, True, False], [False, False, False]])  # the second query may look at nothing
masked = scores.masked_fill(~allowed, -torch.inf)
print(softmax(masked))

# %% guarded
has_key = allowed.any(dim=-1, keepdim=True)
guarded = softmax(masked.masked_fill(~has_key, 0)).masked_fill(~allowed, 0)
print(guarded)

# %% padding
values = torch.tensor([[10.0], [20.0], [torch.nan]])  # nobody may look at the third, which is padding
print(guarded @ values)
output = guarded @ values.masked_fill(~allowed.any(dim=0)[:, None], 0)
print(output)
