# %% words
import numpy as np

words = ["the", "cat", "sleeps", "because", "it", "is", "tired"]
kinds = {"noun": 0, "verb": 1, "pronoun": 2, "other": 3}
kind_of = ["other", "noun", "verb", "other", "pronoun", "verb", "other"]
x = 0.5 * np.random.default_rng(0).normal(size=(7, 8))  # what the words are, 8 numbers each
x[:, :4] = np.eye(4)[[kinds[kind] for kind in kind_of]]  # the first four say what kind of word it is


# %% alone
def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


alone = softmax(x @ x.T / 8**0.5)
alone_output = alone @ x
print("it:", dict(zip(words, alone[4].round(2).tolist(), strict=True)))
print("symmetric scores:", np.allclose(x @ x.T, (x @ x.T).T))

# %% projected
w_q, w_k, w_v, w_o = np.zeros((8, 8)), np.zeros((8, 8)), np.zeros((8, 8)), np.eye(8)
w_q[0, 1] = w_q[0, 2] = 12  # verbs and pronouns ask for a noun
w_k[0, 0] = 1  # nouns say that they are one
w_v[4:, 4:] = np.eye(4)  # what is handed over is the word itself, not its kind
q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T
weights = softmax(q @ k.T / 8**0.5)
output = weights @ v @ w_o.T
print("it: ", dict(zip(words, weights[4].round(2).tolist(), strict=True)))
print("cat:", dict(zip(words, weights[1].round(2).tolist(), strict=True)))

# %% training
asking = [2, 4, 5]  # sleeps, it, is
learned_q, learned_k = np.random.default_rng(1).normal(size=(2, 8, 8)) / 8**0.5
for step in range(21):
    queries, keys = x[asking] @ learned_q.T, x @ learned_k.T
    found = softmax(queries @ keys.T / 8**0.5)
    error = -np.log(found[:, 1]).mean()
    if step in (0, 5, 20):
        print(f"step {step:2}: error {error:.3f}, weight of cat for it {found[1, 1]:.2f}")
    slopes = (found - np.eye(7)[1]) / 3 / 8**0.5  # of the error, by each product of a query and a key
    slope_q, slope_k = (slopes @ keys).T @ x[asking], (slopes.T @ queries).T @ x
    learned_q, learned_k = learned_q - slope_q, learned_k - slope_k
learned = softmax(x @ learned_q.T @ (x @ learned_k.T).T / 8**0.5)
