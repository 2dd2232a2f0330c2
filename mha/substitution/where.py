"""`mha.where`: which modules of a port are wrong, each judged by its original's on what the port's was given."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mha.recordings.modules.recording import ModuleCall, ModuleRecording
from mha.substitution.backward import judged_backward
from mha.substitution.original import Original, OriginalCall
from mha.substitution.pairs import Module, Pairs
from mha.substitution.report import Backward, ModuleResult, Status, WhereReport
from mha.substitution.substitute import CallJudgement, Part, Substitution
from mha.substitution.unseen import Unseen, unseen_in
from mha_core import SpecError


def where(
    original: Any,
    recording: ModuleRecording | str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    pairs: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> WhereReport:
    """Find the modules of a port that are wrong.

    Each module of the original runs in float64 on what the port's module was given. So errors of the modules before it
    cancel, and every wrong module shows.

    Args:
        original: the original model, live, in inference: of PyTorch, Keras, Flax (nnx, or linen bound to its variables)
            or Gluon. Its parameters are put into other dtypes meanwhile, and put back.
        recording: of the port, by `mha.capture(port, FILE, modules=True)`.
        inputs: what the original is called with, by name or in order, in NumPy: the same as the port's. Default:
            what the port was called with.
        pairs: name of a module of the original -> name of the port's, where the search can't know it.
        progress: is told what is being done.

    Raises:
        SpecError: the original can't be run on the inputs; the recording can't be used; pairs contradict each other.

    >>> import tempfile, numpy as np, torch, mha
    >>> model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5)).eval()
    >>> port = torch.nn.Sequential(model[0], torch.nn.GELU("tanh"), model[2]).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with mha.capture(port, folder + "/port.safetensors", modules=True):
    ...         _ = port(torch.randn(2, 6))
    ...     where(model, folder + "/port.safetensors").wrong
    ('1',)
    """
    if not isinstance(recording, ModuleRecording):
        recording = ModuleRecording(recording)
    first = recording.modules[0].name
    if first:
        raise SpecError(f"the recording holds no call of the model itself, of {first!r} and others: call the model")
    if (often := sum(call.module == 0 for call in recording.calls)) > 1:
        raise SpecError(f"the recording holds {often} calls of the model: record one")
    if inputs is None:
        inputs = _inputs_of(recording)
    progress("the original")
    dtype = recording.dtype
    own = Original(original, inputs, dtype)
    found = Pairs(_modules(own.modules, own.calls), _modules(recording.modules, recording.calls), pairs or {})
    return _Judge(own, recording, found, dtype, progress).report()


class _Judge:
    """Judges every pair, the innermost first."""

    def __init__(
        self, own: Original, recording: ModuleRecording, pairs: Pairs, dtype: str, progress: Callable[[str], None]
    ) -> None:
        self.own, self.recording, self.pairs, self.dtype, self.progress = own, recording, pairs, dtype, progress
        self.calls = _by_module(recording.calls)
        self.own_calls = _by_module(own.calls)
        self.modules, self.inside = pairs.ports, pairs.inside_ports
        self.results: dict[int, ModuleResult] = {}
        self.unseen: list[Unseen] = []

    def report(self) -> WhereReport:
        for port in reversed(range(len(self.modules))):  # calls begin outside
            self.progress(self.modules[port].name or "the model")
            self.results[port] = self._result(port)
            if self.recording.has_gradients:
                self.results[port] = replace(self.results[port], backward=self._backward(port))
        results = tuple(self.results[port] for port in range(len(self.modules)))
        names = {self.own.modules[one].name: self.modules[other].name for one, other in self.pairs.found.items()}
        unseen = tuple(reversed(self.unseen))
        return WhereReport(results, self._uncovered(), self.dtype, self.recording.versions, names, unseen)

    def _result(self, port: int) -> ModuleResult:
        """The verdict on a module; one that is wrong may be what another module of the same numbers stands for."""
        found = self._judged(port)
        if found.status == "wrong" and found.how == "the same numbers":
            for other in self.pairs.others_for(port):
                before = self.pairs.original_of(port)
                self.pairs.exchange(port, other)
                second = self._judged(port)
                if second.status == "equal":
                    return second
                assert before is not None
                self.pairs.exchange(port, before)
        return found

    def _judged(self, port: int) -> ModuleResult:
        module, original = self.modules[port], self.pairs.original_of(port)
        about: dict[str, Any] = {"name": module.name, "kind": module.kind, "depth": len(module.within)}
        if original is None:
            return ModuleResult(
                **about,
                original=None,
                how="",
                status="not judged",
                reason="no module of the original is known to be it",
            )
        about |= {"original": self.own.modules[original].name, "how": self.pairs.how[original]}
        if module.numbers.size:
            about["parameters"] = "same" if module.numbers == self.own.modules[original].numbers else "other"
        mine, theirs = self.own_calls[original], self.calls[port]
        calls = list(zip(mine, theirs, strict=False))
        if len(mine) != len(theirs):
            reason = f"the original calls it {len(mine)} times and the port {len(theirs)} times"
            return ModuleResult(**about, status="not judged", reason=reason)
        try:
            ready = [
                Substitution(self.own, self.recording, self.own.calls[one], self.recording.calls[other], self.dtype)
                for one, other in calls
            ]
            judged = [one.judge() for one in ready]
        except SpecError as error:
            return ModuleResult(**about, status="not judged", reason=str(error))
        inner = self._outermost_inside(port, judged=True)
        parts_wrong = any(self.results[one].status != "equal" for one in inner)
        worst = max(judged, key=lambda one: one.worst[1].ratio)
        status: Status = "equal" if worst.worst[1].equal else "wrong"
        own_lines = status == "wrong" and bool(inner)
        if parts_wrong and status == "wrong":
            alone = self._alone(inner, ready, calls)
            if alone is None:
                worst.notes.append("whether its own lines are right too can't be seen: its parts can't be replaced")
            if alone is None or alone.worst[1].equal:
                status, own_lines = "through its parts", False
            else:
                worst = alone
        elif parts_wrong:
            status = "through its parts"
        if status == "equal":
            self.unseen += unseen_in(module.name, ready[0])
        unpaired = self._outermost_inside(port, judged=False) if own_lines else []
        names = tuple(self.modules[one].name for one in unpaired)
        return _filled(about, status, worst, own_lines=own_lines, unpaired=names)

    def _backward(self, port: int) -> Backward:
        """The verdict on a module's gradients, if what it gives is right."""
        forward, original = self.results[port], self.pairs.original_of(port)
        if forward.status != "equal" or original is None:
            return Backward("not judged", reason=f"forward it is {forward.status}")
        parts = [self.results[one].backward for one in self._outermost_inside(port, judged=True)]
        return judged_backward(
            self.own,
            self.recording,
            list(zip(self.own_calls[original], self.calls[port], strict=True)),
            self.dtype,
            parts_right=all(part is None or part.status in ("equal", "not judged") for part in parts),
        )

    def _alone(
        self, inner: Sequence[int], ready: Sequence[Substitution], calls: Sequence[tuple[int, int]]
    ) -> CallJudgement | None:
        """The worst call with the port's outputs in place of those of its parts; None if that can't be run."""
        found = []
        for one, (mine, theirs) in zip(ready, calls, strict=True):
            parts = []
            for part in inner:
                original = self.pairs.original_of(part)
                assert original is not None
                own = [self.own.calls[call] for call in self.own_calls[original] if _holds(self.own.calls, mine, call)]
                other = [
                    self.recording.calls[call]
                    for call in self.calls[part]
                    if _holds(self.recording.calls, theirs, call)
                ]
                right = self.results[part].status != "wrong"
                parts.append(Part(original, self.modules[part].name, list(zip(own, other, strict=False)), right))
            try:
                found.append(one.judge(parts))
            except SpecError:
                return None
        return max(found, key=lambda one: one.worst[1].ratio)

    def _is_judged(self, port: int) -> bool:
        return self.results[port].status != "not judged"

    def _outermost_inside(self, port: int, *, judged: bool) -> list[int]:
        """The modules inside that were judged, or those that were not, and stand in no other judged one inside."""
        found = []
        for one in self.inside[port]:
            within = self.modules[one].within
            between = within[: within.index(port)]
            if self._is_judged(one) == judged and not any(map(self._is_judged, between)):
                found.append(one)
        return found

    def _uncovered(self) -> tuple[str, ...]:
        """Modules with parameters of their own that no judged module but the model itself holds."""
        own = [module.numbers.size for module in self.modules]
        for module in self.modules:
            holder = next((one for one in module.within if self.modules[one].numbers.size), None)
            if holder is not None:
                own[holder] -= module.numbers.size
        found = []
        for port, module in enumerate(self.modules):
            around = [one for one in (port, *module.within) if one or not self.inside[0]]
            if own[port] > 0 and around and not any(map(self._is_judged, around)):
                found.append(module.name)
        return tuple(found)


def _filled(about: Mapping[str, Any], status: Status, call: CallJudgement, **rest: Any) -> ModuleResult:
    place, worst = call.worst
    notes = [*call.notes, *call.layouts]
    notes += [
        f"{name} excludes other keys than the original's mask: {n} entries differ"
        for name, n in call.masks.items()
        if n
    ]
    notes += [f"not compared: {'.'.join(one) or 'an output'}" for one in call.unmatched]
    if call.own:
        notes.append("as in the original's own run: " + ", ".join(".".join(one) for one in call.own))
    return ModuleResult(
        **about,
        status=status,
        ratio=worst.ratio,
        place=".".join(place),
        index=worst.worst,
        got=worst.got,
        expected=worst.expected,
        notes=tuple(notes),
        **rest,
    )


def _by_module(calls: Sequence[ModuleCall | OriginalCall]) -> dict[int, list[int]]:
    """Position of each module -> positions of its calls."""
    found: dict[int, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        found[call.module].append(position)
    return found


def _holds(calls: Sequence[ModuleCall | OriginalCall], outer: int, inner: int | None) -> bool:
    """Whether a call was made within another one."""
    while inner is not None and inner > outer:
        inner = calls[inner].within
    return inner == outer


def _inputs_of(recording: ModuleRecording) -> Mapping[str, Any]:
    """What the port itself was called with."""
    first = recording.calls[0]
    arrays = {at.place: recording.array(at) for at in first.given}
    if any(len(place) != 1 for place in arrays):
        raise SpecError("the port is called with nested arrays: say what the original is called with (inputs=)")
    plain = {place[0]: value for place, value in first.plain.items() if len(place) == 1 and value is not None}
    return {**{place[0]: array for place, array in arrays.items()}, **plain}


def _within(calls: Sequence[ModuleCall | OriginalCall]) -> dict[int, tuple[int, ...]]:
    """Position of each module -> those around its first call, the nearest first."""
    found: dict[int, tuple[int, ...]] = {}
    around: list[tuple[int, ...]] = []
    for call in calls:
        outer = () if call.within is None else (calls[call.within].module, *around[call.within])
        around.append(tuple(dict.fromkeys(outer)))
        found.setdefault(call.module, around[-1])
    return found


def _modules(own: Sequence[Any], calls: Sequence[ModuleCall | OriginalCall]) -> list[Module]:
    """What pairing needs of the modules of either model."""
    within = _within(calls)
    first = {call.module: call.shapes for call in reversed(calls)}
    return [
        Module(module.name, module.kind, module.numbers, within[position], first[position])
        for position, module in enumerate(own)
    ]
