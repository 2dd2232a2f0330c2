"""Multi-head attention in NumPy, on one screen; the files beside it are the same steps in four frameworks.

Left out, so that nothing stands between the formula and its stages: how lengths, a causal rule and windows become the
one `mask` (True = may attend), layers that learn their sizes at the first call, blocks that save memory, and every
feature beyond the plain layer; the command below lists these, with cases that need them. `mha_core/reference` has all.

What is here is judged on every case that it can express: `mha check --subject lessons.plain.in_numpy:attention`.
"""

import numpy as np


def multi_head_attention(parameters, queries, keys, values, mask, padding, *, num_heads):
    """Queries (B, Lq, Dq), keys (B, Lk, Dk), values (B, Lk, Dv) -> the seven stages, of which output (B, Lq, Do)."""

    def project(x, name):  # (B, L, D) -> (B, L, H * d)
        return x @ parameters[f"{name}.weight"].T + parameters.get(f"{name}.bias", 0)

    def split(x):  # (B, L, H * d) -> (B, H, L, d)
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    def softmax(x):  # over the keys
        powers = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
        return powers / powers.sum(axis=-1, keepdims=True)

    keys = np.where(padding[:, :, None], 0, keys)  # (B, Lk, Dk)
    values = np.where(padding[:, :, None], 0, values)  # (B, Lk, Dv)
    q = split(project(queries, "q_proj"))  # (B, H, Lq, d)
    k = split(project(keys, "k_proj"))  # (B, H, Lk, d)
    v = split(project(values, "v_proj"))  # (B, H, Lk, dv)
    scores = q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5  # (B, H, Lq, Lk)
    has_key = mask.any(axis=-1, keepdims=True)  # (B, H, Lq, 1)
    masked = np.where(~mask & has_key, -np.inf, scores)  # (B, H, Lq, Lk)
    weights = np.where(mask, softmax(masked), 0)  # (B, H, Lq, Lk)
    heads = weights @ v  # (B, H, Lq, dv)
    merged = heads.swapaxes(1, 2).reshape(*queries.shape[:2], num_heads * heads.shape[3])  # (B, Lq, H * dv)
    output = project(merged, "out_proj")  # (B, Lq, Do)
    return dict(queries=q, keys=k, values=v, scores=scores, weights=weights, heads=heads, output=output)


def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """The layer on NumPy arrays, as the judge calls it."""
    return multi_head_attention(weights, queries, keys, values, mask, padding, num_heads=num_heads)
