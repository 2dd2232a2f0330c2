"""One module of a port judged: its original's module runs on what it was given, and what both give is compared."""

from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from mha.recordings.modules.recording import ArrayAt, ModuleCall, ModuleRecording
from mha.recordings.modules.values import Place
from mha.substitution.allowance import Judged, Runs
from mha.substitution.calls import CallJudgement, Part
from mha.substitution.derived import Known, attention_bound_on, bound_on, numbers_of_module
from mha.substitution.masks import counted_in, translated, uncounted_rows
from mha.substitution.matching import TABLES, Matched, given_apart, match, otherwise
from mha.substitution.original import PASSED, Original, OriginalCall
from mha.substitution.others import (
    exchanged_in,
    other_indices,
    other_integers,
    other_masks,
    other_terms,
    padding_inside,
)
from mha_core import SpecError
from mha_core.capture import Pulled


class Substitution:
    """A call of a port's module and its original's call, ready to run the original's module on the port's inputs.

    Args:
        original, recording: the original model, and the port's recording.
        call, recorded: the original's call, and the port's.

    Raises:
        SpecError: no input of the port's module could be paired with one of the original's.
    """

    def __init__(
        self, original: Original, recording: ModuleRecording, call: OriginalCall, recorded: ModuleCall
    ) -> None:
        self.original, self.recording, self.call, self.recorded = original, recording, call, recorded
        self.dtype = recording.dtype
        self.padding: NDArray | None = None
        """The uncounted rows (B, L) of a module inside; `judge` puts its own here if it has some."""
        self.paired: Container[int] = range(len(original.modules))
        """Positions of the original's modules by which one of the port's was judged."""
        self._only_as_given = False
        self.again = False
        """Whether the port's is given different arrays where the original's is given one twice."""
        self._left_out = 0
        theirs = {at.place: recording.array(at) for at in recorded.given}
        matched = match(call.given, theirs, tables=True)
        self.matched = [one for one in matched if one.layout not in TABLES]
        self.given = {one.original: one.array for one in matched}
        left = {place: array for place, array in theirs.items() if place not in {one.port for one in matched}}
        self._apart = {one.original: one.array for one in given_apart(call.given, theirs, matched)}
        self._otherwise = [*([self._apart] if self._apart else []), *otherwise(call.given, theirs, matched)]
        self._masks: dict[Place, tuple[Place, NDArray]] = {}
        for place, own in call.given.items():
            beside = [(one.port, one.array) for one in matched if one.original == place] or left.items()
            masks = ((other, array) for other, array in beside if translated(array, own) is not None)
            found = next(masks, None)
            if found is not None:
                self._masks[place] = found
        self.layouts = tuple(f"{'.'.join(one.port)}: {one.layout}" for one in matched if one.layout)
        self.own = tuple(place for place in call.given if place not in self.given and place not in self._masks)
        self.masks: dict[str, int] = {}
        self._alone = Runs({}, (), {}, self.dtype)
        floating = [place for place, array in call.given.items() if array.dtype.kind == "f"]
        self._read_masks(other=False)
        if call.given and not matched:
            raise SpecError("nothing that it was given is what the original's module is given")
        if floating and not any(place in self.given for place in floating):
            raise SpecError("no array of numbers that it was given is what the original's module is given")

    def judge(self, parts: Sequence[Part] = ()) -> CallJudgement:
        """Run the original's module on the port's inputs. Return a comparison of its outputs with the port's outputs.

        True in the port's masks is read as "may attend" or "ignore", whichever is nearer to the original's masks. If
        outputs differ, the other meaning is tried, then the original's own masks: a port may change masks inside.

        `parts`: submodules whose outputs in the port replace those in the original. With them, the module's outputs and
        the inputs of the submodules depend on the module's own code only.

        Raises:
            SpecError: the original's module can't be run, has other outputs in a second run, or has NaN in float64
                only. SpecError too if none of its outputs matches an output of the port's module.
        """
        self._left_out, self._searched = 0, False
        if not self.call.steady:
            raise SpecError("the original's module gives something else when the model runs again")
        found = self._judged_with(parts)
        alone = self._alone
        for others in self._otherwise if not found.worst[1].equal and not parts else ():
            before = self.given
            self.given = before | others
            with suppress(SpecError):
                second = self._judged_with(parts)
                if second.worst[1].equal:
                    self.again = others is self._apart
                    return second
            self.given = before
        if self._only_as_given:
            return found
        if not found.worst[1].equal and self._read_masks(other=True):
            with suppress(SpecError):  # the reading is not meant
                second = self._judged_with(parts)
                if second.worst[1].equal:
                    second.other_masks = True
                    return second
            self._read_masks(other=False)
        if not found.worst[1].equal and self._masks and self.call.within is not None:
            before = self.given
            self.given = {place: array for place, array in before.items() if place not in self._masks}
            with suppress(SpecError):
                third = self._judged_with(parts)
                if third.worst[1].equal:
                    third.own = (*third.own, *self._masks)
                    third.own_masks = True
                    return third
            self.given = before
        self._alone = alone
        return found

    def read_masks_as_given(self) -> None:
        """Make later calls of `judge` give True in the port's masks the same meaning as in the original's masks."""
        self._only_as_given = True
        self._read_masks(other=False)

    def _read_masks(self, *, other: bool) -> bool:
        """Put the port's masks into the original's form; whether there is such a reading."""
        found = {}
        for place, (port, array) in self._masks.items():
            own = self.call.given[place]
            if other and self.call.within is None and array.dtype == own.dtype and np.array_equal(array, own):
                continue  # both models were called with it
            read = translated(array, own, other=other)
            if read is not None:
                found[place], self.masks[".".join(port)] = read
        self.given = {**self.given, **found}
        return bool(found)

    def _judged_with(self, parts: Sequence[Part]) -> CallJudgement:
        replace = {part.original: self._given_back(part) for part in parts}
        turned = self.turned() if not replace else None
        gave = self._floating(self.recorded.gave or ())
        if not gave:
            raise SpecError(f"the port's module gave no array of numbers{self._instead()}")
        exact, moved = self.original.run(self.call, [self.given, self.moved(self.given)], "float64", replace)
        own, *rest = self.original.run(self.call, [self.given, *([turned] if turned else [])], self.dtype, replace)
        for place, array in own.items():
            lost = np.isnan(exact[place]) & ~np.isnan(array) if array.dtype.kind == "f" else np.zeros(1, bool)
            if lost.any() and ((counted := self._counted(array)) is None or (lost & counted).any()):
                raise SpecError(
                    f"the original's module gives NaN in float64 where it gives numbers in {self.dtype}; some eager "
                    "attention does so in padding: give an original with attn_implementation='sdpa'"
                )
        roundings = [own, moved, *map(self.put_back, rest)]
        outputs = {place: array for place, array in exact.items() if _is_output(place, array)}
        matched = [one for one in match(outputs, gave) if np.isfinite(exact[one.original]).any()]
        if not matched:
            raise SpecError(
                "nothing that it gave has a shape that the original's module gives"
                if any(np.isfinite(array).any() for array in outputs.values())
                else "the original's module gives no finite number"
                if outputs
                else "the original's module gives no array of numbers"
            )
        bounds = self._derived(exact, own, replace)
        runs = Runs(exact, roundings, bounds, self.dtype)
        if not parts:
            self._alone = Runs(outputs, roundings, bounds, self.dtype)
        judged = {one.port: self._judged(one, runs) for one in matched}
        unit, known = UNIT_ROUNDOFF[self.dtype], self._known(parts)
        lines = [("what it gives", one) for one in matched if parts and not judged[one.port].equal]
        notes: list[str] = []
        for part in parts:
            for turn, (_, theirs) in enumerate(part.calls):
                if theirs is None:
                    continue
                start = (PASSED, str(part.original), str(turn))
                given = {place: one for place, one in exact.items() if place[:3] == start and _has_numbers(one)}
                got = self._floating(theirs.given)
                pairs = match(given, got, tables=True) if part.asked else []
                if part.again and part.asked:
                    pairs += given_apart(given, got, pairs)
                for one in pairs:
                    judged[(f"what it gives to {part.name}", *one.port)] = found = self._judged(one, runs)
                    lines += [(f"what it gives to {part.name}", one)] * (not found.equal)
                notes += exchanged_in(part.name, pairs, exact, unit)
                own = {place: one for place, one in exact.items() if place[:3] == start}
                gave_it = {at.place: self.recording.array(at) for at in theirs.given}
                for place, found in other_indices(own, gave_it, self._counted):
                    judged[f"the indices that it gives to {part.name}", *place] = found
                # A part that is right uses the mask that it was given.
                for place, found in other_masks(own.values(), gave_it) if part.right else ():
                    judged[f"the mask that it gives to {part.name}", *place] = found
        for place, found in judged.items():
            if found.blurred(self.dtype):
                raise SpecError(
                    f"rounding alone moves {'.'.join(place) or 'what the original gives'} by {found.moved}: "
                    "nothing smaller could be seen"
                )
        terms = (other_terms(what, one.array, exact[one.original], known, unit) for what, one in lines[:2])
        notes += filter(None, terms)
        return CallJudgement(
            judged,
            (*self.layouts, *(f"output {'.'.join(one.port)}: {one.layout}" for one in matched if one.layout)),
            self.own,
            dict(self.masks),
            (
                *(place for place in gave if place not in {one.port for one in matched}),
                *other_integers(
                    {place: one for place, one in exact.items() if place[:1] != (PASSED,)},
                    {at.place: self.recording.array(at) for at in self.recorded.gave or () if not at.floating},
                ),
            ),
            tuple(place for place in outputs if place not in {one.original for one in matched}),
            notes=notes,
            padding=self._left_out,
        )

    def _known(self, parts: Sequence[Part]) -> dict[str, NDArray]:
        """Return what the module was given and what its parts gave in its one call of each, by what it is, in words."""
        found = {f"its input {'.'.join(place)}": one for place, one in self.given.items() if _has_numbers(one)}
        for part in parts:
            calls = [theirs for _, theirs in part.calls if theirs is not None]
            if len(calls) == 1 and not part.instead and not part.active:
                gave = list(self._floating(calls[0].gave or ()).values())
                found |= {f"what {part.name} gives": one for one in gave[:1]}
        return found

    def told(self, telling: Mapping[int, Sequence[Mapping[Place, NDArray]]]) -> Runs:
        """Return outputs of the original's module, and of those in `telling` at (GAVE, position, call number, ...).

        `telling`: position of a submodule -> a dict for each of its calls: key path -> array that replaces an output.

        Raises:
            SpecError: the module can't be run.
        """
        given = self.given
        exact, moved = self.original.run(self.call, [given, self.moved(given)], "float64", telling, tell=True)
        (own,) = self.original.run(self.call, [given], self.dtype, telling, tell=True)
        floating = {place: one for place, one in exact.items() if _has_numbers(one) and place[:1] != (PASSED,)}
        return Runs(floating, [own, moved], {}, self.dtype)

    def is_right(self, array: NDArray, place: Place, runs: Runs) -> bool:
        """Return whether an array of the port equals the original's at `place` in `runs`, except at padding."""
        found = runs.judge(array, place)
        counted = None if found.equal else self._counted(array)
        return found.equal or (counted is not None and runs.judge(array, place, counted).equal)

    def ratio_in(self, array: NDArray, place: Place, runs: Runs) -> float:
        """Return `Judged.ratio` of a port's array against the original's at `place` in `runs`, outside padding."""
        counted = self._counted(array)
        return runs.judge(array, place, counted).ratio

    @property
    def exact(self) -> Mapping[Place, NDArray]:
        """Return key path -> float64 output of the original's module with its own submodules. Call `judge` first."""
        return self._alone.exact

    @property
    def held(self) -> Any:
        """Return the original's module."""
        return self.original.modules[self.call.module].held

    @property
    def kind(self) -> str:
        """Return the class of the original's module in words."""
        return self.original.modules[self.call.module].kind

    @property
    def leaf(self) -> bool:
        """Return whether the original's module calls no other module."""
        return self.original.is_leaf(self.call)

    def parameters(self) -> dict[str, NDArray]:
        """Return the parameters of the original's module by name."""
        native = self.original.native
        return {name: native.numbers_in(one) for name, one in native.parameters_of(self.held).items()}

    def given_all(self) -> dict[Place, NDArray]:
        """Return key path -> input of the original's module: the port's array if there is one, else the original's."""
        return {**self.call.given, **self.given}

    def exact_on(self, given: Mapping[Place, NDArray]) -> dict[Place, NDArray]:
        """Return key path -> float64 output of the original's module on `given`. SpecError if it can't be run."""
        return self.original.run(self.call, [given], "float64")[0]

    @property
    def mask_places(self) -> frozenset[Place]:
        """Return the key paths of the original's masks that were replaced by the port's."""
        return frozenset(self._masks)

    def pull(self, given: Mapping[Place, NDArray], cotangents: Mapping[Place, NDArray], dtype: str) -> Pulled:
        """Return the original's outputs and gradients. SpecError if it can't be run. Arguments: see `Original.pull`."""
        return self.original.pull(self.call, given, cotangents, dtype)

    def ratio_of(self, found: Mapping[Place, NDArray]) -> float:
        """Return the largest `Judged.ratio` of the arrays `found`, compared with the original's. Call `judge` first."""
        ratios = [
            self._alone.judge(found[place], place).ratio
            for place, array in self.exact.items()
            if place in found and found[place].shape == array.shape
        ]
        return max(ratios, default=np.inf)

    def _floating(self, arrays: Sequence[ArrayAt]) -> dict[Place, NDArray]:
        return {at.place: self.recording.array(at) for at in arrays if at.floating and 0 not in at.shape}

    def _instead(self) -> str:
        """What the port's module gave in place of arrays, in words."""
        if self.recorded.gave is None:
            return ": its call ended in an error"
        return "".join(f", but {what}" for place, what in self.recorded.unread_outputs[:1])

    def _given_back(self, part: Part) -> Sequence[Mapping[Place, NDArray]]:
        """What stands in place of what a part of the original's gives, in each of its calls."""
        if part.instead:
            return part.instead
        gave = [self._gave_instead(*calls) for calls in part.calls]
        active = part.active
        if active is None:
            return gave
        return [{place: active(array.astype(np.float64)) for place, array in one.items()} for one in gave]

    def gave_at(self) -> dict[Place, NDArray]:
        """Return key path of an output in the original -> the port's output paired with it. Call `judge` first."""
        return {one.original: one.array for one in match(self.exact, self._floating(self.recorded.gave or ()))}

    def _gave_instead(self, mine: OriginalCall, theirs: ModuleCall | None) -> dict[Place, NDArray]:
        """What the port's module gave, at the places of what the original's gives."""
        if theirs is None:
            return {}
        return {one.original: one.array for one in match(mine.gave or {}, self._floating(theirs.gave or ()))}

    def _judged(self, one: Matched, runs: Runs) -> Judged:
        found = runs.judge(one.array, one.original)
        counted = None if found.equal else self._counted(one.array)
        if counted is not None:
            found = runs.judge(one.array, one.original, counted)
            assert self.padding is not None
            self._left_out = int(self.padding.sum())
        return found

    @property
    def left_out(self) -> int:
        """Return how many rows `judge` did not compare although they differ, such as rows of padding."""
        return self._left_out

    def _counted(self, array: NDArray) -> NDArray | None:
        """The elements of what was given that stand in no uncounted row, or are no numbers; None without such rows."""
        if not self._searched:
            self._searched = True
            with suppress(SpecError):
                found = uncounted_rows(self.exact_on, self.given_all(), other_mask=any(self.masks.values()))
                known = self.padding
                if known is None and found is None:
                    found = padding_inside(self.original, self.call, self.paired)
                if known is not None and found is not None and known.shape == found.shape:
                    found = known | found
                self.padding = known if found is None else found
        return None if self.padding is None else counted_in(array, self.padding)

    def _derived(
        self,
        exact: Mapping[Place, NDArray],
        own: Mapping[Place, NDArray],
        replaced: Mapping[int, Sequence[Mapping[Place, NDArray]]],
    ) -> dict[Place, NDArray]:
        """The derived bounds of what it gives; with parts replaced, of what is a known array or a sum of two."""
        inputs = [
            *self.given_all().values(),
            *(one for calls in replaced.values() for gave in calls for one in gave.values()),
        ]
        parameters = {} if replaced else self.parameters()
        known = Known(inputs, parameters, numbers_of_module(self.held))
        floating = {place: array for place, array in exact.items() if array.dtype.kind == "f"}
        found = {place: bound_on(array, own.get(place), known, self.dtype) for place, array in floating.items()}
        problem = None if replaced or all(found.values()) else self.recording.problem_of(self.recorded)
        if problem is not None:
            for place, array in floating.items():
                found[place] = found[place] or attention_bound_on(array, own.get(place), problem, self.dtype)
        return {place: bound[1] for place, bound in found.items() if bound is not None}

    def moved(self, arrays: Mapping[Place, NDArray]) -> dict[Place, NDArray]:
        """Return copies of the arrays, each float outside masks times 1 + u or 1 - u at random (u: unit roundoff)."""
        rng = np.random.default_rng(0)
        unit = UNIT_ROUNDOFF[self.dtype]
        return {
            place: np.asarray(array.astype(np.float64) * (1 + unit * rng.choice((-1.0, 1.0), array.shape)))
            if array.dtype.kind == "f" and place not in self._masks
            else array
            for place, array in arrays.items()
        }

    def turned(self) -> dict[Place, NDArray] | None:
        """Return the inputs with the batch items in another order; None if they share no batch axis of size >= 2."""
        sizes = {array.shape[0] for array in self.call.given.values() if array.ndim > 1}
        if (
            len(sizes) != 1
            or sizes == {1}
            or any(
                array.shape == (*sizes,) or array.shape[:2] == (*sizes, *sizes) for array in self.call.given.values()
            )
        ):
            return None  # a vector may have a number for each item, such as its length, or not
        full = self.given_all().items()
        return {place: np.roll(array, 1, axis=0) if array.ndim > 1 else array for place, array in full}

    def put_back(self, found: Mapping[Place, NDArray]) -> dict[Place, NDArray]:
        """Return the outputs `found`, computed from `turned`, with the batch items in the original order again."""
        sizes = {len(array) for array in self.call.given.values() if array.ndim > 1}
        return {
            place: np.roll(array, -1, axis=0) for place, array in found.items() if array.ndim and {len(array)} == sizes
        }


def _is_output(place: Place, array: NDArray) -> bool:
    return _has_numbers(array) and place[:1] != (PASSED,)


def _has_numbers(array: NDArray) -> bool:
    """Whether there is a floating-point number in it; an array may be empty."""
    return array.dtype.kind == "f" and array.size > 0
