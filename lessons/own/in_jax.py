# %% layer
import jax
import jax.numpy as jnp
import numpy as np

rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(8, 32)), jnp.float32)  # 8 words; 4 heads of width 8
w_q, w_k, w_v, w_o = jnp.asarray(rng.normal(size=(4, 32, 32)) / 32**0.5, jnp.float32)
w_q = w_q.at[8:16].multiply(8)  # sharp weights for head 1,
w_o = w_o.at[:, 8:16].multiply(0.1)  # and a small block of W_o
w_o = w_o.at[:, 24:].multiply(0.5)


def layer(w_q, w_k, w_v, w_o, num_heads):
    q, k, v = ((x @ w.T).reshape(8, num_heads, 8).swapaxes(0, 1) for w in (w_q, w_k, w_v))
    weights = jax.nn.softmax(q @ k.swapaxes(1, 2) / 8**0.5, axis=-1)
    return weights, (weights @ v).swapaxes(0, 1).reshape(8, -1) @ w_o.T


weights, output = layer(w_q, w_k, w_v, w_o, 4)

# %% look
largest = weights.max(axis=-1).mean(axis=-1)
print("largest weight of a query, by head:", largest.round(2))

# %% importance
found = []
for head in range(4):
    without = w_o.at[:, 8 * head : 8 * head + 8].set(0)  # nothing of this head gets out
    change = layer(w_q, w_k, w_v, without, 4)[1] - output
    found.append(jnp.linalg.norm(change) / jnp.linalg.norm(output))
importance = jnp.stack(found)
print("change of the output without it:   ", importance.round(2))

# %% cut
kept = jnp.sort(jnp.argsort(importance)[2:])  # the two that matter most
rows = (8 * kept[:, None] + jnp.arange(8)).ravel()  # their channels
cut_q, cut_k, cut_v, cut_o = w_q[rows], w_k[rows], w_v[rows], w_o[:, rows]
cut_weights, cut = layer(cut_q, cut_k, cut_v, cut_o, 2)
masked_o = jnp.zeros_like(w_o).at[:, rows].set(w_o[:, rows])
masked = layer(w_q, w_k, w_v, masked_o, 4)[1]
print("heads", kept, "of", w_q.shape, "are", cut_q.shape)
print("equal:", jnp.allclose(cut, masked, atol=1e-5))
