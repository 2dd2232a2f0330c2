r"""Values: one key, whose weight is 1 whatever it scores.

    o_bi = W_o R v_0 + b_o,  v_0 = W_v x + b_v,  R repeats each value head for its query heads

Each probe makes some of these factors blind to what may be wrong with them: an input of zeros, a matrix of equal
numbers (no order of its rows or columns shows), equal rows, or equal columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import MANY_HEADS, NO_BIASES, generic
from conformance.measure.evidence import Evidence
from conformance.measure.probe import Probe, Problems, Propose
from conformance.measure.propose.equal_shapes import biases_where_equal
from conformance.measure.propose.steps import Candidate, at_places, of_places
from mha_core import AttentionConfig

# One key ------------------------------------------------------------------------------------------------------


def _one_key(
    weights: Callable[[AttentionConfig], Mapping[str, NDArray | float]],
    values: Callable[[AttentionConfig], NDArray | float] = lambda config: 1.0,
    *,
    only: Callable[[AttentionConfig], bool] = lambda config: True,
) -> Problems:
    """One problem with one key for each config, with these weights and values."""

    @lru_cache(maxsize=64)
    def problem(config: AttentionConfig) -> Problem:
        return generic(config, query_len=2, key_len=1, weights=weights(config), values=values(config))

    return lambda asker: asker.nearest([problem(config) for config in asker.configs if only(config)])


def _ones(config: AttentionConfig) -> NDArray:
    return np.ones((1, 1, config.value_dim))


def _equal_numbers(config: AttentionConfig) -> Mapping[str, NDArray | float]:
    """W_v of equal numbers: every channel of the value is the sum of its input."""
    shape = (config.num_kv_heads * config.value_head_dim, config.value_dim)
    return {**NO_BIASES, "v_proj.weight": np.full(shape, 1.0 / config.value_dim)}


def _equal_rows(config: AttentionConfig) -> Mapping[str, NDArray | float]:
    """W_v of equal rows: every channel of the value is the same product with the input."""
    row = np.random.default_rng(config.value_dim).normal(size=config.value_dim)
    return {**NO_BIASES, "v_proj.weight": np.tile(row, (config.num_kv_heads * config.value_head_dim, 1))}


def _equal_columns(config: AttentionConfig) -> Mapping[str, NDArray | float]:
    """W_v of equal columns: only the sum of the input counts."""
    width = config.num_kv_heads * config.value_head_dim
    column = np.random.default_rng(width).normal(size=width)
    return {**NO_BIASES, "v_proj.weight": np.tile(column[:, None], (1, config.value_dim)) / config.value_dim}


def _bias_alone(name: str) -> Problems:
    projection = name.split(".")[0]
    others = {other: factor for other, factor in NO_BIASES.items() if other != name}
    return _one_key(lambda config: others, lambda config: 0.0, only=lambda c: getattr(c.bias, projection))


def _of_many_heads(asker: Asker) -> Sequence[Problem]:
    """One key, in a layer of more heads than the others have: what each head has of its own."""
    fixed = asker.fixed_weights is not None
    return [] if fixed else [generic(MANY_HEADS, query_len=2, key_len=1, weights=NO_BIASES)]


_of_values = of_places(
    *("output", "heads", "projected_values", "value_inputs", "v_proj.weight", "merged", "v_proj", "out_proj.weight"),
    *("values", "values read"),
)


def _from_bias(name: str) -> Propose:
    def propose(evidence: Evidence) -> Iterator[Candidate]:
        # The bias first: that a factor or an order is another fault's, was to be seen before there was a bias.
        yield from at_places(evidence, evidence.problems, (name,))
        yield from biases_where_equal()
        if not evidence.explained:
            yield from _of_values(evidence)

    return propose


PROBES = (
    Probe(
        "no-values",
        "One key whose value is 0, no biases: only what does not come from the values can show.",
        r"o_{bi} = 0",
        _one_key(lambda config: NO_BIASES, lambda config: 0.0),
        _of_values,
    ),
    Probe(
        "equal-channels",
        "One key of equal channels, W_v of equal numbers, no biases: only the rows of W_o and factors can show.",
        r"o_{bi} = W_o \mathbf{1}",
        _one_key(_equal_numbers, _ones),
        _of_values,
    ),
    Probe(
        "value-input",
        "One key, W_v of equal rows, no biases: only the value input and the columns of W_v can show.",
        r"o_{bi} = W_o \mathbf{1} w^\top x_{b0}",
        _one_key(_equal_rows),
        _of_values,
    ),
    Probe(
        "value-channels",
        "One key of equal channels, W_v of equal columns, no biases: only the order of the values' channels can show.",
        r"o_{bi} = W_o R w",
        _one_key(_equal_columns, _ones),
        _of_values,
    ),
    Probe(
        "one-key",
        "One key, no biases: its weight is 1, so only values, heads and the output projection can show.",
        r"o_{bi} = W_o R W_v x_{b0}",
        _one_key(lambda config: NO_BIASES),
        _of_values,
    ),
    Probe(
        "one-key-large",
        "As before, with a value ten times as large: a bound or a function of the numbers shows.",
        r"o_{bi} = 10\, W_o R W_v x_{b0}",
        _one_key(lambda config: NO_BIASES, lambda config: 10.0),
        _of_values,
    ),
    Probe(
        "one-key-of-many-heads",
        "One key, 12 heads, no biases: what each head has of its own shows in heads that no other layer has.",
        r"o_{bi} = W_o W_v x_{b0}",
        _of_many_heads,
        _of_values,
    ),
    Probe(
        "output-bias",
        "One key whose value is 0, and no bias but the output's: the output is that bias.",
        r"o_{bi} = b_o",
        _bias_alone("out_proj.bias"),
        _from_bias("out_proj.bias"),
    ),
    Probe(
        "value-bias",
        "One key whose value is 0, and no bias but the values': the output is the output projection of that bias.",
        r"o_{bi} = W_o R b_v",
        _bias_alone("v_proj.bias"),
        _from_bias("v_proj.bias"),
    ),
    Probe(
        "one-key-with-biases",
        "One key, with biases.",
        r"o_{bi} = W_o R (W_v x_{b0} + b_v) + b_o",
        _one_key(lambda config: {}),
        _of_values,
        unknown="how values reach the output could not be told: every call with one key was refused",
    ),
)
