"""Gradients of calls with a mask, a bias, dropout or a past: see `gradients` for what is read off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.designs import changed, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.probes.calls.gradients import gradient_probe
from mha_core import AttentionConfig, AttentionMask

RATES = (0.25, 0.4, 0.15, 0.3)
"""The dropout of layers that are asked with a keep-mask."""

BATCHES = (3, 2, 4, 3)
"""The items of their calls, and of those with a past."""


def _lengths(lab: Lab) -> Sequence[Problem]:
    mask = AttentionMask(valid_lens=np.array([3, 1]))
    return [generic(config, batch=2, mask=mask) for config in lab.configs]


def _nan_padding(lab: Lab) -> Sequence[Problem]:
    return [_with_nan(problem) for problem in _lengths(lab)]


def _with_nan(problem: Problem) -> Problem:
    padding = problem.padding()[:, :, None]
    keys, values = (np.where(padding, np.nan, array) for array in (problem.inputs.keys, problem.inputs.values))
    return changed(problem, keys=keys, values=values)


def _masks(lab: Lab) -> Sequence[Problem]:
    return list(_masked(lab))


def _masked(lab: Lab) -> Iterator[Problem]:
    rng = np.random.default_rng(0)
    some = rng.random((2, 1, 3, 5)) < 0.6
    some[..., 1] = False
    for config in lab.configs:
        yield generic(config, batch=2, query_len=4, key_len=4, mask=AttentionMask(causal=True))
        yield generic(config, batch=2, mask=AttentionMask(allowed=some))


def _empty_rows(lab: Lab) -> Sequence[Problem]:
    none = np.ones((2, 1, 3, 5), dtype=bool)
    none[0, :, 1], none[1] = False, False
    return [generic(config, batch=2, mask=AttentionMask(allowed=none)) for config in lab.configs]


def _biases(lab: Lab) -> Sequence[Problem]:
    return list(_with_biases(lab))


def _with_biases(lab: Lab) -> Iterator[Problem]:
    rng = np.random.default_rng(0)
    for config in lab.configs:
        heads = config.num_heads
        for batch, shape in ((2, (2, heads, 3, 5)), (3, (3, 5)), (2, (heads, 3, 1)), (3, (3, 1, 1, 5))):
            yield generic(config, batch=batch, mask=AttentionMask(bias=rng.normal(size=shape)))


def _dropout(lab: Lab) -> Sequence[Problem]:
    return [
        _dropped(replace(config, dropout=rate), batch)
        for config, rate, batch in zip(lab.configs, RATES, BATCHES, strict=False)
    ]


def _dropped(config: AttentionConfig, batch: int) -> Problem:
    keep = np.random.default_rng(0).random((batch, config.num_heads, 3, 5)) > config.dropout
    return generic(config, batch=batch, dropout_keep=keep)


def _past(lab: Lab) -> Sequence[Problem]:
    return [_with_past(config, batch) for config, batch in zip(lab.configs, BATCHES, strict=False)]


def _with_past(config: AttentionConfig, batch: int) -> Problem:
    rng = np.random.default_rng(0)
    heads, past_len = config.num_kv_heads, 2
    return generic(
        config,
        batch=batch,
        past_keys=rng.normal(size=(batch, heads, past_len, config.head_dim)),
        past_values=rng.normal(size=(batch, heads, past_len, config.value_head_dim)),
        mask=AttentionMask(query_offset=past_len),
    )


PROBES: tuple[Probe, ...] = (
    gradient_probe(
        "gradients-with-lengths",
        "Padded keys: their gradient is 0.",
        _lengths,
    ),
    gradient_probe(
        "gradients-with-nan-padding",
        "Padding that is NaN.",
        _nan_padding,
    ),
    gradient_probe(
        "gradients-with-masks",
        "Causal calls, and an array of allowed keys.",
        _masks,
    ),
    gradient_probe(
        "gradients-of-empty-rows",
        "Queries without a key: only b_o.",
        _empty_rows,
    ),
    gradient_probe(
        "gradients-of-bias",
        "A bias of several shapes: its gradient is d_scores, summed.",
        _biases,
    ),
    gradient_probe("gradients-with-dropout", "A given keep-mask.", _dropout),
    gradient_probe(
        "gradients-with-past",
        "Past keys and values, which have gradients too.",
        _past,
    ),
)
