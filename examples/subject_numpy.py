"""A plain NumPy function as a subject. Here, in examples/: `mha check --subject subject_numpy:attention`.

It has no parameter for grouped heads, additive bias, dropout or another score: those cases are listed
as what it can't express.
"""

import numpy as np


def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """Multi-head attention as one would write it down; `mask` is bool (B, H, Lq, Lk), True = may attend."""

    def project(name, x):  # (B, L, in) -> (B, H, L, d)
        x = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)
        return x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)

    keys, values = (np.where(padding[:, :, None], 0, x) for x in (keys, values))
    q, k, v = project("q_proj", queries), project("k_proj", keys), project("v_proj", values)
    p = softmax(q @ k.swapaxes(2, 3) * q.shape[-1] ** -0.5, mask)
    heads = (p @ v).swapaxes(1, 2)
    heads = heads.reshape(*heads.shape[:2], heads.shape[2] * heads.shape[3])
    return heads @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0)


def softmax(scores, mask):
    """Over the allowed keys; a row without one is 0."""
    lowest = np.finfo(scores.dtype).min
    highest = np.where(mask, scores, lowest).max(axis=-1, keepdims=True, initial=lowest)
    exponentials = np.where(mask, np.exp(np.where(mask, scores, lowest) - highest), 0)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)
