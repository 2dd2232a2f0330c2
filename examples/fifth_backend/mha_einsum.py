"""A fifth backend, from another package: NumPy's einsum, forward only, float64 and float32.

`pip install ./examples/fifth_backend`, and `mha check --backend einsum` judges it.
"""

from __future__ import annotations

import numpy as np

from mha_core import AttentionConfig, AttentionInputs, Trace
from mha_core.backend import Backend, Run
from mha_core.call.masks import additive_bias, allowed_keys, padding_keys
from mha_core.weights import Weights


class EinsumBackend(Backend):
    """Multi-head attention in einsum, behind the contract."""

    name = "einsum"

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def devices(self) -> tuple[str, ...]:
        return ("cpu",)

    def dtypes(self, device: str) -> tuple[str, ...]:
        return ("float64", "float32")

    def build(self, config: AttentionConfig, weights: Weights, dtype: str, device: str, path: str) -> Run:
        heads, groups = config.num_heads, config.num_kv_heads

        def project(name: str, x: np.ndarray, num_heads: int) -> np.ndarray:
            """(B, L, in) -> (B, h, L, d), in one einsum per projection; heads that are split stay as they are."""
            if not config.projections:
                return x if x.ndim == 4 else x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)
            matrix = weights[f"{name}.weight"].reshape(num_heads, -1, x.shape[-1])  # (h, d, in)
            bias = weights.get(f"{name}.bias", np.zeros(matrix.shape[0] * matrix.shape[1], dtype))
            return np.einsum("bli,hdi->bhld", x, matrix) + bias.reshape(num_heads, 1, -1)

        def score(q: np.ndarray, k: np.ndarray) -> np.ndarray:
            if config.score != "additive":
                return np.einsum("bhqd,bhkd->bhqk", q, k) * np.asarray(config.softmax_scale, dtype)
            from_query = np.einsum("bhqd,sd->bhqs", q, weights["score.query.weight"])
            from_key = np.einsum("bhkd,sd->bhks", k, weights["score.key.weight"])
            hidden = np.tanh(from_query[:, :, :, None] + from_key[:, :, None])
            return np.einsum("bhqks,s->bhqk", hidden, weights["score.vector"])

        def run(inputs: AttentionInputs) -> Trace:
            sizes = inputs.check(config)
            allowed = allowed_keys(inputs.mask, sizes, heads)
            padding = padding_keys(inputs.mask, sizes)
            zero = np.zeros((), dtype)

            def all_heads(name: str, past: np.ndarray | None, new: np.ndarray) -> np.ndarray:
                """(B, G, Lk, d): those of the past, then the new ones; 0 in place of padding."""
                rows = padding[:, sizes.past_len :]
                rows = rows[:, :, None] if new.ndim == 3 else rows[:, None, :, None]
                projected = project(name, np.where(rows, zero, new), groups)
                if past is None:
                    return projected
                rows = padding[:, None, : sizes.past_len, None]
                return np.concatenate([np.where(rows, zero, past), projected], axis=2)

            q = project("q_proj", inputs.queries, heads)
            k = all_heads("k_proj", inputs.past_keys, inputs.keys)
            v = all_heads("v_proj", inputs.past_values, inputs.values)
            scores = score(q, k.repeat(heads // groups, axis=1))
            if config.softcap is not None:
                scores = np.tanh(scores / np.asarray(config.softcap, dtype)) * np.asarray(config.softcap, dtype)
            if inputs.mask.bias is not None:
                scores = scores + additive_bias(inputs.mask).astype(dtype)
            weights_ = softmax(scores, allowed)
            kept = weights_
            if inputs.dropout_keep is not None:
                kept = kept * inputs.dropout_keep / np.asarray(1.0 - config.dropout, dtype)
            z = np.einsum("bhqk,bhkd->bhqd", kept, v.repeat(heads // groups, axis=1))
            if config.projections:
                matrix = weights["out_proj.weight"].reshape(config.output_dim, heads, -1)
                output = np.einsum("bhqd,ohd->bqo", z, matrix) + weights.get("out_proj.bias", zero)
            else:
                output = z.swapaxes(1, 2).reshape(sizes.batch, sizes.query_len, -1)
            return Trace(q, k, v, scores, weights_, z, output)

        return run


def softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Over the allowed keys; 0 elsewhere, also in a row that has none."""
    has_key = allowed.any(axis=-1, keepdims=True)
    open_scores = np.where(allowed, scores, -np.inf)
    highest = open_scores.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(open_scores - np.where(has_key, highest, 0.0).astype(scores.dtype))
    total = exponentials.sum(axis=-1, keepdims=True)
    return np.where(allowed, exponentials / np.where(has_key, total, 1.0), 0.0).astype(scores.dtype)
