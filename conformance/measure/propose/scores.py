"""Scores: what was done to queries, keys and scores of plain calls, each solved for in calls that tell it.

A key of 0 has the score 0, so that scores show but for what is the same in all of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.measure.asker import Asker
from conformance.measure.designs import NO_BIASES, changed, generic
from conformance.measure.evidence import Evidence
from conformance.measure.faults import bug_of
from conformance.measure.grammar.expressions import Expression
from conformance.measure.grammar.functions import FUNCTIONS
from conformance.measure.grammar.sample import Change, Setting, elementwise
from conformance.measure.places import PLACES, fault
from conformance.measure.propose.steps import Candidate, amounts, at_places, pairs, reordered
from conformance.measure.read.fit import plain_changes
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig
from mha_core.reference.state import State, Step

SHOWN = (7, 6, 9, 8)
"""Queries, or keys, of the layers' calls that show them."""

LENGTHS = ((6, 11), (8, 3), (4, 7), (9, 4))
"""Queries and keys of the layers' calls in which scores are read: of all kinds, few keys and many."""

SIDES = (
    ("q_proj.weight", "query_inputs", "queries"),
    ("k_proj.weight", "key_inputs", "new_keys", "keys", "keys read"),
)


@lru_cache(maxsize=64)
def _shown(config: AttentionConfig, side: int, length: int) -> Problem:
    """So many queries, or keys of which the first is 0, against one more of the other side than it has channels."""
    lengths = (config.head_dim + 1, length) if side else (length, config.head_dim + 1)
    problem = generic(config, query_len=lengths[0], key_len=lengths[1], weights=NO_BIASES)
    return changed(problem, keys=with_zero(problem.inputs.keys)) if side else problem


def with_zero(rows: NDArray, place: int = 0) -> NDArray:
    """Keys (B, L, width) of which one is 0."""
    found = np.array(rows)
    found[:, place] = 0.0
    return found


@lru_cache(maxsize=64)
def _scored(config: AttentionConfig, query_len: int, key_len: int) -> Problem:
    """Random queries, the later ones larger, against random keys, of which the first is 0."""
    plain = generic(config, seed=3, query_len=query_len, key_len=key_len, weights=NO_BIASES)
    sizes = np.geomspace(0.2, 4.0, query_len)[None, :, None]
    return changed(plain, keys=with_zero(plain.inputs.keys), queries=plain.inputs.queries * sizes)


def _calls(asker: Asker) -> list[Problem]:
    return asker.nearest([_scored(config, *lengths) for config, lengths in zip(asker.configs, LENGTHS, strict=False)])


def up_to_scores(evidence: Evidence) -> Iterator[Candidate]:
    """Every change of an array up to the scores that is read off calls without biases and masks."""
    yield from at_places(evidence, evidence.problems, ("scale",))
    sides = []
    for side, ids in enumerate(SIDES):
        calls = zip(evidence.asker.configs, SHOWN, strict=False)
        problems = evidence.asker.nearest([_shown(config, side, length) for config, length in calls])
        sides.append(list(at_places(evidence, problems, ids)))
        yield from sides[-1]
    yield from pairs(*sides)
    yield from at_places(evidence, _calls(evidence.asker), ("similarity", "capped", "scores", "unscaled"))
    if not evidence.explained:  # a key of 0 tells nothing of what has no value there, such as keys over their size
        yield from (
            fault(PLACES[id], change) for id in ("keys", "new_keys") for change in plain_changes(PLACES[id].axes)
        )


# The additive score -------------------------------------------------------------------------------------------

INSIDE = PLACES["additive inside"]
PARAMETERS = ("score.query.weight", "score.key.weight", "score.vector")


def of_additive(evidence: Evidence) -> Iterator[Candidate]:
    """Another function in place of the tanh, a number inside it, and changes of the parameters."""
    yield from _other_functions()
    yield from amounts(evidence, lambda number: fault(INSIDE, _times(number)))
    yield from amounts(evidence, lambda number: fault(INSIDE, _plus(number)))
    yield from at_places(evidence, evidence.problems, PARAMETERS)
    yield from reordered(PARAMETERS)
    yield from (fault(PLACES[name], TRANSPOSED) for name in PARAMETERS[:2])
    yield from at_places(evidence, evidence.problems, ("similarity", "queries", "keys"))


TRANSPOSED = elementwise(
    "transposed-where-square", "transposed where they are square", lambda x: x.T if x.shape[0] == x.shape[-1] else x
)


def _times(number: Expression) -> Change:
    return Change(f"times-{number.slug}", f"times {number.words}", lambda x, axes, setting: x * number.at(setting))


def _plus(number: Expression) -> Change:
    return Change(f"plus-{number.slug}", f"plus {number.words}", lambda x, axes, setting: x + number.at(setting))


def _other_functions() -> Iterator[Bug]:
    for name, (words, function) in {"none": ("as they are", lambda x: x), **FUNCTIONS}.items():
        words = f"The hidden units of the additive score are A q + C k {words}, in place of their tanh."
        yield bug_of(f"additive-{name}", words, INSIDE.fix, "additive_hidden", partial(_hidden, function))


def _hidden(function: Callable[[NDArray], NDArray], state: State, beneath: Step) -> NDArray | None:
    inside = INSIDE.get(state, beneath)
    if inside is None:
        return None
    return np.asarray(elementwise("", "", function).apply(inside, INSIDE.axes, Setting.of(state)))


# A mask's bias, and the softcap -------------------------------------------------------------------------------


def of_softcap(evidence: Evidence) -> Iterator[Candidate]:
    """Another number in place of the softcap c, and another function in place of tanh in c * tanh(score / c)."""
    yield from at_places(evidence, evidence.problems, ("softcap", "scale"))
    anchored = [changed(one, NO_BIASES, keys=with_zero(one.inputs.keys)) for one in evidence.problems]
    calls = evidence.asker.nearest(anchored)
    yield from _of_fraction(evidence, calls)
    yield from at_places(evidence, calls, ("capped",))
    # What is the same for all keys of a row shows with a softcap alone.
    yield from at_places(evidence, evidence.problems, ("keys",))


def _of_fraction(evidence: Evidence, calls: Sequence[Problem]) -> Iterator[Bug]:
    """Functions of the score over the softcap: that of key 0, whose score is 0, is 0."""
    place = PLACES["fraction"]
    yield from at_places(evidence, calls, ("fraction",))
    for name, (words, function) in SOFTCAPS.items():
        yield fault(place, elementwise(f"by-{name}", words, function))


SOFTCAPS = {
    **{name: (words, function) for name, (words, function) in FUNCTIONS.items()},
    "clip": ("clipped at +-1", lambda x: np.clip(x, -1.0, 1.0)),
    "identity": ("as they are", lambda x: x),
    "arctan-to-1": ("through 2 / pi * arctan(x)", lambda x: np.arctan(x) * 2.0 / np.pi),
    "tanh-twice": ("through tanh twice", lambda x: np.tanh(np.tanh(x))),
    "tanh-of-positive": ("through tanh where positive", lambda x: np.where(x > 0.0, np.tanh(x), x)),
    "root": ("through x / sqrt(1 + x^2)", lambda x: x / np.sqrt(1.0 + x * x)),
}
"""What may stand in place of the tanh, of score / c."""
