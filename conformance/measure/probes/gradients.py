r"""Gradients of plain calls, from the output backwards; then of calls and layers with one thing more.

Every gradient is linear in the array of each backward step, and all gradients are seen. So for a step that gives
(1 - c) x + c T(x) where x was right, c is read off, whatever comes after the step:

    g = g_1 + c (g_T - g_1)

with the model's gradients g_1 as they are and g_T with T(x) in place of x: see `read.backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import CONFIGS, changed, generic
from conformance.measure.probe import Probe
from conformance.measure.propose.gradients import wrong_gradients
from mha_core import AttentionConfig, AttentionMask

WITH_PLAIN = 2
"""Plain calls that each probe has besides its own, so that what is said of its calls holds for those."""

FORMULA = r"g = g_1 + c\,(g_T - g_1)"

Problems = Callable[[Sequence[AttentionConfig]], Iterable[Problem]]
"""The layers of a asker -> problems."""


@lru_cache(maxsize=64)
def _one_item(config: AttentionConfig) -> Problem:
    return generic(config)


def _plain(configs: Sequence[AttentionConfig]) -> list[Problem]:
    """A plain call of each layer: the same problems each time."""
    return [_one_item(config) for config in configs]


def _each(problem: Callable[..., Problem], *numbers: Sequence[object]) -> Problems:
    """One problem of each layer, with the numbers of its place: other ones in each, so that none is a constant."""
    return lambda configs: map(problem, configs, *numbers)


def _all(*given: Callable[[AttentionConfig], Problem]) -> Problems:
    """Several problems of each layer."""
    return lambda configs: [problem(config) for config in configs for problem in given]


SIZES = ((3, 2, 3), (5, 1, 2), (3, 2, 3), (4, 2, 2))
"""(items, queries, keys) of calls of several items: so few that a weight's gradient tells the rows it is made of."""

LENGTHS = ((3, 5), (2, 4), (4, 5), (3, 6))
"""Queries and keys of layers whose scores are made otherwise."""

BATCHES = (3, 2, 4, 3)

RATES = (0.25, 0.4, 0.15, 0.3)
"""Rates of dropout."""

BARE = tuple(
    AttentionConfig(width, heads, num_kv_heads=groups, head_dim=d, value_head_dim=dv, projections=False)
    for width, heads, groups, d, dv in ((12, 4, 2, 3, 5), (10, 2, 2, 5, 3), (18, 3, 3, 6, 4), (8, 2, 2, 4, 4))
)


def _of_items(config: AttentionConfig, sizes: tuple[int, int, int]) -> Problem:
    batch, query_len, key_len = sizes
    return generic(config, batch=batch, query_len=query_len, key_len=key_len)


def _squares(configs: Sequence[AttentionConfig]) -> list[Problem]:
    """Some subjects take no other calls, and so no layer in those of the asker."""
    return [
        generic(config, batch=2, query_len=length, key_len=length)
        for config, length in zip(configs or CONFIGS[:4], (6, 9, 6, 9), strict=False)
    ]


def _with_nan(config: AttentionConfig) -> Problem:
    problem = generic(config, batch=2, mask=LENS)
    padding = problem.padding()[:, :, None]
    keys, values = (np.where(padding, np.nan, array) for array in (problem.inputs.keys, problem.inputs.values))
    return changed(problem, keys=keys, values=values)


LENS = AttentionMask(valid_lens=np.array([3, 1]))


def _some_allowed() -> AttentionMask:
    some = np.random.default_rng(0).random((2, 1, 3, 5)) < 0.6
    some[..., 1] = False
    return AttentionMask(allowed=some)


def _none_allowed() -> AttentionMask:
    """Some queries, and one item, without a key."""
    allowed = np.ones((2, 1, 3, 5), dtype=bool)
    allowed[0, :, 1], allowed[1] = False, False
    return AttentionMask(allowed=allowed)


def _biases(configs: Sequence[AttentionConfig]) -> Iterator[Problem]:
    rng = np.random.default_rng(0)
    for config in configs:
        heads = config.num_heads
        for batch, shape in ((2, (2, heads, 3, 5)), (3, (3, 5)), (2, (heads, 3, 1)), (3, (3, 1, 1, 5))):
            yield generic(config, batch=batch, mask=AttentionMask(bias=rng.normal(size=shape)))


def _dropped(config: AttentionConfig, rate: float, batch: int) -> Problem:
    keep = np.random.default_rng(0).random((batch, config.num_heads, 3, 5)) > rate
    return generic(replace(config, dropout=rate), batch=batch, dropout_keep=keep)


def _with_past(config: AttentionConfig, batch: int) -> Problem:
    rng = np.random.default_rng(0)
    past: dict[str, Any] = {
        name: rng.normal(size=(batch, config.num_kv_heads, 2, width))
        for name, width in (("past_keys", config.head_dim), ("past_values", config.value_head_dim))
    }
    return generic(config, batch=batch, mask=AttentionMask(query_offset=2), **past)


def _softcap(config: AttentionConfig, lengths: tuple[int, int]) -> Problem:
    return generic(replace(config, softcap=1.5), query_len=lengths[0], key_len=lengths[1])


def _additive(config: AttentionConfig, lengths: tuple[int, int], size: int) -> Problem:
    additive = replace(config, score="additive", score_dim=size)
    return generic(additive, batch=2, query_len=lengths[0], key_len=lengths[1])


ROWS: tuple[tuple[str, str, Problems], ...] = (
    ("", "All gradients of a plain call of one item.", _plain),
    ("of-items", "All gradients of calls of 3 to 5 items.", _each(_of_items, SIZES)),
    ("of-square-calls", "As many queries as keys.", _squares),
    (
        "of-magnitudes",
        "Small and large cotangents: clipping.",
        _all(lambda c: generic(c, cotangent=1e-3), lambda c: generic(c, cotangent=1e3)),
    ),
    ("with-lengths", "Padded keys: their gradient is 0.", _all(lambda c: generic(c, batch=2, mask=LENS))),
    ("with-nan-padding", "Padding that is NaN.", _all(_with_nan)),
    (
        "with-masks",
        "Causal calls, and an array of allowed keys.",
        _all(
            lambda c: generic(c, batch=2, query_len=4, key_len=4, mask=AttentionMask(causal=True)),
            lambda c: generic(c, batch=2, mask=_some_allowed()),
        ),
    ),
    (
        "of-empty-rows",
        "Queries without a key: only b_o.",
        _all(lambda c: generic(c, batch=2, mask=_none_allowed())),
    ),
    ("of-bias", "A bias of several shapes: its gradient is d_scores, summed.", _biases),
    ("with-dropout", "A given keep-mask.", _each(_dropped, RATES, BATCHES)),
    ("with-past", "Past keys and values, which have gradients too.", _each(_with_past, BATCHES)),
    ("with-scale", "A scale that is given.", _all(lambda c: generic(replace(c, scale=0.7)))),
    ("with-softcap", "A softcap: its slope.", _each(_softcap, LENGTHS)),
    ("of-additive-score", "The additive score and its parameters.", _each(_additive, LENGTHS, (5, 6, 7, 8))),
    (
        "without-projections",
        "A layer whose inputs are the heads.",
        lambda configs: [generic(config, batch=2) for config in BARE],
    ),
)
"""The rest of each probe's id, what it says, and its problems."""


def _probe(rest: str, says: str, problems: Problems) -> Probe:
    def of(asker: Asker) -> Sequence[Problem]:
        plain = _plain(asker.configs)
        return plain if not rest else [*problems(asker.configs), *plain[:WITH_PLAIN]]

    unknown = "" if rest else "whether its gradients are right"
    id = f"gradients-{rest}".strip("-")
    return Probe(id, says, FORMULA, of, propose=wrong_gradients, gradients=True, unknown=unknown)


PROBES: tuple[Probe, ...] = tuple(_probe(*row) for row in ROWS)
