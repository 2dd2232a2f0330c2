"""How many held-out layers a diagnosis describes: `python -m tests.conformance.heldout.measure open|hidden|all`.

Each layer is given to the diagnosis as `mha diagnose --subject` gives it a subject, in a process of its own. Of each:

- described: the diagnosis says of some hypothesis that it explains every case, and that gives the layer's outputs in 24
  new problems (where the words are "one of these, which what it shows cannot tell apart": one of them does);
- wrong claim: it says so of hypotheses none of which does;
- not described: it claims nothing.

An output is given if no number is off by more than 1e-6 of the largest, nor by more than a twentieth of what the fault
changes in this problem. If the diagnosis says that the layer computes in a narrower dtype, rounding in that is allowed.

The first stage that is said counts apart: it is right if it is one of the row's. A search ends early after some seconds
by the clock, and the line says so then: there must be a core for each of the `--jobs`.
"""

import argparse
import json
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # processor time is that of one thread, in the processes below

import numpy as np

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.cases import table as cases
from conformance.cases.case import Case
from conformance.deviations.known import load
from conformance.diagnosis.brief import describe
from conformance.diagnosis.diagnose import diagnose
from conformance.diagnosis.observations import Runs, listed_in, observe
from mha_core import STAGES, SpecError, reference
from tests.conformance.heldout.problems import fresh
from tests.conformance.heldout.rows import half, pair_rows, single_rows

NEW = 24
"""New problems in which a claim is tried."""

QUIET = 8
"""Most of them that the fault leaves as they are."""

MOST_DRAWN = 3000
"""How many problems are drawn for them at most."""

LARGEST = 1e-6
CHANGE = 0.05
"""How far off a claim may be: as a share of the largest number, and of what the fault changes."""

ROUNDING = 1e-11
"""An error of so much of the largest number is rounding, even where the fault changes nothing."""

DESCRIBED, WRONG_CLAIM, NOT_DESCRIBED = "described", "wrong claim", "not described"


@dataclass(frozen=True)
class Result:
    """What was said of one row.

    Attributes:
        id, stages: of the row.
        verdict: DESCRIBED, WRONG_CLAIM or NOT_DESCRIBED.
        claims: the sentences of each hypothesis that is said to explain every case.
        given: of each of these, in how many new problems it gives the layer's output.
        stage: the first wrong stage that is said; None if none is.
        stage_is_right: whether it is one of the row's.
        differs: whether the diagnosis sees that the layer is wrong at all.
        ended: why the search ended early, if it did.
        said: the diagnosis in words.
        seconds: processor time of the diagnosis.
    """

    id: str
    stages: tuple[str, ...]
    verdict: str
    claims: tuple[str, ...]
    given: tuple[int, ...]
    stage: str | None
    stage_is_right: bool
    differs: bool
    ended: str | None
    said: str
    seconds: float


def measured(id):
    """The Result of one row."""
    row = {**single_rows(), **pair_rows()}[id]
    subject = row.subject()
    start = time.process_time()
    found = diagnose(subject, cases.select(()), experiments=True, known=listed_in(load(), subject))
    seconds = time.process_time() - start
    given = tries(row, found.explanations, found.inside)
    verdict = DESCRIBED if NEW in given else WRONG_CLAIM if given else NOT_DESCRIBED
    stage = first_stage(found)
    return Result(
        row.id,
        row.stages,
        verdict,
        tuple(" ".join(bug.sentence for bug in one.bugs) for one in found.explanations),
        given,
        stage,
        stage in row.stages,
        found.differs,
        found.ended,
        describe(found),
        seconds,
    )


def first_stage(found):
    """The first wrong stage that a diagnosis says: of its claim, else where it localised it, else of what it lists."""
    if not any(one.bugs for one in found.explanations) and found.first_stage is not None:
        return found.first_stage  # also of what a narrower dtype alone explains
    for hypotheses in (found.explanations, found.partly, found.closest):
        stages = {bug.stage for one in hypotheses[:1] for bug in one.bugs}
        if stages & set(STAGES):
            return min(stages & set(STAGES), key=STAGES.index)
    return None


def tries(row, hypotheses, inside, runs=None):
    """Of each hypothesis, in how many of NEW problems it gives the row's output; `runs` runs them."""
    if not hypotheses:
        return ()
    runs = runs or Runs()
    observations, left_out = observe(row.subject(), new_cases(row))
    if left_out:
        raise SpecError(f"{row.id} did not answer: {left_out}")
    with np.errstate(all="ignore"):
        return tuple(
            sum(bool(gives(one, output(one, model.bugs, runs), inside)) for one in observations) for model in hypotheses
        )


def output(observation, bugs, runs):
    """What a claim says of a call: the definition's output where its bugs can't be put in.

    A layer without projections has no bias that could be missing: it is right if the claim is.
    """
    arrays = runs.arrays(observation, bugs)
    return observation.wanted.trace.output if arrays is None else arrays.get("output")


def new_cases(row):
    """NEW cases: the first problems that the layer can be asked; the fault leaves at most QUIET of them as they are."""
    found, quiet = [], 0
    for number in range(MOST_DRAWN):
        problem = fresh(number)
        if row.layer.supports(problem.config, problem.inputs):
            continue
        right = reference.run(problem.config, problem.weights, problem.inputs).output
        own = row.layer(problem.config, problem.weights, problem.inputs).output()
        is_quiet = np.allclose(own, right, rtol=0, atol=1e-10)
        if is_quiet and quiet == QUIET:
            continue
        quiet += is_quiet
        found.append(Case.of_problem(f"new-{number}", "whether a claim holds", problem, "it is random"))
        if len(found) == NEW:
            return found
    raise SpecError(f"{row.id} changes {len(found) - quiet} of {MOST_DRAWN} problems, too few")


def gives(observation, made, inside):
    """Whether `made` is the layer's output: see the top of this file."""
    own, right = observation.arrays["output"], observation.wanted.trace.output
    if made is None or made.shape != own.shape or not np.array_equal(np.isfinite(made), np.isfinite(own)):
        return False
    finite = np.isfinite(own)
    largest = np.max(np.abs(own[finite]), initial=0.0)
    error = np.max(np.abs(made - own)[finite], initial=0.0)
    if inside is not None:
        return error <= 64 * UNIT_ROUNDOFF[inside] * largest
    change = np.max(np.abs(np.where(np.isfinite(right), right, np.inf) - own)[finite], initial=0.0)
    return error <= LARGEST * largest and error <= max(CHANGE * change, ROUNDING * largest)


def line(result):
    """One line about a result."""
    stage = f"{result.stage or '-'}{'' if result.stage_is_right else ' (' + ' or '.join(result.stages) + ')'}"
    ended = f"  ended: {result.ended}" if result.ended else ""
    unseen = "" if result.differs else "  no case shows it"
    return f"{result.verdict:13} {result.seconds:6.0f} s  {result.id:45} {stage}{unseen}{ended}"


def totals(results):
    """Lines about all results."""
    count = len(results)
    verdicts = Counter(result.verdict for result in results)
    stages = sum(result.stage_is_right for result in results)
    spent = sum(result.seconds for result in results)
    return [
        f"described      {verdicts[DESCRIBED]} of {count} ({verdicts[DESCRIBED] / count:.0%})",
        f"stage right    {stages} of {count} ({stages / count:.0%})",
        f"wrong claims   {verdicts[WRONG_CLAIM]}",
        f"processor time {spent:.0f} s, {spent / count:.0f} s each",
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m tests.conformance.heldout.measure", description=__doc__.split("\n")[0]
    )
    parser.add_argument("half", choices=("open", "hidden", "all"))
    parser.add_argument("--pairs", action="store_true", help="layers with two faults in place of those with one")
    parser.add_argument("--id", action="append", default=[], help="this row of the half alone (repeatable)")
    parser.add_argument("--most", type=int, help="so many rows, evenly from all of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--json", type=Path, help="write what was said of each row to this file")
    options = parser.parse_args(arguments)
    ids = chosen(half(pair_rows() if options.pairs else single_rows(), options.half), options.id, options.most)
    results = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for result in pool.map(measured, ids):
            print(line(result), flush=True)
            results.append(result)
            if options.json:
                options.json.write_text(json.dumps([asdict(one) for one in results], indent=1))
    print("", *totals(results), sep="\n")


def chosen(rows, ids, most):
    """The ids to measure, in their order."""
    unknown = sorted(set(ids) - set(rows))
    if unknown:
        raise SystemExit(f"no row {unknown[0]!r} in this half (known: {', '.join(rows)})")
    found = [id for id in rows if not ids or id in ids]
    if most is None or most >= len(found):
        return found
    return [found[place * len(found) // most] for place in range(most)]


if __name__ == "__main__":
    main()
