"""Attention in einsum, forwards and backwards. B, Lq, Lk, H, G, d, dv are the sizes of the definition."""

from functools import partial
from typing import Any

import numpy as np
from mha_parity.core import AttentionConfig, AttentionInputs, Trace
from mha_parity.core.call.masks import additive_bias, allowed_keys, padding_keys
from mha_parity.core.weights import Weights
from numpy.typing import NDArray

from mha_einsum.parts import Parts

einsum = partial(np.einsum, optimize=True)
"""As products of matrices where it can, not as one loop over all letters."""


def attend(config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> Trace:
    """All stages; with a cotangent, the gradients too. Arrays are of the inputs' dtype."""
    one_pass = _Pass(config, weights, inputs)
    stages = one_pass.forward()
    return Trace(**stages, gradients=None if inputs.cotangent is None else one_pass.backward(inputs.cotangent))


class _Pass:
    """One call: `forward` keeps what `backward` needs."""

    def __init__(self, config: AttentionConfig, weights: Weights, inputs: AttentionInputs) -> None:
        self.config, self.weights, self.inputs = config, weights, inputs
        self.sizes = inputs.check(config)
        self.allowed = allowed_keys(inputs.mask, self.sizes, config.num_heads)
        self.padding = padding_keys(inputs.mask, self.sizes)  # (B, Lk)
        self.groups = config.num_heads // config.num_kv_heads
        self.dtype = inputs.queries.dtype.type

    def forward(self) -> dict[str, NDArray]:
        config, inputs = self.config, self.inputs
        new_padding = self.padding[:, self.sizes.past_len :]
        self.given = {"queries": inputs.queries}
        for name in ("keys", "values"):
            x = getattr(inputs, name)
            self.given[name] = np.where(_rows(new_padding, x), self.dtype(0), x)
        self.parts = Parts(config, self.weights, inputs, self.sizes)
        self.q = self.parts.forward("q", self._project("q_proj", self.given["queries"], config.num_heads))
        new_k = self.parts.forward("k", self._project("k_proj", self.given["keys"], config.num_kv_heads))
        self.k = self._with_past(inputs.past_keys, new_k)
        new_v = self._project("v_proj", self.given["values"], config.num_kv_heads)
        self.v = self._with_past(inputs.past_values, new_v)
        scores = self.similarity = self._similarity()
        if config.softcap is not None:
            self.capped = np.tanh(self.similarity / self.dtype(config.softcap))
            scores = self.capped * self.dtype(config.softcap)
        if inputs.mask.bias is not None:
            scores = scores + additive_bias(inputs.mask).astype(self.dtype)
        self.attention = softmax(scores, self.allowed)
        self.factor = self.dtype(1)
        if inputs.dropout_keep is not None:
            self.factor = inputs.dropout_keep / self.dtype(1.0 - config.dropout)
        self.kept = self.attention * self.factor
        self.heads = einsum("bhqk,bhkd->bhqd", self.kept, self._per_query_head(self.v))
        return {
            **{"queries": self.q, "keys": self.k, "values": self.v, "scores": scores, "weights": self.attention},
            **{"heads": self.heads, "output": self._output()},
        }

    def backward(self, d_output: NDArray) -> dict[str, NDArray]:
        config, inputs = self.config, self.inputs
        found: dict[str, NDArray] = {}
        d_heads = self._output_backward(d_output, found)
        d_kept = einsum("bhqd,bhkd->bhqk", d_heads, self._per_query_head(self.v))
        d_v = self._per_group(einsum("bhqk,bhqd->bhkd", self.kept, d_heads))
        weighted = np.where(self.allowed, self.attention * d_kept * self.factor, self.dtype(0))
        d_scores = weighted - self.attention * weighted.sum(axis=-1, keepdims=True)
        d_scores = np.where(self.allowed, d_scores, self.dtype(0))
        if inputs.mask.bias is not None:
            found["bias"] = _summed_to(d_scores, inputs.mask.bias.shape)
        if config.softcap is not None:
            d_scores = np.where(self.allowed, d_scores * (1 - self.capped**2), self.dtype(0))
        d_q, d_k = self._similarity_backward(d_scores, found)
        past_len = self.sizes.past_len
        for name, d, past in (("keys", d_k, inputs.past_keys), ("values", d_v, inputs.past_values)):
            if past is not None:
                found[f"past_{name}"] = np.where(
                    _rows(self.padding[:, :past_len], past), self.dtype(0), d[:, :, :past_len]
                )
        self._project_backward("q_proj", "queries", self.parts.backward("q", d_q, found), found)
        self._project_backward("k_proj", "keys", self.parts.backward("k", d_k[:, :, past_len:], found), found)
        self._project_backward("v_proj", "values", d_v[:, :, past_len:], found)
        for name in ("keys", "values"):
            rows = _rows(self.padding[:, past_len:], found[name])
            found[name] = np.where(rows, self.dtype(0), found[name])
        return found

    # Projections: (B, L, in) -> (B, h, L, d) and back -------------------------------------------------------

    def _project(self, name: str, x: NDArray, num_heads: int) -> NDArray:
        """In one einsum; heads that are split stay as they are."""
        if not self.config.projections:
            return x if x.ndim == 4 else x.reshape(*x.shape[:2], num_heads, x.shape[2] // num_heads).swapaxes(1, 2)
        matrix = self.weights[f"{name}.weight"].reshape(num_heads, -1, x.shape[-1])  # (h, d, in)
        bias = self.weights.get(f"{name}.bias", np.zeros(matrix.shape[0] * matrix.shape[1], self.dtype))
        return einsum("bli,hdi->bhld", x, matrix) + bias.reshape(num_heads, 1, -1)

    def _project_backward(self, name: str, given: str, d: NDArray, found: dict[str, NDArray]) -> None:
        x = self.given[given]
        if not self.config.projections:
            found[given] = d if x.ndim == 4 else d.swapaxes(1, 2).reshape(x.shape)
            return
        matrix = self.weights[f"{name}.weight"]
        found[given] = einsum("bhld,hdi->bli", d, matrix.reshape(d.shape[1], d.shape[3], -1))
        found[f"{name}.weight"] = einsum("bhld,bli->hdi", d, x).reshape(matrix.shape)
        if f"{name}.bias" in self.weights:
            found[f"{name}.bias"] = d.sum(axis=(0, 2)).reshape(-1)

    def _output(self) -> NDArray:
        """(B, Lq, Do)."""
        if not self.config.projections:
            return self.heads.swapaxes(1, 2).reshape(self.sizes.batch, self.sizes.query_len, self.config.output_dim)
        matrix = self.weights["out_proj.weight"].reshape(self.config.output_dim, self.config.num_heads, -1)
        return einsum("bhqd,ohd->bqo", self.heads, matrix) + self.weights.get("out_proj.bias", self.dtype(0))

    def _output_backward(self, d: NDArray, found: dict[str, NDArray]) -> NDArray:
        heads = self.config.num_heads
        if not self.config.projections:
            return d.reshape(*d.shape[:2], heads, d.shape[2] // heads).swapaxes(1, 2)
        matrix = self.weights["out_proj.weight"]
        found["out_proj.weight"] = einsum("bqo,bhqd->ohd", d, self.heads).reshape(matrix.shape)
        if "out_proj.bias" in self.weights:
            found["out_proj.bias"] = d.sum(axis=(0, 1))
        return einsum("bqo,ohd->bhqd", d, matrix.reshape(len(matrix), heads, -1))

    # The score: (B, H, Lq, Lk) ------------------------------------------------------------------------------

    def _similarity(self) -> NDArray:
        k = self._per_query_head(self.k)
        if self.config.score != "additive":
            return einsum("bhqd,bhkd->bhqk", self.q, k) * self.dtype(self.config.softmax_scale)
        from_query = einsum("bhqd,sd->bhqs", self.q, self.weights["score.query.weight"])
        from_key = einsum("bhkd,sd->bhks", k, self.weights["score.key.weight"])
        self.hidden = np.tanh(from_query[:, :, :, None] + from_key[:, :, None])
        return einsum("bhqks,s->bhqk", self.hidden, self.weights["score.vector"])

    def _similarity_backward(self, d: NDArray, found: dict[str, NDArray]) -> tuple[NDArray, NDArray]:
        k = self._per_query_head(self.k)
        if self.config.score != "additive":
            d = d * self.dtype(self.config.softmax_scale)
            return einsum("bhqk,bhkd->bhqd", d, k), self._per_group(einsum("bhqk,bhqd->bhkd", d, self.q))
        query, key, vector = (self.weights[f"score.{name}"] for name in ("query.weight", "key.weight", "vector"))
        inside = d[..., None] * vector * (1 - self.hidden**2)
        from_query, from_key = inside.sum(axis=3), inside.sum(axis=2)
        found["score.query.weight"] = einsum("bhqs,bhqd->sd", from_query, self.q)
        found["score.key.weight"] = einsum("bhks,bhkd->sd", from_key, k)
        found["score.vector"] = einsum("bhqk,bhqks->s", d, self.hidden)
        d_k = self._per_group(einsum("bhks,sd->bhkd", from_key, key))
        return einsum("bhqs,sd->bhqd", from_query, query), d_k

    # Heads and the past -------------------------------------------------------------------------------------

    def _with_past(self, past: NDArray | None, new: NDArray) -> NDArray:
        """(B, G, Lk, d): those of the past, 0 in place of padding, then the new ones."""
        if past is None:
            return new
        rows = _rows(self.padding[:, : self.sizes.past_len], past)
        return np.concatenate([np.where(rows, self.dtype(0), past), new], axis=2)

    def _per_query_head(self, x: NDArray) -> NDArray:
        """(B, G, Lk, d) -> (B, H, Lk, d)."""
        return x.repeat(self.groups, axis=1)

    def _per_group(self, x: NDArray) -> NDArray:
        """(B, H, Lk, d) -> (B, G, Lk, d): the heads of a group add up."""
        return einsum("bngkd->bnkd", x.reshape(x.shape[0], self.config.num_kv_heads, self.groups, *x.shape[2:]))


def softmax(scores: NDArray, allowed: NDArray) -> NDArray:
    """Over the allowed keys; 0 elsewhere, also in a row that has none."""
    has_key = allowed.any(axis=-1, keepdims=True)
    open_scores = np.where(allowed, scores, -np.inf)
    highest = open_scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(open_scores - np.where(has_key, highest, 0.0).astype(scores.dtype))
    total = exponentials.sum(axis=-1, keepdims=True)
    return np.where(allowed, exponentials / np.where(has_key, total, 1.0), 0.0).astype(scores.dtype)


def _rows(padding: NDArray, x: NDArray) -> NDArray:
    """Bool (B, L) as (B, L, 1) or, for heads, (B, 1, L, 1)."""
    return padding[:, :, None] if x.ndim == 3 else padding[:, None, :, None]


def _summed_to(x: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Broadcasting backwards."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    axes: Any = tuple(axis for axis, size in enumerate(shape) if size == 1)
    return x.sum(axis=axes, keepdims=True)
