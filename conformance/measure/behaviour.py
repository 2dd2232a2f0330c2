"""Behaviour: whether a subject is a function at all, and in which precision it computes; asked before any problem.

Numbers can be measured only if equal questions have equal answers. So one problem is asked twice, the layer prepared
anew each time; one prepared layer is asked again, also after another problem; and two layers of equal shapes in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.judging.near import Nearness
from conformance.judging.repeats import can_be_asked_again
from conformance.measure.asker import Asker
from conformance.measure.designs import changed, differentiated, generic
from mha_core import AttentionConfig, AttentionMask
from mha_core.errors import listed
from mha_core.stages import GRADIENT

RATE, SCALE = 0.4, 0.37
"""Of dropout, and of scores, in layers that are compared with those without."""

NUDGES, SMOOTH = (1e-10, 1e-4, 3e-4), 0.1
"""How far queries are moved, as a share of them, and how far answers may be from moving as much."""

NAMES_SHOWN = 4


@dataclass(frozen=True)
class Behaviour:
    """What kind of thing the subject is.

    Attributes:
        remarks: what equal questions had other answers to, in sentences.
        is_function: whether equal questions to a layer prepared anew have equal answers: else nothing can be measured.
        shared: the stage of what layers of equal shapes share, so that no claim about one layer holds; else None.
    """

    remarks: tuple[str, ...] = ()
    is_function: bool = True
    shared: str | None = None


def observe(asker: Asker) -> Behaviour:
    """Return what equal questions show."""
    if not asker.configs or not can_be_asked_again(asker.subject):
        return Behaviour()
    problem = generic(asker.configs[0])
    first, again = (_output(asker, problem) for _ in range(2))
    if first is not None and again is not None and not _alike(asker, first, again):
        return Behaviour(("Equal calls have different answers, so nothing else can be measured.",), is_function=False)
    if shared := next(_shared(asker, problem), None):
        return Behaviour((shared[1],), shared=shared[0])
    return Behaviour((*_of_repeats(asker, problem), *_of_gradients(asker, problem), *_of_chance(asker, problem)))


def rounds_inside(asker: Asker, model: Callable[[Problem], NDArray | None] | None = None) -> bool:
    """Return whether a float64 subject, or a model of it, rounds what becomes of its queries to about float32.

    Its answer follows small moves of them, each as the other, and not one that float32 does not see.
    """
    if asker.subject.dtype != "float64" or not asker.configs:
        return False
    problem = generic(asker.configs[0])
    moved = [changed(problem, queries=problem.inputs.queries * (1.0 + by)) for by in (0.0, *NUDGES)]
    outputs = [*map(model or asker.output, moved), model(moved[0]) if model else _output(asker, moved[0])]
    if any(output is None or not np.isfinite(output).all() for output in outputs):
        return False
    at, *others, again = (np.asarray(output) for output in outputs)
    little, much, more = ((other - at) * (NUDGES[0] / by) for other, by in zip(others, NUDGES, strict=True))
    size = float(np.abs(much).max(initial=0.0))
    apart = [float(np.abs(one - much).max(initial=0.0)) / size for one in (little, more)] if size else [0.0, 0.0]
    return np.array_equal(at, again) and apart[0] > SMOOTH > apart[1]


def _output(asker: Asker, problem: Problem) -> NDArray | None:
    trace = asker.ask_again(problem)
    return None if trace is None else trace.output


def _alike(asker: Asker, array: NDArray, other: NDArray) -> bool:
    """Return whether two answers differ by no more than the order of sums explains."""
    return array.shape == other.shape and Nearness.of(asker.unit).near(array, other, 0.0)


def _shared(asker: Asker, problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield (stage, sentence) of what is kept by the shapes of a call for all layers: the second layer gets it."""
    config = problem.config
    if asker.slow or asker.fixed_weights is not None or config.score != "scaled_dot":
        return
    for stage, what, other, seed in (
        ("scores", "The scale", replace(config, scale=SCALE), 0),
        ("queries", "Something that depends on the weights", config, 1),
    ):
        right = []
        for key_len, layers in ((KEPT_LENGTHS[seed], 1), (KEPT_LENGTHS[seed] + 1, -1)):
            calls = [_of_layer(one, key_len, by) for one, by in ((config, 0), (other, seed))][::layers]
            right += [asker.output(one) is not None and asker.is_right(one) for one in calls]
        if right == [True, False, True, False]:
            said = "is that of the first layer that was called with these shapes"
            yield stage, f"{what} {said}: it is kept by the shapes of a call for all layers."


KEPT_LENGTHS = (18, 20)
"""Keys of calls of shapes that nothing else has been asked with."""


def _of_layer(config: AttentionConfig, key_len: int, seed: int) -> Problem:
    problem, weights = generic(config, key_len=key_len), generic(config, seed=seed, key_len=key_len).weights
    return replace(problem, weights=weights)


def _of_chance(asker: Asker, problem: Problem) -> Iterator[str]:
    """Dropout that draws its own mask where none is given."""
    with_rate = replace(problem, config=replace(problem.config, dropout=RATE))
    first, again = (_output(asker, with_rate) for _ in range(2))
    if first is not None and again is not None and not _alike(asker, first, again):
        yield "With a rate of dropout and no keep-mask its answers are random: dropout is active outside training."


def _of_repeats(asker: Asker, problem: Problem) -> Iterator[str]:
    """Yield what one prepared layer, asked again and after other calls, answers otherwise than one prepared anew."""
    config, sizes = problem.config, problem.sizes
    lower = np.tri(sizes.query_len, sizes.key_len, dtype=bool)
    others = {
        "the same call": problem,
        "another call of equal sizes": generic(config, seed=1),
        "the first call": problem,
        "a call with a mask": generic(config, seed=1, mask=AttentionMask(allowed=lower)),
        "a call with another mask": generic(config, seed=1, mask=AttentionMask(allowed=lower[::-1])),
        "a call of greater lengths": generic(config, seed=1, query_len=4, key_len=7),
    }
    problems = [replace(problem, inputs=one.inputs) for one in others.values()]  # all of one layer
    alone = [asker.output(one) for one in problems]
    answers: list[NDArray | None] = [trace.output for trace in asker.in_turn([problem, *problems])][1:]
    asked = [*answers, None][: len(problems) - 1]  # a layer that was prepared for some lengths may refuse others
    for words, fresh, given in zip(others, alone, asked, strict=False):
        if fresh is not None and (given is None or not _alike(asker, fresh, np.asarray(given, np.float64))):
            what = "fails" if given is None else "has another answer"
            yield f"A layer keeps something: asked after other calls, {words} {what}, and not in a layer prepared anew."
            return


def _of_gradients(asker: Asker, problem: Problem) -> Iterator[str]:
    """One prepared layer, differentiated again: gradients that are added up, or kept."""
    problem = differentiated(problem)
    given = [trace.gradients for trace in asker.in_turn([problem, problem])]
    if len(given) < 2 or not all(given):
        return
    first, again = ({name: np.asarray(a, np.float64) for name, a in (one or {}).items()} for one in given)
    allowed = asker.wanted(problem).allowed_error

    def differing(one: Mapping[str, NDArray], like: Mapping[str, NDArray], times: float = 1.0) -> list[str]:
        near = Nearness(asker.unit).near
        return [name for name in one if not near(times * one[name], like[name], allowed[GRADIENT + name])]

    if changed_ones := differing(first, again):
        added = not {*changed_ones} & {*differing(first, again, 2.0)}
        what = "are added up from call to call" if added else "differ in a second call with the same inputs"
        yield f"Gradients {what}: those of {listed(changed_ones, NAMES_SHOWN)}."
