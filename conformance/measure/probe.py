"""Probe: problems that isolate some steps, and what is read from the answers. They are in `probes/`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from conformance.cases.problem import Problem
from conformance.zoo.bug import Bug

if TYPE_CHECKING:
    from conformance.measure.asker import Asker
    from conformance.measure.evidence import Evidence

Problems = Callable[["Asker"], Sequence[Problem]]
Propose = Callable[["Evidence"], Iterable["Bug | tuple[Bug, ...]"]]


def nothing(evidence: Evidence) -> Iterable[Bug]:
    """No candidates but those of the zoo, and what any place shows."""
    return ()


@dataclass(frozen=True)
class Probe:
    """One probe.

    Args:
        id: its name, in kebab-case; `mha diagnose --probe ID` runs it alone.
        says: what its problems make harmless, so that only some steps can show; for docs/experiments.md.
        formula: what is read off, as LaTeX; for docs/experiments.md.
        problems: the problems, for each config of the asker (see `Asker.configs`) the same ones; those that the subject
            refuses are left out. Small ones first: a candidate is dropped at the first that it does not give.
        propose: measured candidates: bugs, or several at once, made from what is read off, each an executable claim.
            They are tried together with the zoo's, so a number that is read wrongly costs time and makes no
            wrong claim.
        gradients: whether gradients are compared instead of outputs. Such a probe is asked only of subjects with some.
        unknown: what is not known of a subject that refuses all of its problems, in words.
        everywhere: whether its candidates are tried at every probe that shows something: for steps that no probe can
            make harmless to those before it. "first": before the probe's own; "last": if these explain nothing, since
            it asks calls of many sizes.
    """

    id: str
    says: str
    formula: str
    problems: Problems
    propose: Propose = field(default=nothing)
    gradients: bool = False
    unknown: str = ""
    everywhere: Literal["first", "last"] | None = None
