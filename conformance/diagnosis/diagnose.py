"""Diagnosis: find the stage since which a subject differs, and the bugs that explain it.

A hypothesis is the reference with a bug or two in it. One that explains *every* case, failing and passing, and every
answer to the isolating problems (see `conformance.measure`), is the cause. If there is none, the first wrong step is
said, and what explains most of the failing cases (see `evidence` for what that means, `hypotheses` for the ranking).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import stored_in
from conformance.cases.case import Case
from conformance.cases.problem import Problem
from conformance.diagnosis.hypotheses import NAMED, SHOWN, Evidence, Hypothesis, Search, inside_of, preferred, stage_of
from conformance.diagnosis.observations import Observation, Runs, observe, shown_stages
from conformance.judging.compare import Mismatch
from conformance.judging.expected import nan_weights
from conformance.kinds.change import NAMED as CALLS
from conformance.kinds.change import Setting, extras_of, if_all, in_common
from conformance.kinds.made import Model, of_mask, unwarned, usual, with_padding_zeroed
from conformance.kinds.oddities import overlooks_scale
from conformance.measure.asker import MOST_CONFIGS, Asker, Behaviour, rounds_inside
from conformance.measure.designs import CONFIGS, generic
from conformance.measure.probes import ONE_KEYS, PROBES
from conformance.measure.search import Located, Measured, ProbeResult, Probing
from conformance.subjects.ask import SubjectFailed, can_be_asked_again
from conformance.subjects.in_time import in_time
from conformance.subjects.seen import Form, Reformed, SecondCall, Seen, form_of
from conformance.subjects.subject import Subject
from conformance.zoo.bug import Bug
from conformance.zoo.registry import LARGE_BLOCKS, bugs_of, bugs_of_large_blocks
from conformance.zoo.variants import Variants
from mha_core import STAGES, SpecError
from mha_core.errors import one_line
from mha_core.parts import PARTS

# A sentence in the place of a cause: whatever gives NaN would explain it.
ALL_NAN = "Every number of every output is NaN or infinite."
STORED_IN = "All its numbers are numbers of {0}: it is computed in {0}, or rounded to it."
BIASED, OF_BIASES = "calls with biases in the projections", ("output-bias", "value-bias", "query-bias", "key-bias")
# Stage -> stages that are wrong where it is; their right numbers acquit it.
LATER = {"queries": ("scores", "weights"), "keys": ("scores", "weights"), "scores": ("weights",), "values": ("heads",)}
LONGEST = 600.0  # seconds that the search for a reason may take; what differs is said in any case

Known = Callable[[Observation], Sequence[str]]
"""The ids of listed deviations that account for all that differs in one case; none if they don't."""


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis of one subject (a tested layer): where it differs from the reference, and which bugs explain that.

    Attributes:
        failing, passing: ids of the cases where the subject differs from the reference, and where it agrees.
        deviating: case id -> ids of the known deviations that explain every difference in this case.
        only_extreme: `Observation.extremity` of the failing cases, if no ordinary case fails; else ().
        ended: why the search for a cause ended too early, in one line; None if it did not.
        left_out: case id -> why it could not be judged.
        unasked: parts of layers, such as rotary positions, that all failing cases have, but no call in `measured`.
        raised: ids of the cases in `left_out` that failed; the subject declares the others unsupported.
        case: the id of the failing case to show as an example, a simple one; "" if none fails.
        mismatch: the first array that exceeds its error bound in `case`.
        alone: in words, what all failing cases have in common but no passing case has; "" if nothing.
        visible: the names of the arrays that the subject returns.
        recorded: whether the subject replays recorded answers, and so can't run further calls.
        nans: sentences on how attention weights differ in rows with a NaN, if nothing else differs (`nan_weights`).
        stages: each returned stage before the output -> whether it is wrong (see `shown_stages`).
        inside: the dtype in which the subject really computes, if narrower than its declared dtype; else None.
        rounds: the first stage computed in the dtype `inside`, "scores" or "heads"; "" if unknown or every stage is.
        explanations: hypotheses (bugs put into the reference) that explain all cases and calls, if any do.
        partly: if `explanations` is empty, hypotheses that explain nearly all cases.
        ordinary: how many calls in `measured` confirm `partly`. It is 0 unless `partly` explains every ordinary case.
        plain: the diagnosis of plain calls (without the features of `extras_of`), if a bug explains them; else None.
        closest: if `partly` is empty too, hypotheses that explain some failing cases, best first.
        measured: the results of isolating problems (calls that depend on few steps). None: only cases were run.
        located: the first wrong step, if it was found and no hypothesis explains everything; else None.
        again: the diagnosis of second calls, if the subject is right only in the first call; else None.
        extras: the features of failing cases that a layer may overlook, in words.
        form: the wrong layout that all outputs share, or None. formed: the diagnosis of outputs put into (B, Lq, Do).
    """

    subject: str
    dtype: str
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    left_out: Mapping[str, str]
    mismatch: Mismatch | None
    visible: tuple[str, ...]
    inside: str | None = None
    rounds: str = ""
    explanations: tuple[Hypothesis, ...] = ()
    partly: tuple[Hypothesis, ...] = ()
    ordinary: int = 0
    closest: tuple[Hypothesis, ...] = ()
    measured: Measured | None = None
    located: Located | None = None
    again: Diagnosis | None = None
    form: Form | None = None
    formed: Diagnosis | None = None
    plain: Diagnosis | None = None
    deviating: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unasked: tuple[str, ...] = ()
    raised: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    only_extreme: tuple[int, ...] = ()
    ended: str | None = None
    case: str = ""
    alone: str = ""
    nans: tuple[str, ...] = ()
    recorded: bool = False
    stages: Mapping[str, bool] = field(default_factory=dict)

    @property
    def first_step(self) -> str | None:
        """Return the first wrong stage, such as "scores", from `measured`, `located` or `stages`; None if unknown."""
        if self.measured is not None and self.measured.behaviour.shared is not None:
            return self.measured.behaviour.shared
        located = None if self.located is None else self.located.stage
        located = None if any(self.stages.get(later) is False for later in LATER.get(located or "", ())) else located
        shown = next((stage for stage, wrong in self.stages.items() if wrong), None)
        if shown is None or located is None or located not in STAGES or self.stages.get(located) is False:
            return shown or located
        return min(located, shown, key=STAGES.index)

    @property
    def first_stage(self) -> str | None:
        """Return the first wrong stage, such as "scores", from the first attribute that tells it; None if unknown."""
        if self.again is not None:
            return self.again.first_stage
        return stage_of(self.explanations) or self.rounds or self.first_step or stage_of((*self.partly, *self.closest))

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return sentences about calls with equal inputs that had different outputs."""
        return () if self.measured is None else self.measured.behaviour.remarks

    @property
    def differs(self) -> bool:
        """Return whether anything differs: a case, a repeated call, or a further call with ordinary numbers."""
        is_seen = self.beyond is not None and self.measured is not None and self.measured.is_usual
        return bool(self.failing or self.remarks or is_seen)

    @property
    def is_usual_beyond(self) -> bool:
        """Return whether all failing cases are extreme, but a further call with ordinary numbers is wrong too."""
        return bool(self.only_extreme and self.measured and self.measured.is_usual)

    @property
    def beyond(self) -> ProbeResult | None:
        """Return the first ProbeResult (group of calls) with a wrong answer; None if there is none, or a case fails."""
        return None if self.failing or self.measured is None else self.measured.first


@unwarned()
def diagnose(
    subject: Subject,
    cases: Iterable[Case],
    *,
    bugs: Sequence[Bug] | None = None,
    runs: Runs | None = None,
    experiments: bool | Asker = False,
    known: Known = lambda observation: (),
    progress: Callable[[str], None] = lambda what: None,
) -> Diagnosis:
    """Run the subject on the cases, look for the bugs that explain its answers, and return the Diagnosis.

    If the search raises or takes more than LONGEST seconds, the Diagnosis has what was found so far; `ended` says why.

    Args:
        subject: what to diagnose; anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        cases: at least one case. More cases exclude more hypotheses. Expensive cases are tried last.
        bugs: the bugs to choose from. Default: all of this project's list (the zoo).
        runs: a cache of runs of the reference with bugs, from an earlier diagnosis with equal cases and dtype.
        experiments: True, or an Asker to use, to run further calls. A recorded subject gets none.
        known: observation -> ids of known deviations. If there are any, the difference is no bug.
        progress: called with a text on what is being done.

    Raises:
        SpecError: the subject could not run a single case.
    """
    cases = tuple(cases)
    progress("running the subject")
    observations, left_out = observe(subject, cases)
    if not observations:
        reason = next(map(str, left_out.values()), "there are no cases")
        raise SpecError(f"{subject.name!r} could not run a single case: {reason}")
    listed = {one: tuple(known(one)) for one in observations if one.mismatches}
    failing = [one for one in observations if one.mismatches and not listed[one]]
    others = [one for one in observations if one not in failing]
    extremes = sorted({one.extremity for one in failing})
    is_right = any(not one.mismatches and one.extremity == 0 for one in others)
    plainest = _plainest(failing)
    found = Diagnosis(
        subject=subject.name,
        dtype=subject.dtype,
        failing=tuple(one.case.id for one in failing),
        passing=tuple(one.case.id for one in observations if not one.mismatches),
        left_out={id: str(reason) for id, reason in left_out.items()},
        raised=tuple(id for id, reason in left_out.items() if isinstance(reason, SubjectFailed)),
        mismatch=plainest.mismatches[0] if plainest else None,
        case=plainest.case.id if plainest else "",
        alone=in_common(*([Setting.of(one.wanted.problem) for one in some] for some in (failing, others))),
        nans=nan_weights((one.wanted, one.arrays, one.mismatches) for one in failing),
        only_extreme=tuple(extremes) if is_right and 0 not in extremes else (),
        recorded=not can_be_asked_again(subject),
        visible=tuple(dict.fromkeys(name for one in observations for name in one.arrays)),
        stages=shown_stages(observations),
        extras=tuple(dict.fromkeys(words for one in failing for words in extras_of(one.wanted.problem))),
        unasked=tuple(p for p in PARTS if failing and all(p in one.case.config.parts for one in failing)),
        deviating={one.case.id: ids for one, ids in listed.items() if ids},
    )
    asked = _Asked(subject, cases, bugs, runs, experiments, known, progress)
    findings = [found]

    def search() -> None:
        for better in _searched(found, asked, observations):
            findings.append(better)

    try:
        # A live layer has to be run in the thread that has prepared its framework for it.
        search() if hasattr(subject, "fitted") else in_time(search, LONGEST)
    except (Exception, SystemExit) as error:
        return replace(findings[-1], ended=one_line(error))
    return findings[-1]


@dataclass(frozen=True)
class _Asked:
    """The arguments of `diagnose`."""

    subject: Subject
    cases: Sequence[Case]
    bugs: Sequence[Bug] | None
    runs: Runs | None
    experiments: bool | Asker
    known: Known
    progress: Callable[[str], None]

    def asker(self, observations: Sequence[Observation]) -> Asker | None:
        if not self.experiments or not can_be_asked_again(self.subject):
            return None
        asker = self.experiments if isinstance(self.experiments, Asker) else Asker(self.subject)
        asker.learn([one.wanted.problem for one in observations])
        return asker

    def plain(self, observed: Sequence[Observation]) -> Diagnosis | None:
        """Return the diagnosis of the calls without what a layer may overlook, if several fail; None if all are so."""
        plain = [one for one in observed if not extras_of(one.wanted.problem)]
        wrong, asker = [one.wanted.problem for one in plain if one.mismatches], self.asker(plain)
        if len(plain) == len(observed) or len(wrong) < 2 or (asker and not overlooks_scale(asker.output, wrong[0])):
            return None
        if asker is not None:
            configs = dict.fromkeys((*CONFIGS, *(one.case.config for one in plain)))
            calls = (generic(one) for one in configs if not extras_of(generic(one)))
            answered = [call.config for call in calls if asker.ask(call) is not None]
            asker = Asker(self.subject, asker.seconds, tuple(answered[:MOST_CONFIGS]))
        return self.anew(self.subject, [one.case for one in plain], asker or False)

    def anew(self, subject: Subject, cases: Sequence[Case], asker: Asker | bool) -> Diagnosis:
        return diagnose(subject, cases, bugs=self.bugs, experiments=asker, known=self.known, progress=self.progress)

    def seen_as(self, kind: Callable[[Subject], Seen]) -> Diagnosis:
        """Return the diagnosis of the subject seen another way, with experiments as the subject itself has them."""
        subject, asker = kind(self.subject), self.experiments
        if isinstance(asker, Asker):
            asker = Asker(subject, asker.seconds, asker.configs)
        return self.anew(subject, self.cases, asker)


def _searched(found: Diagnosis, asked: _Asked, observed: Sequence[Observation]) -> Iterator[Diagnosis]:
    """Yield the diagnosis with the reasons of what differs; each says more than the one before."""
    with any_numbers:  # which counts per thread
        shapes = [(one.arrays["output"].shape, one.wanted.trace.arrays()["output"].shape) for one in observed]
        if found.failing and (form := form_of(shapes)) is not None:
            yield replace(found, form=form, formed=asked.seen_as(partial(Reformed, form=form)))
        elif found.failing:
            for better in _reasons(found, asked, observed):
                found = better
                yield found
            if found.explanations or found.partly or found.nans or found.remarks or found.inside is not None:
                return
            asked.progress("looking at plain calls alone")
            if (plain := asked.plain(observed)) is not None and any(one.bugs for one in plain.explanations):
                yield replace(found, plain=plain, partly=plain.explanations, closest=(), located=None)
        elif (asker := asked.asker(observed)) is not None:
            # It may still answer otherwise when it is asked again, or in calls that no case is.
            for better in _beyond(found, asked, observed, asker):
                found = better
                yield found
            behaviour = found.measured.behaviour if found.measured is not None else Behaviour()
            steady = behaviour.is_function and behaviour.shared is None
            if found.remarks and steady and not isinstance(asked.subject, SecondCall):
                asked.progress("asking everything twice")
                second = asked.seen_as(SecondCall)
                yield replace(found, again=second if second.failing else None)


def _beyond(found: Diagnosis, asked: _Asked, observed: Sequence[Observation], asker: Asker) -> Iterator[Diagnosis]:
    """Yield the diagnosis of one that is right in every case, with what further calls show."""
    search = Search(observed, Evidence(asked.runs or Runs(), asked.subject.dtype))
    like = [one.wanted.problem for one in observed]
    probing = Probing(asker, _zoo(found, asked, observed), search.explained, like, asked.progress)
    # What is listed of it may show in these calls too, and one that is only seen another way was asked as itself.
    alone = bool(found.deviating) or isinstance(asked.subject, Seen)
    found = replace(found, measured=probing.run(probes=() if alone else PROBES))
    yield found
    if found.beyond is not None and found.measured is not None and not found.remarks:
        from conformance.measure.localise import localise  # where nothing explains it

        search.further = probing.gives_all
        whole = _told(search, found.measured.models)
        yield replace(found, explanations=whole, located=None if whole else localise(found.measured))


def _zoo(found: Diagnosis, asked: _Asked, observations: Sequence[Observation]) -> list[Bug]:
    """Return the bugs on file that the observations may show."""
    with_parts = any(one.case.config.parts for one in observations)
    with_gradients = any(one.shows_gradients for one in observations)
    bugs = bugs_of(parts=with_parts, gradients=with_gradients) if asked.bugs is None else asked.bugs
    zoo = [bug for bug in bugs if not bug.equivalent and (bug.forward or with_gradients)]
    zoo += (*with_padding_zeroed(zoo), *(usual() if asked.bugs is None else ()))
    return zoo if "keys" in found.visible else [of_mask(bug) for bug in zoo]


def _reasons(found: Diagnosis, asked: _Asked, observed: Sequence[Observation]) -> Iterator[Diagnosis]:
    subject, bugs, progress = asked.subject, asked.bugs, asked.progress
    observations = [one for one in observed if one.case.id not in found.deviating]
    right = [one for one in observations if np.isfinite(one.wanted.trace.arrays()["output"]).any()]
    if right and not any(np.isfinite(one.arrays["output"]).any() for one in right):
        yield replace(found, located=Located("output", observations[0].wanted.problem, (ALL_NAN,)))
        return
    zoo = _zoo(found, asked, observations)
    longest = min((max(one.wanted.where.shape) for one in observations if one.mismatches), default=0)
    larger = bugs_of_large_blocks() if bugs is None and longest >= LARGE_BLOCKS[0] else ()
    runs, asker = asked.runs or Runs(), asked.asker(observations)

    def tried(inside: str | None) -> tuple[Search, list[Model]]:
        search = Search(observations, Evidence(runs, subject.dtype, inside))
        if search.are_right or found.nans:  # a bug that changes nothing, or little, would explain as much
            return search, []
        progress(f"trying {len(zoo)} bugs")
        return search, search.wholly((bug,) for bug in zoo) or search.wholly((bug,) for bug in larger)

    search, whole = tried(None)
    inside = None if whole else inside_of(subject, observed, found.deviating)
    rounds = not whole and inside is None and asker is not None and rounds_inside(asker)
    if inside is not None or rounds:
        inside = inside or "float32"
        alone = ONE_KEYS(asker) if rounds and asker is not None else ()
        wrong = asker is not None and not all(asker.is_right(one) for one in alone if asker.ask(one))
        found = replace(found, inside=inside, rounds=("heads" if wrong else "scores") if rounds else "")
        search, whole = tried(inside)
        if not search.failing:  # in the precision that it has inside, everything is right
            yield replace(found, explanations=(search.hypothesis(()),))
            return
    elif search.are_right:
        formal = all(mismatch.index is None for one in search.failing for mismatch in one.mismatches)
        yield replace(found, explanations=(search.hypothesis(()),) if formal else ())
        return
    yield replace(found, explanations=_told(search, whole))
    if asker is not None:
        if inside is not None and asker.subject.dtype != inside:
            asker.narrow_to(inside)
        like = [one.wanted.problem for one in observations]
        probing = Probing(asker, zoo, search.explained, like, progress)
        measured = probing.run(whole)
        search.further = probing.gives_all
        found = replace(found, measured=measured)
        if any(outcome.asked for outcome in measured.outcomes) or not measured.behaviour.is_function:
            beside = (pair for base in dict.fromkeys(probing.nearly) for pair in search.helped(base, zoo))
            whole = list(measured.models) or search.wholly(filter(probing.gives_all, beside))
    if found.nans and not whole and not found.remarks and (found.measured is None or found.measured.first is None):
        yield found
        return
    nans, found = found.nans, replace(found, nans=())
    if not whole and (found.measured is None or not found.measured.outcomes):
        progress("trying pairs of bugs")
        whole = search.wholly(search.pairs(zoo))
    if whole and rounds and asker is not None:  # what a large finite mask is added to loses small moves too
        lost = [model for model in whole if rounds_inside(asker, partial(_output_of, model, Variants()))]
        found, whole = (replace(found, inside=None, rounds=""), lost) if lost else (found, whole)
    if whole:
        yield replace(found, explanations=_told(search, whole))
        return
    if found.measured is not None and not found.remarks:
        plain = [one for one in observations if one.extremity == 0]
        usual, calls = probing.ordinary(Search(plain, search.evidence).explained)
        if usual := [model for model in usual if found.is_usual_beyond or search.hypothesis(model).failing]:
            told = tuple(map(search.hypothesis, preferred(usual)[:SHOWN]))
            yield replace(found, partly=told, ordinary=calls, nans=nans)
            return
    if found.measured is not None:
        from conformance.measure.localise import localise  # where nothing explains it

        progress("looking for the first wrong step")
        failing = [one.wanted.problem for one in observations if one.mismatches and not one.case.expensive]
        located = localise(found.measured, failing)
        stage = "" if located is None else located.stage
        shown = [(one.arrays[stage], one.wanted.trace.arrays()[stage]) for one in observations if stage in one.arrays]
        if located is not None and (dtype := stored_in(shown, subject.dtype)) is not None:
            located = replace(located, seen=(f"  {STORED_IN.format(dtype)}",))
        found = replace(found, located=located, alone=_only(found.measured, failing, found.alone))
        yield found
        if found.remarks:
            return
    yield _nearly(found, search, [*zoo, *larger] if search.only_large else zoo, progress)


def _only(measured: Measured, failing: Iterable[Problem], alone: str) -> str:
    """Return the calls that alone differ: those with biases, if the first row is for these; else `alone`, or ""."""
    row = "" if measured.first is None else measured.first.probe.id
    wrong = (*failing, *(one for outcome in measured.outcomes for one in outcome.differing))
    if row == "score-bias":
        alone = CALLS["bias"]
    biases = ([array for name, array in one.weights.items() if name.endswith(".bias")] for one in wrong)
    is_biased = row in OF_BIASES and all(any(array.any() for array in some) for some in biases)
    return BIASED if is_biased else if_all(alone, map(Setting.of, wrong))


def _output_of(model: Model, variants: Variants, problem: Problem) -> NDArray | None:
    return (variants.run(problem, model) or {}).get("output")


def _told(search: Search, models: Sequence[Model]) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that are said of models that explain everything."""
    acting = list(dict.fromkeys(map(search.acting, preferred(search.least(models)))))
    return tuple(map(search.hypothesis, preferred(acting)))


def _nearly(found: Diagnosis, search: Search, zoo: Sequence[Bug], progress: Callable[[str], None]) -> Diagnosis:
    """Return the diagnosis with what explains most of what fails, if anything does."""
    progress("looking for what explains the most")
    # Pairs that no problem isolates have been tried.
    best = search.closest(zoo, pairs=found.measured is None)
    if best and search.gain(best[0].bugs) >= NAMED and not found.is_usual_beyond:  # which it leaves
        contradicted = found.measured is not None and found.measured.against is not None
        return replace(found, partly=tuple(best), located=found.located if contradicted else None)
    if search.only_large:
        return replace(found, partly=tuple(search.of_large_cases(zoo)))
    return replace(found, closest=tuple(best))


def _plainest(failing: Sequence[Observation]) -> Observation | None:
    """Return the case to be shown: with the mismatch at the earliest stage, ordinary numbers, and the least else."""

    def rank(observation: Observation) -> tuple[int, bool, int, int, int]:
        mismatch, problem = observation.mismatches[0], observation.wanted.problem
        position = STAGES.index(mismatch.stage) if mismatch.stage in STAGES else len(STAGES)
        numbers = (mismatch.actual, mismatch.expected)
        strange = any(number is not None and not np.isfinite(number) for number in numbers)
        return position, strange, observation.extremity, len(Setting.of(problem).has), problem.inputs.queries.size

    return min(failing, key=rank, default=None)
