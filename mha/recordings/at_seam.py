"""Calls at the seam: calls of attention functions, which `mha.capture` records in layers it can't read otherwise."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from conformance.judging.expected import Expected, answer
from mha.coverage import Survey, kind_of
from mha.recipes.judge import Judgement, judge_original
from mha.recordings.hooks import Hooks
from mha.recordings.parts import AT_SEAM, RecordedCall
from mha.seam.interface import intercept_interface
from mha_core import SpecError, Trace
from mha_core.capture import ReadCall
from mha_core.errors import listed
from mha_core.seam import Handle, Handover

SHOWN = 3
"""Most layers that a line lists."""


@dataclass(frozen=True)
class Proof:
    """A comparison of one call of an attention function with the reference.

    Attributes:
        judgement: the errors, and whether they are within the bounds.
        problem: the call. Its `recorded` has no weights if the function does not return attention weights.
        wanted: the reference's results, and the allowed errors.
        in_float32: whether the results agree only with a reference whose softmax is in float32.
    """

    judgement: Judgement
    problem: Problem
    wanted: Expected
    in_float32: bool = False

    @property
    def equal(self) -> bool:
        """Return whether the call's outputs equal the reference's within the bounds, except in fully masked rows."""
        return self.judgement.equal


def prove(call: ReadCall | Problem, dtype: str, *, ratios: bool = False) -> Proof:
    """Return a Proof: a comparison of an attention function's outputs in one call with those of the reference.

    `ratios`: whether error ratios are needed; without them the comparison is cheaper. Fully masked rows are counted and
    not compared. Functions of transformers compute softmax in float32 even if the inputs are float64. So float64
    outputs that differ are compared again with such a softmax. If they are equal then, that is the Proof.
    """
    problem = call if isinstance(call, Problem) else Problem(call.config, call.weights, call.inputs, call.outputs)
    found = _compared(problem, dtype, ratios)
    if {one.stage for one in found.judgement.mismatches} == {"weights"}:  # what is returned beside need not be weights
        output = {"output": problem.recorded["output"]}
        found = _compared(replace(problem, recorded=output), dtype, ratios)
    return found


def _compared(problem: Problem, dtype: str, ratios: bool) -> Proof:
    # PyTorch's fused kernel for CPUs: an online softmax over blocks of 512 keys, with a faster exp.
    precision = replace(Precision.of(dtype), exp_ulps=20.0, key_block=512)
    wanted = answer(problem, precision)
    if not ratios and wanted.surely_allows(Trace.of_arrays(problem.recorded), dtype):
        without_key = int((~wanted.where.any(axis=-1)).sum())
        return Proof(Judgement({}, 0.0, rows_without_key=without_key), problem, wanted)
    found = Proof(judge_original(problem, precision, wanted), problem, wanted)
    if found.equal or dtype != "float64":
        return found
    narrow = replace(precision, softmax="float32")
    wanted = answer(problem, narrow)
    again = judge_original(problem, narrow, wanted)
    return Proof(again, problem, wanted, in_float32=True) if again.equal else found


@contextmanager
def intercepted(hooks: Hooks, target: Any, handle: Handle) -> Iterator[None]:
    """Return a context in which `handle` is called with each call of an attention function inside the target."""
    with ExitStack() as stack:
        if has_seam(hooks):
            stack.enter_context(hooks.intercept_attention(target, handle))
        if hasattr(target, "named_modules"):
            stack.enter_context(intercept_interface(target, handle))
        yield


def has_seam(hooks: Hooks) -> bool:
    """Return whether the framework allows recording the calls of attention functions."""
    return hasattr(hooks, "intercept_attention")


class Recorder(Protocol):
    """An object that records calls: see `mha.recordings.capture.Capture`."""

    owners: dict[str, str]

    def add(self, name: str, kind: str, call: ReadCall) -> RecordedCall:
        """Record one call of a layer of this name and kind."""

    def settle(self, outcomes: Collection[tuple[RecordedCall, Mapping[str, NDArray] | None]]) -> None:
        """For each (call, new outputs), replace the call's outputs. For each (call, None), remove the call."""


class SeamCalls:
    """The recorded calls of attention functions (such as SDPA) inside the layers of a model.

    Args:
        hooks: the framework's functions.
        target: the model.
        recorder: the Recorder of the calls.
        survey: the Survey of the model's modules, which notes the modules whose calls are recorded here.
        asked: a function: name of a layer -> whether the layer is to be recorded.
        beside: a second Recorder, for function calls inside the layers of transformers that are recorded as whole
            layers. None: such calls are dropped.

    Attributes:
        read: name of each layer that was recorded by its function calls -> whether its softmax is in float32.
    """

    def __init__(
        self,
        hooks: Hooks,
        target: Any,
        recorder: Recorder,
        survey: Survey,
        asked: Callable[[str], bool],
        beside: Recorder | None = None,
    ) -> None:
        self._hooks, self._target, self._recorder, self._survey, self._asked = hooks, target, recorder, survey, asked
        self._beside = beside
        self._waiting: list[tuple[str, Any, ReadCall]] = []
        self._calls: list[tuple[str, RecordedCall, ReadCall]] = []
        self._paused = 0
        self._refused: dict[str, str] = {}
        self._instead: dict[str, str] = {}
        self._without_key: dict[str, int] = {}
        self.read: dict[str, bool] = {}

    @property
    def sees(self) -> bool:
        """Return whether this framework allows recording the calls of attention functions."""
        return has_seam(self._hooks)

    @contextmanager
    def watching(self, chosen: Callable[[], Collection[str]]) -> Iterator[None]:
        """Return a context in which calls of attention functions are noted.

        Args:
            chosen: a function that returns the names of the layers that are recorded as whole layers.
        """

        def seen(name: str, module: Any, handover: Handover | SpecError) -> None:
            if not self._paused and self._asked(name):
                self._note(name, module, handover, chosen())

        with intercepted(self._hooks, self._target, lambda call: call.recorded(seen)):
            yield

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context in which calls are not recorded, for running a layer again."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _note(self, name: str, module: Any, handover: Handover | SpecError, chosen: Collection[str]) -> None:
        try:
            if isinstance(handover, SpecError):
                raise handover
            call = handover.read()
        except SpecError as error:
            self._refused.setdefault(name, str(error))
            return
        if any(_inside(name, outer) for outer in chosen):
            self._waiting.append((name, module, call))
        else:
            self._record(name, module, call)

    def _record(self, name: str, module: Any, call: ReadCall) -> None:
        kind = "a function" if module is None else kind_of(module)
        self._recorder.owners[name] = self._survey.read_inside(name)
        self._calls.append((name, self._recorder.add(name, AT_SEAM.format(kind), call), call))
        self.read.setdefault(name, False)

    def drop(self, name: str) -> bool:
        """Forget the function calls inside a layer that is recorded as a whole. Return whether there were any.

        Before that, the Recorder `beside` gets the calls if the layer is one of transformers.
        """
        before = len(self._waiting)
        for own, module, call in self._waiting:
            of_transformers = hasattr(getattr(module, "config", None), "_attn_implementation")
            if self._beside is not None and of_transformers and _inside(own, name):
                self._beside.add(own, AT_SEAM.format(kind_of(module)), call)
        self._waiting = [one for one in self._waiting if not _inside(one[0], name)]
        for own in [own for own in self._refused if _inside(own, name)]:
            del self._refused[own]
        return len(self._waiting) < before

    def keep(self, name: str) -> bool:
        """Record the function calls inside a layer, in place of the whole layer. Return whether there were any."""
        inside = [one for one in self._waiting if _inside(one[0], name)]
        self._waiting = [one for one in self._waiting if not _inside(one[0], name)]
        for one in inside:
            self._record(*one)
        return bool(inside)

    def refuses(self, name: str) -> bool:
        """Return whether some function call inside the layer `name` could not be read."""
        return any(_inside(own, name) for own in self._refused)

    def instead_of(self, name: str, why: str) -> None:
        """Note why a layer can't be recorded as a whole. `refusals` has it unless its function calls are recorded."""
        self._instead.setdefault(name, why)

    def prove(self, *, keep: bool) -> None:
        """Compare each call with the reference. If one is wrong or unread, leave out all of its layer, unless `keep`.

        If only that call were left out, later calls of the layer would get wrong indices. Run this after the model, so
        that the comparisons don't slow the model down.
        """
        outputs: list[Mapping[str, NDArray] | None] = []
        for name, _, call in self._calls:
            proof = prove(call, call.dtype)
            self._without_key[name] = self._without_key.get(name, 0) + proof.judgement.rows_without_key
            if proof.equal:
                self.read[name] |= proof.in_float32
                outputs.append(proof.problem.recorded)
                continue
            outputs.append(call.outputs)
            differs, cause = proof.judgement.mismatches[0].message, "`mha diagnose FILE` looks for the cause"
            why = f"is recorded, but its attention function does not follow: {differs}; {cause}"
            if not keep:
                why = (
                    "what its attention function gives is not what the definition gives of what it is handed: "
                    f"{differs}. mha.capture(..., modules=True) records it all the same, and {cause}"
                )
            self._refused.setdefault(name, why)
        left_out = () if keep else self._refused
        settled = [
            (recorded, None if name in left_out else given)
            for (name, recorded, _), given in zip(self._calls, outputs, strict=True)
        ]
        self._recorder.settle(settled)
        self.read = {name: narrow for name, narrow in self.read.items() if name not in left_out}

    def reads(self, name: str) -> bool:
        """Return whether a function call by the module `name`, or by a module inside it, was recorded."""
        return name in self.read or any(self._recorder.owners[one] == name for one in self.read)

    @property
    def line(self) -> str:
        """Return one line on the layers in which only attention functions were recorded; "" if there are none."""
        if not self.read:
            return ""
        line = (
            "recorded at the attention function, without projections, norms and rotation (`mha where` compares those "
            f"with a port's): {_some(self.read)}"
        )
        line += next((f"; {why}" for name, why in self._instead.items() if name in self.read), "")
        if any(self.read.values()):
            line += f"; their softmax is in float32: {_some(name for name, narrow in self.read.items() if narrow)}"
        rows = sum(count for name, count in self._without_key.items() if name in self.read)
        return line + (f"; {rows} rows without a key are not judged" if rows else "")

    @property
    def refusals(self) -> list[str]:
        """Return lines that say why layers, or function calls inside them, were not recorded."""
        found = {**self._instead, **{name: f"{name or 'the model'}: {why}" for name, why in self._refused.items()}}
        return [why for name, why in found.items() if name not in self.read or name in self._refused]

    @property
    def refusal(self) -> str:
        """Return the first line of `refusals`, which explains why nothing was recorded; "" if there is none."""
        return f"nothing to record: {self.refusals[0]}" if self.refusals else ""


def _some(names: Collection[str] | Iterator[str]) -> str:
    return listed([one or "the model" for one in names], SHOWN)


def _inside(name: str, outer: str) -> bool:
    return not outer or name == outer or name.startswith((f"{outer}.", f"{outer}/"))
