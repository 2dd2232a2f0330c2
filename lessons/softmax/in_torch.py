# %% shares
import torch


def unsafe_softmax(scores):
    powers = torch.exp(scores)
    return powers / powers.sum(dim=-1, keepdim=True)


row = torch.tensor([[2.0, 1.0, -1.0]])
print("divided by their sum:", row / row.sum())
print("softmax:             ", unsafe_softmax(row))
print("all scores + 10:     ", unsafe_softmax(row + 10))

# %% factors
factors = torch.linspace(0, 4, 9)[:, None]
offered = torch.tensor([[0.0], [1.0], [2.0], [2.5]])  # four scores
shares = unsafe_softmax(factors @ offered.T)  # (9, 4)
mean = shares @ offered
for at in (0, 2, 8):
    print(f"scores times {factors[at, 0]:.0f}:", shares[at])


# %% textbook
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
