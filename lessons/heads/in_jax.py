# %% one
import jax
import jax.numpy as jnp
import numpy as np

pairs = jnp.array([[1.0, 3.0], [2.0, 2.0], [3.0, 1.0]])  # three sentences: what stands at the two places that matter
print("one head, half and half:", pairs @ jnp.array([0.5, 0.5]))
two = jnp.stack([pairs @ jnp.array([1.0, 0.0]), pairs @ jnp.array([0.0, 1.0])], axis=1)  # a head for each place
print("two heads, then W_o:    ", two @ jnp.array([1.0, -1.0]))

# %% loop
rng = np.random.default_rng(0)
x = jnp.asarray(rng.normal(size=(5, 12)), jnp.float32)
w_q, w_k, w_v = jnp.asarray(rng.normal(size=(3, 3, 4, 12)) / 12**0.5, jnp.float32)  # of each of 3 heads its own (4, 12)
w_o = jnp.asarray(rng.normal(size=(12, 12)) / 12**0.5, jnp.float32)


def attend(q, k, v):  # (..., L, d) each
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, axis=-1)
    return weights, weights @ v


parts = [attend(x @ w_q[head].T, x @ w_k[head].T, x @ w_v[head].T)[1] for head in range(3)]
merged = jnp.concatenate(parts, axis=1)
print([part.shape for part in parts], "->", merged.shape)

# %% fused
fused_q, fused_k, fused_v = w_q.reshape(12, 12), w_k.reshape(12, 12), w_v.reshape(12, 12)  # one below the other


def split(y):  # (L, H * d) -> (H, L, d)
    return y.reshape(len(y), 3, 4).swapaxes(0, 1)


weights, heads = attend(split(x @ fused_q.T), split(x @ fused_k.T), split(x @ fused_v.T))
print("as the loop:", jnp.allclose(heads.swapaxes(0, 1).reshape(5, 12), merged, atol=1e-6))

# %% output
output = merged @ w_o.T
summed = sum(parts[head] @ w_o[:, 4 * head : 4 * head + 4].T for head in range(3))  # a block of W_o for each head
print(output.shape, "as the sum over heads:", jnp.allclose(summed, output, atol=1e-6))

# %% cost
for count in (1, 3, 6, 12):  # W_q, W_k, W_v and W_o: 12 by the channels of all heads
    print(f"{count:2} heads of width {12 // count:2}: {4 * (count * (12 // count)) * 12} parameters")
