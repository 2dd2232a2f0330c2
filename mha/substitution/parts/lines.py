"""Finds the module without an original that holds a wrong line of the module around it."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.recording import ArrayAt, ModuleRecording
from mha.recordings.modules.values import Place
from mha.substitution.calls import CallJudgement, holds

GIVES = " gives to "
"""The words in a place before the name of a part."""


MODES = ("training", "train", "is_training", "deterministic")
"""Names of arguments that say whether a model is trained."""


class Lines:
    """A search for the submodules that made the wrong arrays in one call of a port's module.

    Args:
        recording: the port's recording.
        call: position of the call.
        judged: the comparison with a run of the original, in which some submodules returned the port's outputs.
        parts: positions of these submodules.
        unjudged: positions of submodules without a verdict. Their code counts as the called module's own.
    """

    def __init__(
        self, recording: ModuleRecording, call: int, judged: CallJudgement, parts: set[int], unjudged: set[int]
    ) -> None:
        self.recording, self.call, self.judged, self.parts, self.unjudged = recording, call, judged, parts, unjudged
        calls = range(call + 1, len(recording.calls))
        self.inside = [one for one in calls if holds(recording.calls, call, one)]

    def makers(self) -> set[int] | None:
        """Return the modules in `unjudged` that make the wrong arrays; None if the maker of one array is unknown.

        A module makes the arrays that it returns, and those that it passes to a submodule but did not get itself.
        A module counts only if all its input arrays are right. It must not get a number or bool, because its caller may
        have chosen it wrongly. Arguments named in MODES, such as `training`, are allowed.
        """
        found = {self._maker(place) for place, one in self.judged.arrays.items() if not one.equal}
        return None if None in found else {one for one in found if one is not None}

    def are_right_in(self, module: int) -> bool:
        """Return whether every floating-point output of a module is known to be right."""
        gave = [
            self.recording.array(at)
            for number in self.inside
            if self.recording.calls[number].module == module
            for at in self.recording.calls[number].gave or ()
            if at.floating
        ]
        return bool(gave) and all(any(_same(one, other) for other in self._right) for one in gave)

    def _maker(self, place: Place) -> int | None:
        consumer, array = self._wrong(place)
        if array is None:
            return None
        for number in reversed(self.inside):
            call = self.recording.calls[number]
            if call.module not in self.unjudged:
                continue
            given = [self.recording.array(at) for at in call.given]
            if consumer is not None and holds(self.recording.calls, number, consumer):
                makes = not any(_same(array, one) for one in given)
            else:
                gave = [self.recording.array(at) for at in call.gave or ()]
                makes = number < (consumer or len(self.recording.calls)) and any(_same(array, one) for one in gave)
            told = [place for place, value in call.plain.items() if isinstance(value, (bool, int, float))]
            if any(place[-1] not in MODES for place in told):
                continue  # the caller may have chosen a wrong one
            if makes and all(any(_same(one, other) for other in self._right) for one in given):
                return call.module
        return None

    def _wrong(self, place: Place) -> tuple[int | None, NDArray | None]:
        """The call that is given the array at a place, or None, and the array; None where it is not known."""
        what, among = place[:1], place[1:]
        if not what or GIVES not in what[0]:
            return None, self._array(self.recording.calls[self.call].gave or (), place)
        name = what[0].partition(GIVES)[2]
        calls = [one for one in self.inside if self.recording.modules[self.recording.calls[one].module].name == name]
        if len(calls) != 1:
            return None, None
        return calls[0], self._array(self.recording.calls[calls[0]].given, among)

    def _array(self, arrays: tuple[ArrayAt, ...], place: Place) -> NDArray | None:
        return next((self.recording.array(at) for at in arrays if at.place == place), None)

    @cached_property
    def _right(self) -> list[NDArray]:
        """What the call was given, what its parts gave, and what it gives them that was judged and is right."""
        return list(self._each_right())

    def _each_right(self) -> Iterator[NDArray]:
        calls = self.recording.calls
        yield from (self.recording.array(at) for at in calls[self.call].given)
        for number in self.inside:
            if calls[number].module not in self.parts:
                continue
            yield from (self.recording.array(at) for at in calls[number].gave or ())
            name = self.recording.modules[calls[number].module].name
            for at in calls[number].given:
                found = self.judged.arrays.get((f"what it{GIVES}{name}", *at.place))
                if found is not None and found.equal:
                    yield self.recording.array(at)


def _same(one: NDArray, other: NDArray) -> bool:
    """Whether two arrays hold the same numbers in their order, whatever the shape."""
    return one.size == other.size and one.dtype.kind == other.dtype.kind and np.array_equal(one.ravel(), other.ravel())
