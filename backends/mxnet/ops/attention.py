"""Attention in MXNet's own operations, between the projections: the stages `scores` to `heads`.

Shapes as in `mha_core.stages`: queries (B, H, Lq, d), keys (B, G, Lk, d), values (B, G, Lk, dv).
"""

from __future__ import annotations

from typing import NamedTuple

from backends.mxnet.ops.framework import mx, nothing, select
from backends.mxnet.ops.heads import repeat_kv_heads
from backends.mxnet.ops.masks import Mask, additive_bias, allowed_keys
from backends.mxnet.ops.operators import operator, view
from mha_core.config import AttentionConfig

_where = operator("where")
"""MXNet's `where`: a condition of one axis selects whole rows; its gradient selects as well."""

_tanh = operator("Activation", act_type="tanh")


class Score(NamedTuple):
    """A layer's score function, in a form that can score one block of queries at a time.

    scale: the factor of a dot product. softcap: c in c * tanh(score / c), or None.
    vector: (S,), w of the additive score w . tanh(q + k), for q and k projected to width S; None for a dot product.
    """

    scale: float = 1.0
    vector: mx.np.ndarray | None = None
    softcap: float | None = None

    def capped(self, config: AttentionConfig) -> Score:
        """This score with the softcap of a config."""
        return Score(self.scale, self.vector, config.softcap)


@mx.util.use_np
def zero_padding(x: mx.np.ndarray, mask: Mask) -> mx.np.ndarray:
    """Return x, new keys or values (B, L, width) or (B, G, L, width), with 0 in rows that no query may attend to."""
    return x if mask.padding is None else _zero_rows(x, mask.padding)


@mx.util.use_np
def after_past(past: mx.np.ndarray | None, new: mx.np.ndarray, mask: Mask) -> mx.np.ndarray:
    """Return past and new keys (or values) as one (B, G, Lk, width), with 0 in past rows no query may attend to."""
    return parts_of(past, new, mask, join=True)[0]


@mx.util.use_np
def parts_of(past: mx.np.ndarray | None, new: mx.np.ndarray, mask: Mask, *, join: bool) -> tuple[mx.np.ndarray, ...]:
    """Return (past, new), with 0 at padding of `past`. With `join`: (both joined,). Without a past: (new,)."""
    if past is None:
        return (new,)
    if mask.past_padding is not None:
        past = _zero_rows(past, mask.past_padding)
    return (mx.np.concatenate([past, new], axis=2),) if join else (past, new)


@mx.util.use_np
def _zero_rows(x: mx.np.ndarray, padding: mx.np.ndarray) -> mx.np.ndarray:
    """0 in the rows of x (B, L, width) or (B, G, L, width) where padding (B, L) says so."""
    if x.size == 0:
        return x
    used = ~(padding if x.ndim == 3 else padding[:, None])
    rows = mx.np.broadcast_to(used, x.shape[:-1]).astype("float32").reshape(-1)
    flat = view(x, (-1, x.shape[-1]))
    return view(_where(rows, flat, mx.np.zeros(flat.shape, dtype=x.dtype, ctx=x.ctx)), x.shape)


@mx.util.use_np
def dot_score(queries: mx.np.ndarray, keys: mx.np.ndarray, scale: float) -> mx.np.ndarray:
    """Return q.k * scale, (B, H, Lq, Lk)."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    return mx.np.matmul(queries * scale, keys.swapaxes(2, 3))


@mx.util.use_np
def additive_score(queries: mx.np.ndarray, keys: mx.np.ndarray, vector: mx.np.ndarray) -> mx.np.ndarray:
    """Return w . tanh(q + k), (B, H, Lq, Lk), for queries q and keys k that are projected to width S."""
    keys = repeat_kv_heads(keys, queries.shape[1])
    if queries.size == 0 or keys.size == 0:
        return nothing((*queries.shape[:3], keys.shape[2]), queries, keys, vector)
    hidden = mx.np.tanh(mx.np.expand_dims(queries, 3) + mx.np.expand_dims(keys, 2))
    return mx.np.dot(hidden, vector)


@mx.util.use_np
def cap(similarity: mx.np.ndarray, rule: AttentionConfig | Score) -> mx.np.ndarray:
    """Return c * tanh(similarity / c), (B, H, Lq, Lk), where c is `rule.softcap`. If c is None, return `similarity`."""
    c = rule.softcap
    return similarity if c is None else mx.np.tanh(similarity / c) * c


@mx.util.use_np
def cap_and_tanh(
    similarity: mx.np.ndarray, rule: AttentionConfig | Score
) -> tuple[mx.np.ndarray, mx.np.ndarray | None]:
    """Return (result of `cap`, tanh(similarity / c)), where c is `rule.softcap`. The second is None if c is None."""
    c = rule.softcap
    if c is None:
        return similarity, None
    tanh = _tanh(similarity / c)
    return tanh * c, tanh


@mx.util.use_np
def cap_gradient(d_capped: mx.np.ndarray, tanh: mx.np.ndarray | None) -> mx.np.ndarray:
    """Return the gradient of the similarity. `d_capped`: the gradient of `cap`'s result; `tanh`: see `cap_and_tanh`."""
    return d_capped if tanh is None else d_capped * (1.0 - tanh * tanh)


@mx.util.use_np
def add_bias(scores: mx.np.ndarray, mask: Mask) -> mx.np.ndarray:
    """Return (B, H, Lq, Lk): the scores plus the mask's additive bias, if it has one."""
    if mask.bias is None:
        return scores
    return scores + (additive_bias(mask) if scores.size else nothing(scores.shape, mask.bias))


@mx.util.use_np
def masked_softmax(scores: mx.np.ndarray, mask: Mask) -> mx.np.ndarray:
    """Return (B, H, Lq, Lk): softmax over the allowed keys, 0 at the other keys. A row without an allowed key is all 0.

    Such a row gets finite scores before the softmax and zeros after it, so no NaN arises, forward or backward.
    npx.softmax is not used: in float32 on a CPU, a row with one NaN score gets zeros everywhere else.
    """
    if scores.size == 0:
        return scores
    allowed = allowed_keys(mask)
    if allowed is None:
        return _softmax(scores)
    has_key = mx.np.any(allowed, axis=-1, keepdims=True)
    return select(allowed, _softmax(select(has_key, select(allowed, scores, -mx.np.inf), 0.0)), 0.0)


@mx.util.use_np
def _softmax(scores: mx.np.ndarray) -> mx.np.ndarray:
    exponentials = mx.np.exp(scores - mx.np.max(scores.detach(), axis=-1, keepdims=True))
    return exponentials / mx.np.sum(exponentials, axis=-1, keepdims=True)


@mx.util.use_np
def drop(weights: mx.np.ndarray, mask: Mask, dropout: float, training: bool) -> mx.np.ndarray:
    """Return the weights (B, H, Lq, Lk) after dropout by `mask.keep` (True = keep), or at random if that is None."""
    if mask.keep is not None:
        return drop_by(weights, mask.keep, dropout)
    return drop_at_random(weights, dropout, training)


@mx.util.use_np
def drop_at_random(x: mx.np.ndarray, dropout: float, training: bool) -> mx.np.ndarray:
    """Return x (of any shape) after dropout at this rate. Outside training, return x."""
    if dropout == 0.0 or not training:
        return x
    # npx.dropout only chooses: its own factor 1 / (1 - p) is a float32 whatever it multiplies.
    return drop_by(x, mx.npx.dropout(mx.np.ones(x.shape, dtype="float32", ctx=x.ctx), p=dropout) > 0, dropout)


@mx.util.use_np
def drop_by(x: mx.np.ndarray, keep: mx.np.ndarray, dropout: float) -> mx.np.ndarray:
    """Return the elements of x where `keep` is True or 1, scaled by 1 / (1 - dropout), and 0 elsewhere."""
    return x * keep / (1.0 - dropout)


@mx.util.use_np
def weighted_sum(weights: mx.np.ndarray, values: mx.np.ndarray) -> mx.np.ndarray:
    """(B, H, Lq, Lk), (B, G, Lk, dv) -> (B, H, Lq, dv)."""
    return mx.np.matmul(weights, repeat_kv_heads(values, weights.shape[1]))
