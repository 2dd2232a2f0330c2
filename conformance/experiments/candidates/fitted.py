"""Changes that were fitted to what was read off, as bugs of the step or parameter that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from conformance.cases.problem import Problem
from conformance.experiments.candidates.parameters import weights_otherwise
from conformance.experiments.candidates.steps import PARAMETERS, PLACES, change_of_parameter, change_on, read_otherwise
from conformance.experiments.changes.fit import factors, fit, one_change
from conformance.experiments.changes.sample import Change, Sample
from conformance.experiments.readings.values import each_key_chosen
from conformance.experiments.solving.solved import samples_of
from conformance.experiments.view import View, fits
from conformance.zoo.bug import Bug

Propose = Callable[[View], Iterator[Bug]]


def axes_of(name: str) -> tuple[str, ...]:
    """The axes of a step of the values' way, or of a parameter."""
    return (PARAMETERS[name][1] if name in PARAMETERS else PLACES[name]).axes


def bug_of(name: str, change: Change) -> Bug:
    """A change of such a step or parameter."""
    return change_of_parameter(name, change) if name in PARAMETERS else change_on(name, change)


def is_one(change: Change) -> bool:
    """Whether a change is one, and not another order with a factor on top of it."""
    return not change.slug.startswith("0-of-it-")


Find = Callable[[Sequence[Sample]], list[Change]]


def fitted(view: View, name: str, find: Find = fit) -> Iterator[Bug]:
    """Every change of a step or parameter that is solved for."""
    samples = samples_of(view, view.problems, name, axes_of(name))
    with np.errstate(all="ignore"):
        for change in find(samples) if any(sample.differs for sample in samples) else []:
            # Another order and a factor on top of it are two faults: probes that are blind to orders show the factor.
            if is_one(change):
                yield bug_of(name, change)
                yield from _elsewhere(name, change)


def _elsewhere(name: str, change: Change) -> Iterator[Bug]:
    """The same change of arrays with the same axes, which this problem may not tell apart."""
    if name == "new_values":
        yield change_on("values", change)
    if name in ("new_values", "heads"):
        yield read_otherwise("values", change)
    if name == "kept_weights":
        yield change_on("weights", change)


def any_fitted(view: View, names: Sequence[str]) -> Iterator[Bug]:
    """Every change of one of these; only if none explains what differs, two changes one after the other."""
    yield from factors_on(view, "output")
    yield from factors_on(view, "heads", ("value_inputs", "v_proj", "new_values", "values", "kept_weights", "merged"))
    yield from weights_otherwise()
    for find in (_simple, fit):
        for name in names:
            yield from fitted(view, name, find)
        if view.explained:
            return


def _simple(samples: Sequence[Sample]) -> list[Change]:
    with np.errstate(all="ignore"):
        return one_change(sorted(samples, key=lambda sample: not sample.differs))


CHOSEN = (7, 6, 9, 5)
"""How many keys there are where each is chosen by a query."""


def fitted_by_key(view: View) -> Iterator[Bug]:
    """Every change of the values that is solved for key by key, as queries see them that choose one key each."""
    problems = [
        each_key_chosen(config, CHOSEN[place % len(CHOSEN)])
        for place, config in enumerate(view.lab.configs)
        if config.projections and min(config.head_dim, config.query_dim, config.key_dim) >= 2
    ]
    with np.errstate(all="ignore"):
        whole = samples_of(view, problems, "values read", PLACES["values"].axes)
        if not any(sample.differs for sample in whole):
            return
        own = [_of_groups(sample) for sample in whole]
        for change in one_change([one for one in own if one is not None]) if all(own) else ():
            for step in ("new_values", "values"):
                yield change_on(step, change)
        for change in one_change(whole):
            yield read_otherwise("values", change)


def _of_groups(sample: Sample) -> Sample | None:
    """The sample with one head for each value head, if all query heads of a group read the same."""
    groups = sample.setting.config.num_kv_heads
    split = sample.measured.reshape(len(sample.measured), groups, -1, *sample.measured.shape[2:])
    if np.abs(split - split[:, :, :1]).max() > sample.tolerance:
        return None
    each = sample.setting.config.num_heads // groups
    return replace(sample, measured=split[:, :, 0], expected=sample.expected[:, ::each])


def factors_on(view: View, read: str, names: Sequence[str] = ()) -> Iterator[Bug]:
    """The factor that is read off, on the step that is read, and on others."""
    samples = samples_of(view, view.problems, read, axes_of(read))
    if not any(sample.differs for sample in samples):
        return
    with np.errstate(all="ignore"):
        for change in factors(samples):
            yield bug_of(read, change)
            for name in names:
                yield change_on(name, change)


def whole_first(view: View, problems: Sequence[Problem], whole: Propose, isolated: Propose) -> Iterator[Bug]:
    """What explains problems in which everything can show; only if nothing does, what explains the probe's own.

    In a probe that makes much alike many faults look the same: their candidates would hide the right one.
    """
    answered = tuple(problem for problem in problems if view.got(problem) is not None)
    wide = replace(view, problems=answered)
    differing = tuple(wide.differing())
    found = False
    if differing:
        for bug in whole(wide):
            model = (*view.model, bug)
            if all(fits(view.lab, view.variants, problem, model) for problem in (*differing, *answered)):
                found = wide.explained = True
                yield bug
    if not found:
        yield from isolated(view)
