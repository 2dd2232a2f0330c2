"""A module that is judged with its parts: the port's outputs, or others, in place of those of the original's parts."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from mha.recordings.modules.recording import ModuleRecording
from mha.recordings.modules.values import Place
from mha.substitution.calls import CallJudgement, Part, by_module, holds
from mha.substitution.derived import Known, numbers_of_module
from mha.substitution.original import Original
from mha.substitution.pairing.order import in_order
from mha.substitution.pairing.pairs import Pairs, sizes_of
from mha.substitution.parts.activations import Beside, activation_beside
from mha.substitution.parts.lines import Lines
from mha.substitution.parts.otherwise import Division, Instead, divided
from mha.substitution.reports.report import ModuleResult
from mha.substitution.substitute import Substitution
from mha_core import SpecError

Ready = Sequence[Substitution]
Calls = Sequence[tuple[int, int]]
"""The calls of a pair, in the original and in the port."""

RIGHT = ("equal", "divided otherwise")


class Parts:
    """A record of an original's and its port's modules and calls, with verdicts on the port's, innermost first.

    Attributes:
        results: position of a module -> the verdict on it.
        ready: position of a judged module -> (its calls as Substitutions, their positions (original's, port's)).
        beside: position of a wrong module -> the activation (such as ReLU) that only it or only its original applies.
        own_masks: positions of modules that were judged with the masks of the original's own run.
        other_masks: positions of modules that were judged with the meaning of True in masks reversed.
        padding: position of a module -> bool (B, L), True at padding.
    """

    def __init__(
        self, own: Original, recording: ModuleRecording, pairs: Pairs, progress: Callable[[str], None]
    ) -> None:
        self.own, self.recording, self.pairs, self.progress = own, recording, pairs, progress
        self.calls = by_module(recording.calls)
        self.own_calls = by_module(own.calls)
        self.modules, self.inside = pairs.ports, pairs.inside_ports
        self.results: dict[int, ModuleResult] = {}
        self.ready: dict[int, tuple[Ready, Calls]] = {}
        self.beside: dict[int, Beside] = {}
        self.padding: dict[int, NDArray[Any]] = {}
        self.own_masks: set[int] = set()
        self.other_masks: set[int] = set()

    def is_judged(self, port: int) -> bool:
        """Return whether a module was judged by its original."""
        return self.results[port].status != "not judged" and self.pairs.original_of(port) is not None

    def was_judged(self, port: int) -> bool:
        """Return whether a module has already been compared with its original."""
        return port in self.results and self.is_judged(port)

    def outermost_inside(self, port: int, *, judged: bool) -> list[int]:
        """Return submodules of `port` that are judged (`judged=False`: not judged) and inside no judged submodule."""
        found = []
        for one in self.inside[port]:
            within = self.modules[one].within
            between = within[: within.index(port)]
            if self.is_judged(one) == judged and not any(map(self.is_judged, between)):
                found.append(one)
        return found

    def paired_calls(self, original: int, port: int, mine: int = 0, theirs: int = 0) -> list[tuple[int, int]]:
        """Return the calls of a paired module, in order: (position in the original, position in the port).

        If one model has more calls than the other, calls with outputs of equal sizes are paired.

        Args:
            original, port: positions of the module in the two models.
            mine, theirs: positions of the outer calls, in the original and in the port, during which the calls are
                made. Default: the call of the whole model.
        """
        own = [one for one in self.own_calls[original] if holds(self.own.calls, mine, one)]
        other = [one for one in self.calls[port] if holds(self.recording.calls, theirs, one)]
        if len(own) == len(other):
            return list(zip(own, other, strict=True))
        left = [(one, sizes_of(self.own.calls[one].shapes)) for one in own]
        return list(in_order(left, [(one, sizes_of(self.recording.calls[one].shapes)) for one in other]))

    def division(self, inner: Sequence[int], ready: Ready, calls: Calls) -> Division:
        """Return which of the submodules `inner` are wrong alone but right with the code around them, as a Division."""
        wrong = [one for one in inner if self.results[one].status != "equal"]
        known = {one: self.beside[one] for one in wrong if one in self.beside}
        return divided(lambda instead: self.with_parts(inner, ready, calls, instead), wrong, known)

    def compensating(self, inner: Sequence[int], ready: Ready, calls: Calls) -> tuple[int, ...]:
        """Return the wrong submodules in `inner` if they compensate one another in a right module. Else return ().

        They compensate if the module's outputs become wrong when only one of them replaces its original. For example,
        the rows of the query and key matrices may have the same new order. Other arguments: see `with_parts`.
        """
        wrong = tuple(one for one in inner if self.results[one].status not in RIGHT)
        for part in wrong if len(wrong) > 1 else ():
            alone = self.with_parts([part], ready, calls)
            if alone is not None and not all(one.worst[1].equal for one in alone):
                return wrong
        return ()

    def take_back(self, part: int, reason: str) -> None:
        """Change the verdicts on a module and its submodules from wrong to "divided otherwise"."""
        for one in (part, *self.inside[part]):
            if self.results[one].status in ("wrong", "through its parts"):
                self.results[one] = replace(self.results[one], status="divided otherwise", reason=reason)

    def with_parts(
        self,
        inner: Sequence[int],
        ready: Ready,
        calls: Calls,
        instead: Mapping[int, Instead] = {},
        others: Sequence[Part] = (),
        unasked: Container[int] = (),
    ) -> list[CallJudgement] | None:
        """Return the comparison of each call, with the port's outputs for some submodules; None if a run fails.

        Args:
            inner: positions of the submodules whose outputs are replaced.
            ready, calls: the calls of the module as Substitutions, and their positions (original's, port's).
            instead: position of a submodule -> what replaces its outputs (an `Instead`). Default: the port's outputs.
            others: further submodules as Parts, which have no original.
            unasked: positions of submodules whose floating-point inputs are not compared.
        """
        found = []
        for one, (mine, theirs) in zip(ready, calls, strict=True):
            parts = []
            for port in inner:
                part = self._part(port, mine, theirs, instead.get(port)) if instead.get(port) != "left out" else None
                parts += [part._replace(asked=port not in unasked)] if part is not None else []
            try:
                found.append(one.judge([*parts, *others]))
            except SpecError:
                return None
        return found

    def _part(self, port: int, mine: int, theirs: int, instead: Instead | None) -> Part | None:
        original = self.pairs.original_of(port)
        assert original is not None
        other = dict(self.paired_calls(original, port, mine, theirs))
        own = [call for call in self.own_calls[original] if holds(self.own.calls, mine, call)]
        both = [(self.own.calls[call], self.recording.calls[other[call]] if call in other else None) for call in own]
        often = sum(holds(self.recording.calls, theirs, call) for call in self.calls[port])
        if len(both) != often and not self.modules[port].numbers.size:
            return None  # an idle Dropout: which of its calls is which is not known, and it changes nothing
        ready, its_calls = self.ready.get(port, ((), ()))
        exact: Sequence[Mapping[Place, NDArray[Any]]] = ()
        if instead == "its original's":
            known = {call: one.exact for one, (call, _) in zip(ready, its_calls, strict=True)}
            exact = [known.get(call, {}) for call in own]
        return Part(
            original,
            self.modules[port].name,
            both,
            right=self.results[port].status != "wrong" and self.own_masks.isdisjoint((port, *self.inside[port])),
            instead=exact,
            active=self.beside[port].active if instead == "active" else None,
            again=any(one.again for one in ready),
        )

    def makers(self, port: int, worst: CallJudgement) -> set[int] | None:
        """Return the modules without an original whose code makes `port` wrong; None if unknown.

        Args:
            port: position of the module.
            worst: its only call, compared with a run of the original in which submodules returned the port's outputs.
        """
        ready, calls = self.ready[port]
        if len(ready) != 1:
            return None
        unjudged = {
            one
            for one in self.inside[port]
            if self.results[one].status == "not judged"
            and not any(map(self.is_judged, self.modules[one].within[: self.modules[one].within.index(port)]))
        }
        parts = set(self.outermost_inside(port, judged=True))
        return Lines(self.recording, calls[0][1], worst, parts, unjudged).makers() if unjudged else None

    def activation_of(self, ready: Ready) -> Beside | None:
        """Return the activation (such as ReLU) that only a module or only its original has in all calls, or None."""
        found = []
        for one in ready if all(one.leaf for one in ready) else ():
            known = Known(list(one.given_all().values()), one.parameters(), numbers_of_module(one.held))
            found.append(activation_beside(known, one.exact, one.gave_at(), self.recording.dtype))
        if not found or None in found or len({one.name for one in found if one}) > 1:
            return None
        first = found[0]
        assert first is not None
        return replace(first, equal=all(one.equal for one in found if one))
