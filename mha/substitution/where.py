"""`mha.where`: which modules of a port are wrong, each judged by its original's on what the port's was given."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from mha.recordings.modules.arrays import ArraysRecording, open_modules
from mha.recordings.modules.diagnosed import Suspect, diagnosed
from mha.recordings.modules.recording import ModuleRecording
from mha.recordings.recording import Recording
from mha.substitution.backward import judged_backward
from mha.substitution.calls import CallJudgement, Part, by_module, holds, inputs_of, modules_of, uncovered
from mha.substitution.mutants.unseen import Unseen, unseen_in
from mha.substitution.orders import in_which_order, others_among
from mha.substitution.original import Original
from mha.substitution.pairing.order import in_order
from mha.substitution.pairing.pairs import Pairs, sizes_of
from mha.substitution.recorded.modules import AnyRecording, recorded_apart
from mha.substitution.reports.report import Backward, ModuleResult, Status, WhereReport
from mha.substitution.substitute import Substitution
from mha_core import SpecError
from mha_core.errors import listed


def where(
    original: Any,
    recording: AnyRecording,
    *,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    pairs: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> WhereReport:
    """Find the modules of a port that are wrong.

    Each module of the original runs in float64 on what the port's module was given. So errors of the modules before it
    cancel, and every wrong module shows. Of an original that was recorded too, the two recordings are compared: calls
    of attention layers, and modules if both hold them. The first difference shows, and what a layer has wrong itself.

    Args:
        original: the original model, live, in inference: of PyTorch, Keras, Flax (nnx, or linen bound to its variables)
            or Gluon. Its parameters are put into other dtypes meanwhile, and put back. Or a recording, or its file.
        recording: of the port, by `mha.capture(port, FILE, modules=True)`, or calls as plain arrays; beside a recording
            of the original, of attention layers alone too.
        inputs: what the original is called with, by name or in order, in NumPy: the same as the port's. Default:
            what the port was called with.
        pairs: name of a module of the original -> name of the port's, where the search can't know it.
        progress: is told what is being done.

    Raises:
        SpecError: the original can't be run on the inputs; a recording can't be used; pairs contradict each other; or
            `inputs` beside a recording of the original, which does not run.
        FileNotFoundError: there is no such file.

    >>> import tempfile, numpy as np, torch, mha
    >>> model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5)).eval()
    >>> port = torch.nn.Sequential(model[0], torch.nn.GELU("tanh"), model[2]).eval()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with mha.capture(port, folder + "/port.safetensors", modules=True):
    ...         _ = port(torch.randn(2, 6))
    ...     where(model, folder + "/port.safetensors").wrong
    ('1',)
    """
    if isinstance(original, (Recording, ModuleRecording, str, os.PathLike)):
        if inputs is not None:
            raise SpecError("inputs are what a live original is called with; this one was recorded")
        return recorded_apart(original, recording, pairs, progress)
    if isinstance(recording, Recording):
        raise SpecError("a live original needs a recording of modules: mha.capture(port, FILE, modules=True)")
    if not isinstance(recording, ModuleRecording):
        recording = open_modules(recording)
    first = recording.modules[0].name
    if first:
        raise SpecError(f"the recording holds no call of the model itself, of {first!r} and others: call the model")
    if (often := sum(call.module == 0 for call in recording.calls)) > 1:
        raise SpecError(f"the recording holds {often} calls of the model: record one")
    if inputs is None:
        inputs = inputs_of(recording)
    progress("the original")
    own = Original(original, inputs, recording.dtype)
    both = modules_of(own.modules, own.calls), modules_of(recording.modules, recording.calls)
    found = Pairs(*both, pairs or {})
    report = _Judge(own, recording, found, progress).report()
    exchanged = found.exchanged()
    if exchanged and _wrong_in_own_lines(report):
        # A line that is wrong between right modules, or weights that stand in each other's places?
        second = _Judge(own, recording, Pairs(*both, pairs or {}, exchanged), progress).report()
        report = second if _wrong_in_own_lines(second) < _wrong_in_own_lines(report) else report
    wrong = {one.name: Suspect(one.kind, one.parameters) for one in report.results if one.status == "wrong"}
    called = [one.name for one in report.results]
    if isinstance(recording, ArraysRecording):  # it has no attention layers
        return report
    return replace(report, diagnosed=diagnosed(recording.path, wrong, called, report.judged, progress))


def _wrong_in_own_lines(report: WhereReport) -> set[str]:
    return {one.name for one in report.results if one.status == "wrong" and one.own_lines}


class _Judge:
    """Judges every pair, the innermost first."""

    def __init__(
        self, own: Original, recording: ModuleRecording, pairs: Pairs, progress: Callable[[str], None]
    ) -> None:
        self.own, self.recording, self.pairs, self.progress = own, recording, pairs, progress
        self.calls = by_module(recording.calls)
        self.own_calls = by_module(own.calls)
        self.modules, self.inside = pairs.ports, pairs.inside_ports
        self.results: dict[int, ModuleResult] = {}
        self.padding: dict[int, NDArray] = {}
        self.own_masks: set[int] = set()
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
        return WhereReport(
            results,
            uncovered(self.pairs, self._is_judged),
            self.recording.dtype,
            self.recording.versions,
            names,
            unseen,
            notes=self.recording.remarks,
        )

    def _result(self, port: int) -> ModuleResult:
        """The verdict on a module; one that is wrong may be what another module of the same numbers stands for."""
        found = self._judged(port)
        if found.status == "wrong" and found.own_lines:
            found = self._with_parts_exchanged(port, found)
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

    def _with_parts_exchanged(self, port: int, found: ModuleResult) -> ModuleResult:
        """The verdict on a module that is wrong with right parts, where it is right with some in each other's places.

        Then the parts are wrong, each of which has the parameters of another; unless their names say which is which:
        then the module calls them in another order.
        """
        for group in self.pairs.out_of_order(port):
            before, results = self.pairs.state(), dict(self.results)
            named = all(self.pairs.how[original] in ("name", "the map") for original in group)
            self.pairs.put(group, "order and shape")
            for part in sorted(group.values(), reverse=True):
                self.results[part] = self._judged(part)
            second = self._judged(port)
            if second.status != "wrong" and not named:
                return second
            self.pairs.restore(before)
            self.results = results
            if second.status != "wrong":
                names = listed([self.modules[one].name for one in sorted(group.values())], 4)
                note = f"it calls {names} in another order than the original: with them exchanged, it is right"
                return replace(found, notes=(*found.notes, note))
        if moved := self.pairs.called_otherwise(port):
            whose = [
                f"{self.modules[one].name} has the parameters of {self.own.modules[o].name}" for o, one in moved.items()
            ]
            note = f"the original calls these in another order: {listed(whose, 4)}"
            return replace(found, notes=(*found.notes, note))
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
        own = self.own.modules[original]
        about |= {"original": own.name, "original_kind": own.kind, "how": self.pairs.how[original]}
        if module.numbers.known and self.own.modules[original].numbers.hashed is not None:
            about["parameters"] = "same" if module.numbers == self.own.modules[original].numbers else "other"
            if about["parameters"] == "other":
                alike = (one.name for one in self.own.modules if one.numbers == module.numbers)
                about["parameters_of"] = next(alike, "")
                about["order"] = (
                    ""
                    if about["parameters_of"]
                    else others_among(
                        self.recording.modules[port].parameters,
                        self.own.modules[original].parameters,
                        self.own.modules[0].parameters,
                    )
                )
        lacking = self.own.modules[original].without_numbers
        if lacking is not None:  # PyTorch computes with such a parameter as if there were some
            reason = f"the original's {lacking} has no numbers: it is on the meta device, offloaded, or not initialised"
            return ModuleResult(**about, status="not judged", reason=reason)
        mine, theirs = self.own_calls[original], self.calls[port]
        calls = self._paired_calls(original, port)
        if len(mine) != len(theirs):
            about["reason"] = f"the original calls it {len(mine)} times and the port {len(theirs)} times"
        if not calls:
            return ModuleResult(**about, status="not judged")
        try:
            ready = [
                Substitution(self.own, self.recording, self.own.calls[one], self.recording.calls[other])
                for one, other in calls
            ]
            for one in ready:
                one.paired = self.pairs.found
                one.padding = next((self.padding[part] for part in self.inside[port] if part in self.padding), None)
            judged = [one.judge() for one in ready]
        except SpecError as error:
            return ModuleResult(**{**about, "reason": str(error)}, status="not judged")
        if any(one.own_masks for one in judged):
            self.own_masks.add(port)
        if ready[0].padding is not None:
            self.padding[port] = ready[0].padding
        inner = self._outermost_inside(port, judged=True)
        parts_wrong = any(self.results[one].status != "equal" for one in inner)
        worst = max(judged, key=lambda one: one.worst[1].ratio)
        status: Status = "equal" if worst.worst[1].equal else "wrong"
        own_lines = status == "wrong" and bool(inner)
        if parts_wrong:
            alone, spared, divided = self._alone(inner, ready, calls)
            together = False
            others = [
                one
                for one in inner
                if one not in divided and self.results[one].status not in ("equal", "divided otherwise")
            ]
            if not divided and status == "equal" and alone is not None and alone.worst[1].equal:
                divided, spared, together = self._compensating(inner, ready, calls), alone, True
            if divided and (status == "equal" or others):  # else the module is wrong, and nothing would be
                alone = spared
                for part in divided:
                    self._divide(part, module.name or "the model", together=together)
            else:
                divided = ()
            still = any(self.results[one].status not in ("equal", "divided otherwise") for one in inner)
            if alone is None and status == "wrong":
                worst.notes.append("whether its own lines are right too can't be seen: its parts can't be replaced")
            if status == "wrong" and alone is not None and not alone.worst[1].equal:
                worst = alone
            else:
                status, own_lines = "through its parts" if still else "equal", False
                worst = alone if alone is not None and divided else worst
        elif own_lines:
            alone = self._with_parts(inner, ready, calls)
            worst = alone if alone is not None and not alone.worst[1].equal else worst  # nearer to the wrong line
        if status == "equal":
            self.unseen += unseen_in(module.name, ready[0])
        unpaired = self._outermost_inside(port, judged=False) if own_lines else []
        traced = (f"{one} (not recorded)" for one in self.recording.not_recorded)
        names = (*(self.modules[one].name for one in unpaired), *(traced if own_lines and not port else ()))
        if status == "wrong" and about.get("parameters") == "same":
            about |= self._in_order(port, original)
        shown = judged if worst in judged else [worst]
        return _filled(about, status, worst, allowed=shown, own_lines=own_lines, unpaired=names)

    def _in_order(self, port: int, original: int) -> dict[str, str]:
        """Return what is known of the order of a module's parameters, which are the original's numbers."""
        own, module = self.own.modules[original], self.modules[port]
        held = self.own.native.parameters_of(own.held)
        parameters, order = in_which_order(
            own.parameters,
            lambda name: self.own.native.numbers_in(held[name]),
            self.recording.modules[port].parameters,
            (own.kind, module.kind),
            self.recording.dtype,
            one_framework=self.own.hooks.versions().keys() == self.recording.versions.keys(),
        )
        return {"parameters": parameters, "order": order}

    def _backward(self, port: int) -> Backward:
        """The verdict on a module's gradients, if what it gives is right."""
        forward, original = self.results[port], self.pairs.original_of(port)
        if forward.status != "equal" or original is None:
            return Backward("not judged", reason=f"forward it is {forward.status}")
        parts = [self.results[one].backward for one in self._outermost_inside(port, judged=True)]
        return judged_backward(
            self.own,
            self.recording,
            self._paired_calls(original, port),
            parts_right=all(part is None or part.status in ("equal", "not judged") for part in parts),
        )

    def _alone(
        self, inner: Sequence[int], ready: Sequence[Substitution], calls: Sequence[tuple[int, int]]
    ) -> tuple[CallJudgement | None, CallJudgement | None, Sequence[int]]:
        """The worst call with the port's outputs in place of those of its parts; None if that can't be run.

        And the same, with parts that were found wrong left out: the module is right with the original's in their
        places, and wrong with the port's. So a line stands in them in one model, and beside them in the other.
        """
        found = self._with_parts(inner, ready, calls)
        if found is None or found.worst[1].equal:
            return found, None, ()
        wrong = [one for one in inner if self.results[one].status != "equal"]
        for left in (*([one] for one in wrong), wrong):
            other = self._with_parts([one for one in inner if one not in left], ready, calls)
            if other is not None and other.worst[1].equal:
                return found, other, left
        return found, None, ()

    def _compensating(
        self, inner: Sequence[int], ready: Sequence[Substitution], calls: Sequence[tuple[int, int]]
    ) -> Sequence[int]:
        """The wrong parts of a module that is right, where one of them alone would make it wrong: others mend that.

        So rows of queries and keys, heads, or a bias of the values in that of the output may be written otherwise.
        Where none of them moves the module, it is right whatever they give, and nothing is known of them.
        """
        wrong = [one for one in inner if self.results[one].status not in ("equal", "divided otherwise")]
        for part in wrong if len(wrong) > 1 else ():
            alone = self._with_parts([part], ready, calls)
            if alone is not None and not alone.worst[1].equal:
                return wrong
        return ()

    def _divide(self, part: int, around: str, *, together: bool) -> None:
        """Take back that a module and those inside it are wrong: with the lines or parts around it, it is right."""
        for one in (part, *self.inside[part]):
            if self.results[one].status in ("wrong", "through its parts"):
                reason = f"a line of it stands beside it in the other model: {around} is right with it"
                if together:
                    reason = f"it and other parts of {around} are written otherwise: {around} is right with them"
                self.results[one] = replace(self.results[one], status="divided otherwise", reason=reason)

    def _with_parts(
        self, inner: Sequence[int], ready: Sequence[Substitution], calls: Sequence[tuple[int, int]]
    ) -> CallJudgement | None:
        """The worst call with the port's outputs in place of those of some parts; None if that can't be run."""
        found = []
        for one, (mine, theirs) in zip(ready, calls, strict=True):
            parts = []
            for part in inner:
                original = self.pairs.original_of(part)
                assert original is not None
                other = dict(self._paired_calls(original, part, mine, theirs))
                both = [
                    (self.own.calls[call], self.recording.calls[other[call]] if call in other else None)
                    for call in self.own_calls[original]
                    if holds(self.own.calls, mine, call)
                ]
                often = sum(holds(self.recording.calls, theirs, call) for call in self.calls[part])
                if len(both) != often and not self.modules[part].numbers.size:
                    continue  # an idle Dropout: which of its calls is which is not known, and it changes nothing
                right = self.results[part].status != "wrong" and part not in self.own_masks
                parts.append(Part(original, self.modules[part].name, both, right))
            try:
                found.append(one.judge(parts))
            except SpecError:
                return None
        return max(found, key=lambda one: one.worst[1].ratio)

    def _paired_calls(self, original: int, port: int, mine: int = 0, theirs: int = 0) -> list[tuple[int, int]]:
        """The calls of a module in both models, in order; of other numbers of calls, those that give as many numbers.

        Args:
            original, port: positions of the module.
            mine, theirs: the calls in which they are made. Default: that of the model.
        """
        own = [one for one in self.own_calls[original] if holds(self.own.calls, mine, one)]
        other = [one for one in self.calls[port] if holds(self.recording.calls, theirs, one)]
        if len(own) == len(other):
            return list(zip(own, other, strict=True))
        left = [(one, sizes_of(self.own.calls[one].shapes)) for one in own]
        return list(in_order(left, [(one, sizes_of(self.recording.calls[one].shapes)) for one in other]))

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


def _filled(
    about: Mapping[str, Any], status: Status, call: CallJudgement, allowed: Sequence[CallJudgement], **rest: Any
) -> ModuleResult:
    place, worst = call.worst
    bounds = [found.bound for one in allowed for found in one.arrays.values()]
    notes = [*call.notes, *call.layouts]
    notes += [
        f"{name} excludes other keys than the original's mask: {n} entries differ"
        for name, n in call.masks.items()
        if n
    ]
    notes += [f"the port does not give {'.'.join(one) or 'the output'}" for one in call.missing]
    if call.own:
        notes.append("as in the original's own run: " + ", ".join(".".join(one) for one in call.own))
    return ModuleResult(
        **about,
        status=status,
        ratio=worst.ratio,
        allowance="calibrated" if None in bounds else "derived",
        bound=max((one for one in bounds if one is not None), default=None),
        rounding=worst.rounding,
        place=".".join(place),
        index=worst.worst,
        got=worst.got,
        expected=worst.expected,
        notes=tuple(notes),
        padding=call.padding if status == "equal" else 0,
        uncompared=tuple(".".join(one) or "the output" for one in call.unmatched),
        **rest,
    )
