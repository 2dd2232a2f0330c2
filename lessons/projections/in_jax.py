# %% words
import jax
import jax.numpy as jnp
import numpy as np

words = ["the", "cat", "sleeps", "because", "it", "is", "tired"]
kinds = {"noun": 0, "verb": 1, "pronoun": 2, "other": 3}
kind_of = ["other", "noun", "verb", "other", "pronoun", "verb", "other"]
x = 0.5 * jnp.asarray(np.random.default_rng(0).normal(size=(7, 8)), jnp.float32)  # 8 numbers a word
x = x.at[:, :4].set(jnp.eye(4)[jnp.array([kinds[kind] for kind in kind_of])])  # the first four say its kind

# %% alone
alone = jax.nn.softmax(x @ x.T / 8**0.5, axis=-1)
alone_output = alone @ x
print("it:", {word: round(weight, 2) for word, weight in zip(words, alone[4].tolist(), strict=True)})
print("symmetric scores:", jnp.allclose(x @ x.T, (x @ x.T).T))

# %% projected
w_q = jnp.zeros((8, 8)).at[0, 1:3].set(12)  # verbs and pronouns ask for a noun
w_k = jnp.zeros((8, 8)).at[0, 0].set(1)  # nouns say that they are one
w_v = jnp.zeros((8, 8)).at[4:, 4:].set(jnp.eye(4))  # what is handed over is the word itself, not its kind
w_o = jnp.eye(8)
q, k, v = x @ w_q.T, x @ w_k.T, x @ w_v.T
weights = jax.nn.softmax(q @ k.T / 8**0.5, axis=-1)
output = weights @ v @ w_o.T
print("it: ", {word: round(weight, 2) for word, weight in zip(words, weights[4].tolist(), strict=True)})
print("cat:", {word: round(weight, 2) for word, weight in zip(words, weights[1].tolist(), strict=True)})

# %% training
asking = jnp.array([2, 4, 5])  # sleeps, it, is
learned_q, learned_k = jnp.asarray(np.random.default_rng(1).normal(size=(2, 8, 8)) / 8**0.5, jnp.float32)


def error_of(w_q, w_k):
    found = jax.nn.softmax(x[asking] @ w_q.T @ (x @ w_k.T).T / 8**0.5, axis=-1)
    return -jnp.log(found[:, 1]).mean(), found


both = jax.value_and_grad(error_of, argnums=(0, 1), has_aux=True)
for step in range(21):
    (error, found), (slope_q, slope_k) = both(learned_q, learned_k)
    if step in (0, 5, 20):
        print(f"step {step:2}: error {error:.3f}, weight of cat for it {found[1, 1]:.2f}")
    learned_q, learned_k = learned_q - slope_q, learned_k - slope_k
learned = jax.nn.softmax(x @ learned_q.T @ (x @ learned_k.T).T / 8**0.5, axis=-1)
