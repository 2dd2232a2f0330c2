r"""Extremes: rows without an allowed key, padding that is no number, NaN where attention is allowed, no keys at all.

A row without an allowed key has the weights 0, so that its output is the output bias alone; padding reaches nothing:

    o_i = b_o  if no key is allowed        o(x) = o(x')  if x and x' differ in padding alone
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.designs import generic
from conformance.experiments.lab import Lab
from conformance.experiments.masks.empty import empty_row_bugs, nan_bugs, padding_bugs
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask

LQ, LK = 3, 5

MOST_CONFIGS = 2


def _row_out(shape: tuple[int, ...], row: int = 1) -> NDArray[np.bool_]:
    """True but for one query."""
    array = np.ones((*shape[:-2], LQ, LK), np.bool_)
    array[..., row, :] = False
    return array


def _empty_masks(config: AttentionConfig) -> list[AttentionMask]:
    heads = config.num_heads
    last = np.broadcast_to(np.arange(LK) >= 3, (LQ, LK))
    some = _row_out((1, heads, LQ, LK))
    some[:, ::2, 1] = True
    return [
        AttentionMask(valid_lens=np.array([0])),
        AttentionMask(valid_lens=np.array([[2, 0, 4]])),
        AttentionMask(allowed=_row_out((LQ, LK))),
        AttentionMask(allowed=some),
        AttentionMask(allowed=np.zeros((1, 1, 1, LK), np.bool_)),
        AttentionMask(bias=np.where(_row_out((LQ, LK)), 0.0, -np.inf)),
        AttentionMask(causal=True, query_offset=-1),
        AttentionMask(window=(1, 0), query_offset=-1),
        AttentionMask(valid_lens=np.array([3]), allowed=last),
        AttentionMask(causal=True, allowed=last),
    ]


def _some(lab: Lab) -> list[tuple[AttentionConfig, int]]:
    """The first layer with all masks, the second with each third."""
    return list(zip(lab.configs, (1, 3), strict=False))


def _empty_rows(lab: Lab) -> Sequence[Problem]:
    return [generic(config, mask=mask) for config, some in _some(lab) for mask in _empty_masks(config)[::some]]


PADDING: tuple[float, ...] = (np.nan, np.inf, 1e30)


def _padding(lab: Lab) -> Sequence[Problem]:
    found = []
    outside = np.arange(LK) >= 3
    masks = (AttentionMask(valid_lens=np.array([3])), AttentionMask(allowed=~outside[None, None, None]))
    for place, config in enumerate(lab.configs[:MOST_CONFIGS]):
        given = generic(config).inputs
        for number in PADDING if place == 0 else PADDING[:1]:
            keys, values = (np.where(outside[:, None], number, one) for one in (given.keys, given.values))
            for mask in masks:
                found.append(generic(config, mask=mask, keys=keys))
                found.append(generic(config, mask=mask, values=values))
    return found


def _with(array: NDArray, index: tuple[int, ...], number: float) -> NDArray:
    found = array.copy()
    found[index] = number
    return found


def _open_nan(lab: Lab) -> Sequence[Problem]:
    found = []
    for config in lab.configs[:MOST_CONFIGS]:
        given = generic(config).inputs
        found.append(generic(config, queries=_with(given.queries, (0, 1, 2), np.nan)))
        found.append(generic(config, keys=_with(given.keys, (0, 3, 1), np.nan)))
        found.append(generic(config, values=_with(given.values, (0, 3, 1), np.nan)))
        mask = AttentionMask(causal=True)
        found.append(generic(config, keys=_with(given.keys, (0, 2, 1), np.nan), mask=mask))
    return found


def _no_keys(lab: Lab) -> Sequence[Problem]:
    return [generic(config, key_len=0) for config in lab.configs[:MOST_CONFIGS]]


def _of_empty_rows(view: View) -> Iterator[Bug]:
    yield from empty_row_bugs()


def _of_padding(view: View) -> Iterator[Bug]:
    yield from padding_bugs()
    yield from nan_bugs()


def _of_nan(view: View) -> Iterator[Bug]:
    yield from nan_bugs()


PROBES = (
    Probe(
        "empty-rows",
        "Rows without an allowed key, by each source and by two together.",
        r"o_i = b_o",
        _empty_rows,
        _of_empty_rows,
        unknown="what a row without an allowed key gives",
    ),
    Probe(
        "padding",
        "NaN, infinities and 1e30 in padded keys, then in padded values: none of it reaches anything.",
        r"o(x) = o(x') \text{ if } x_j = x'_j \text{ for all } j < n",
        _padding,
        _of_padding,
        unknown="whether padding that is no number reaches the output",
    ),
    Probe(
        "open-nan",
        "One NaN in a query, a key or a value, where attention is allowed, and in keys that causal rows do not see.",
        r"o_i = \mathrm{NaN} \Leftrightarrow \text{ query } i \text{ may attend to it}",
        _open_nan,
        _of_nan,
        unknown="where NaN goes",
    ),
    Probe(
        "no-keys",
        "No key at all.",
        r"o_i = b_o",
        _no_keys,
        _of_empty_rows,
        unknown="what a call without keys gives",
    ),
)
