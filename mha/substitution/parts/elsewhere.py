"""Wrong parts whose deviation is made up for elsewhere in the module around them, or not seen by it.

Each of a module's parts was judged on what it was given. A port may have other numbers between two of them all the
same, such as heads in another order, a norm without its scale, a stream without its mean: none of the parts is wrong.
So the module's original runs by itself on what the port's module was given, and what its parts give there, at any
depth, is held against what the port's parts gave.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mha.recordings.modules.values import Place
from mha.substitution.allowance import FACTOR, Runs
from mha.substitution.calls import holds
from mha.substitution.matching import match
from mha.substitution.original import GAVE
from mha.substitution.parts.lines import GIVES
from mha.substitution.parts.runs import Parts
from mha_core import SpecError

MOST = 12
"""Parts for each of which it is tried whether what follows is right with the port's numbers or the original's."""

CONTRAST = 64.0
"""Factor by which other deviations of one size take a module further than one that it does not see."""

GIVEN_OTHERWISE = "it is given something else than its original, and gives what that gives in {}"
MADE_UP_FOR = "it gives something else than its original, and other parts of {} make up for that"
NOT_SEEN = "what it gives differs from its original by what {} does not see"

Calls = Sequence[Mapping[Place, NDArray]]
Instead = Mapping[int, Calls]
"""Position of a part of the original's -> for each of its calls, what stands in place of what it gives."""


class Pair(NamedTuple):
    """A call of a submodule. `turn`: number of its earlier calls. `own`, `port`: the call's position in each model."""

    turn: int
    own: int
    port: int


class Elsewhere:
    """A second verdict on the wrong submodules of a module, from runs of the original's whole module.

    Args:
        parts: both models.
        port: position of the module, which was judged in one call.
        wrong: positions of its wrong submodules, at any depth.
        right: whether the module's outputs are right.

    Attributes:
        taken: positions of submodules whose outputs were replaced by the port's in a run of the original. They are
            chosen so that most other outputs of this run agree with the port's.
        agreeing: positions of the other submodules whose outputs in this run agree with the port's.
        causes: positions of the wrong modules that are in `taken` or contain a module in `taken`; [] if the outputs of
            the module at `port` differ in this run.
    """

    def __init__(self, parts: Parts, port: int, wrong: Sequence[int], *, right: bool) -> None:
        self.parts, self.port, self.wrong, self.right = parts, port, wrong, right
        (self.call,), ((self.mine, self.theirs),) = parts.ready[port]
        lines = [one for one in wrong if parts.results[one].own_lines]
        around = {
            port,
            *lines,
            *(outer for one in wrong for outer in parts.modules[one].within if outer in parts.inside[port]),
        }
        inner = [one for outer in sorted(around) for one in parts.outermost_inside(outer, judged=True)]
        self.causes: list[int] = []
        self.taken: list[int] = []
        self.agreeing: set[int] = set()
        self.told = {one: pairs for one in dict.fromkeys((*wrong, *inner)) if (pairs := self._pairs(one))}

    def reasons(self) -> dict[int, str]:
        """Return a dict of the submodules in `wrong` that turn out not to be wrong: position -> reason in words."""
        try:
            instead, runs, agreeing = self._what_agrees()
            found = {one: GIVEN_OTHERWISE for one in self.wrong if one in agreeing and self._is_seen(one, runs)}
            self.causes, self.agreeing = self._causes(runs), agreeing
            explained = {outer for one in self.causes for outer in (one, *self.parts.modules[one].within)}
            for one in self.wrong:
                if one in {*found, *explained} or one not in self.told or self._holds_any(one, found):
                    continue
                if not self._holds_any(one, self.causes):
                    found |= self._made_up_for(one, instead, runs, agreeing)
                if one not in found and not self._is_visible(one):
                    found[one] = NOT_SEEN
            found |= {one: MADE_UP_FOR for pair in self._mending(found) for one in pair}
        except SpecError:
            return {}
        around = self.parts.modules[self.port].name or "the model"
        return {one: reason.format(around) for one, reason in found.items()}

    def _mending(self, found: Mapping[int, str]) -> Iterator[tuple[int, int]]:
        """Yield pairs of parts that leave what the module gives as it is together, as neither does alone."""
        left = [one for one in self.wrong if one in self.told and one not in found]
        left = [one for one in left if not any(one in self.parts.modules[other].within for other in self.wrong)]
        instead = {one: self._deviating(one, self._alone, turned=False) for one in left[:MOST]}
        moving = [one for one in instead if self._moves(self._alone, self._run(instead[one])) > FACTOR]
        for one, other in combinations(moving, 2):
            if self._moves(self._alone, self._run({**instead[one], **instead[other]})) <= FACTOR:
                yield one, other

    def _causes(self, runs: Runs) -> list[int]:
        """Return the wrong modules with which the original gives what the port's module gave; [] if it does not."""
        gave = self.call.gave_at()
        ends = [place for place in runs.exact if place[:1] != (GAVE,)]
        right = bool(ends) and all(
            place in gave
            and gave[place].shape == runs.exact[place].shape
            and self.call.is_right(gave[place], place, runs)
            for place in ends
        )
        found = []
        for one in self.taken if right else ():
            wrong = [outer for outer in (one, *self.parts.modules[one].within) if outer in self.wrong]
            if not wrong:
                return []  # lines of the module itself
            found.append(wrong[0])
        return found

    def are_explained(self, places: Iterable[Place]) -> bool:
        """Return whether `causes` explain all wrong arrays at these key paths.

        Wrong outputs of the module are explained. Wrong inputs of a submodule are explained if it is called after the
        `causes`, is in `agreeing`, or contains only submodules in `agreeing`.
        """
        if not self.causes:
            return False
        last = max(self.told[one][-1].port for one in self.taken)
        names = {place[0].partition(GIVES)[2] for place in places if place and GIVES in place[0]}
        for one in (one for one in self.parts.inside[self.port] if self.parts.modules[one].name in names):
            inside = {other for other in self.parts.inside[one] if other in self.told} - self._around
            inside -= {other for outer in self.taken for other in self.parts.inside[outer]}
            behind = self.parts.calls[one][0] > last
            if not (behind or one in self.agreeing or (inside and inside <= {*self.agreeing, *self.taken})):
                return False
        return True

    @property
    def _around(self) -> set[int]:
        """The modules around those taken."""
        return {outer for one in self.taken for outer in self.parts.modules[one].within}

    def _holds_any(self, one: int, found: Iterable[int]) -> bool:
        return any(outer in found for outer in self.parts.modules[one].within)

    def _what_agrees(self) -> tuple[dict[int, Calls], Runs, set[int]]:
        """The original's run in which most of what its parts give agrees with the port, and the parts that agree.

        What is wrong before a part is taken out by the port's numbers in place of what an earlier part gives, where
        more agrees with these.
        """
        instead: dict[int, Calls] = {}
        runs = self._alone
        agreeing = self._agreeing(runs)
        inner = [one for one in self.parts.outermost_inside(self.port, judged=True) if one in self.told]
        inner = inner if len(inner) <= MOST else []
        deeper = [one for one in sorted(self.told) if one not in inner and one not in agreeing]
        self.taken = taken = list[int]()
        for one in (*inner, *deeper[:MOST]):
            around = any(one == other or one in self.parts.inside[other] for other in taken)
            done = one not in inner and not {*inner}.isdisjoint(taken)  # deeper ones are for where none of these helps
            if around or done or one in agreeing or not self._wrong_behind(one, agreeing):
                continue
            other = instead | self._as_calls(one, self._arrays(one))
            then = self._run(other)
            taken.append(one)
            agree = self._agreeing(then)
            if len(agree) > len(agreeing):
                instead, runs, agreeing = other, then, agree
            else:
                taken.pop()
        return instead, runs, agreeing

    def _wrong_behind(self, part: int, agreeing: set[int]) -> bool:
        """Return whether a wrong part is called after another one, and does not agree."""
        first = self.told[part][0].port
        return any(one not in agreeing and self.told[one][-1].port > first for one in self.wrong if one in self.told)

    def _made_up_for(self, one: int, instead: Instead, runs: Runs, agreeing: set[int]) -> dict[int, str]:
        """The reason why a part is not wrong, by what parts that agree make of its deviation: {} without any."""
        if self._original(one) in instead:
            instead = {part: calls for part, calls in instead.items() if part != self._original(one)}
            runs = self._run(instead)
            agreeing = self._agreeing(runs)
        moved = self._run({**instead, **self._deviating(one, runs, turned=False)})
        if self.right and self._moves(runs, moved) > FACTOR:
            return {one: MADE_UP_FOR}
        others = agreeing - {one, *self.parts.inside[one]}
        return {} if all(self._equal(other, runs, moved.exact) for other in others) else {one: MADE_UP_FOR}

    def _is_visible(self, one: int) -> bool:
        """Return whether what the module gives shows the deviation of a part, or would not show others of its size."""
        small = self._moves(self._alone, self._run(self._deviating(one, self._alone, turned=False)))
        if small > FACTOR:
            return True
        turned = self._run(self._deviating(one, self._alone, turned=True))
        return self._moves(self._alone, turned) <= max(FACTOR, CONTRAST * small)

    @cached_property
    def _alone(self) -> Runs:
        """The original's run with its own parts."""
        return self._run({})

    def _pairs(self, part: int) -> list[Pair]:
        original = self.parts.pairs.original_of(part)
        if original is None:
            return []
        own = [one for one in self.parts.own_calls[original] if holds(self.parts.own.calls, self.mine, one)]
        turns = {call: turn for turn, call in enumerate(own)}
        pairs = self.parts.paired_calls(original, part, self.mine, self.theirs)
        found = [Pair(turns[own], own, port) for own, port in pairs]
        return found if len(found) == len(own) else []

    def _run(self, instead: Instead) -> Runs:
        telling = {self._original(one): () for one in self.told}
        return self.call.told({**telling, **instead})

    def _original(self, part: int) -> int:
        original = self.parts.pairs.original_of(part)
        assert original is not None
        return original

    def _agreeing(self, runs: Runs) -> set[int]:
        gave = {one: self._arrays(one) for one in self.told}
        return {one for one in self.told if one not in self._around and self._equal(one, runs, gave[one])}

    def _arrays(self, part: int) -> dict[Place, NDArray]:
        """Return what the port's part gave, at the places of what is told of the original's."""
        start = GAVE, str(self._original(part))
        found: dict[Place, NDArray] = {}
        for pair in self.told[part]:
            own, port = self.parts.own.calls[pair.own], self.parts.recording.calls[pair.port]
            gave = {at.place: self.parts.recording.array(at) for at in port.gave or () if at.floating}
            found |= {(*start, str(pair.turn), *one.original): one.array for one in match(own.gave or {}, gave)}
        return found

    def _equal(self, part: int, runs: Runs, arrays: Mapping[Place, NDArray]) -> bool:
        """Return whether arrays are what a part of the original's gives in a run, in each call of it."""
        start = GAVE, str(self._original(part))
        places = [place for place in runs.exact if place[:2] == start and place in arrays]
        calls = {place[2] for place in places}
        return len(calls) == len(self.told[part]) and all(
            arrays[place].shape == runs.exact[place].shape and self.call.is_right(arrays[place], place, runs)
            for place in places
        )

    def _is_seen(self, part: int, runs: Runs) -> bool:
        """Return whether the deviation of a part is one that the run would show: else what agrees is no reason."""
        ready, calls = self.parts.ready.get(part, ((), ()))
        local = {own: one.exact for one, (own, _) in zip(ready, calls, strict=True)}
        start = GAVE, str(self._original(part))
        for pair in self.told[part]:
            for place, array in local.get(pair.own, {}).items():
                at = (*start, str(pair.turn), *place)
                same = at in runs.exact and array.shape == runs.exact[at].shape
                if same and not self.call.is_right(array, at, runs):
                    return True
        return False

    def _as_calls(self, part: int, arrays: Mapping[Place, NDArray]) -> dict[int, Calls]:
        found: list[dict[Place, NDArray]] = [{} for _ in self.told[part]]
        for place, array in arrays.items():
            found[int(place[2])][place[3:]] = array
        return {self._original(part): found}

    def _deviating(self, part: int, runs: Runs, *, turned: bool) -> Instead:
        """Return what the original's part gives in a run, plus what the port's differs by from what it should give.

        With `turned`, numbers of that have another sign each.
        """
        ready, calls = self.parts.ready.get(part, ((), ()))
        local = {own: one.exact for one, (own, _) in zip(ready, calls, strict=True)}
        gave = self._arrays(part)
        rng = np.random.default_rng(0)
        found = {}
        for pair in self.told[part]:
            for place, exact in local.get(pair.own, {}).items():
                at = (GAVE, str(self._original(part)), str(pair.turn), *place)
                if at not in gave or at not in runs.exact or gave[at].shape != exact.shape:
                    continue
                deviation = np.nan_to_num(gave[at].astype(np.float64) - exact, posinf=0.0, neginf=0.0)
                if turned:
                    deviation = deviation * rng.choice((-1.0, 1.0), deviation.shape)
                found[at] = runs.exact[at] + deviation
        return self._as_calls(part, found)

    def _moves(self, runs: Runs, moved: Runs) -> float:
        """Return how far what the module gives is moved, over the measured rounding."""
        ends = [place for place in runs.exact if place[:1] != (GAVE,)]
        return max((self.call.ratio_in(moved.exact[place], place, runs) for place in ends), default=0.0)
