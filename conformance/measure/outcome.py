"""What came of the probes on one subject, one by one and together."""

from __future__ import annotations

from dataclasses import dataclass, field

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.probe import Probe
from conformance.measure.search.behaviour import Behaviour
from conformance.zoo.bug import Bug

Model = tuple[Bug, ...]
"""The bugs that are put into the reference together."""


@dataclass(frozen=True)
class Outcome:
    """What came of one probe.

    Attributes:
        probe: which.
        asked: the problems that the subject answered; none if it refused all of them.
        differing: of these, those in which it is not the definition, the smallest first.
        explained: whether the models that were left after it give all of its answers.
        added: ids of the bugs that it added to the models.
        last: whether no time was left after it.
    """

    probe: Probe
    asked: tuple[Problem, ...]
    differing: tuple[Problem, ...]
    explained: bool
    added: tuple[str, ...] = ()
    last: bool = False

    @property
    def late(self) -> bool:
        """Whether there was no time to ask it."""
        return self.last and not self.asked


@dataclass(frozen=True)
class Measured:
    """The result of all probes on one subject.

    Attributes:
        models: what explains every probe but those that are not `explained`; several, if no probe tells them apart.
        outcomes: of each probe that applies to the subject, in their order.
        asker: whom was asked what.
        behaviour: whether it is a function, and of which precision. If it is none, no probe was run.
        troubles: of candidates that could not be made or run with the numbers that were read: a mistake of ours, which
            may cost an answer and makes no wrong one.
    """

    models: tuple[Model, ...]
    outcomes: tuple[Outcome, ...]
    asker: Asker
    behaviour: Behaviour = field(default_factory=Behaviour)
    troubles: tuple[str, ...] = ()

    @property
    def unexplained(self) -> tuple[Outcome, ...]:
        """The probes in which it differs from every model."""
        return tuple(outcome for outcome in self.outcomes if not outcome.explained)

    @property
    def silent(self) -> tuple[Outcome, ...]:
        """The probes of which the subject was asked a problem and answered none, if that leaves something unknown."""
        unanswered = (outcome for outcome in self.outcomes if not outcome.asked and not outcome.late)
        return tuple(outcome for outcome in unanswered if outcome.probe.unknown)

    @property
    def late(self) -> tuple[Outcome, ...]:
        """The probes for which there was no time."""
        return tuple(outcome for outcome in self.outcomes if outcome.late)

    @property
    def differs(self) -> bool:
        return any(outcome.differing for outcome in self.outcomes)

    def shown_by(self, bug: Bug) -> Probe | None:
        """The probe by which a bug was found; None if the models began with it."""
        return next((outcome.probe for outcome in self.outcomes if bug.id in outcome.added), None)
