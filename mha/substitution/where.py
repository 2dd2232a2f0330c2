"""`mha.where`: which modules of a port are wrong, each judged by its original's on what the port's was given."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from mha.coverage import kind_of
from mha.recordings.modules.arrays import ArraysRecording, open_modules
from mha.recordings.modules.diagnosed import UNREAD, Suspect, diagnosed
from mha.recordings.modules.recording import ModuleRecording, Parameter
from mha.recordings.recording import Recording
from mha.substitution.backward import judged_backward
from mha.substitution.caches import WRITES, Caches
from mha.substitution.calls import inputs_of, modules_of, uncovered
from mha.substitution.cores import of_cores
from mha.substitution.handed import held_otherwise, of_wrong, sides_of_wrong, with_makers_of_masks
from mha.substitution.mutants.unseen import unseen_in
from mha.substitution.orders import in_which_order, lacked, others_among, rounded_among
from mha.substitution.original import Original
from mha.substitution.pairing.pairs import Pairs
from mha.substitution.parts.blame import Blame, filled
from mha.substitution.parts.packed import covered
from mha.substitution.parts.runs import RIGHT
from mha.substitution.recorded.modules import AnyRecording, recorded_apart
from mha.substitution.reports.report import Backward, ModuleResult, Status, WhereReport
from mha.substitution.substitute import Substitution
from mha_core import SpecError
from mha_core.errors import listed

TO_RECORD = 'with mha.capture(port, "port.safetensors", modules=True): port(x)'
"""How a port is recorded."""


def where(
    original: Any,
    recording: AnyRecording,
    *,
    inputs: Mapping[str, Any] | Sequence[Any] | None = None,
    pairs: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> WhereReport:
    """Return a report on the modules of a port, which names the wrong ones.

    Each module of the original runs in float64 on the inputs of the port's module. So errors of earlier modules don't
    count, and every wrong module shows. If the original is a recording too, the two recordings are compared: the calls
    of attention layers, and of other modules if both have them. That shows only the first difference, and attention
    layers that are wrong themselves.

    Args:
        original: the original model, live, in inference mode: of PyTorch, Keras, Flax (nnx, or linen bound to its
            variables) or Gluon. Its parameters are cast to other dtypes for a while, and restored. Or a recording, or
            its file.
        recording: the port's recording, by `mha.capture(port, FILE, modules=True)`, or a file of plain arrays. If the
            original is a recording, this one may have attention layers only.
        inputs: the original's arguments in NumPy, as name -> array or in order. Default: those of the port's call.
        pairs: name of a module of the original -> name of the port's, for pairs that the search would not find.
        progress: called with a text on the current step.

    Raises:
        SpecError: the original can't be run on the inputs; a recording can't be used; pairs contradict each other; or
            `inputs` are given although the original is a recording, which does not run.
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
    is_file = (Recording, ModuleRecording, str, os.PathLike)
    if not isinstance(recording, is_file):
        first = "; the original comes first" if isinstance(original, is_file) else ""
        raise SpecError(
            f"the second argument of where must be a recording of the port. Got a {kind_of(recording)}: "
            f"{TO_RECORD}{first}"
        )
    if isinstance(original, is_file):
        if inputs is not None:
            raise SpecError("inputs are what a live original is called with; this one was recorded")
        return recorded_apart(original, recording, pairs, progress)
    if isinstance(recording, Recording):
        raise SpecError(f"a live original needs a recording of modules: {TO_RECORD}")
    if not isinstance(recording, ModuleRecording):
        recording = open_modules(recording)
    first = recording.modules[0].name
    if first:
        raise SpecError(f"the recording holds no call of the model itself, of {first!r} and others: call the model")
    if (often := sum(call.module == 0 for call in recording.calls)) > 1:
        raise SpecError(
            f"the recording holds {often} calls of the model: record one, each in a file of its own, or a module that "
            f"makes them all (docs/where.md, A cache, and several calls): {TO_RECORD}"
        )
    if inputs is None:
        inputs = inputs_of(recording)
    progress("the original")
    own = Original(original, inputs, recording.dtype)
    both = modules_of(own.modules, own.calls), modules_of(recording.modules, recording.calls)
    found = Pairs(*both, pairs or {})
    judge = _Judge(own, recording, found, progress)
    report = judge.report()
    exchanged = found.exchanged()
    if exchanged and _wrong_in_own_lines(report):
        # A line that is wrong between right modules, or weights that stand in each other's places?
        again = _Judge(own, recording, Pairs(*both, pairs or {}, exchanged), progress)
        second = again.report()
        if _wrong_in_own_lines(second) < _wrong_in_own_lines(report):
            judge, report = again, second
    wrong = {one.name: Suspect(one.kind, one.parameters) for one in report.results if one.status == "wrong"}
    called = {one.name: one.kind for one in report.results}
    if isinstance(recording, ArraysRecording):  # it has no attention layers
        return report
    ready = {
        one.name: judge.ready[port][0]
        for port, one in enumerate(report.results)
        if one.name in wrong and port in judge.ready
    }
    told, sides = (of(own, original, recording.path, ready) for of in (of_wrong, sides_of_wrong))
    report = with_makers_of_masks(report, ready, told | sides)
    wrong = {name: one for name, one in wrong.items() if name in report.wrong}

    def beside(name: str, layers: Recording) -> str:
        return held_otherwise(own, original, ready[name], layers) if name in ready else ""

    handed = {name: handing.text for name, handing in told.items()}
    texts = diagnosed(recording.path, wrong, called, report.judged, progress, handed, beside)
    unread = {
        one.name: one.original
        for one in report.results
        if one.name in wrong and one.own_lines and one.original and texts.get(one.name, UNREAD[0]).startswith(UNREAD)
    }
    texts |= of_cores(own, recording, unread)
    for name, side in sides.items():
        if name in wrong:
            texts[name] = f"{texts[name]}\n{side.text}" if name in texts else side.text
    return replace(report, diagnosed=texts)


def _wrong_in_own_lines(report: WhereReport) -> set[str]:
    return {one.name for one in report.results if one.status == "wrong" and one.own_lines}


class _Judge(Blame):
    """Judges every pair, the innermost first."""

    @cached_property
    def caches(self) -> Caches:
        """Return the caches of the original, as its modules are given them."""
        return Caches(self.own, self.recording, self.pairs, self.paired_calls)

    def report(self) -> WhereReport:
        for port in reversed(range(len(self.modules))):  # calls begin outside
            self.progress(self.modules[port].name or "the model")
            self.results[port] = self._result(port)
            if self.recording.has_gradients:
                self.results[port] = replace(self.results[port], backward=self._backward(port))
        self.leave_open()
        results = tuple(self.results[port] for port in range(len(self.modules)))
        names = {self.own.modules[one].name: self.modules[other].name for one, other in self.pairs.found.items()}
        unseen = tuple(reversed(self.unseen))
        alone = uncovered(self.pairs, self.is_judged)
        unjudged = {one.name for one in results if one.status == "not judged" and one.ratio is None}
        right = covered(self, alone) if results[0].status == "equal" else set()
        return WhereReport(
            results,
            tuple(name for name in alone if name not in right and name in unjudged),
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
        if found.status == "wrong" and found.own_lines:
            found = self.in_lines_of_parts(port, found)
        if found.status == "wrong" and found.how == "the same numbers":
            for other in self.pairs.others_for(port):
                before, ready = self.pairs.original_of(port), self.ready[port]
                self.pairs.exchange(port, other)
                second = self._judged(port)
                if second.status == "equal":
                    return second
                assert before is not None
                self.pairs.exchange(port, before)
                self.ready[port] = ready
        return found

    def _with_parts_exchanged(self, port: int, found: ModuleResult) -> ModuleResult:
        """The verdict on a module that is wrong with right parts, where it is right with some in each other's places.

        Then the parts are wrong, each of which has the parameters of another; unless their names say which is which:
        then the module calls them in another order.
        """
        for group in self.pairs.out_of_order(port):
            before, results, seen = self.pairs.state(), dict(self.results), (dict(self.ready), dict(self.in_lines))
            named = all(
                self.pairs.how[original] in ("name", "the map") or self.pairs.named_elsewhere(original, part)
                for original, part in before[0].items()
                if original in group
            )
            self.pairs.put(group, "order and shape")
            for part in sorted(group.values(), reverse=True):
                self.results[part] = self._judged(part)
            second = self._judged(port)
            if second.status != "wrong" and not named:
                return second
            self.pairs.restore(before)
            self.results, (self.ready, self.in_lines) = results, seen
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
        calls = self.paired_calls(original, port)
        if len(mine) != len(theirs):
            about["reason"] = f"the original calls it {len(mine)} times and the port {len(theirs)} times"
        if not calls:
            return ModuleResult(**about, status="not judged")
        self.caches.take(calls)
        try:
            ready = [
                Substitution(self.own, self.recording, self.own.calls[one], self.recording.calls[other])
                for one, other in calls
            ]
            for one in ready:
                one.paired = {own for own, other in self.pairs.found.items() if self.was_judged(other)}
                one.padding = next((self.padding[part] for part in self.inside[port] if part in self.padding), None)
            judged = [one.judge() for one in ready]
            for number, kind, written in self.caches.written(original, calls, ready):
                judged[number].arrays[(WRITES, kind)] = written
        except SpecError as error:
            return ModuleResult(**{**about, "reason": str(error)}, status="not judged")
        self.ready[port] = ready, calls
        if (differs := self.caches.differs(original, calls)) and "reason" not in about:
            about["reason"] = differs
        if any(one.own_masks for one in judged):
            self.own_masks.add(port)
        if any(one.other_masks for one in judged):
            self.other_masks.add(port)
        if ready[0].padding is not None:
            self.padding[port] = ready[0].padding
        inner = self.outermost_inside(port, judged=True)
        parts_wrong = any(self.results[one].status != "equal" for one in inner)
        worst = max(judged, key=lambda one: one.worst[1].ratio)
        status: Status = "equal" if worst.worst[1].equal else "wrong"
        own_lines = status == "wrong" and bool(inner)
        if status == "wrong" and (beside := self.activation_of(ready)) is not None:
            self.beside[port] = beside
        if parts_wrong:
            division, together = self.division(inner, ready, calls), False
            alone, parts, right = division.found, division.parts, False
            if division.spared is not None:
                right = division.spared.worst[1].equal
                others = [one for one in inner if one not in parts and self.results[one].status not in RIGHT]
                if status == "equal" or others or not right or self.blame_for_masks(port):
                    alone = division.spared
                else:  # the module is wrong, and nothing would be
                    parts = ()
            elif status == "equal" and alone is not None and alone.worst[1].equal:
                parts, right, together = self.compensating(inner, ready, calls), True, True
            for part in parts:
                self.divide(part, module.name or "the model", division.beside.get(part), right, together=together)
            spared = self.made_up_for(port, right=status == "equal", lines=alone is None or not alone.worst[1].equal)
            if spared and alone is not None:
                alone = self.without(alone, [*parts, *spared], inner, ready, calls)
            if alone is not None and alone.own_masks:
                self.own_masks.add(port)
            still = any(self.results[one].status not in RIGHT for one in inner)
            if alone is None and status == "wrong":
                worst.notes.append("whether its own lines are right too can't be seen: its parts can't be replaced")
            misread = None
            if status == "wrong" and division.spared is None and alone is not None and alone.worst[1].equal:
                misread = self.beside_masks(port, inner, ready, calls)
            if (
                status == "wrong"
                and alone is not None
                and not alone.worst[1].equal
                and not self.is_explained(port, alone)
            ):
                worst = self.in_lines[port] = alone
            elif misread is not None and not self.blame_for_masks(port):
                worst = self.in_lines[port] = misread
            else:
                status, own_lines = "through its parts" if still else "equal", False
                worst = alone if alone is not None and parts else worst
        elif own_lines:
            every = self.with_parts(inner, ready, calls)
            alone = None if every is None else max(every, key=lambda one: one.worst[1].ratio)
            if alone is not None and not alone.worst[1].equal:
                worst = self.in_lines[port] = alone  # nearer to the wrong line
            elif alone is not None and self.blame_for_masks(port):
                status, own_lines = "through its parts", False
        if status == "equal":
            self.unseen += unseen_in(module.name, ready[0])
        unpaired = self.outermost_inside(port, judged=False) if own_lines else []
        traced = (f"{one} (not recorded)" for one in self.recording.not_recorded)
        names = (*(self.modules[one].name for one in unpaired), *(traced if own_lines and not port else ()))
        if status == "wrong" and about.get("parameters") == "same":
            about |= self._in_order(port, original)
        if status == "wrong" and about.get("parameters") == "other" and not about["parameters_of"]:
            lost = lacked(self.recording.modules[port].parameters, self.own.modules[original].parameters)
            about["order"] = self._rounded(port, original) or lost or about["order"]
        if status == "wrong" and own_lines and (note := self._beside_parts(port, original)):
            worst.notes.append(note)
        shown = judged if worst in judged else [worst]
        return filled(about, status, worst, allowed=shown, own_lines=own_lines, unpaired=names)

    def _rounded(self, port: int, original: int, some: Mapping[str, Parameter] | None = None) -> str:
        """Return which of a module's parameters, or of `some`, are the original's in fewer bits, in words."""
        own, held = self.own.modules[original], self.own.native.parameters_of(self.own.modules[original].held)
        return rounded_among(
            self.recording.modules[port].parameters if some is None else some,
            own.parameters,
            lambda name: self.own.native.numbers_in(held[name]),
        )

    def _beside_parts(self, port: int, original: int) -> str:
        """Return in words how parameters that stand in no part of a module differ from the original's; "" if not."""
        every, theirs = self.recording.modules, self.own.modules[original].parameters
        inside = {one.numbers for part in self.inside[port] for one in every[part].parameters.values()}
        mine = {name: one for name, one in every[port].parameters.items() if one.numbers not in inside}
        if not {one.numbers for one in mine.values()} <= {one.numbers for one in theirs.values()}:
            others = self._rounded(port, original, mine) or others_among(mine, theirs, self.own.modules[0].parameters)
            return f"parameters of its own are not the original's: {others or listed(list(mine), 3)}"
        order = self._in_order(port, original, mine)["order"]
        return f"parameters of its own have the original's numbers in another order: {order}" if order else ""

    def _in_order(self, port: int, original: int, some: Mapping[str, Parameter] | None = None) -> dict[str, str]:
        """Return what is known of the order of a module's parameters, or `some`, which are the original's numbers."""
        own, module = self.own.modules[original], self.modules[port]
        held = self.own.native.parameters_of(own.held)
        parameters, order = in_which_order(
            own.parameters,
            lambda name: self.own.native.numbers_in(held[name]),
            self.recording.modules[port].parameters if some is None else some,
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
        parts = [self.results[one].backward for one in self.outermost_inside(port, judged=True)]
        return judged_backward(
            self.own,
            self.recording,
            self.paired_calls(original, port),
            parts_right=all(part is None or part.status in ("equal", "not judged") for part in parts),
        )
