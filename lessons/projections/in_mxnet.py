# %% words
import numpy

numpy.bool = numpy.bool_  # type: ignore[attr-defined] # MXNet 1.9.1 reads a name that NumPy 1.24 took out
from mxnet import np, npx

npx.set_np()
words = ["the", "cat", "sleeps", "because", "it", "is", "tired"]
kinds = {"noun": 0, "verb": 1, "pronoun": 2, "other": 3}
kind_of = ["other", "noun", "verb", "other", "pronoun", "verb", "other"]
x = np.array(0.5 * numpy.random.default_rng(0).normal(size=(7, 8)), dtype="float32")  # 8 numbers a word
x[:, :4] = np.eye(4)[np.array([kinds[kind] for kind in kind_of], dtype=int)]  # the first four say its kind

# %% alone
alone = npx.softmax(np.dot(x, x.T) / 8**0.5, axis=-1)
alone_output = np.dot(alone, x)
print("it:", {word: round(weight, 2) for word, weight in zip(words, alone[4].tolist(), strict=True)})
print("symmetric scores:", np.abs(np.dot(x, x.T) - np.dot(x, x.T).T).max().item() < 1e-6)

# %% projected
w_q, w_k, w_v, w_o = np.zeros((8, 8)), np.zeros((8, 8)), np.zeros((8, 8)), np.eye(8)
w_q[0, 1:3] = 12  # verbs and pronouns ask for a noun
w_k[0, 0] = 1  # nouns say that they are one
w_v[4:, 4:] = np.eye(4)  # what is handed over is the word itself, not its kind
q, k, v = np.dot(x, w_q.T), np.dot(x, w_k.T), np.dot(x, w_v.T)
weights = npx.softmax(np.dot(q, k.T) / 8**0.5, axis=-1)
output = np.dot(np.dot(weights, v), w_o.T)
print("it: ", {word: round(weight, 2) for word, weight in zip(words, weights[4].tolist(), strict=True)})
print("cat:", {word: round(weight, 2) for word, weight in zip(words, weights[1].tolist(), strict=True)})

# %% training
from mxnet import autograd

asking = np.array([2, 4, 5], dtype=int)  # sleeps, it, is
learned_q, learned_k = np.array(numpy.random.default_rng(1).normal(size=(2, 8, 8)) / 8**0.5, dtype="float32")
for step in range(21):
    learned_q.attach_grad()
    learned_k.attach_grad()
    with autograd.record():
        found = npx.softmax(np.dot(np.dot(x[asking], learned_q.T), np.dot(x, learned_k.T).T) / 8**0.5, axis=-1)
        error = -np.log(found[:, 1]).mean()
    if step in (0, 5, 20):
        print(f"step {step:2}: error {error.item():.3f}, weight of cat for it {found[1, 1].item():.2f}")
    error.backward()
    learned_q, learned_k = learned_q - learned_q.grad, learned_k - learned_k.grad
learned = npx.softmax(np.dot(np.dot(x, learned_q.T), np.dot(x, learned_k.T).T) / 8**0.5, axis=-1)
