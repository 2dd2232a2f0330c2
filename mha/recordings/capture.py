"""Capture: record the inputs and outputs of live attention layers by hooks.

    with mha.capture(model, "calls.safetensors"):
        model(...)

Each framework has its hooks and its adapters in a module of its own, found by the entry points of group
"mha.capture"; an adapter turns one call of one kind of layer into the terms of the definition, or says why it can't.
For another kind of layer,
`register` an adapter of your own: an object with `kind`, `matches(layer)`, `check(layer)`,
`read(layer, arguments, output)` and, if you like, `probe(layer)` (see `Adapter`).
"""

import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.coverage import SHOWN, Coverage, Survey, UnreadWarning
from mha.projections.between import STEP
from mha.projections.layer import Part, ProjectedLayer
from mha.projections.said import Projections, fits
from mha.projections.unlisted import Unlisted
from mha.recordings.at_seam import SeamCalls
from mha.recordings.ends import Ends
from mha.recordings.hooks import Adapter, Call, Hooks, adapters_for, hooks_of, known_to, register, unregister
from mha.recordings.modules.recorder import LIMIT
from mha.recordings.modules.whole import WholeRecording, recorded_modules
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording, check_target
from mha.recordings.tokens import Tokens
from mha_core import SpecError, check_weights
from mha_core.capture import NoneFoundError, ReadCall
from mha_core.dtypes import round_to
from mha_core.errors import listed, one_line
from mha_core.live.probe import SWITCH

__all__ = ["Adapter", "Call", "Capture", "Hooks", "adapters_for", "capture", "hooks_of", "register", "unregister"]


class Capture:
    """A recording in progress: the `calls` so far, a `recording` of them, and the `coverage` of the model."""

    def __init__(
        self,
        hooks: Hooks,
        survey: Survey,
        tokens: Tokens | None = None,
        also: Sequence[str] = (),
        *,
        modules: bool = False,
    ) -> None:
        self.layers: list[RecordedLayer] = []
        self.calls: list[RecordedCall] = []
        self.owners: dict[str, str] = {}
        """What was recorded at the seam -> the module that looks like attention around it."""
        self.ends = (
            Ends(hooks.as_array, also, lambda: len(self.calls), strict=not modules)
            if hasattr(hooks, "as_array")
            else None
        )
        self.by_projections: Sequence[ProjectedLayer] = ()
        self.versions = hooks.versions()
        self.survey = survey
        self.tokens = tokens

    @property
    def coverage(self) -> Coverage:
        """Return the Coverage: which modules that look like attention were recorded so far, and which were not."""
        names = (self.owners.get(layer.name, layer.name) for layer in self.layers)
        return self.survey.coverage(list(dict.fromkeys(names)))

    @property
    def recording(self) -> Recording:
        """Return a Recording of the calls so far. Raises SpecError if there is none."""
        if not self.calls:
            raise SpecError(
                "nothing to record: no attention layer of what is captured was called. A call within a compiled "
                "program (jax.jit, tf.function, torch.compile, hybridize) can't be seen; run it without."
            )
        own = {layer.name for layer in self.layers}
        behind = tuple(one.name for one in self.by_projections if one.beyond and one.name in own)
        ends = None if self.ends is None else tuple(self.ends.besides(own - {*behind}, behind))
        more = self.coverage.unread, self.tokens, ends, behind
        return Recording(tuple(self.layers), tuple(self.calls), self.versions, *more)

    def add(self, name: str, kind: str, call: ReadCall) -> RecordedCall:
        """Record one call of a layer of this name and kind."""
        position = self._position(name, kind, call)
        self.calls.append(RecordedCall(position, call.inputs, call.outputs, call.assumed))
        return self.calls[-1]

    def settle(self, outcomes: Collection[tuple[RecordedCall, Mapping[str, NDArray] | None]]) -> None:
        """For (call, new outputs), replace the outputs. For (call, None), remove the call. Remove unused layers."""
        found = {id(call): outputs for call, outputs in outcomes}
        kept, gone = [], []
        for position, call in enumerate(self.calls):
            outputs = found.get(id(call), call.outputs)
            if outputs is None:
                gone.append(position)
            else:
                kept.append(replace(call, outputs=outputs))
        used = sorted({call.layer for call in kept})
        self.layers = [self.layers[layer] for layer in used]
        self.calls = [replace(call, layer=used.index(call.layer)) for call in kept]
        if self.ends is not None:
            self.ends.found = [
                replace(end, after=end.after - sum(position < end.after for position in gone))
                for end in self.ends.found
            ]

    def _position(self, name: str, kind: str, call: ReadCall) -> int:
        """Position of the layer among the recorded ones; it is added if it was not seen with these weights before."""
        parameters = None if call.parameters == call.dtype else call.parameters
        own = name, kind, call.dtype, call.config, parameters
        for position, known in enumerate(self.layers):
            same = (known.name, known.kind, known.dtype, known.config, known.parameters) == own
            if same and all(np.array_equal(known.weights[key], array) for key, array in call.weights.items()):
                return position
        self.layers.append(RecordedLayer(name, kind, call.dtype, call.config, call.weights, parameters))
        return len(self.layers) - 1


def _read(
    name: str, adapter: Adapter | ProjectedLayer, layer: Any, arguments: Mapping[str, Any], output: Any
) -> ReadCall:
    """One call as the adapter reads it. Raises SpecError for one that no recording can hold."""
    try:
        call = ReadCall(*adapter.read(layer, arguments, output))  # an adapter may give a plain tuple
        call.inputs.check(call.config)
        own = {str(array.dtype) for array in call.weights.values()}
        rounded = {key: round_to(array, call.dtype) for key, array in call.weights.items() if own != {call.dtype}}
        check_weights(call.config, rounded or call.weights)
    except Exception as error:  # of a layer that is not what its class promises, an adapter may raise anything
        reason = error if isinstance(error, SpecError) else one_line(error)
        if isinstance(error, KeyError):  # an argument, by name
            reason = f"{type(layer).__qualname__} is called without {error}"
        raise SpecError(f"a call of {adapter.kind} at {name or 'the top'} can't be recorded: {reason}") from error
    return call


@contextmanager
def capture(
    target: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    layers: str | Sequence[str] | Mapping[str, Projections] | None = ("*",),
    also: Sequence[str] = (),
    overwrite: bool = False,
    strict: bool = False,
    probe: bool = True,
    tokens: Any = None,
    modules: bool = False,
    depth: int | None = None,
    only: Sequence[str] = ("*",),
    limit: int = LIMIT,
    gradients: bool = False,
) -> Iterator[Capture]:
    """Return a context in which every call of the attention layers in `target` is recorded.

    The file is written when the context ends, whole or not at all; it is not written after an exception. Modules that
    look like attention but are not recorded (their class is unknown, or they were not called) are named in a warning
    (`mha.coverage.UnreadWarning`) and in the file.

    Args:
        target: a layer, or a model that contains some: of PyTorch (transformers too), Keras, Flax (linen or
            nnx) or Gluon.
        path: the file. None: no file; only `Capture.recording` holds the recording, in memory.
        layers: names of the layers to record; wildcards work. None: all. For layers of unknown classes, a dict: name of
            a layer (`*` stops at dots) -> its `mha.Projections`. Their calls are then compared with the reference.
        also: names of other modules whose outputs are recorded, such as "pooler"; wildcards work. The outputs of the
            target itself are always recorded, so that `mha where` can judge the code after the last attention layer.
        overwrite: whether an existing file may be replaced.
        strict: whether it is an error that a module which looks like attention is not recorded.
        probe: whether each layer first runs on a few small inputs, with its hooks, to see that it computes what its
            weights say (see `mha_core.live.probe`). The layer is left as it was. If it computes something else,
            SpecError is raised. With modules=True, it is recorded all the same, and a warning names it.
        tokens: the text at each position, for `mha view`: a list of texts, or such a list for each item of the batch.
            If keys and queries have different tokens: "keys" or "queries" -> such lists.
        modules: whether to record the inputs and outputs of every module too, for `mha where`. An attention layer that
            can't be recorded is then named in the warning, and is no error.
        depth: with `modules`, the number of nested levels to record (1: the model's direct submodules; None: all).
        only: with `modules`, the names of the modules to record; wildcards work.
        limit: with `modules`, the most bytes of inputs and outputs.
        gradients: with `modules`, whether to record the gradients of each module's outputs, inputs and parameters
            too. There must then be exactly one backward pass in the context.

    Raises:
        SpecError: no attention layer can be recorded; a layer or a call is not supported; the probe finds that a layer
            does not compute attention with its weights; there was no call; `also` names no module; or, with `strict`,
            an attention module can't be recorded. Nothing is written then.

    >>> import tempfile, torch
    >>> layer = torch.nn.MultiheadAttention(6, 2, batch_first=True).eval()
    >>> x = torch.ones(1, 3, 6)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with capture(layer, folder + "/calls.safetensors"):
    ...         _ = layer(x, x, x)
    ...     recording = Recording.load(folder + "/calls.safetensors")
    >>> recording.layers[0].kind, recording.calls[0].outputs["output"].shape
    ('torch.nn.MultiheadAttention', (1, 3, 6))
    """
    if isinstance(target, str | os.PathLike):
        raise SpecError(f"the model comes first: mha.capture(model, {os.fspath(target)!r})")
    layers = ("*",) if layers is None else (layers,) if isinstance(layers, str) else layers
    if gradients and not modules:
        raise SpecError("gradients=True records the gradients of modules: say modules=True too")
    if path is not None:
        path = check_target(path, overwrite=overwrite)
    unreadable: list[str] = []
    whole: WholeRecording | None = None
    named = None if tokens is None else Tokens.of(tokens)
    hooks = hooks_of(target)
    known = known_to(hooks)
    adapters: dict[str, Any] = {}

    def choose(name: str, module: Any) -> Any:
        adapters[name] = chosen(name, module)
        return adapters[name]

    def chosen(name: str, module: Any) -> Any:
        """Return the adapter of a module that is to be recorded, or the Part that it is of a layer; else None."""
        part = unlisted.part(module)
        if part is not None:
            return part
        adapter = known(module)
        asked = is_asked(name)
        if asked and (adapter is None or said):
            projected = unlisted.choose(name, module)
            if projected is not None:
                survey.meet(name, module, known=True)
                return projected
        survey.meet(name, module, known=adapter is not None, asked=asked)
        if adapter is None or not asked:
            return None
        is_read, where = False, f" at {name}" if name else ""
        try:
            adapter.check(module)
            is_read = True
            if probe and hasattr(adapter, "probe"):
                adapter.probe(module)
        except SpecError as error:
            if not is_read and getattr(adapter, "has_seam", False):
                seam.instead_of(name, f"{adapter.kind}{where} can't be recorded: {error}")
                survey.settle(module, known=False)
                return None
            if not modules:
                raise SpecError(f"{adapter.kind}{where} can't be recorded: {error}") from error
            if not is_read:
                unreadable.append(f"{adapter.kind}{where} can't be recorded: {error}")
                return None
            # A layer that is not what its weights say is what `mha where` looks for, and diagnoses by its calls.
            unreadable.append(f"{adapter.kind}{where} is recorded, but: {str(error).removesuffix(f'. {SWITCH}')}")
        return stack.enter_context(adapter.watching(module)) if hasattr(adapter, "watching") else adapter

    def see(name: str, layer: Any, arguments: Mapping[str, Any], output: Any) -> None:
        with nullcontext() if whole is None else whole.paused(), seam.paused():  # an adapter may run the layer again
            note(name, layer, arguments, output)

    def note(name: str, layer: Any, arguments: Mapping[str, Any], output: Any) -> None:
        adapter = adapters[name]
        if isinstance(adapter, Part):
            adapter.note(arguments, output)
        elif not isinstance(adapter, ProjectedLayer):
            try:
                recorder.add(name, adapter.kind, _read(name, adapter, layer, arguments, output))
                seam.drop(name)
            except SpecError as error:
                if seam.keep(name):
                    seam.instead_of(name, str(error))
                elif not modules:
                    raise
                else:
                    unreadable.append(str(error))
        elif name not in unlisted.refused:
            try:
                recorder.add(name, adapter.kind, _read(name, adapter, layer, arguments, output))
                has_function = seam.drop(name)
                if adapter.doubt:
                    where = f"{adapter.kind} at {name or 'the top'}"
                    cause = "`mha diagnose FILE` looks for the cause"
                    cause += ". Without layers= the calls of its attention function are recorded" * has_function
                    unreadable.append(f"{where} is recorded, but {adapter.doubt}; {cause}")
            except SpecError as error:
                survey.settle(layer, known=False)
                kept = seam.keep(name) or seam.refuses(name)
                if adapter.settled is not None or (adapter.sure and not (adapter.elsewhere and kept)):
                    raise
                if adapter.sure:
                    seam.instead_of(name, str(error).removesuffix(f". {STEP}"))
                unlisted.refused[name] = str(error)  # found by names alone: it is a module that was not read
        else:
            seam.keep(name)

    said = layers if isinstance(layers, Mapping) else {}

    def is_asked(name: str) -> bool:
        return any((fits if said else fnmatchcase)(name, pattern) for pattern in layers)

    survey = Survey(hooks.parts_of)
    recorder = Capture(hooks, survey, named, also, modules=modules)
    unlisted = Unlisted(hooks, target, said, is_known=lambda module: known(module) is not None, judge=_judged)
    recorder.by_projections = unlisted.layers
    if recorder.ends is not None:
        recorder.ends.layers = unlisted.layers
    beside = Capture(hooks, survey, None, (), modules=True) if modules else None
    seam = SeamCalls(hooks, target, recorder, survey, is_asked, beside)
    none_found: NoneFoundError | None = None

    def check_asked() -> None:
        there = [repr(one.name) for one in survey.coverage().unread if one.why == "unasked"]
        if there:
            raise SpecError(f"layers={list(layers)!r} must name attention layers (there are: {listed(there, SHOWN)})")

    def reasons() -> str:
        return unlisted.reasons(tuple(one.name for one in survey.coverage().unseen))

    def is_read(adapter: Any) -> bool:
        return adapter is not None and not isinstance(adapter, Part)

    def nothing() -> None:
        """Raise SpecError, because nothing was recorded."""
        if none_found is not None:
            check_asked()
            by = "" if tuple(layers) == ("*",) else f" by layers={list(layers)!r}"
            without = "modules=True records all modules without it, for `mha where`"
            raise SpecError(seam.refusal or f"{none_found}{by}. {reasons()}; {without}") from none_found
        if seam.refusal or unlisted.refused:
            raise SpecError(seam.refusal or f"nothing to record: {reasons()}")
        check_asked()

    with ExitStack() as around, ExitStack() as stack:
        try:
            stack.enter_context(hooks.watch(target, choose, see))
        except NoneFoundError as error:
            none_found = error
            if not modules and not seam.sees:
                nothing()
        if recorder.ends is not None:
            with suppress(NoneFoundError):  # a target that can't be watched itself
                stack.enter_context(hooks.watch(target, recorder.ends.choose, recorder.ends.see))
        if strict and not seam.sees:
            survey.coverage().check()
        if modules:
            asked = recorded_modules(hooks, target, path, limit, depth=depth, only=only, gradients=gradients)
            whole = around.enter_context(asked)
            stack.enter_context(whole.watched)
        with seam.watching(lambda: [name for name, one in adapters.items() if is_read(one)]):
            yield recorder
        stack.close()  # modules that run once more are not the model's calls
        seam.prove(keep=modules)
        if whole is not None and path is not None:
            handed = beside.recording if beside is not None and beside.calls else None
            whole.save(path, recorder.recording if recorder.calls else None, recorder.versions, handed)
    unreadable += seam.refusals
    if modules and not recorder.calls:
        if unreadable:
            warnings.warn(
                "; ".join(line.removesuffix(".") for line in dict.fromkeys(unreadable)), UnreadWarning, stacklevel=3
            )
        return
    if not recorder.calls:
        nothing()
    recording = recorder.recording
    if recorder.ends is not None:
        recorder.ends.check_met()
    if strict:
        recorder.coverage.check()
    lines = list(dict.fromkeys(unreadable))
    if not (modules and all(layer.is_at_seam for layer in recorder.layers)):  # what stands around is recorded too
        refused = [why for name, why in unlisted.refused.items() if not seam.reads(name)]
        lines += [*refused, unlisted.as_they_are if refused else ""]
        lines += [*(why for name, why in unlisted.turning.items() if not seam.reads(name)), *unlisted.notes]
        lines.append("" if modules else seam.line)
        lines = [recorder.coverage.line] * bool(recorder.coverage.unseen) + [line for line in lines if line]
    if strict and unlisted.beyond:
        raise SpecError(f"{unlisted.beyond}. Without strict this is said and no error")
    if lines:
        warnings.warn("; ".join(line.removesuffix(".") for line in lines), UnreadWarning, stacklevel=3)
    if path is not None and not modules:
        recording.save(path, overwrite=overwrite)


def _judged(name: str, call: ReadCall) -> str | None:
    """How a call differs from the reference by more than its dtype's bound; None if it does not."""
    from mha.recordings.replay import judge_recording

    layer = RecordedLayer(name, "", call.dtype, call.config, call.weights, call.parameters)
    one = RecordedCall(0, call.inputs, call.outputs)
    (result,) = judge_recording(Recording((layer,), (one,)))
    if result.status == "equal":
        return None
    return "; ".join(mismatch.message for mismatch in result.mismatches) or result.message
