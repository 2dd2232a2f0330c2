"""Random problems of every kind that a correct implementation must pass, each replayable by two numbers.

Problem `index` of a seed belongs to layer `index // DRAWS_PER_LAYER`: problems of one layer share the
config, the weights, every size and the kinds of mask, so that a framework that compiles per shape
compiles once for them. They are made as random cases are, of choices; but from the options of `WIDE`.
Data is Gaussian in only some of them: equal, nearly equal, same-signed, cancelling, repeated and sparse
numbers are where errors are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.calibration.parts import between
from conformance.calibration.space import OF_ONE_CALL, WIDE
from conformance.cases.assemble import problem_of, weights_of
from conformance.cases.choices import Choose, Description, Made, describe
from conformance.cases.problem import Problem
from mha_core import AttentionConfig
from mha_core.call.call import FLOATS
from mha_core.dtypes import check_dtype
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights

DRAWS_PER_LAYER = 8

LARGEST = {"float16": 2.0**13}
"""Nothing that a formulation may leave behind lies above it: the bounds hold while nothing overflows."""

MOST_WORK = 400_000
"""Multiplications of the weighted sum, at most: the bounds hold an array of that size."""


@dataclass(frozen=True, eq=False)
class Layer:
    """What the problems of one layer share: config, weights, sizes, and the kinds of mask.

    Attributes:
        chosen: the choices that they share.
        description: those of its first draw, with choices that belong to one call among them.
        weights: of the layer.
    """

    chosen: Made
    description: Description
    weights: Weights

    @property
    def config(self) -> AttentionConfig:
        return self.description.config


def draw_layer(seed: int, number: int) -> Layer:
    """Layer `number` of a seed; the same one each time, in every process."""
    draw = _from_generator([seed, number, 0])
    while True:
        chosen: dict[str, Any] = {}

        def choose(name: str, options: Sequence[Any], chosen: dict[str, Any] = chosen) -> Any:
            value = draw(name, options)
            if not name.startswith(OF_ONE_CALL):
                chosen[name] = value
            return value

        description = describe(choose, WIDE)
        if _work(description) <= MOST_WORK:
            return Layer(chosen, description, weights_of(description))


def _work(description: Description) -> int:
    """Multiplications of the weighted sum, or of an additive score."""
    config, sizes = description.config, description.sizes
    pairs = sizes.batch * config.num_heads * sizes.query_len * sizes.key_len
    return pairs * max(config.value_head_dim, config.score_dim or 0)


def _from_generator(seed: Sequence[int]) -> Choose:
    rng = np.random.default_rng(seed)
    return lambda name, options: options[int(rng.random() * len(options))]


def draw_problem(seed: int, index: int, dtype: str, layer: Layer | None = None) -> Problem:
    """Problem `index` of a seed, in float64; the same one each time, in every process.

    Args:
        seed, index: not negative.
        dtype: that it is meant for. Numbers shrink until nothing overflows in it.
        layer: `draw_layer(seed, index // DRAWS_PER_LAYER)`, if at hand.

    >>> problem = draw_problem(seed=0, index=3, dtype="float32")
    >>> again = draw_problem(seed=0, index=3, dtype="float32")
    >>> bool((problem.inputs.queries == again.inputs.queries).all())
    True
    """
    check_dtype(dtype)
    layer = layer or draw_layer(seed, index // DRAWS_PER_LAYER)
    chosen, draw = layer.chosen, _from_generator([seed, index, 1])

    def choose(name: str, options: Sequence[Any]) -> Any:
        return chosen[name] if name in chosen else draw(name, options)

    problem = problem_of(describe(choose, WIDE), layer.weights)
    while dtype in LARGEST and _largest(problem.rounded(dtype)) > LARGEST[dtype]:
        problem = _shrunk(problem)
    return problem


def _largest(problem: Problem) -> float:
    """The largest magnitude of any array that an implementation may store on the way."""
    state = reference.run_state(problem.config, problem.weights, problem.inputs)
    arrays: list[NDArray] = []
    for found in state.arrays.values():
        if not isinstance(found, tuple):  # cosines and sines
            arrays += list(found.values()) if isinstance(found, dict) else [found]
    scale = min(abs(problem.config.softmax_scale), 1.0)
    unscaled = [array / scale for array in (state["similarity"], state["d_queries"], state["d_keys"])]
    made = (*arrays, *unscaled, *between(state))
    finite = [float(np.abs(array).max(initial=0.0)) for array in made if array is not None]
    return max(finite, default=0.0)


def _shrunk(problem: Problem) -> Problem:
    """Half of every input; the additive bias too, which alone could overflow."""
    i = problem.inputs
    arrays = {name: getattr(i, name) for name in (*FLOATS, "cotangent")}
    half = replace(
        i,
        mask=i.mask.map_arrays(lambda name, array: 0.5 * array if name == "bias" else array),
        **{name: 0.5 * array for name, array in arrays.items() if array is not None},
    )
    weights = {name: 0.7 * array for name, array in problem.weights.items()}
    return Problem(problem.config, weights, half)
