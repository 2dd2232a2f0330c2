"""Relation: one row of the table; Known: what was found of a model, which decides what applies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.invariance.allowance import Allowance, apart
from mha.invariance.caches import Cache
from mha.invariance.given import Given
from mha.invariance.live import Live
from mha.invariance.masks import Mask
from mha.invariance.trial import Answer, CantBeAsked, Size, Template, Trial


@dataclass(frozen=True)
class Known:
    """A collection of facts about a model.

    Attributes:
        live, template: the model, and how it is called.
        masks: the model's mask arguments.
        causal: whether the model is causal without a mask or an argument that says so.
        flag: the name of the argument that makes a call causal; None if there is none.
        cache: how the model decodes step by step; or, in words, why that is not known.
        pad: the token id to use in padding; None means any id.
        random: whether two equal calls give different outputs.
        kept: a cache of the outputs of calls that several relations make.
    """

    live: Live
    template: Template
    masks: tuple[Mask, ...] = ()
    causal: bool = False
    flag: str | None = None
    cache: Cache | str = ""
    pad: int | None = None
    random: bool = False
    kept: dict[Any, Answer] = field(default_factory=dict)

    @property
    def padding(self) -> Mask | None:
        """Return the mask argument that hides padding."""
        return next((one for one in self.masks if one.per_item), None)

    @property
    def square(self) -> Mask | None:
        """Return the mask argument that can differ between queries; None if there is none."""
        return next((one for one in self.masks if one.per_query), None)

    @property
    def can_be_causal(self) -> bool:
        """Return whether some call of the model is causal."""
        return self.causal or self.flag is not None or self.square is not None

    def causally(self, batch: int, start: int, stop: int) -> Mapping[str, Any]:
        """Return arguments that make a call on positions [start:stop] causal, if the cache holds positions [:start]."""
        if self.causal or (start and stop - start == 1):
            return {}
        if self.flag is not None:
            return {self.flag: True}
        assert self.square is not None
        allowed = np.broadcast_to(np.tri(stop - start, stop, start, dtype=bool), (batch, stop - start, stop))
        return {self.square.name: self.square.of(allowed)}


@dataclass(frozen=True)
class Pair:
    """A pair of arrays that should be equal at the positions where `counted`, bool (batch, length), is True.

    `counted=None` means that they should be equal at every position.
    """

    first: Given
    second: Given
    counted: NDArray | None = None

    def numbers(self, axes: tuple[int, int]) -> tuple[NDArray, NDArray]:
        """Return both arrays, with 0 where `counted` is False; `axes` are the batch and the length axis."""
        first, second = self.first.array, self.second.array
        if self.counted is None:
            return first, second
        batch, length = axes
        shape = [1] * first.ndim
        shape[batch], shape[length] = self.counted.shape
        counted = (self.counted if batch < length else self.counted.T).reshape(shape)
        return np.where(counted, first, 0.0), np.where(counted, second, 0.0)


_SOME = Allowance("float64", 1.0)
"""Whatever is allowed, it is in proportion to the largest number."""


def worst(trial: Trial, known: Known, *ways: Callable[[], Pair]) -> Pair:
    """Call the functions `ways`, which test one relation, and return the Pair with the largest difference.

    An exception in the first function is raised. Any other function that raises is left out.
    """
    pairs: list[tuple[float, Pair]] = []
    for way in ways:
        asked = list(trial.lines)
        try:
            pair = way()
            check_same_shape(pair)
        except Exception:  # whatever the model raises, to another mask, say
            if not pairs:
                raise
            trial.lines[:] = asked
        else:
            pairs.append((apart(*pair.numbers(known.template.axes), _SOME).ratio, pair))
    return max(pairs, key=lambda one: one[0])[1]


@dataclass(frozen=True)
class Relation:
    """A relation that models are tested for: two calls that should give the same numbers.

    Attributes:
        id, group: the relation's name, and the name of its group.
        sentence: what should hold.
        ask: a function: (trial, known) -> the Pair of arrays that should be equal; it makes the two calls.
        why_not: a function: known -> the reason why the model can't be tested; None if it can.
        chunk: number of positions in each piece, if the relation divides the length into pieces; else 0.
        batch, length: the smallest sizes of inputs with which the relation is tested.
        rounds: whether the two calls round in different ways, such as with a softmax in float32. If so, they are made
            in the model's own dtype.
        brief: whether to test with small inputs, because large inputs would find no further errors.
        odd: whether the number of positions must be odd.
        threads: whether to repeat the test in the caller's thread. The first test runs in another thread.
    """

    id: str
    group: str
    sentence: str
    ask: Callable[[Trial, Known], Pair]
    why_not: Callable[[Known], str | None] = lambda known: None
    chunk: int = 0
    batch: int = 1
    length: int = 2
    rounds: bool = False
    brief: bool = False
    odd: bool = False
    threads: bool = False


def check_same_shape(pair: Pair) -> None:
    """CantBeAsked unless both are of one shape."""
    if pair.first.array.shape != pair.second.array.shape:
        raise CantBeAsked(
            f"the two ways give shapes {pair.first.array.shape} and {pair.second.array.shape}: they can't be compared"
        )


def smallest(relation: Relation, size: Size) -> list[Size]:
    """Return smaller sizes of a relation's inputs, the smallest first, without `size` itself."""
    lengths = [one for one in (2, 3, 4, 5, 7, 10) if relation.length <= one < size.length] + [size.length]
    batches = [one for one in (1, 2) if relation.batch <= one < size.batch] + [size.batch]
    if relation.chunk:
        lengths = [one for one in lengths if one > relation.chunk]
    found = [Size(batch, length, relation.chunk) for length in lengths for batch in batches[:1]]
    found += [Size(batch, size.length, relation.chunk) for batch in batches[1:]]
    return [one for one in found if (one.batch, one.length) != (size.batch, size.length)]
