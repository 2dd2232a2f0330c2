"""Localise: the first wrong step of a subject that nothing explains, by putting what is read of it into the model.

Each array is read off the subject's answers with codes (see `readings`), and put into the model of it; if the model
then gives the subject's own output for ordinary numbers, all that comes after that array is right, and the fault is in
it or before. If it does not, the fault is behind it:

    weights read by codes explain the output     ->  queries, keys, scores or weights
    else the merged heads do                     ->  values or heads; the values of each key alone tell which
    else                                         ->  the output

Of the logarithms of the weights the part that is wrong is fitted by other queries for the same keys, and by other keys
for the same queries; what neither explains is of the scores, or of the weights if they are wrong in what scores don't
tell: keys that are left out, sums, or what stays when all scores of a row are raised by the same.

A wrong function of the scores may hide queries or keys that are wrong before it. Smooth ones are a factor where scores
are small, and in calls of one query nothing is mixed: there queries and keys show as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.designs import changed, generic
from conformance.experiments.lab import Lab
from conformance.experiments.localise.after import is_of_values, is_read, is_shuffled
from conformance.experiments.localise.before import KEYS_LEFT_OUT, before_the_sum, is_multiplied, is_one_factor
from conformance.experiments.localise.bench import Bench
from conformance.experiments.measured import TROUBLE
from conformance.experiments.outcome import Measured
from conformance.experiments.readings.values import read_merged
from conformance.experiments.readings.weights import read_weights
from conformance.experiments.view import gives
from conformance.zoo.bug import GRADIENTS
from conformance.zoo.variants import Variants
from mha_core import STAGES
from mha_core.features import bending

MOST_PROBLEMS = 4
"""Problems that are looked at; the stage that most of them tell is said."""

SMALL, OF_A_SMALL_EFFECT, FINE = 1e-6, 2e-5, 1e-12
"""Factor on queries to make scores small; what may then be left of a difference; up to which roundoff that is seen."""


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
    lab = measured.lab
    if lab.out_of_time or lab.fixed_weights is not None or not measured.behaviour.is_function:
        return None
    variants = Variants()
    votes = list(_votes(Bench(lab, variants, (), problem) for problem in _chosen(measured, further)))
    if not votes:
        wrong = [one for one in measured.unexplained if one.differing]
        only = wrong and all(one.probe.gradients for one in wrong)
        return Located(GRADIENTS, wrong[0].differing[0]) if only else None
    found = _most(votes)
    before = _hidden(lab, variants) if found.stage in ("scores", "weights") else None
    return before or _beside(measured, variants, found)


def _votes(benches: Iterable[Bench]) -> Iterator[Located]:
    """What each problem tells."""
    for bench in benches:
        try:
            stage = stage_of(bench)
        except TROUBLE:
            continue  # numbers that can't be read tell nothing
        if stage is not None:
            yield Located(stage, bench.problem)


def _most(votes: Sequence[Located]) -> Located:
    """What most of them tell."""
    counts = Counter(vote.stage for vote in votes)
    left_out = counts.pop(KEYS_LEFT_OUT, 0)
    if left_out and counts.keys() <= {"scores", "weights"}:
        counts.clear()  # wrong scores leave out no keys, and wrong weights may look like wrong scores
    counts["weights"] += left_out
    stage = max(counts, key=lambda stage: (counts[stage], -STAGES.index(stage)))
    shown = next(vote for vote in votes if vote.stage in (stage, KEYS_LEFT_OUT))
    return replace(shown, stage=stage)


def _beside(measured: Measured, variants: Variants, found: Located) -> Located:
    """What was found; or an earlier step, if all agree that it is wrong in what the best model does not give."""
    model = measured.models[0] if measured.models else ()
    if not model:
        return found
    asked = [problem for one in measured.unexplained if not one.probe.gradients for problem in one.asked]
    left = (problem for problem in _simple_first([], asked) if not gives(measured.lab, variants, problem, model))
    votes = list(_votes(Bench(measured.lab, variants, model, problem) for problem in islice(left, MOST_PROBLEMS)))
    earlier = _most(votes) if votes else found
    agreed = len(votes) > 1 and len({vote.stage for vote in votes}) == 1
    return earlier if agreed and STAGES.index(earlier.stage) < STAGES.index(found.stage) else found


def _hidden(lab: Lab, variants: Variants) -> Located | None:
    """Queries or keys that are wrong before wrong scores or weights: seen where scores are small, in several layers."""
    if lab.unit > FINE:
        return None
    small = {"q_proj.weight": SMALL, "q_proj.bias": SMALL}
    configs = [config for config in lab.configs[:MOST_PROBLEMS] if config.projections]
    problems = [generic(config, query_len=1, key_len=6, weights=small) for config in configs]
    benches = (Bench(lab, variants, (), one, OF_A_SMALL_EFFECT) for one in problems if lab.ask(one) is not None)
    votes = list(_votes(benches))
    stages = {vote.stage for vote in votes}
    return votes[0] if len(votes) > 1 and stages in ({"queries"}, {"keys"}) else None


def _chosen(measured: Measured, further: Sequence[Problem]) -> Iterator[Problem]:
    """Problems in which it differs: ordinary ones if it does there, else some of those in which it was seen."""
    lab = measured.lab
    ordinary = [generic(config, batch=2, query_len=4, key_len=6) for config in lab.configs if config.projections]
    asked = [one.differing for one in measured.outcomes if one.differing and not one.probe.gradients]
    # The first of each probe, the later probes first: they make less harmless.
    seen = [problem for place in range(2) for one in reversed(asked) for problem in one[place : place + 1]]
    found = 0
    for problem in _simple_first([*ordinary, *further], seen):
        if found < MOST_PROBLEMS and lab.ask(problem) is not None and not lab.is_right(problem):
            found += 1
            yield problem


def _simple_first(first: Iterable[Problem], then: Iterable[Problem]) -> list[Problem]:
    """Those with projections, several keys and finite numbers; of either sort the simple ones first."""

    def is_usable(problem: Problem) -> bool:
        inputs = problem.inputs
        arrays = (inputs.queries, inputs.keys, inputs.values)
        finite = all(np.isfinite(array).all() for array in arrays)
        return problem.config.projections and finite and 1 < problem.sizes.key_len <= 24 and problem.sizes.batch <= 4

    def burden(problem: Problem) -> tuple[int, int]:
        config, inputs = problem.config, problem.inputs
        odd = len(bending(config)) + (inputs.dropout_keep is not None)
        return odd, problem.sizes.query_len * problem.sizes.key_len

    first, then = ([one for one in problems if is_usable(one)] for problems in (first, then))
    return [*sorted(first, key=burden), *sorted(then, key=lambda one: burden(one)[0])]


def stage_of(bench: Bench) -> str | None:
    """The first wrong stage, or KEYS_LEFT_OUT; None if it can't be told."""
    # Padding has values of 0 and their bias: keys that are seen there are seen without it alone.
    problem = changed(bench.problem, {"v_proj.bias": 0.0})
    if not bench.arrays(problem):
        return None  # the model's bugs contradict each other there
    if bench.lab.ask(problem) is not None and not bench.fits(problem):
        bench = replace(bench, problem=problem)
    elif bench.fits(bench.problem):
        return None
    weights = read_weights(bench.got, bench.problem)
    if weights is not None and (
        bench.gives({"kept_weights": weights})
        or bench.gives({"kept_weights": weights, "padding": np.zeros_like(weights[:, 0, 0], dtype=bool)})
    ):
        stage = before_the_sum(bench, weights)
        alone = stage == "scores" and is_multiplied(bench, weights)
        if alone or (stage == "values" and is_one_factor(bench, weights)):
            return {"scores": "keys", "values": "output"}[stage] if bench.is_of_matrices() else stage
        return stage
    merged = read_merged(bench.got, bench.problem)
    if merged is None:
        return None
    if not bench.gives({"merged": merged}):
        # The output is wrong, and what is read through plain matrices may tell of an earlier fault beside it.
        return before_the_sum(bench, weights) if weights is not None and is_read(bench, weights, merged) else "output"
    if is_shuffled(bench, merged):
        return "output"
    if is_of_values(bench):
        return "values"
    return "output" if bench.is_of_matrices() else "heads"
