# %% words
import numpy as np
import torch

words = ["the", "cat", "sleeps", "because", "it", "is", "tired"]
kinds = {"noun": 0, "verb": 1, "pronoun": 2, "other": 3}
kind_of = ["other", "noun", "verb", "other", "pronoun", "verb", "other"]
x = 0.5 * torch.tensor(np.random.default_rng(0).normal(size=(7, 8)), dtype=torch.float32)  # 8 numbers a word
x[:, :4] = torch.eye(4)[[kinds[kind] for kind in kind_of]]  # of which the first four say what kind of word it is

# %% alone
alone = torch.softmax(x @ x.T / 8**0.5, dim=-1)
alone_output = alone @ x
print("it:", {word: round(weight, 2) for word, weight in zip(words, alone[4].tolist(), strict=True)})
print("symmetric scores:", torch.allclose(x @ x.T, (x @ x.T).T))

# %% projected
w_q, w_k, w_v, w_o = torch.zeros(8, 8), torch.zeros(8, 8), torch.zeros(8, 8), torch.eye(8)
w_q[0, 1] = w_q[0, 2] = 12  # verbs and pronouns ask for a noun
w_k[0, 0] = 1  # nouns say that they are one
w_v[4:, 4:] = torch.eye(4)  # what is handed over is the word itself, not its kind
q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T
weights = torch.softmax(q @ k.T / 8**0.5, dim=-1)
output = weights @ v @ w_o.T
print("it: ", {word: round(weight, 2) for word, weight in zip(words, weights[4].tolist(), strict=True)})
print("cat:", {word: round(weight, 2) for word, weight in zip(words, weights[1].tolist(), strict=True)})

# %% training
asking = [2, 4, 5]  # sleeps, it, is
start = np.random.default_rng(1).normal(size=(2, 8, 8)) / 8**0.5
learned_q, learned_k = (torch.tensor(w, dtype=torch.float32, requires_grad=True) for w in start)
for step in range(21):
    found = torch.softmax(x[asking] @ learned_q.T @ (x @ learned_k.T).T / 8**0.5, dim=-1)
    error = -found[:, 1].log().mean()
    if step in (0, 5, 20):
        print(f"step {step:2}: error {error:.3f}, weight of cat for it {found[1, 1]:.2f}")
    slope_q, slope_k = torch.autograd.grad(error, (learned_q, learned_k))
    with torch.no_grad():
        learned_q -= slope_q
        learned_k -= slope_k
learned_q, learned_k = learned_q.detach(), learned_k.detach()
learned = torch.softmax(x @ learned_q.T @ (x @ learned_k.T).T / 8**0.5, dim=-1)
