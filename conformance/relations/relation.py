"""Metamorphic relations: properties that two runs of attention must have, whatever the right answer is.

They test attention alone: the four projections are identity matrices, which cause no rounding. `examples.py`
has them.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from conformance.relations.examples import RELATIONS, Relation
from mha_core import AttentionConfig, SpecError
from mha_core.backend import Run
from mha_core.heads import split_heads
from mha_core.weights import Weights

Prepare = Callable[[AttentionConfig, Weights], Run]


class RelationError(AssertionError):
    """A relation does not hold; the message says where, and by how much."""


def check_relation(
    relation: Relation, prepare: Prepare, dtype: str, seed: int, precision: Precision | None = None
) -> float:
    """Draw an example of a relation, run it, and raise RelationError unless the relation holds.

    Args:
        relation: one of `all_relations()`.
        prepare: (config, weights) -> run(inputs) -> Trace; of the trace, `output` is read.
        dtype: the dtype that `prepare` computes in.
        seed: chooses the example.
        precision: the precision of the computation. Default: `Precision.of(dtype)`.

    Returns:
        The worst difference / allowed difference; 0 for a bitwise relation.

    >>> from conformance.subjects.backend import ReferenceSubject
    >>> check_relation(relation("values-negated"), ReferenceSubject().prepare, "float64", seed=0)
    0.0
    """
    rng = np.random.default_rng([seed, zlib.crc32(relation.id.encode())])
    instance = relation.draw(rng, dtype)
    problem, changed = instance.problem.rounded(dtype), [other.rounded(dtype) for other in instance.changed]
    heads = _run(prepare, problem)
    wanted = instance.wanted(heads) if instance.known is None else instance.known
    given = heads if instance.known is not None else instance.given([_run(prepare, other) for other in changed])
    allowed = np.zeros(wanted.shape)
    if relation.kind == "bounded":
        precision = precision or Precision.of(dtype)
        own = _bound(problem, precision)
        allowed = np.abs(instance.wanted(own))
        if instance.known is None:
            allowed = allowed + np.abs(instance.given([_bound(other, precision) for other in changed]))
    return _judge(relation, given, wanted, allowed, f"{dtype}, seed {seed}")


def all_relations() -> tuple[Relation, ...]:
    """Every relation, bitwise ones first."""
    return tuple(sorted(RELATIONS, key=lambda relation: relation.kind))


def relation(name: str) -> Relation:
    """The relation of this id. Raises SpecError on any other."""
    for known in all_relations():
        if known.id == name:
            return known
    raise SpecError(f"relation {name!r} is not known (known: {', '.join(known.id for known in all_relations())})")


def _run(prepare: Prepare, problem: Problem) -> NDArray:
    """The heads (B, H, Lq, dv) that a subject computes, in float64, read from its output."""
    output = prepare(problem.config, problem.weights)(problem.inputs).output
    if output is None:
        raise RelationError("a run must give an output. Got None.")
    return split_heads(output.astype(np.float64), problem.config.num_heads)


def _bound(problem: Problem, precision: Precision) -> NDArray:
    return split_heads(answer(problem, precision).allowed_error["output"], problem.config.num_heads)


def _judge(relation: Relation, given: NDArray, wanted: NDArray, allowed: NDArray, run: str) -> float:
    head = f"relation {relation.id!r} ({run}): {relation.sentence}"
    if given.shape != wanted.shape:
        raise RelationError(f"{head}; but heads have shape {given.shape}, and it must be {wanted.shape}")
    error = np.where(given == wanted, 0.0, np.abs(given - wanted))  # NaN equals nothing: no example has one
    ratio = np.divide(error, allowed, out=np.where(error == 0.0, 0.0, np.inf), where=(allowed > 0.0) & ~np.isnan(error))
    worst = float(ratio.max(initial=0.0))
    if worst <= 1.0:
        return worst
    index = tuple(int(i) for i in np.unravel_index(np.argmax(ratio), ratio.shape))
    limit = f"allowed {allowed[index]:.3g}" if relation.kind == "bounded" else "and not one bit may"
    raise RelationError(
        f"{head}; but heads differ in {int((ratio > 1.0).sum())} of {ratio.size} elements, worst at "
        f"[{', '.join(map(str, index))}]: {given[index]:.17g} instead of {wanted[index]:.17g}, "
        f"error {error[index]:.3g}, {limit}"
    )
