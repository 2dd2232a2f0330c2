"""Workload: the arrays of one setting, and the reference's answer to them.

The reference can't hold 8192 x 8192 scores in float64, and need not: the cotangent is 0 except for a few
queries of each item, so output and gradient are known exactly from those queries and all keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.bench.settings import Direction, Setting
from mha_core.call.blocks import reach
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask, interval
from mha_core.call.sizes import CallSizes
from mha_core.config import AttentionConfig
from mha_core.dtypes import round_to
from mha_core.reference.pipeline import run
from mha_core.weights import Weights, check_weights, init_weights

QUERIES_CHECKED = 8
"""How many queries of each item are checked; they are evenly spread."""

BOUNDS = {"float64": 1e-4, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}
"""How far, relative to its size, an answer may be from the reference: it shows a wrong peer, not an inexact one."""

PRODUCTS = {"forward": 1, "both": 3}
"""The backward pass has two matrix products for each of the forward pass."""


@dataclass(frozen=True, eq=False)
class Workload:
    """The arrays of one setting, in float32 or as float32 that holds a shorter dtype exactly.

    Args:
        setting, config, weights: the layer, with small biases.
        x: (B, L, E), the queries, keys and values.
        cotangent: (B, L, E), 0 except for `checked` queries.
        checked: the positions of the queries that are compared.
        past_keys, past_values: (B, G, past, d), or None.
        valid_lens: (B,), or None.
    """

    setting: Setting
    config: AttentionConfig
    weights: Weights
    x: NDArray
    cotangent: NDArray
    checked: NDArray[np.int64]
    past_keys: NDArray | None = None
    past_values: NDArray | None = None
    valid_lens: NDArray[np.int64] | None = None

    @property
    def heads(self) -> tuple[int, int, int]:
        """(H, G, d)."""
        return self.config.num_heads, self.config.num_kv_heads, self.config.head_dim

    @property
    def is_grouped(self) -> bool:
        """Whether several heads of queries read the same keys and values."""
        return self.config.num_heads != self.config.num_kv_heads

    @property
    def heads_of(self) -> dict[str, int]:
        """Projection of x -> the number of its heads."""
        heads, kv_heads, _ = self.heads
        return {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}

    @property
    def past(self) -> tuple[NDArray, ...]:
        """The keys and values of earlier steps; () without any."""
        return tuple(array for array in (self.past_keys, self.past_values) if array is not None)

    @property
    def positions(self) -> dict[str, Any]:
        """The arguments of our layers that say that the mask is causal; {} where it is not."""
        return {"causal": True, "query_offset": self.setting.past} if self.setting.causal else {}

    def given(self, array: Callable[[NDArray], Any], lens: Callable[[NDArray], Any]) -> dict[str, Any]:
        """The arrays that our layers are given besides x; `array` and `lens` make those of a framework."""
        found: dict[str, Any] = dict(zip(("past_keys", "past_values"), map(array, self.past), strict=False))
        return found if self.valid_lens is None else {**found, "valid_lens": lens(self.valid_lens)}


@dataclass(frozen=True, eq=False)
class Answer:
    """Output and gradient of x, both (B, L, E); the gradient is None in direction "forward"."""

    output: NDArray
    gradient: NDArray | None = None


def make_workload(setting: Setting, dtype: str) -> Workload:
    """Make the arrays of a setting; equal settings and dtypes give equal arrays."""
    config = AttentionConfig(setting.embed_dim, setting.num_heads, num_kv_heads=setting.num_kv_heads, bias=True)
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> NDArray:
        return round_to(rng.standard_normal(shape, dtype=np.float32), dtype).astype(np.float32)

    weights = {
        name: round_to(array, dtype).astype(np.float32)
        for name, array in init_weights(config, seed=0, bias_scale=0.02).items()
    }
    shape = setting.batch, setting.length, setting.embed_dim
    checked = np.unique(np.linspace(0, setting.length - 1, QUERIES_CHECKED).astype(np.int64))
    cotangent = np.zeros(shape, np.float32)
    cotangent[:, checked] = normal(setting.batch, len(checked), setting.embed_dim)
    workload = Workload(setting, config, check_weights(config, weights), normal(*shape), cotangent, checked)
    if setting.past:
        past = setting.batch, config.num_kv_heads, setting.past, config.head_dim
        workload = replace(workload, past_keys=normal(*past), past_values=normal(*past))
    if setting.ragged:
        lens = np.linspace(setting.length / 4, setting.length * 3 / 4, setting.batch)
        workload = replace(workload, valid_lens=np.maximum(1, lens).astype(np.int64))
    return workload


def reference_answer(workload: Workload, direction: Direction) -> Answer:
    """The reference's answer: the output (B, queries checked, E), and the gradient of x (B, L, E)."""
    queries = workload.x[:, workload.checked]
    inputs = AttentionInputs(
        queries,
        workload.x,
        workload.x,
        AttentionMask(workload.valid_lens, allowed=_allowed(workload)),
        cotangent=workload.cotangent[:, workload.checked] if direction == "both" else None,
        past_keys=workload.past_keys,
        past_values=workload.past_values,
    )
    trace = run(workload.config, workload.weights, inputs)
    assert trace.output is not None
    if trace.gradients is None:
        return Answer(trace.output)
    gradient = np.array(trace.gradients["keys"] + trace.gradients["values"])
    gradient[:, workload.checked] += trace.gradients["queries"]
    return Answer(trace.output, gradient)


def difference(workload: Workload, answer: Answer, wanted: Answer) -> float:
    """Relative distance of an answer from `wanted`, the reference's: the larger of output and gradient."""
    distances = [_distance(answer.output[:, workload.checked], wanted.output)]
    if wanted.gradient is not None:
        distances.append(float("inf") if answer.gradient is None else _distance(answer.gradient, wanted.gradient))
    return max(distances)


def flops(workload: Workload, direction: Direction) -> int:
    """Additions and multiplications of the definition's matrix products, for allowed keys, without recomputation."""
    setting, (heads, kv_heads, width) = workload.setting, workload.heads
    rows = setting.batch * setting.length
    projections = rows * setting.embed_dim * width * (2 * heads + 2 * kv_heads)
    attention = 2 * pairs(workload) * heads * width
    return 2 * (projections + attention) * PRODUCTS[direction]


def pairs(workload: Workload) -> int:
    """How many pairs of a query and a key that it may attend to there are, in all items."""
    setting = workload.setting
    mask = AttentionMask(workload.valid_lens, causal=setting.causal, query_offset=setting.past)
    within = reach(mask, CallSizes(setting.batch, setting.length, setting.key_len))
    keys = np.maximum(within.stop - within.first, 0)
    return int(np.broadcast_to(keys, (setting.batch, setting.length)).sum())


def _allowed(workload: Workload) -> NDArray[np.bool_] | None:
    """Causal mask of the checked queries, bool (1, 1, queries, Lk); None where the setting is not causal."""
    if not workload.setting.causal:
        return None
    _, stop = interval(AttentionMask(causal=True, query_offset=workload.setting.past), workload.setting.length)
    assert stop is not None
    return (np.arange(workload.setting.key_len) < stop[0, workload.checked, None])[None, None]


def _distance(found: NDArray, wanted: NDArray) -> float:
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), np.finfo(np.float64).tiny))
