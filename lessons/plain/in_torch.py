"""Multi-head attention in PyTorch, on one screen; the files beside it are the same steps in other frameworks.

Left out, so that nothing stands between the formula and its stages: how lengths, a causal rule and windows become the
one `mask` (True = may attend), layers that learn their sizes at the first call, blocks that save memory, and every
feature beyond the plain layer; the command below lists these, with cases that need them. `backends/torch` has all.

What is here is judged on every case that it can express: `mha check --subject lessons.plain.in_torch:attention`.
"""

import torch


def multi_head_attention(parameters, queries, keys, values, mask, padding, *, num_heads):
    """Queries (B, Lq, Dq), keys (B, Lk, Dk), values (B, Lk, Dv) -> the seven stages, of which output (B, Lq, Do)."""

    def project(x, name):  # (B, L, D) -> (B, L, H * d)
        return torch.nn.functional.linear(x, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))

    def split(x):  # (B, L, H * d) -> (B, H, L, d)
        return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    def softmax(x):  # over the keys
        return torch.softmax(x, dim=-1)

    keys = keys.masked_fill(padding[:, :, None], 0)  # (B, Lk, Dk)
    values = values.masked_fill(padding[:, :, None], 0)  # (B, Lk, Dv)
    q = split(project(queries, "q_proj"))  # (B, H, Lq, d)
    k = split(project(keys, "k_proj"))  # (B, H, Lk, d)
    v = split(project(values, "v_proj"))  # (B, H, Lk, dv)
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5  # (B, H, Lq, Lk)
    has_key = mask.any(dim=-1, keepdim=True)  # (B, H, Lq, 1)
    masked = scores.masked_fill(~mask & has_key, -torch.inf)  # (B, H, Lq, Lk)
    weights = softmax(masked).masked_fill(~mask, 0)  # (B, H, Lq, Lk)
    heads = weights @ v  # (B, H, Lq, dv)
    merged = heads.transpose(1, 2).flatten(2)  # (B, Lq, H * dv)
    output = project(merged, "out_proj")  # (B, Lq, Do)
    return dict(queries=q, keys=k, values=v, scores=scores, weights=weights, heads=heads, output=output)


def attention(weights, queries, keys, values, mask, *, num_heads, padding):
    """The layer on NumPy arrays, as the judge calls it."""
    parameters = {name: torch.from_numpy(array) for name, array in weights.items()}
    arrays = [torch.from_numpy(array) for array in (queries, keys, values, mask, padding)]
    stages = multi_head_attention(parameters, *arrays, num_heads=num_heads)
    return {name: stage.numpy() for name, stage in stages.items()}
