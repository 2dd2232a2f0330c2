"""The cache of a decoder's attention: the original's module runs with the keys and values that the port's had.

A wrong key stays in the cache: every later call of a right layer gives other numbers than its original's. So the layer
is judged with what it found in its cache, and by what it leaves there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from mha.recordings.modules.recording import ModuleRecording
from mha.recordings.modules.values import leaves
from mha.substitution.allowance import Judged, Runs
from mha.substitution.original import Original
from mha.substitution.pairing.pairs import Pairs
from mha.substitution.substitute import Substitution
from mha_core import SpecError

Calls = Sequence[tuple[int, int]]
"""Positions of calls of the original, each with the port's."""

KINDS = ("keys", "values")
WRITES = "what it leaves in its cache"


class Caches:
    """A tool that copies the port's cached keys and values into the original's caches, and compares both caches.

    Args:
        own, recording: the original, and the port's recording with its attention layers.
        pairs: which modules of the original and the port belong together.
        paired_calls: a function that pairs the calls of two such modules; see `Parts.paired_calls`.
    """

    def __init__(
        self,
        own: Original,
        recording: ModuleRecording,
        pairs: Pairs,
        paired_calls: Callable[[int, int, int, int], Calls],
    ) -> None:
        self._own, self._recording, self._pairs, self._paired_calls = own, recording, pairs, paired_calls
        self._found: dict[int, tuple[NDArray, ...] | None] = {}
        self._first: dict[tuple[int, int], tuple[NDArray, ...]] = {}

    def take(self, calls: Calls) -> None:
        """Copy the port's cached keys and values into the original's. `calls`: (original's, port's) call positions."""
        for mine, theirs in calls:
            cache = _cache_in(self._own.calls[mine].arguments)
            if cache is None:
                continue
            for original, port in self._pairs.found.items():
                place = getattr(self._own.modules[original].held, "layer_idx", None)
                layer = _layer_of(cache, place)
                inside = self._paired_calls(original, port, mine, theirs) if layer is not None else ()
                found = self._past(inside[0][1]) if inside else None
                held = _arrays(layer)
                if found is None or held is None or [one.shape for one in found] != [one.shape for one in held]:
                    continue
                self._first.setdefault((mine, original), held)
                for kind, array in zip(KINDS, found, strict=True):
                    setattr(layer, kind, getattr(layer, kind).new_tensor(array))

    def written(self, original: int, calls: Calls, ready: Sequence[Substitution]) -> Iterator[tuple[int, str, Judged]]:
        """Yield (call number, "keys" or "values", comparison) of a layer's cache after each call but the last.

        The port's cache is read from the inputs of the next call. `original`: position of the layer in the original.
        """
        place = getattr(self._own.modules[original].held, "layer_idx", None)
        for number, (after, one) in enumerate(zip(calls[1:], ready, strict=False)):
            left = self._past(after[1])
            if left is None or _cache_in(one.call.arguments) is None:
                continue
            try:
                exact, moved, narrow = (
                    self._left_by(one, given, dtype, place)
                    for given, dtype in (
                        (one.given, "float64"),
                        (one.moved(one.given), "float64"),
                        (one.given, one.dtype),
                    )
                )
            except SpecError:
                continue
            for at, kind in enumerate(KINDS):
                arrays = [each[at] for each in (exact, moved, narrow) if each is not None]
                if len(arrays) < 3 or any(array.shape != left[at].shape for array in arrays):
                    continue
                runs = Runs({(kind,): arrays[0]}, [{(kind,): array} for array in arrays[1:]], {}, one.dtype)
                yield number, kind, runs.judge(left[at], (kind,))

    def differs(self, original: int, calls: Calls) -> str:
        """Return a sentence on the first number in the port's cache that differs from the original's; "" if none does.

        The sentence names the call of the layer that wrote the number.
        """
        lengths = [_length(self._past(theirs)) for _, theirs in calls]
        for mine, theirs in calls:
            first, found = self._first.get((mine, original)), self._past(theirs)
            if first is None or found is None:
                continue
            for kind, own, port in zip(KINDS, first, found, strict=True):
                with np.errstate(invalid="ignore"):
                    apart = np.abs(port - own) > UNIT_ROUNDOFF[self._recording.dtype] ** 0.5 * np.abs(own).max()
                if apart.any():
                    key = int(np.argwhere(apart.any(axis=(0, 1, 3)))[0, 0])
                    made = sum(length <= key for length in lengths)
                    at = [int(one) for one in np.argwhere(apart)[np.argwhere(apart)[:, 2] == key][0]]
                    return (
                        f"its cache differs, made in call {made}: {kind}{at} is {port[tuple(at)]:.6g}, the original's "
                        f"{own[tuple(at)]:.6g}; it is judged with its own"
                    )
        return ""

    def _past(self, call: int) -> tuple[NDArray, ...] | None:
        if call not in self._found:
            problem = self._recording.problem_of(self._recording.calls[call])
            past = () if problem is None else (problem.inputs.past_keys, problem.inputs.past_values)
            found = tuple(array for array in past if array is not None)
            self._found[call] = found if len(found) == len(KINDS) else None
        return self._found[call]

    def _left_by(self, one: Substitution, given: Any, dtype: str, place: Any) -> tuple[NDArray, ...] | None:
        self._own.run(one.call, [given], dtype)
        return _arrays(_layer_of(_cache_in(self._own.ran_with), place))


def _cache_in(arguments: Any) -> Any:
    """The cache of transformers among the arguments of a call; None if there is none."""
    return next((leaf for _, leaf in leaves(arguments) if isinstance(getattr(leaf, "layers", None), list)), None)


def _layer_of(cache: Any, place: Any) -> Any:
    """The layer of a cache; None if it has none there."""
    layers = [] if cache is None else cache.layers
    return layers[place] if isinstance(place, int) and place < len(layers) else None


def _arrays(layer: Any) -> tuple[NDArray, ...] | None:
    """The keys and values of a layer of a cache in NumPy; None for an empty one."""
    found = [getattr(layer, kind, None) for kind in KINDS]
    if any(one is None or not hasattr(one, "new_tensor") or not one.numel() for one in found):
        return None
    return tuple(np.array(one.detach().double().cpu().numpy()) for one in found if one is not None)


def _length(past: tuple[NDArray, ...] | None) -> int:
    return 0 if past is None else past[0].shape[2]
