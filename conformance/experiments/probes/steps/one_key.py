r"""One key alone: its weight is 1 whatever it scores, so the output is the output projection of its value.

output[b, i] = W_o [R v_0] + b_o,  v_0 = W_v x + b_v,  R repeats each value head for its query heads

Each probe makes some of these factors blind to what may be wrong with them: an input of zeros, a matrix of equal
numbers (no order of its rows or columns shows), equal rows, or equal columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.experiments.candidates.equal_shapes import biases_where_equal
from conformance.experiments.candidates.fitted import (
    any_fitted,
    fitted,
    whole_first,
)
from conformance.experiments.designs import NO_BIASES, generic
from conformance.experiments.lab import Lab
from conformance.experiments.probe import Probe
from conformance.experiments.view import View
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig

QUERY_LEN = 2


def _problems(
    weights: Callable[[AttentionConfig], Mapping[str, NDArray | float]],
    values: Callable[[AttentionConfig], NDArray | float] = lambda config: 1.0,
    *,
    only: Callable[[AttentionConfig], bool] = lambda config: True,
) -> Callable[[Lab], Sequence[Problem]]:
    """One problem with one key for each config, with these weights and values."""

    @lru_cache(maxsize=64)
    def problem(config: AttentionConfig) -> Problem:
        return generic(config, query_len=QUERY_LEN, key_len=1, weights=weights(config), values=values(config))

    return lambda lab: lab.nearest([problem(config) for config in lab.configs if only(config)])


# What makes a factor blind --------------------------------------------------------------------------


def _ones(config: AttentionConfig) -> NDArray:
    return np.ones((1, 1, config.value_dim))


def _equal_numbers(config: AttentionConfig) -> NDArray:
    """W_v of equal numbers: every channel of the value is the sum of its input."""
    return np.full((config.num_kv_heads * config.value_head_dim, config.value_dim), 1.0 / config.value_dim)


def _equal_rows(config: AttentionConfig) -> NDArray:
    """W_v of equal rows: every channel of the value is the same product with the input."""
    row = np.random.default_rng(config.value_dim).normal(size=config.value_dim)
    return np.tile(row, (config.num_kv_heads * config.value_head_dim, 1))


def _equal_columns(config: AttentionConfig) -> NDArray:
    """W_v of equal columns: only the sum of the input counts."""
    width = config.num_kv_heads * config.value_head_dim
    column = np.random.default_rng(width).normal(size=width)
    return np.tile(column[:, None], (1, config.value_dim)) / config.value_dim


def _only_bias(name: str) -> Callable[[AttentionConfig], Mapping[str, float]]:
    return lambda config: {other: factor for other, factor in NO_BIASES.items() if other != name}


def _bias_problems(name: str) -> Callable[[Lab], Sequence[Problem]]:
    projection = name.split(".")[0]
    return _problems(_only_bias(name), lambda config: 0.0, only=lambda config: getattr(config.bias, projection))


# What is read off -----------------------------------------------------------------------------------

_whole = _problems(lambda config: NO_BIASES)
_large = _problems(lambda config: NO_BIASES, lambda config: 10.0)


OF_VALUES = ("output", "heads", "new_values", "value_inputs", "v_proj.weight", "merged", "v_proj", "out_proj.weight")


def _anything(view: View) -> Iterator[Bug]:
    """What is read off the steps and the matrices."""
    yield from any_fitted(view, OF_VALUES)


def _isolated(view: View) -> Iterator[Bug]:
    return whole_first(view, (*_whole(view.lab), *_large(view.lab)), _anything, _anything)


def _from_bias(name: str) -> Callable[[View], Iterator[Bug]]:
    def propose(view: View) -> Iterator[Bug]:
        # The bias first: that a factor or an order is another fault's, was to be seen before there was a bias.
        yield from fitted(view, name)
        yield from biases_where_equal()
        if not view.explained:
            yield from _anything(view)

    return propose


PROBES = (
    Probe(
        "no-values",
        "One key whose value is 0, no biases: only what does not come from the values can show.",
        r"o_{bi} = 0",
        _problems(lambda config: NO_BIASES, lambda config: 0.0),
        _anything,
    ),
    Probe(
        "equal-channels",
        "One key of equal channels, W_v of equal numbers, no biases: only the rows of W_o and factors can show.",
        r"o_{bi} = W_o \mathbf{1}",
        _problems(lambda config: {**NO_BIASES, "v_proj.weight": _equal_numbers(config)}, _ones),
        _isolated,
    ),
    Probe(
        "value-input",
        "One key, W_v of equal rows, no biases: only the value input and the columns of W_v can show.",
        r"o_{bi} = W_o \mathbf{1} w^\top x_{b0}",
        _problems(lambda config: {**NO_BIASES, "v_proj.weight": _equal_rows(config)}),
        _isolated,
    ),
    Probe(
        "value-channels",
        "One key of equal channels, W_v of equal columns, no biases: only the order of the values' channels can show.",
        r"o_{bi} = W_o R w",
        _problems(lambda config: {**NO_BIASES, "v_proj.weight": _equal_columns(config)}, _ones),
        _isolated,
    ),
    Probe(
        "one-key",
        "One key, no biases: its weight is 1, so only values, heads and the output projection can show.",
        r"o_{bi} = W_o R W_v x_{b0}",
        _whole,
        _anything,
    ),
    Probe(
        "one-key-large",
        "As before, with a value ten times as large: a bound or a function of the numbers shows.",
        r"o_{bi} = 10\, W_o R W_v x_{b0}",
        _large,
        _anything,
    ),
    Probe(
        "output-bias",
        "One key whose value is 0, and no bias but the output's: the output is that bias.",
        r"o_{bi} = b_o",
        _bias_problems("out_proj.bias"),
        _from_bias("out_proj.bias"),
    ),
    Probe(
        "value-bias",
        "One key whose value is 0, and no bias but the values': the output is the output projection of that bias.",
        r"o_{bi} = W_o R b_v",
        _bias_problems("v_proj.bias"),
        _from_bias("v_proj.bias"),
    ),
    Probe(
        "one-key-with-biases",
        "One key, with biases.",
        r"o_{bi} = W_o R (W_v x_{b0} + b_v) + b_o",
        _problems(lambda config: {}),
        _anything,
        unknown="how values reach the output could not be told: every call with one key was refused",
    ),
)
