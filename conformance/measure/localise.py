"""Localise: the first wrong step of a subject that nothing explains.

An array is solved for at one place after another, from the output back to the inputs. If the model with it gives the
subject's own answers, also to calls that differ in what comes after it, then all that comes after it is right. So the
fault is at the earliest place that can be solved for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import NO_BIASES, changed, generic
from conformance.measure.evidence import Evidence, fits
from conformance.measure.faults import TROUBLE
from conformance.measure.outcome import Measured, Model
from conformance.measure.places import PLACES
from conformance.measure.propose.scores import with_zero
from conformance.measure.read.call import Call
from conformance.measure.read.solve import solved
from conformance.zoo.bug import GRADIENTS
from conformance.zoo.variants import Variants
from mha_core import STAGES
from mha_core.features import bending

MOST_PROBLEMS = 5
"""Problems that are looked at; the stage that most of them tell is said."""

RATE = 0.4
"""Of dropout, in calls that tell weights from what is made of them."""

CHAIN = (
    ("output", "output"),
    ("heads", "heads"),
    ("kept_weights", "heads"),
    ("weights", "weights"),
    ("scores", "scores"),
)
"""(place, the stage of a fault that is at it) from the output back."""

SIDES = (("values", "values"), ("queries", "queries"), ("keys", "keys"))
"""Places of which one alone may be wrong."""


@dataclass(frozen=True)
class Located:
    """The first wrong step.

    Attributes:
        stage: the stage at which it shows first.
        problem: one in which this was seen.
    """

    stage: str
    problem: Problem


def localise(measured: Measured, further: Sequence[Problem] = ()) -> Located | None:
    """The first wrong step of a subject that its models don't explain; None if that can't be told.

    Args:
        measured: what experiments showed.
        further: problems that it answers wrongly, besides those of the probes.
    """
    asker = measured.asker
    if asker.out_of_time or asker.fixed_weights is not None or not measured.behaviour.is_function:
        return None
    variants = Variants()
    votes = list(_votes(asker, variants, (), _chosen(measured, further)))
    if not votes:
        wrong = [one for one in measured.unexplained if one.differing]
        only = wrong and all(one.probe.gradients for one in wrong)
        return Located(GRADIENTS, wrong[0].differing[0]) if only else None
    stage = Counter(vote.stage for vote in votes)
    found = min(votes, key=lambda vote: (-stage[vote.stage], STAGES.index(vote.stage)))
    return found


def _votes(asker: Asker, variants: Variants, model: Model, problems: Iterable[Problem]) -> Iterator[Located]:
    """What each problem tells."""
    for problem in problems:
        evidence = Evidence(asker, variants, model, (problem,))
        try:
            stage = stage_of(evidence, problem)
        except TROUBLE:
            continue  # numbers that can't be read tell nothing
        if stage is not None:
            yield Located(stage, problem)


def stage_of(evidence: Evidence, problem: Problem) -> str | None:
    """The stage of the earliest place at which an array gives the subject's answers; None if it answers rightly."""
    if fits(evidence.asker, evidence.variants, problem, evidence.model):
        return None
    found = "output"
    for place, stage in CHAIN:
        if solved(evidence, problem, PLACES[place]) is None:
            break
        found = stage
    if found in ("weights", "scores") and not _are_weights(evidence, problem):
        found = "heads"
    of_values, of_queries, of_keys = (solved(evidence, problem, PLACES[place]) is not None for place, _ in SIDES)
    if found in ("heads", "weights", "scores") and of_values and found != "scores":
        return "values"
    if found == "scores":
        if of_queries or of_keys:
            return "queries" if of_queries else "keys"
        if problem.inputs.dropout_keep is None and not _are_scores(evidence, problem):
            return "weights"
    return found


def _are_weights(evidence: Evidence, problem: Problem) -> bool:
    """Whether the weights that give the answer give that of the call with dropout too, so that nothing follows them."""
    read = solved(evidence, problem, PLACES["weights"])
    if read is None or not np.isfinite(read[0]).all() or problem.inputs.dropout_keep is not None:
        return True
    keep = np.random.default_rng(0).random(read[0].shape) >= RATE
    dropped = replace(problem, config=replace(problem.config, dropout=RATE))
    dropped = changed(dropped, dropout_keep=keep)
    got, call = evidence.got(dropped), Call(evidence, dropped, PLACES["weights"])
    if got is None or call.own is None:
        return True
    return bool(np.allclose(call.given(read[0][None])[0], got, rtol=0.0, atol=1e-6 * np.abs(got).max(initial=0.0)))


def _are_scores(evidence: Evidence, problem: Problem) -> bool:
    """Whether the scores are wrong: weights of a row still sum to 1, and none is 0 that should not be."""
    weights = solved(evidence, problem, PLACES["weights"])
    if weights is None or not np.isfinite(weights[0]).all():
        return True
    measured, own = weights
    is_lost = bool(((measured <= 0.0) & (own > 1e-6)).any())
    return not is_lost and bool(np.allclose(measured.sum(axis=-1), own.sum(axis=-1), rtol=1e-6, atol=1e-9))


def _chosen(measured: Measured, further: Sequence[Problem]) -> Iterator[Problem]:
    """Problems in which it differs: ordinary ones if it does there, else some of those in which it was seen."""
    asker = measured.asker
    ordinary = []
    for config in asker.configs:
        if config.projections:
            plain = generic(config, query_len=4, key_len=2 * config.head_dim + 3, weights=NO_BIASES)
            ordinary += [generic(config, query_len=config.head_dim + 3, key_len=6), plain]
            ordinary.append(generic(config, query_len=4, key_len=6, keys=with_zero(plain.inputs.keys[:, :6])))
    asked = [one.differing for one in measured.outcomes if one.differing and not one.probe.gradients]
    # The first of each probe, the later probes first: they make less harmless.
    seen = [problem for place in range(2) for one in reversed(asked) for problem in one[place : place + 1]]
    found = 0
    for problem in [*_simple_first([*ordinary, *further]), *_simple_first(seen)]:
        if found < MOST_PROBLEMS and asker.ask(problem) is not None and not asker.is_right(problem):
            found += 1
            yield problem


def _simple_first(problems: Iterable[Problem]) -> list[Problem]:
    """Those with projections, several keys, finite numbers and no part, the simple ones first.

    A fault of a part shows beside it alone, and no place that is solved for is one of a part's.
    """

    def is_usable(problem: Problem) -> bool:
        inputs = problem.inputs
        finite = all(np.isfinite(array).all() for array in (inputs.queries, inputs.keys, inputs.values))
        if problem.config.parts or not problem.config.projections or not finite:
            return False
        return 1 < problem.sizes.key_len <= 24 and problem.sizes.batch <= 4

    def burden(problem: Problem) -> int:
        return len(bending(problem.config)) + (problem.inputs.dropout_keep is not None)

    return sorted(filter(is_usable, problems), key=burden)
