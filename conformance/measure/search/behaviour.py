"""Behaviour: whether a subject is a function at all, and in which precision it computes; asked before any probe.

Numbers can be measured only if equal questions have equal answers. So one problem is asked several times, the layer
prepared anew each time; and one prepared layer is asked again, also after another problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.cases.problem import Problem
from conformance.judging.near import Nearness
from conformance.judging.repeats import can_be_asked_again
from conformance.measure.asker import Asker
from conformance.measure.designs import NO_BIASES, changed
from conformance.measure.faults import bug_of, on_result
from conformance.measure.grammar.numbers import snapped
from conformance.zoo.bug import Bug
from mha_core import AttentionMask, Trace, reference
from mha_core.dtypes import DTYPES, round_to
from mha_core.stages import GRADIENT

TIMES = 3
"""How often an equal question is asked."""

RATE = 0.4


@dataclass(frozen=True)
class Behaviour:
    """What kind of thing the subject is.

    Attributes:
        inside: the dtype in which it computes, if that is narrower than the declared one; else None.
        output: a bug by which the output alone is rounded, if only that is of a narrower dtype; else None.
        spread: of the answers to equal questions: their standard deviation over their size; 0 if they are equal.
        remarks: what was seen, in sentences.
        unsteady: those of them that say that equal questions have other answers.
    """

    inside: str | None = None
    output: Bug | None = None
    spread: float = 0.0
    remarks: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()

    @property
    def is_function(self) -> bool:
        """Whether equal questions to a layer prepared anew have equal answers: else nothing more can be measured."""
        return self.spread == 0.0


def observe(asker: Asker) -> Behaviour:
    """Ask the first questions. If the outputs are of a narrower dtype, the asker's bounds are of that from here on."""
    if not asker.configs or not can_be_asked_again(asker.subject):
        return Behaviour()
    problems = [asker.generic(config) for config in asker.configs]
    spread = _spread([asker.ask_again(problems[0]) for _ in range(TIMES)], asker)
    if spread:
        anew = ", each of a layer prepared anew," if asker.fixed_weights is None else ""
        remark = (
            f"It is no function: {TIMES} equal calls{anew} have different answers; their "
            f"standard deviation is {spread:.3g} of their size. So nothing else can be measured."
        )
        return Behaviour(spread=spread, remarks=(remark,), unsteady=(remark,))
    unsteady = (*_of_repeats(asker, problems[0]), *_of_gradients(asker, problems[0]), *_of_chance(asker, problems[0]))
    remarks = list(unsteady)
    outputs = [output for output in map(asker.output, problems) if output is not None]
    inside = narrower(outputs, asker.dtype)
    if inside is None:
        return Behaviour(remarks=tuple(remarks), unsteady=unsteady)
    if not _adds_up(asker, inside):
        asker.narrow_to(inside)
        remarks.insert(
            0,
            f"Every output that it gives in {asker.dtype} is a {inside} number: it computes in {inside} inside. "
            f"What was measured allows for the errors of that.",
        )
        return Behaviour(inside, remarks=tuple(remarks), unsteady=unsteady)
    return Behaviour(output=_rounded_to(inside), remarks=tuple(remarks), unsteady=unsteady)


# Precision --------------------------------------------------------------------------------------------------


def narrower(outputs: Sequence[NDArray], dtype: str) -> str | None:
    """The narrowest dtype of which all outputs are numbers, if it is narrower than `dtype`; that is no accident.

    >>> narrower([np.array([0.5, 1 / 3])], "float64"), narrower([np.array([1 / 3], "float32")], "float64")
    (None, 'float32')
    """
    if not any(np.count_nonzero(np.nan_to_num(output)) for output in outputs):
        return None
    wider = DTYPES[: DTYPES.index(dtype) + 1]
    for other in ("bfloat16", "float16", "float32"):
        if other not in wider and all(is_held_by(output, other) for output in outputs):
            return other
    return None


def is_held_by(array: NDArray, dtype: str) -> bool:
    """Whether every number of an array is one of a dtype."""
    with any_numbers:
        return bool(np.array_equal(array, round_to(array, dtype).astype(np.float64), equal_nan=True))


def _adds_up(asker: Asker, dtype: str) -> bool:
    """Whether the output alone is rounded: outputs are linear in the values, within half a unit of each output."""
    problem = asker.generic(asker.configs[0], weights=NO_BIASES)
    first, second = problem.inputs.values, np.roll(problem.inputs.values, 1, axis=-2)
    outputs = [asker.output(changed(problem, values=values)) for values in (first, second, first + second)]
    if any(output is None for output in outputs):
        return False
    a, b, both = (np.asarray(output) for output in outputs)
    unit = UNIT_ROUNDOFF[dtype]
    with any_numbers:
        return bool(np.all(np.abs(a + b - both) <= 1.001 * unit * (np.abs(a) + np.abs(b) + np.abs(both))))


def _rounded_to(dtype: str) -> Bug:
    return bug_of(
        f"output-rounded-to-{dtype}",
        f"The output is rounded to {dtype}.",
        "Give the output in the dtype of the inputs, as it was computed.",
        "output",
        on_result(lambda state, output: round_to(output, dtype).astype(np.float64)),
    )


# Repeats ----------------------------------------------------------------------------------------------------


def _spread(answers: Sequence[Trace | None], asker: Asker) -> float:
    """The standard deviation of equal questions' answers over their size; 0 if they are equal within rounding."""
    outputs = [answer.output for answer in answers if answer is not None and answer.output is not None]
    if len(outputs) < 2 or all(_alike(asker, outputs[0], other) for other in outputs[1:]):
        return 0.0
    stacked = np.nan_to_num(np.stack(outputs))
    return float(stacked.std(axis=0).mean() / max(np.abs(stacked).mean(), 1e-300)) or np.inf


def _alike(asker: Asker, array: NDArray, other: NDArray) -> bool:
    """Whether two answers differ by no more than the order of sums explains."""
    return Nearness.of(asker.unit).near(array, other, 0.0)


def _of_chance(asker: Asker, problem: Problem) -> Iterator[str]:
    """Dropout that draws its own mask where none is given."""
    config = replace(problem.config, dropout=RATE)
    with_rate = replace(problem, config=config)
    spread = _spread([asker.ask_again(with_rate) for _ in range(TIMES)], asker)
    if spread:
        yield (
            f"With a rate of dropout its answers are random though no keep-mask is given: their standard deviation is "
            f"{spread:.3g} of their size. Dropout is active outside training."
        )


def _of_repeats(asker: Asker, problem: Problem) -> Iterator[str]:
    """One prepared layer, asked again, and after another problem."""
    other = _of_the_layer(problem, asker.generic(problem.config, seed=1))
    answers = _in_turn(asker, [problem, problem, problem, other, problem])
    fresh = asker.output(other)
    if len(answers) < 5 or fresh is None:
        return
    first, again, third, after, last = answers
    if not _alike(asker, first, again):
        yield _changing(first, again, third)
    elif not _alike(asker, fresh, after):
        yield f"It keeps something from call to call: {_kept(asker, problem, other, after)}."
    elif not _alike(asker, first, last):
        yield "It keeps something from call to call: after another problem the same one has another answer."
    else:
        yield from _of_shapes(asker, problem)


def _of_the_layer(problem: Problem, other: Problem) -> Problem:
    """The other call, of the same layer."""
    return replace(problem, inputs=other.inputs)


def _in_turn(asker: Asker, problems: Sequence[Problem]) -> list[NDArray]:
    """The outputs of one prepared layer for several problems, up to the first that it fails at."""
    return [np.asarray(trace.output, np.float64) for trace in asker.in_turn(problems)]


def _of_gradients(asker: Asker, problem: Problem) -> Iterator[str]:
    """One prepared layer, differentiated again, and after another problem: gradients that are added up, or kept."""
    if asker.hides_gradients:
        return
    other = _of_the_layer(problem, asker.generic(problem.config, seed=1))
    fresh = asker.ask(other, gradients=True)
    if fresh is None or not fresh.gradients:
        return
    given = [trace.gradients for trace in asker.in_turn([problem, problem, problem, other], gradients=True)]
    if len(given) < 4 or not all(given):
        return
    first, again, third, after = ({name: np.asarray(a, np.float64) for name, a in (one or {}).items()} for one in given)
    allowed = asker.wanted(problem, gradients=True).allowed_error

    def differing(one: Mapping[str, NDArray], like: Mapping[str, NDArray], times: float = 1.0) -> list[str]:
        near = Nearness(asker.unit).near
        return [name for name in one if not near(times * one[name], like[name], allowed[GRADIENT + name])]

    changed, kept = differing(first, again), differing(fresh.gradients, after)
    if changed and not {*changed} & {*differing(first, again, 2.0), *differing(first, third, 3.0)}:
        yield (
            f"Gradients are added up from call to call, those of {_listed(changed)}: a second call of the same layer "
            f"with the same inputs gives 2 times those of the first, and a third 3 times. Clear them before each call."
        )
    elif changed:
        yield (
            f"A second call of the same layer with the same inputs has other gradients than the first: those of "
            f"{_listed(changed)}."
        )
    elif kept:
        yield (
            f"It keeps something from call to call: after another problem the gradients of {_listed(kept)} differ from "
            f"those of a layer prepared anew."
        )


def _listed(names: Sequence[str], most: int = 4) -> str:
    """Some names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _changing(first: NDArray, again: NDArray, third: NDArray) -> str:
    """By what a second and a third answer differ from the first."""
    head = "A second call of the same layer with the same inputs differs from the first"
    factors = [_factor(first, array) for array in (again, third)]
    if None in factors:
        return f"{head}, and a third {'does too' if np.array_equal(again, third) else 'from both'}."
    second, other = (f"{factor:.6g}" for factor in factors if factor is not None)
    return f"{head}: it is {second} times that, and the third {other} times."


def _factor(first: NDArray, array: NDArray) -> float | None:
    square = float(first.ravel() @ first.ravel())
    number = snapped(float(first.ravel() @ array.ravel()) / square, 1e-9) if square else np.nan
    return number if np.allclose(array, number * first, rtol=1e-9, atol=1e-12) else None


def _kept(asker: Asker, before: Problem, problem: Problem, output: NDArray) -> str:
    """What of the problem before gives the output; in words."""
    for name, words in (("queries", "queries"), ("keys", "keys"), ("values", "values")):
        mixed = replace(problem, inputs=replace(problem.inputs, **{name: getattr(before.inputs, name)}))
        if _gives(asker, mixed, output):
            return f"a second problem is answered with the {words} of the first"
    if _gives(asker, before, output):
        return "a second problem of equal sizes has the answer of the first"
    factor = None if (fresh := asker.output(problem)) is None else _factor(fresh, output)
    if factor is not None:
        return f"after another problem an answer is {factor:.6g} times what it is in a layer prepared anew"
    return "after another problem an answer differs from that of a layer prepared anew"


def _gives(asker: Asker, problem: Problem, output: NDArray) -> bool:
    """Whether the definition gives an output for a problem, nearly."""
    asked = asker.rounded(problem)
    made = np.asarray(reference.run(asked.config, asked.weights, asked.inputs).output)
    return bool(np.allclose(made, output, rtol=1e-6, atol=1e-6 * float(np.abs(output).max(initial=0.0))))


def _of_shapes(asker: Asker, problem: Problem) -> Iterator[str]:
    """A mask, then another, then other lengths: what is kept of a first call may be its mask, or its sizes."""
    config, sizes = problem.config, problem.sizes
    lengths = {"query_len": sizes.query_len, "key_len": sizes.key_len}
    lower = np.tri(sizes.query_len, sizes.key_len, dtype=bool)[None, None]
    later = np.arange(sizes.key_len).reshape(1, 1, 1, -1) > 0
    masked: list[Callable[[], Problem]] = [
        lambda: asker.generic(config, seed=1, mask=AttentionMask(allowed=lower), **lengths),
        lambda: asker.generic(config, seed=1, mask=AttentionMask(allowed=later), **lengths),
        lambda: asker.generic(config, seed=1, **lengths),
        lambda: asker.generic(config, seed=1, query_len=sizes.query_len + 1, key_len=sizes.key_len + 2),
    ]
    words = ("a mask", "another mask", "no mask", "greater lengths")
    problems = [_of_the_layer(problem, make()) for make in masked]
    alone = [asker.output(one) for one in problems]
    answers = _in_turn(asker, problems)
    for place, fresh in enumerate(alone[: len(answers) + 1]):
        if not place or fresh is None:
            continue
        what = f"a call with {words[place]} after one with {words[place - 1]}"
        if place == len(answers) == len(problems) - 1:  # a layer that was prepared for some lengths may refuse others
            return
        if place == len(answers):
            yield f"It keeps something from call to call: {what} fails, which it does not in a layer prepared anew."
        elif fresh.shape != answers[place].shape or not _alike(asker, fresh, answers[place]):
            yield f"It keeps something from call to call: {what} has another answer than in a layer prepared anew."
        else:
            continue
        return
