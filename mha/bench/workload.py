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
from mha_core.call.rotary import RotaryInputs
from mha_core.call.sizes import CallSizes
from mha_core.config import AttentionConfig
from mha_core.dtypes import round_to
from mha_core.parts.rotary import tables
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
    def mask(self) -> AttentionMask:
        """Which keys each query may attend to."""
        setting = self.setting
        window = None if setting.window is None else (setting.window - 1, None)
        return AttentionMask(self.valid_lens, causal=setting.causal, query_offset=setting.past, window=window)

    @property
    def positions(self) -> dict[str, Any]:
        """The arguments of our layers that say where queries stand, and what that keeps them from; {} for none."""
        mask, setting = self.mask, self.setting
        if not setting.causal and not setting.rotary:
            return {}
        return {"causal": mask.causal, "query_offset": mask.query_offset, "window": mask.window}

    @property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Bool (Lq, Lk), True = may attend, by positions alone; None where they exclude nothing."""
        if not self.setting.causal:
            return None
        first, stop = interval(self.mask, self.setting.length)
        keys = np.arange(self.setting.key_len)
        assert stop is not None
        allowed = keys < stop[0, :, None]
        return allowed if first is None else allowed & (keys >= first[0, :, None])

    @property
    def within_lens(self) -> NDArray[np.bool_] | None:
        """Bool (B, Lk), True = may attend, by valid_lens alone; None without them."""
        return None if self.valid_lens is None else np.arange(self.setting.key_len) < self.valid_lens[:, None]

    @property
    def turns(self) -> tuple[NDArray, NDArray] | None:
        """Cosine and sine (Lq, d) by which x turns, as model libraries hold them: twice beside each other."""
        if self.config.rotary is None:
            return None
        table = tables(self.config.rotary, self.setting.past + np.arange(self.setting.length), self.setting.key_len)
        cos, sin = (np.concatenate([part[0], part[0]], axis=-1).astype(np.float32) for part in table)
        return cos, sin

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
    config = AttentionConfig(
        setting.embed_dim,
        setting.num_heads,
        num_kv_heads=setting.num_kv_heads,
        bias=not setting.rotary,
        rotary=setting.rotary,
    )
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
    queries, setting = workload.x[:, workload.checked], workload.setting
    allowed = None if workload.allowed is None else workload.allowed[workload.checked][None, None]
    rotary = None
    if setting.rotary:
        rotary = RotaryInputs(setting.past + workload.checked, np.arange(setting.past, setting.key_len))
    inputs = AttentionInputs(
        queries,
        workload.x,
        workload.x,
        AttentionMask(workload.valid_lens, allowed=allowed),
        cotangent=workload.cotangent[:, workload.checked] if direction == "both" else None,
        past_keys=workload.past_keys,
        past_values=workload.past_values,
        rotary=rotary,
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
    within = reach(workload.mask, CallSizes(setting.batch, setting.length, setting.key_len))
    keys = np.maximum(within.stop - within.first, 0)
    return int(np.broadcast_to(keys, (setting.batch, setting.length)).sum())


def _distance(found: NDArray, wanted: NDArray) -> float:
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), np.finfo(np.float64).tiny))
