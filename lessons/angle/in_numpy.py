# %% vectors
import numpy as np

angles = np.radians(36 * np.arange(10))
vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # (10, 2)
query = np.array([[np.cos(np.pi / 4), np.sin(np.pi / 4)]])  # (1, 2), at 45 degrees


# %% attend
def attend(queries, keys, values):
    scores = queries @ keys.T  # (Lq, Lk)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return weights, weights @ values


weights, output = attend(query, vectors, vectors)
print(weights[0].round(3))
print(output[0])

# %% long
longer = vectors.copy()
longer[3] *= 5  # the one at 108 degrees
long_weights, long_output = attend(query, longer, longer)
print(long_weights[0].round(3))
print(long_output[0].round(4))

# %% several
directions = np.radians(np.array([45, 150, 270]))
queries = np.stack([np.cos(directions), np.sin(directions)], axis=1)  # (3, 2)
all_weights, outputs = attend(queries, vectors, vectors)
print(outputs.shape, all_weights.shape, all_weights.sum(axis=-1).round(5))

# %% additive
rng = np.random.default_rng(0)
w_q, w_k, vector = rng.normal(size=(8, 2)), rng.normal(size=(8, 2)), rng.normal(size=8)
hidden = np.tanh((query @ w_q.T)[:, None] + (longer @ w_k.T)[None])  # (1, 10, 8): a vector for each pair
additive_scores = hidden @ vector  # (1, 10)
additive_powers = np.exp(additive_scores - additive_scores.max(axis=-1, keepdims=True))
additive_weights = additive_powers / additive_powers.sum(axis=-1, keepdims=True)
print(additive_weights[0].round(3))
