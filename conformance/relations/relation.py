"""Metamorphic relations: properties that two runs of attention must have, whatever the right answer is.

They test attention alone: the four projections are identity matrices, which cause no rounding. A "bitwise"
relation must hold to the last bit, because both runs apply equal operations to equal numbers; a "bounded"
one changes the order of a sum, so both runs may differ by the sum of their error bounds.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Rng
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from conformance.relations import examples
from mha_core import AttentionConfig, SpecError
from mha_core.backend import Run
from mha_core.heads import split_heads
from mha_core.weights import Weights

Kind = Literal["bitwise", "bounded"]
Prepare = Callable[[AttentionConfig, Weights], Run]


@dataclass(frozen=True)
class Relation:
    """One relation: its name, its statement in words, and a function that draws an example for a dtype."""

    id: str
    sentence: str
    kind: Kind
    draw: Callable[[Rng, str], examples.Instance]


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


@cache
def all_relations() -> tuple[Relation, ...]:
    """Every relation, bitwise ones first."""
    return tuple(_relations())


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


def _relations() -> list[Relation]:
    return [
        *(Relation(id, sentence, "bitwise", draw) for id, sentence, draw in _BITWISE),
        *(Relation(id, sentence, "bounded", draw) for id, sentence, draw in _BOUNDED),
    ]


_BITWISE = (
    ("rerun", "the same run twice gives the same", examples.rerun),
    (
        "masked-keys-random",
        "other numbers in excluded keys and values change nothing",
        examples.masked_keys_random,
    ),
    ("masked-keys-huge", "1e30 in excluded keys and values changes nothing", examples.masked_keys_huge),
    ("values-times-1024", "values times 2^10 give the output times 2^10", examples.values_times_1024),
    ("values-negated", "negated values give the negated output", examples.values_negated),
    ("queries-doubled", "queries doubled and keys halved change nothing", examples.queries_doubled),
    ("one-open-key", "a query with one open key gives that key's value", examples.one_open_key),
    ("one-key", "with Lk = 1, every query gives the one value", examples.one_key),
    ("causal-prefix", "under a causal mask, later tokens change nothing before them", examples.causal_prefix),
)

_BOUNDED = (
    # The first four repeat the same operations on the same numbers, and yet are not bitwise on CPUs with
    # vector units: where a matrix or a row starts in memory decides which part of it a kernel takes in
    # whole vectors. Of 40 examples per dtype, torch gave other bits in up to 3 (its bmm, at odd sizes), and
    # TensorFlow in up to 2 (its softmax, and its matmul of a batch of one); MXNet in none, JAX in none of 8.
    ("batch-permuted", "batch items in another order give the same, in that order", examples.batch_permuted),
    ("item-alone", "one batch item alone gives what it gives among others", examples.item_alone),
    ("heads-permuted", "heads in another order give the same, in that order", examples.heads_permuted),
    ("head-alone", "one head alone gives what it gives among others", examples.head_alone),
    ("keys-permuted", "keys in another order, with their values and masks, change nothing", examples.keys_permuted),
    ("keys-duplicated", "every key twice changes nothing", examples.keys_duplicated),
    ("scores-shifted", "a constant added to a row of scores changes nothing", examples.scores_shifted),
    ("query-alone", "one query alone gives what it gives among others", examples.query_alone),
    (
        "constant-values",
        "where all values are equal, every query with a key gives that value",
        examples.constant_values,
    ),
    (
        "chunks-merged",
        "two parts of the keys, weighed by their sums of exponentials, give the whole",
        examples.chunks_merged,
    ),
)
