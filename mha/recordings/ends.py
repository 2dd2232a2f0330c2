"""Ends: outputs of a recorded model, and of its modules that are no attention layers.

Attention layers are judged by themselves. Modules after the last of them, such as a feed-forward layer, a pooler or a
head, show in the model's outputs: `mha where` compares these outputs in two recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from numpy.typing import NDArray

from mha.coverage import kind_of
from mha.projections.layer import ProjectedLayer
from mha.recordings.modules.values import parts_of
from mha_core import SpecError
from mha_core.dtypes import DTYPES, check_dtype, check_held

DEEPEST = 4
"""How deep arrays may stand in what a module gave."""

AsArray = Callable[[Any], tuple[NDArray, str] | None]
"""A function: array -> its NumPy copy and the name of its dtype; None for anything else."""


@dataclass(frozen=True, eq=False)
class RecordedEnd:
    """A record of the outputs of one call of a module, or of the model itself.

    Args:
        name: the module's name in the model; "" for the model itself.
        kind: its class.
        after: the number of attention calls that were recorded before this call ended.
        arrays: key path in the output, such as "last_hidden_state", "0" or "hidden_states.1" -> floating-point array;
            the path is "" if the output is an array.
        dtypes: key path -> name of the array's dtype; bfloat16 numbers are held in float32 arrays.

    Raises:
        SpecError: an array has no dtype, or holds numbers that its dtype lacks.
    """

    name: str
    kind: str
    after: int
    arrays: Mapping[str, NDArray]
    dtypes: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.arrays.keys() != self.dtypes.keys():
            raise SpecError(f"what {self.words} gave must have a dtype for each array. Got {', '.join(self.dtypes)}.")
        for place, array in self.arrays.items():
            check_held(f"{place or 'what'} of {self.words}", array, check_dtype(self.dtypes[place]))

    @property
    def words(self) -> str:
        """Return the name of the module in words."""
        return self.name or "the model"


class Ends:
    """A recorder of the outputs of the model, and of the modules that `also` names.

    Args:
        as_array: the framework's function that turns its arrays into NumPy's.
        also: the names of further modules; wildcards work.
        called: a function that returns how many calls of attention layers were recorded so far.
        strict: whether to raise an error if an array can't be read (sparse, nested, on the meta device).
    """

    open = True
    """Modules inside are chosen as well: see `mha_core.capture.outermost`."""

    def __init__(
        self, as_array: AsArray, also: Sequence[str], called: Callable[[], int], *, strict: bool = True
    ) -> None:
        self._strict = strict
        self.found: list[RecordedEnd] = []
        self.layers: Sequence[ProjectedLayer] = ()
        """The layers that are recorded by their projections: what they give themselves may be something else."""
        self._as_array, self._also, self._called = as_array, also, called
        self._met: set[str] = set()

    def choose(self, name: str, module: Any) -> Ends | None:
        """Return this recorder if the outputs of this module are to be recorded; else None."""
        self._met.update(pattern for pattern in self._also if fnmatchcase(name, pattern))
        return self if self._is_asked(name) or self._is_layer(name) else None

    def besides(self, layers: Collection[str], behind: Collection[str]) -> Iterator[RecordedEnd]:
        """Yield recorded outputs. Those of layers in `layers` are left out, unless the layer is in `behind` too."""
        for end in self.found:
            if end.name in behind or (self._is_asked(end.name) and end.name not in layers):
                yield end

    def _is_asked(self, name: str) -> bool:
        return not name or any(fnmatchcase(name, pattern) for pattern in self._also)

    def _is_layer(self, name: str) -> bool:
        return any(layer.name == name for layer in self.layers)

    def see(self, name: str, module: Any, arguments: Mapping[str, Any], output: Any) -> None:
        """Record the output of one call."""
        try:
            found = dict(arrays_in(output, self._as_array))
        except SpecError:
            if self._strict and not self._is_layer(name):
                raise
            return
        arrays = {place: array for place, (array, _) in found.items()}
        dtypes = {place: dtype for place, (_, dtype) in found.items()}
        self.found.append(RecordedEnd(name, kind_of(module), self._called(), arrays, dtypes))

    def check_met(self) -> None:
        """Raise SpecError if a name in `also` matches no module that was called."""
        for pattern in self._also:
            if pattern not in self._met:
                raise SpecError(f"also names {pattern!r}, and no module that was called has such a name")


def arrays_in(value: Any, as_array: AsArray, depth: int = 0) -> Iterator[tuple[str, tuple[NDArray, str]]]:
    """Yield (key path, (array, dtype)) of each floating-point array in the output of a module."""
    if value is None or isinstance(value, str | bool | int | float) or depth > DEEPEST:
        return
    parts = parts_of(value)
    if parts is None:
        found = as_array(value)
        if found is not None and found[1] in DTYPES:
            yield "", found
        return
    for key, part in parts:
        for place, array in arrays_in(part, as_array, depth + 1):
            yield ".".join(filter(None, (key, place))), array
