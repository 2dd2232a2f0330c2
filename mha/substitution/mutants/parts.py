"""The parts of a module as they run in float64 on what the port's was given, and the residual sums between them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.calls import holds
from mha.substitution.original import GAVE, PASSED, OriginalCall
from mha.substitution.substitute import Substitution
from mha_core import SpecError

MOST_PARTS = 48
"""Calls of parts beyond which a module is no block, but a model of many: its blocks are looked at by themselves."""

SAMPLE = 64
"""Numbers of two arrays that are compared first."""


@dataclass(frozen=True, eq=False)
class PartCall:
    """A call of a submodule (called part). `given`: its floating-point inputs by key path. `gave`: its outputs.

    Attributes:
        call: the same call in the original model's own run.
        module, turn: position of the part, and the number of its earlier calls.
        name, kind: name and class of the part.
        top: position of the outermost part's call in which this call was made, or of this call if there is none.
    """

    call: OriginalCall
    module: int
    turn: int
    name: str
    kind: str
    top: int
    given: Mapping[Place, NDArray]
    gave: Mapping[Place, NDArray]

    @property
    def is_norm(self) -> bool:
        """Return whether the part is a norm, with one input and one output of the same shape."""
        one = len(self.given) == len(self.gave) == 1
        return one and "norm" in self.kind.rpartition(".")[2].lower() and self.x.shape == self.y.shape

    @property
    def x(self) -> NDArray:
        """Return the first array that the part was given."""
        return next(iter(self.given.values()))

    @property
    def y(self) -> NDArray:
        """Return the first array that the part gave."""
        return next(iter(self.gave.values()))


@dataclass(frozen=True, eq=False)
class Sum:
    """A residual sum r + p, where r is the residual, and p the output of a submodule (called part).

    Attributes:
        part: the part's call, whose output is p.
        before: the calls of norms whose input is r.
        after: the calls of norms whose output is r.
        norms: the calls of norms whose input is the sum.
    """

    r: NDArray
    part: PartCall
    before: Sequence[PartCall]
    after: Sequence[PartCall]
    norms: Sequence[PartCall]


class Inside:
    """A tool that runs one module of the original, and can replace outputs of its submodules (called parts).

    `ready`: a judged call of this module.
    """

    def __init__(self, ready: Substitution) -> None:
        self.ready, self.original = ready, ready.original

    @cached_property
    def parts(self) -> list[PartCall]:
        """Return the calls of the submodules (parts), when the original's module runs on the inputs of the port's.

        Return [] if the module can't be run, or if the number of these calls is below 2 or above MOST_PARTS.
        """
        try:
            return list(self._parts(self.ready.given))
        except SpecError:
            return []

    @cached_property
    def norms(self) -> list[PartCall]:
        """Return the calls of parts that are norms, in order."""
        return [part for part in self.parts if part.is_norm]

    @cached_property
    def sums(self) -> list[Sum]:
        """Return the module's residual sums r + p. p is a part's output; r + p is a part's input or module output.

        They are searched for in a run on changed inputs, because r may be zero for the recorded inputs.
        """
        rng = np.random.default_rng(0)
        masks = self.ready.mask_places
        moved = {
            place: array + (array.std() or 1.0) * rng.normal(size=array.shape)
            if array.dtype.kind == "f" and place not in masks
            else array
            for place, array in self.ready.given.items()
        }
        others = list(self._parts(moved)) if self.parts else []
        if len(others) != len(self.parts):
            return []
        outputs = self.original.run(self.ready.call, [moved], "float64")[0].values() if self.parts else ()
        return list(self._sums(others, moved, outputs))

    def _sums(
        self, others: Sequence[PartCall], moved: Mapping[Place, NDArray], outputs: Iterable[NDArray]
    ) -> Iterator[Sum]:
        """The sums, by what the parts are given and give on other inputs."""
        here = dict(zip(others, self.parts, strict=True))
        arrays = [(one, here[part].given[place]) for part in others for place, one in part.given.items()]
        arrays += [(one, here[part].gave[place]) for part in others for place, one in part.gave.items()]
        arrays += [(one, self.ready.given[place]) for place, one in moved.items() if one.dtype.kind == "f"]
        arrays = list({(one.shape, one.tobytes()): (one, own) for one, own in reversed(arrays)}.values())
        totals = [*(one for part in others for one in part.given.values()), *outputs]
        totals = list({(one.shape, one.tobytes()): one for one in totals}.values())
        norms = [part for part in others if here[part].is_norm]
        for part in others:
            for total in totals if part.gave else ():
                rest = total - part.y if total.shape == part.y.shape else None
                found = next((own for one, own in arrays if rest is not None and _near(one, rest, total)), None)
                if rest is None or found is None:
                    continue
                yield Sum(
                    found,
                    here[part],
                    [here[one] for one in norms if one is not part and _near(one.x, rest, total)],
                    [here[one] for one in norms if one is not part and _near(one.y, rest, total)],
                    [here[one] for one in norms if _near(one.x, total, total)],
                )

    def exact_with(self, instead: Mapping[PartCall, NDArray]) -> dict[Place, NDArray]:
        """Return key path -> float64 output of the module, if the calls in `instead` return the arrays given there."""
        return self._run(instead, tell=False)

    def given_with(self, instead: Mapping[PartCall, NDArray], part: PartCall) -> NDArray:
        """Return the first input of `part`, if the calls in `instead` return the arrays given there."""
        found = self._run({**instead, part: part.y}, tell=True)
        return next(array for place, array in found.items() if place[:3] == (PASSED, str(part.module), str(part.turn)))

    def alone(self, part: PartCall, x: NDArray) -> NDArray:
        """Return the first output of `part` if its first input is `x`."""
        found = self.original.run(part.call, [{**part.given, next(iter(part.given)): x}], "float64")[0]
        return found[next(iter(part.gave))]

    def _parts(self, inputs: Mapping[Place, NDArray]) -> Iterator[PartCall]:
        own, calls = self.original, self.original.calls
        (position,) = (number for number, call in enumerate(calls) if call is self.ready.call)
        inside = [number for number in range(position + 1, len(calls)) if holds(calls, position, number)]
        if not 1 < len(inside) <= MOST_PARTS:
            return
        modules: dict[int, list[dict[Place, NDArray]]] = {calls[number].module: [] for number in inside}
        told = own.run(self.ready.call, [inputs], "float64", modules, tell=True)[0]
        turns: Counter[int] = Counter()
        for number in inside:
            call, module, top = calls[number], calls[number].module, number
            turn, turns[module] = turns[module], turns[module] + 1
            while (outer := calls[top].within) is not None and outer != position:
                top = outer
            given, gave = (
                {
                    place[3:]: array.astype(np.float64)
                    for place, array in told.items()
                    if place[:3] == (start, str(module), str(turn)) and array.dtype.kind == "f"
                }
                for start in (PASSED, GAVE)
            )
            held = own.modules[module]
            yield PartCall(call, module, turn, held.name, held.kind, top, given, gave)

    def _run(self, instead: Mapping[PartCall, NDArray], *, tell: bool) -> dict[Place, NDArray]:
        replace: dict[int, list[dict[Place, NDArray]]] = {}
        for part, array in instead.items():
            turns = replace.setdefault(part.module, [])
            turns += [{} for _ in range(part.turn + 1 - len(turns))]
            turns[part.turn] = {next(iter(part.gave)): array}
        found: list[Any] = self.original.run(self.ready.call, [self.ready.given], "float64", replace, tell=tell)
        return dict(found[0])


def _near(one: NDArray, other: NDArray, size: NDArray) -> bool:
    """Whether two arrays are the same, but for rounding or what computes in float32 whatever it is asked for."""
    if one.shape != other.shape:
        return False
    few = slice(None, None, max(1, one.size // SAMPLE))
    allowed = 1e-6 * float(np.abs(size).max(initial=0.0))
    return bool(
        (np.abs(one.reshape(-1)[few] - other.reshape(-1)[few]) <= allowed).all()
        and (np.abs(one - other) <= allowed).all()
    )
