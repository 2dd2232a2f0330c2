"""The backward pass of one call of a port's module, judged: its original's module runs backward on the same.

What came back to what the port's module gave goes back through the original's in float64, so errors of what stands
behind the module are in both and cancel.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.recording import ModuleRecording
from mha.recordings.modules.values import Place
from mha.substitution.allowance import Judged, judge
from mha.substitution.matching import laid_out, match
from mha.substitution.original import Original
from mha.substitution.reports.report import Backward
from mha.substitution.substitute import Substitution
from mha_core import SpecError
from mha_core.capture import Pulled
from mha_core.dtypes import round_to

SOUGHT = 1 << 22
"""Most numbers of parameters that are searched for each other, where a port packs them otherwise."""


@dataclass
class BackwardJudgement:
    """A comparison of a call's gradients. `arrays`: gradient -> comparison; `left`: which were left out, and why."""

    arrays: dict[str, Judged] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)

    @property
    def worst(self) -> tuple[str, Judged]:
        """Return (name of the gradient with the largest error, comparison of this gradient)."""
        return max(self.arrays.items(), key=lambda item: item[1].ratio)


def judge_backward(ready: Substitution) -> BackwardJudgement:
    """Return a comparison of one call's gradients with respect to the module's inputs and parameters.

    The original's module runs backward from the gradients that were recorded for the port's outputs.

    Args:
        ready: a call of the port's module with the original's call; `ready.judge()` must have run.

    Raises:
        SpecError: no gradients of the outputs were recorded; one of the two modules can't run backward; outputs at
            padding differ; or no gradient can be compared.
    """
    if not ready.recorded.cotangents:
        raise SpecError("no gradient came back to it")
    if ready.recorded.gradients is None:
        raise SpecError(ready.recorded.unpulled)
    if ready.left_out:
        raise SpecError("rows of padding differ in what it gives, and gradients are sums over all rows")
    return _Backward(ready).judgement()


def judged_backward(
    own: Original, recording: ModuleRecording, calls: Sequence[tuple[int, int]], *, parts_right: bool
) -> Backward:
    """Return a Backward: a verdict on the gradients of a port's module in all its calls.

    Args:
        own, recording: the original model, and the port's recording.
        calls: (position of the original's call, position of the port's) for each call of the module.
        parts_right: whether the gradients of all submodules are right, so that an error is the module's own.
    """
    found = []
    reasons = []
    for mine, theirs in calls:
        try:
            ready = Substitution(own, recording, own.calls[mine], recording.calls[theirs])
            ready.judge()  # reads its masks, and runs it forward
            found.append(judge_backward(ready))
        except SpecError as error:
            reasons.append(str(error))
    if not found:
        return Backward("not judged", reason="; ".join(dict.fromkeys(reasons)))
    place, worst = max((one.worst for one in found), key=lambda item: item[1].ratio)
    return Backward(
        "equal" if worst.equal else "wrong" if parts_right else "through its parts",
        worst.ratio,
        place,
        worst.worst,
        worst.got,
        worst.expected,
        "; ".join(dict.fromkeys(reasons)),
        sum(len(one.arrays) for one in found),
        tuple(dict.fromkeys(name for one in found for name in one.left)),
    )


class _Backward:
    def __init__(self, ready: Substitution) -> None:
        self.ready, self.recording, self.recorded, self.dtype = ready, ready.recording, ready.recorded, ready.dtype
        self.found = BackwardJudgement()
        cotangents = self._cotangents()
        self.exact = ready.pull(ready.given, cotangents, "float64")
        moved = ready.pull(ready.moved(ready.given), ready.moved(cotangents), "float64")
        own = ready.pull(ready.given, cotangents, self.dtype)
        self.roundings: list[Pulled] = [own, moved]
        turned = ready.turned()
        if turned is not None and all(array.ndim > 1 for array in cotangents.values()):
            back = {place: np.roll(array, 1, axis=0) for place, array in cotangents.items()}
            try:
                other = ready.pull(turned, back, self.dtype)
            except SpecError:  # a module that takes no other order
                return
            self.roundings.append(other._replace(inputs=ready.put_back(other.inputs)))

    def judgement(self) -> BackwardJudgement:
        self._judge_inputs()
        self._judge_parameters()
        if not self.found.arrays:
            raise SpecError("none of its gradients can be compared: " + "; ".join(self.found.left))
        return self.found

    def _cotangents(self) -> dict[Place, NDArray]:
        """What came back, at the places of what the original's module gives."""
        own = self.ready.exact
        gave = {at.place: at for at in self.recorded.gave or ()}
        matched = match(own, {place: self.recording.array(at) for place, at in gave.items() if at.floating})
        first = {one.port: one for one in reversed(matched)}
        found = {}
        for at in self.recorded.cotangents:
            array = self.recording.array(at)
            if at.place in first:
                one = first[at.place]
                found[one.original] = laid_out(one, own[one.original], array)
            elif array.any():
                raise SpecError(
                    f"a gradient came back to {_named(at.place)}, which the original's module does not give"
                )
        return found

    def _compare(self, name: str, got: NDArray, exact: NDArray, roundings: list[NDArray]) -> None:
        judged = judge(got, exact, roundings, self.dtype)
        if judged.error == 0.0 and not exact.any():
            return  # both are zero everywhere: nothing was seen
        if judged.blurred(self.dtype) and exact.any():
            self.found.left.append(f"{name}, which rounding alone moves by {judged.moved}")
        else:
            self.found.arrays[name] = judged

    def _judge_inputs(self) -> None:
        """Compare the gradients of inputs; those of one array that is given at several places are added up."""
        given = {at.place: at for at in self.recorded.given}
        gradients = {at.place: self.recording.array(at).astype(np.float64) for at in self.recorded.gradients or ()}
        groups: dict[str, dict[Place, NDArray]] = defaultdict(dict)
        originals: dict[str, list[Place]] = defaultdict(list)
        for one in self.ready.matched:
            if (
                one.port in gradients
                and one.original in self.exact.inputs
                and one.original not in self.ready.mask_places
            ):
                name = given[one.port].name
                originals[name].append(one.original)
                own = self.ready.given[one.original]
                same = [place for place in gradients if given[place].name == name]
                groups[name] = {place: laid_out(one, own, gradients[place]) for place in same}
        for name, places in originals.items():
            shape = self.exact.inputs[places[0]].shape
            if any(self.exact.inputs[place].shape != shape for place in places):
                self.found.left.append(f"{_named(places[0])}, which is given in several shapes")
                continue
            got = sum(groups[name].values(), np.zeros(shape))
            exact, *rest = (
                sum((one.inputs[place] for place in places), np.zeros(shape))
                for one in (self.exact, *self.roundings)
                if all(place in one.inputs for place in places)
            )
            self._compare(f"the gradient of {_named(next(iter(groups[name])))}", got, exact, rest)
        compared = {place for group in groups.values() for place in group}
        self.found.left += [f"the gradient of {_named(place)}" for place in gradients if place not in compared]

    def _judge_parameters(self) -> None:
        """Compare the gradients of parameters, in the port's layout of each."""
        module = self.recording.modules[self.recorded.module]
        values = {name: self.recording.numbers(array) for name, array in module.values.items()}
        own = {name: round_to(array, self.dtype) for name, array in self.ready.parameters().items()}
        trained = self.exact.parameters
        gradients = {at.place[0]: self.recording.array(at) for at in self.recorded.parameter_gradients or ()}
        places = _places(values, own)
        for name, value in values.items():
            where = places.get(name)
            if where is None:
                self.found.left.append(f"the gradient of {name}, whose place among the original's is not known")
                continue
            if not all(one in trained for one, _ in where):
                continue  # frozen in the original
            got = gradients.get(name, np.zeros_like(value))
            exact, *rest = (_laid(one.parameters, where, value.shape) for one in (self.exact, *self.roundings))
            frozen = "" if name in gradients else " (frozen in the port)"
            self._compare(f"the gradient of {name}{frozen}", got, exact, rest)


Where = list[tuple[str, NDArray]]
"""Of a port's parameter: name of an original's, and for each number of the port's the position in it; -1: not in it."""


def _laid(gradients: Mapping[str, NDArray], where: Where, shape: tuple[int, ...]) -> NDArray:
    """The original's gradients in the layout of a port's parameter."""
    found = np.zeros(int(np.prod(shape)))
    for name, positions in where:
        inside = positions >= 0
        found[inside] = np.asarray(gradients[name], np.float64).reshape(-1)[positions[inside]]
    return found.reshape(shape)


def _places(values: Mapping[str, NDArray], own: Mapping[str, NDArray]) -> dict[str, Where]:
    """Where the numbers of a port's parameters stand in the original's; a parameter is left out if that is not sure."""
    found: dict[str, Where] = {}
    taken: set[str] = set()
    for name, value in values.items():
        fitting = [
            (other, positions)
            for other, array in own.items()
            if other not in taken and (positions := _same(value, array)) is not None
        ]
        same = [one for one in fitting if one[0].rpartition(".")[2] == name.replace("/", ".").rpartition(".")[2]]
        chosen = fitting if len(fitting) == 1 else same if len(same) == 1 else []
        # Numbers that are all the same, such as a norm's, may be another parameter's too.
        if chosen or (fitting and value.size > 1 and np.ptp(value) > 0):
            found[name] = [(chosen or fitting)[0]]
            taken.add(found[name][0][0])
    left = {name: array for name, array in own.items() if name not in taken}
    if sum(array.size for array in left.values()) <= SOUGHT:
        found |= {
            name: where for name, value in values.items() if name not in found and (where := _sought(value, left))
        }
    return found


def _same(value: NDArray, own: NDArray) -> NDArray | None:
    """For each number of the port's array its position in the original's, of the same or the opposite order of axes."""
    order = np.arange(own.size).reshape(own.shape)
    for positions, array in ((order, own), (order.T, own.T)):
        fits = array.shape == value.shape or (array.size == value.size and value.ndim != own.ndim)
        if fits and np.array_equal(array.reshape(-1), value.reshape(-1)):
            return positions.reshape(-1)
    return None


def _sought(value: NDArray, own: Mapping[str, NDArray]) -> Where | None:
    """Each number of a port's array sought in the original's; None unless each stands once in them."""
    names = list(own)
    if not names:
        return None
    flat = np.concatenate([own[name].reshape(-1) for name in names]).astype(np.float64)
    theirs = value.reshape(-1).astype(np.float64)
    order = np.argsort(flat, kind="stable")
    low = np.searchsorted(flat[order], theirs, "left")
    high = np.searchsorted(flat[order], theirs, "right")
    if not (high - low == 1).all() or len(np.unique(low)) != len(low):
        return None
    return list(_split(order[low], names, [own[name].size for name in names]))


def _split(positions: NDArray, names: list[str], sizes: list[int]) -> Iterator[tuple[str, NDArray]]:
    start = 0
    for name, size in zip(names, sizes, strict=True):
        inside = (positions >= start) & (positions < start + size)
        if inside.any():
            yield name, np.where(inside, positions - start, -1)
        start += size


def _named(place: Place) -> str:
    return ".".join(place) or "what it gives"
