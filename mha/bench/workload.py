"""One setting as arrays, and what the reference says of it.

The reference can't hold 8192 x 8192 scores in float64, and needs not: the cotangent is 0 but for a few
queries of each item, so output and gradient are known exactly from those queries against all keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mha.bench.settings import Direction, Setting
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask
from mha_core.config import AttentionConfig
from mha_core.dtypes import round_to
from mha_core.reference.pipeline import run
from mha_core.weights import Weights, check_weights, init_weights

QUERIES_CHECKED = 8
"""Of each item, evenly spread."""

BOUNDS = {"float64": 1e-4, "float32": 1e-3, "float16": 0.05, "bfloat16": 0.1}
"""How far, relative to its size, an answer may be from the reference: it shows a wrong peer, not an inexact one."""

PRODUCTS = {"forward": 1, "both": 3}
"""The backward pass has two matrix products for each of the forward pass."""


@dataclass(frozen=True, eq=False)
class Problem:
    """The arrays of one setting, in float32 or as float32 that holds a shorter dtype exactly.

    Args:
        setting, config, weights: biases are there, and small.
        x: (B, L, E), queries, keys and values at once.
        cotangent: (B, L, E), 0 but for `checked` queries.
        checked: the positions of those.
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
        """H, G, d."""
        return self.config.num_heads, self.config.num_kv_heads, self.config.head_dim


@dataclass(frozen=True, eq=False)
class Answer:
    """Output and gradient of x, both (B, L, E); the gradient is None in direction "forward"."""

    output: NDArray
    gradient: NDArray | None = None


def make_problem(setting: Setting, dtype: str) -> Problem:
    """The same arrays for the same setting and dtype."""
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
    problem = Problem(setting, config, check_weights(config, weights), normal(*shape), cotangent, checked)
    if setting.past:
        past = setting.batch, config.num_kv_heads, setting.past, config.head_dim
        problem = replace(problem, past_keys=normal(*past), past_values=normal(*past))
    if setting.ragged:
        lens = np.linspace(setting.length / 4, setting.length * 3 / 4, setting.batch)
        problem = replace(problem, valid_lens=np.maximum(1, lens).astype(np.int64))
    return problem


def expected(problem: Problem, direction: Direction) -> Answer:
    """What the reference says: the output (B, queries checked, E), and the gradient of x (B, L, E)."""
    queries = problem.x[:, problem.checked]
    inputs = AttentionInputs(
        queries,
        problem.x,
        problem.x,
        AttentionMask(problem.valid_lens, allowed=_allowed(problem)),
        cotangent=problem.cotangent[:, problem.checked] if direction == "both" else None,
        past_keys=problem.past_keys,
        past_values=problem.past_values,
    )
    trace = run(problem.config, problem.weights, inputs)
    assert trace.output is not None
    if trace.gradients is None:
        return Answer(trace.output)
    gradient = np.array(trace.gradients["keys"] + trace.gradients["values"])
    gradient[:, problem.checked] += trace.gradients["queries"]
    return Answer(trace.output, gradient)


def difference(problem: Problem, answer: Answer, wanted: Answer) -> float:
    """How far an answer is from `expected`, relative to the size of that: the larger of output and gradient."""
    distances = [_distance(answer.output[:, problem.checked], wanted.output)]
    if wanted.gradient is not None:
        distances.append(float("inf") if answer.gradient is None else _distance(answer.gradient, wanted.gradient))
    return max(distances)


def flops(problem: Problem, direction: Direction) -> int:
    """Additions and multiplications of the definition's matrix products: of allowed keys alone, recomputing nothing."""
    setting, (heads, kv_heads, width) = problem.setting, problem.heads
    rows = setting.batch * setting.length
    projections = rows * setting.embed_dim * width * (2 * heads + 2 * kv_heads)
    attention = 2 * pairs(problem) * heads * width
    return 2 * (projections + attention) * PRODUCTS[direction]


def pairs(problem: Problem) -> int:
    """How many pairs of a query and a key that it may attend to there are, in all items."""
    setting = problem.setting
    stop = np.full((setting.batch, setting.length), setting.key_len)
    if problem.valid_lens is not None:
        stop = np.minimum(stop, problem.valid_lens[:, None])
    if setting.causal:
        stop = np.minimum(stop, setting.past + np.arange(setting.length) + 1)
    return int(stop.sum())


def _allowed(problem: Problem) -> NDArray[np.bool_] | None:
    """Causal, for the checked queries alone: (1, 1, queries, Lk)."""
    if not problem.setting.causal:
        return None
    keys = np.arange(problem.setting.key_len)
    return (keys <= problem.setting.past + problem.checked[:, None])[None, None]


def _distance(found: NDArray, wanted: NDArray) -> float:
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - wanted) / max(np.linalg.norm(wanted), np.finfo(np.float64).tiny))
