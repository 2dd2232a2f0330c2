"""Multi-head attention in JAX, on one screen; the files beside it are the same steps in other frameworks.

Left out, so that nothing stands between the formula and its stages: how lengths, a causal rule and windows become the
one `mask` (True = may attend), layers that learn their sizes at the first call, blocks that save memory, and every
feature beyond the plain layer; the command below lists these, with cases that need them. `backends/jax` has all.

What is here is judged on every case that it can express: `mha check --subject lessons.plain.in_jax:attention`.
"""

import jax
import jax.numpy as jnp
import numpy as np

if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:  # where JAX has it up to 0.7
    from jax.experimental import enable_x64


def multi_head_attention(parameters, queries, keys, values, mask, padding, *, num_heads):
    """Queries (B, Lq, Dq), keys (B, Lk, Dk), values (B, Lk, Dv) -> the seven stages, of which output (B, Lq, Do)."""

    def project(x, name):  # (B, L, D) -> (B, L, H * d)
        return x @ parameters[f"{name}.weight"].T + parameters.get(f"{name}.bias", 0)

    def split(x):  # (B, L, H * d) -> (B, H, L, d)
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    def softmax(x):  # over the keys
        return jax.nn.softmax(x, axis=-1)

    keys = jnp.where(padding[:, :, None], 0, keys)  # (B, Lk, Dk)
    values = jnp.where(padding[:, :, None], 0, values)  # (B, Lk, Dv)
    q = split(project(queries, "q_proj"))  # (B, H, Lq, d)
    k = split(project(keys, "k_proj"))  # (B, H, Lk, d)
    v = split(project(values, "v_proj"))  # (B, H, Lk, dv)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5  # (B, H, Lq, Lk)
    has_key = mask.any(axis=-1, keepdims=True)  # (B, H, Lq, 1)
    masked = jnp.where(~mask & has_key, -jnp.inf, scores)  # (B, H, Lq, Lk)
    weights = jnp.where(mask, softmax(masked), 0)  # (B, H, Lq, Lk)
    heads = jnp.einsum("bhqk,bhkd->bhqd", weights, v)  # (B, H, Lq, dv)
    merged = heads.swapaxes(1, 2).reshape(*queries.shape[:2], num_heads * heads.shape[3])  # (B, Lq, H * dv)
    output = project(merged, "out_proj")  # (B, Lq, Do)
    return dict(queries=q, keys=k, values=v, scores=scores, weights=weights, heads=heads, output=output)


def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """The layer on NumPy arrays, as the judge calls it."""
    with enable_x64(True):
        parameters = {name: jnp.asarray(array) for name, array in weights.items()}
        arrays = [jnp.asarray(array) for array in (queries, keys, values, mask, padding)]
        compiled = jax.jit(multi_head_attention, static_argnames="num_heads")
        stages = compiled(parameters, *arrays, num_heads=num_heads)
        return {name: np.asarray(stage) for name, stage in stages.items()}
