"""Diagnosis: find the stage since which a subject differs, and the bugs that explain it.

A hypothesis is the reference with one or more bugs in it. One that gives all arrays of the subject in *every* case,
the failing and the passing ones, is looked for first: one bug of the zoo, then what experiments measure (see
`conformance.measure`), else a pair, then up to four. If there is none, the one is named that explains nearly all
of the failing cases, with what it does not explain (see `evidence` for what it means to explain a case, and
`hypotheses` for the ranking and its thresholds).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from conformance.any_numbers import any_numbers
from conformance.cases.case import Case
from conformance.diagnosis.evidence import Evidence, inside_of
from conformance.diagnosis.hypotheses import Hypothesis, Score, Search
from conformance.diagnosis.observations import Observation, Runs, observe, parts_of_all
from conformance.diagnosis.seen import Exchanged, SecondCall, Seen, is_exchanged
from conformance.judging.compare import Mismatch
from conformance.judging.repeats import can_be_asked_again
from conformance.measure.asker import Asker
from conformance.measure.evidence import gives
from conformance.measure.faults import is_measured, unwarned
from conformance.measure.localise import Located, localise
from conformance.measure.outcome import Measured, Model
from conformance.measure.search.measure import measure
from conformance.measure.search.ranking import preference
from conformance.subjects.in_time import in_time
from conformance.subjects.subject import Subject
from conformance.zoo.bug import GRADIENTS, Bug
from conformance.zoo.registry import all_bugs, bugs_of_large_blocks
from conformance.zoo.variants import Variants
from mha_core import STAGES, SpecError
from mha_core.errors import one_line

__all__ = ["Diagnosis", "Hypothesis", "Observation", "Runs", "diagnose", "observe"]

SHOWN = 3
"""Most hypotheses that are shown if none explains everything."""

LONGEST = 600.0
"""Seconds that the search for a reason may take; what differs is said in any case."""

Known = Callable[[Observation], Sequence[str]]
"""The ids of listed deviations that account for all that differs in one case; none if they don't."""


@dataclass(frozen=True)
class Finding:
    """Something that was seen and is no bug of a step: the sentence that says it."""

    sentence: str
    stage: str | None = None
    bug: Bug | None = None
    confident: bool = True


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose` for one subject.

    Attributes:
        failing, passing: ids of the cases where it differs, and where it is equal.
        deviating: id of each case where it differs only as is listed -> the ids of these deviations.
        unasked: the parts of a layer that every failing case has; experiments may have none of them.
        ended: why the search for a reason ended before it was through, in one line; else None.
        left_out: case id -> why it could not be judged.
        mismatch: the first array over its bound, in the failing case that shows it earliest.
        visible: the names of the arrays that the subject exposes.
        inside: the dtype in which it computes, if its outputs in another dtype only hold numbers of this one.
        explanations: hypotheses that explain every case; several, if these cases can't tell them apart.
        partly: if there is none, those that explain nearly all failing cases, with the ones that they don't.
        closest: if there is none of these either, those that explain some failing cases, best first.
        measured: what experiments showed; None if the subject was not asked more than the cases.
        located: the first wrong step of what nothing explains wholly, if it could be told.
        again: of a subject that is right when asked once, and not when asked again: the diagnosis of second calls.
        exchanged: of one whose outputs are all (Lq, B, Do): the diagnosis of them as (B, Lq, Do).
    """

    subject: str
    dtype: str
    failing: tuple[str, ...]
    passing: tuple[str, ...]
    left_out: Mapping[str, str]
    mismatch: Mismatch | None
    visible: tuple[str, ...]
    inside: str | None = None
    explanations: tuple[Hypothesis, ...] = ()
    partly: tuple[Hypothesis, ...] = ()
    closest: tuple[Hypothesis, ...] = ()
    measured: Measured | None = None
    located: Located | None = None
    again: Diagnosis | None = None
    exchanged: Diagnosis | None = None
    deviating: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unasked: tuple[str, ...] = ()
    ended: str | None = None

    @property
    def first_stage(self) -> str | None:
        """The stage of the first wrong step, if it is known though what is wrong there is not, or in second calls."""
        if self.located is not None:
            return self.located.stage
        if self.again is None:
            return None
        stages = {bug.stage for one in self.again.explanations[:1] for bug in one.bugs}
        return self.again.first_stage or next((stage for stage in (*STAGES, GRADIENTS) if stage in stages), None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was seen besides numbers: that equal questions have other answers, or that something is kept."""
        return () if self.measured is None else tuple(map(Finding, self.measured.behaviour.unsteady))

    @property
    def differs(self) -> bool:
        """Whether there is something to explain."""
        return bool(self.failing or self.findings)


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
    """Run the subject on the cases and look for the bugs that explain it.

    What differs is seen first, and stands whatever becomes of the search: where that raises, or takes longer than
    LONGEST, its last finding is kept, and `ended` says why it is the last.

    Args:
        subject: what to diagnose; anything with `prepare(config, weights) -> run(inputs) -> Trace`.
        cases: at least one of them; the more, the fewer hypotheses are left. Expensive ones may be among them:
            hypotheses are tried on those last, and on a passing one only if everything else leaves them.
        bugs: the zoo to choose from. Default: all of it.
        runs: the runs of hypotheses from an earlier diagnosis with equal cases and dtype.
        experiments: whether the subject is asked more than the cases, so that what no bug on file explains is measured;
            or the Asker that asks it. A subject that only gives what was recorded is not asked.
        known: gives the listed deviations that account for a case; what they account for is no bug.
        progress: is told what is being done.

    Raises:
        SpecError: the subject could not run a single case.
    """
    cases = tuple(cases)
    progress("running the subject")
    observations, left_out = observe(subject, cases)
    if not observations:
        reason = next(iter(left_out.values()), "there are no cases")
        raise SpecError(f"{subject.name!r} could not run a single case: {reason}")
    listed = {one: tuple(known(one)) for one in observations if one.mismatches}
    failing = [one for one in observations if one.mismatches and not listed[one]]
    found = Diagnosis(
        subject=subject.name,
        dtype=subject.dtype,
        failing=tuple(one.case.id for one in failing),
        passing=tuple(one.case.id for one in observations if not one.mismatches),
        left_out=left_out,
        mismatch=_earliest(failing),
        visible=tuple(dict.fromkeys(name for one in observations for name in one.arrays)),
        deviating={one.case.id: ids for one, ids in listed.items() if ids},
        unasked=parts_of_all(failing),
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

    def asker(self, observations: Sequence[Observation]) -> Asker:
        asker = self.experiments if isinstance(self.experiments, Asker) else Asker(self.subject)
        asker.learn([one.wanted.problem for one in observations])
        return asker

    def seen_as(self, kind: type[Seen]) -> Diagnosis:
        """The diagnosis of the subject seen another way, with experiments as the subject itself has them."""
        subject, asker = kind(self.subject), self.experiments
        if isinstance(asker, Asker):
            asker = Asker(subject, asker.seconds, asker.configs, sizes=asker.sizes)
        progress = self.progress
        return diagnose(subject, self.cases, bugs=self.bugs, experiments=asker, known=self.known, progress=progress)


def _searched(found: Diagnosis, asked: _Asked, observed: Sequence[Observation]) -> Iterator[Diagnosis]:
    """The diagnosis with the reasons of what differs; each says more than the one before."""
    with any_numbers:  # which counts per thread
        if found.failing and is_exchanged(observed):
            yield replace(found, exchanged=asked.seen_as(Exchanged))
        elif found.failing:
            yield from _reasons(found, asked, observed)
        elif asked.experiments and can_be_asked_again(asked.subject):
            # It may still answer otherwise when it is asked again.
            found = replace(found, measured=measure(asked.subject, probes=(), asker=asked.asker(observed)))
            yield found
            yield replace(found, again=_again(found, asked))


def _reasons(found: Diagnosis, asked: _Asked, observed: Sequence[Observation]) -> Iterator[Diagnosis]:
    subject, bugs, progress = asked.subject, asked.bugs, asked.progress
    observations = [one for one in observed if one.case.id not in found.deviating]
    inside = inside_of(subject, observed, found.deviating)
    zoo = [bug for bug in (all_bugs() if bugs is None else bugs) if not bug.equivalent]
    larger = bugs_of_large_blocks() if bugs is None else ()
    search = Search(observations, Evidence(asked.runs or Runs(), subject.dtype, inside))
    found = replace(found, inside=inside)
    if not search.failing:  # in the precision that it has inside, everything is right
        yield replace(found, explanations=(search.hypothesis(()),))
        return
    progress(f"trying {len(zoo)} bugs")
    whole = search.wholly((bug,) for bug in zoo) or search.wholly((bug,) for bug in larger)
    yield replace(found, explanations=tuple(map(search.hypothesis, whole)))
    if asked.experiments and can_be_asked_again(subject):
        asker = asked.asker(observations)
        if found.deviating and inside is not None:
            asker.narrow_to(inside)
        measured = measure(
            subject,
            start=whole or [()],
            asker=asker,
            zoo=zoo,
            suffices=lambda models: bool(search.wholly(model for model in models if model)),
            progress=progress,
        )
        found = replace(found, measured=measured)
        whole = _told_apart(whole, search, measured)
        yield replace(found, explanations=tuple(map(search.hypothesis, whole)))
    found = _explained(found, search, zoo, larger, whole, progress=progress)
    yield found
    if found.measured is not None and not found.explanations:
        progress("looking for the first wrong step")
        located = localise(found.measured, [one.wanted.problem for one in observations if one.mismatches])
        yield replace(found, located=located and _as_explained(located, found.partly, found.measured.asker))


def _again(found: Diagnosis, asked: _Asked) -> Diagnosis | None:
    """The diagnosis of second calls, if equal calls of one layer have other answers and something is wrong in them."""
    assert found.measured is not None
    if not found.findings or not found.measured.behaviour.is_function or isinstance(asked.subject, SecondCall):
        return None
    asked.progress("asking everything twice")
    second = asked.seen_as(SecondCall)
    return second if second.failing else None


def _as_explained(located: Located, partly: Sequence[Hypothesis], asker: Asker) -> Located:
    """The first wrong step; that of what explains nearly all, and acts, where this gives the subject's answer."""
    for one in partly if located.stage != GRADIENTS else ():
        if one.bugs and gives(asker, Variants(), located.problem, one.bugs):
            others = {bug.id: tuple(other for other in one.bugs if other is not bug) for bug in one.bugs}
            acting = [bug for bug in one.bugs if not gives(asker, Variants(), located.problem, others[bug.id])]
            stages = (bug.stage for bug in acting or one.bugs)
            return replace(located, stage=min(stages, key=(*STAGES, GRADIENTS).index))
    return located


def _told_apart(whole: Sequence[Model], search: Search, measured: Measured) -> list[Model]:
    """The models that explain every case and, if some of them do, every probe as well; of bugs on file if possible."""
    return _preferred(search.wholly(model for model in measured.models if model)) or list(whole)


def _preferred(models: Sequence[Model]) -> list[Model]:
    """Of models that nothing tells apart, those to be said: with few bugs, and one description of what was measured."""
    fewest = min((len(model) for model in models), default=0)
    left = sorted((model for model in models if len(model) == fewest), key=preference)
    return [model for model in left if _measured_of(model) == _measured_of(left[0])]


def _measured_of(model: Model) -> frozenset[str]:
    return frozenset(bug.id for bug in model if is_measured(bug))


def _explained(
    found: Diagnosis,
    search: Search,
    zoo: Sequence[Bug],
    larger: Sequence[Bug],
    whole: Sequence[Model],
    *,
    progress: Callable[[str], None],
) -> Diagnosis:
    if search.only_large:
        zoo = [*zoo, *larger]
    models = () if found.measured is None else found.measured.models
    zoo = [*zoo, *{bug.id: bug for model in models for bug in model if is_measured(bug)}.values()]
    if not whole and not any(models):  # else the probes have met the faults one at a time
        progress("trying pairs of bugs")
        whole = search.wholly(search.promising_pairs(zoo))
    if whole:
        return replace(found, explanations=tuple(map(search.hypothesis, whole)))
    progress("trying more bugs at once")
    sampled = found.measured is not None and any(outcome.asked for outcome in found.measured.outcomes)
    ranked = search.grow(zoo, models, lambda size: progress(f"trying {size} bugs at once"), sampled=sampled)
    if search.only_large and not (ranked and search.is_named(ranked[0])):
        large = search.of_large_cases(zoo)
        return replace(found, partly=_told(search, [one for one in large if one.credit == large[0].credit][:SHOWN]))
    if not ranked:
        return found
    best = _preferred([score.bugs for score in ranked if score.key[:-1] == ranked[0].key[:-1]])
    equally = [score for score in ranked if score.bugs in best]
    if ranked[0].credit == search.total:
        return replace(found, explanations=_told(search, equally))
    if search.is_named(ranked[0]):
        return replace(found, partly=_told(search, equally[:SHOWN]))
    return replace(found, closest=_told(search, [score for score in ranked if search.is_close(score)][:SHOWN]))


def _told(search: Search, scores: Sequence[Score]) -> tuple[Hypothesis, ...]:
    return tuple(search.hypothesis(score.bugs) for score in scores)


def _earliest(failing: Sequence[Observation]) -> Mismatch | None:
    """The mismatch at the earliest stage; of those, the one that is furthest over its bound."""

    def rank(mismatch: Mismatch) -> tuple[int, float]:
        position = STAGES.index(mismatch.stage) if mismatch.stage in STAGES else len(STAGES)
        return position, -(mismatch.error or 0.0)

    firsts = [observation.mismatches[0] for observation in failing]
    return min(firsts, key=rank, default=None)
