"""What a wrong module computes between its projections: the attention that its recorded parts were given and gave.

That needs no weights, so it can be asked of modules of Flax linen, and of classes that nothing knows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from conformance.diagnosis.brief import brief
from mha.projections.layer import heads_of, split_rows
from mha.projections.said import Projections, found_by_name
from mha.recordings.at_seam import prove
from mha.recordings.explain import explain
from mha.recordings.modules.recording import ModuleRecording
from mha.recordings.modules.values import Place
from mha.recordings.parts import RecordedCall, RecordedLayer
from mha.recordings.recording import Recording
from mha.substitution.original import Original
from mha_core import SpecError
from mha_core.capture import ReadCall
from mha_core.heads import split_heads
from mha_core.seam import Handover

PACKED = {True: "q, k, v of head 0, then of head 1, ...", False: "all of q, then of k, then of v"}
"""How outputs of one projection stand, in words."""

CAUSAL = {True: "causal", False: "not causal"}


Calls = Sequence[tuple[str, NDArray, NDArray]]
"""Name of a module, and the first array that one of its calls was given and gave, for each call."""


@dataclass(frozen=True)
class _Core:
    """A record of what one call of a module was given and gave between its projections.

    Attributes:
        said: which part is which projection.
        parts: each part, with what its one call was given and gave.
        num_heads: H.
    """

    said: Projections
    parts: Mapping[str, tuple[NDArray, NDArray]]
    num_heads: int

    @property
    def packed(self) -> bool:
        """Return whether one projection computes queries, keys and values."""
        return self.said.query == self.said.key == self.said.value

    def read(self, *, by_head: bool, causal: bool) -> ReadCall:
        """The call as attention without projections. SpecError if it can't be that."""
        roles = dict(zip("qkv", (self.said.query, self.said.key, self.said.value), strict=True))
        gave, pieces = self.parts[self.said.output][0], dict[str, NDArray]()
        for name in dict.fromkeys(roles.values()):
            own = [role for role in roles if roles[role] == name]
            rows = np.moveaxis(self.parts[name][1], -1, 0)
            split = split_rows(rows, own, gave.shape[-1], self.num_heads, by_head=by_head)
            pieces |= {role: np.moveaxis(piece, 0, -1) for role, piece in zip(own, split, strict=True)}
        groups = self.num_heads * pieces["k"].shape[-1] // pieces["q"].shape[-1]
        queries, output = split_heads(pieces["q"], self.num_heads), split_heads(gave, self.num_heads)
        keys, values = (split_heads(pieces[role], groups) for role in "kv")
        return Handover(queries, keys, values, output, gave.dtype.name, causal=causal).read()

    def readings(self) -> Iterator[tuple[bool, bool]]:
        """Yield the readings, (by_head, causal), by which the definition gives what it gave."""
        for by_head in (False, True) if self.packed else (False,):
            for causal in (True, False):
                try:
                    call = self.read(by_head=by_head, causal=causal)
                except SpecError:
                    continue
                if prove(call, call.dtype).equal:
                    yield by_head, causal


def of_cores(own: Original, recording: ModuleRecording, originals: Mapping[str, str]) -> dict[str, str]:
    """Return a dict: name of a module -> what is wrong in its attention between the projections, in a sentence.

    Args:
        own, recording: the original model, and the port's recording.
        originals: name of a module of the port whose own code is wrong -> name of its original.
    """
    found = {}
    ours = [(own.modules[one.module].name, _first(one.given), _first(one.gave or {})) for one in own.calls]
    for name, original in originals.items():
        held = next(one.held for one in own.modules if one.name == original)
        theirs = []
        for one in recording.calls:
            if _within(inner := recording.modules[one.module].name, name):
                given, gave = ({at.place: recording.array(at) for at in side or ()} for side in (one.given, one.gave))
                theirs.append((inner, _first(given), _first(gave)))
        try:
            heads = heads_of(getattr(held, "module", held))
            right, port = _core(original, ours, heads), _core(name, theirs, heads)
            said = "" if right is None or port is None else _sentence(right, port)
        except SpecError:
            continue
        if said:
            found[name] = said
    return found


def _first(arrays: Mapping[Place, NDArray]) -> NDArray:
    """The first array of floating-point numbers; an empty one if there is none."""
    return next((one for one in arrays.values() if one.dtype.kind == "f"), np.zeros(0))


def _within(name: str, outer: str) -> bool:
    return name.startswith((f"{outer}.", f"{outer}/"))


def _core(outer: str, calls: Calls, num_heads: int) -> _Core | None:
    """Return what came in and out between the projections of a module; None unless their names are known."""
    parts: dict[str, list[tuple[NDArray, NDArray]]] = {}
    for name, given, gave in calls:
        if _within(name, outer):
            parts.setdefault(name[len(outer) + 1 :], []).append((given, gave))
    said = found_by_name(list(parts))
    if said is None or any(
        len(parts[name]) != 1 or any(one.ndim != 3 for one in parts[name][0]) for name in said.names
    ):
        return None
    return _Core(said, {name: parts[name][0] for name in said.names}, num_heads)


def _sentence(original: _Core, port: _Core) -> str:
    """Return what the port computes there, not the original's attention; "" where that is unknown, or the same."""
    reading = next(original.readings(), None)
    if reading is None:
        return ""
    by_head, causal = reading
    names = ", ".join(dict.fromkeys((port.said.query, port.said.key, port.said.value)))
    how = f", where {names} gives {PACKED[by_head]}" if port.packed else ""
    head = f"Between {names} and {port.said.output} the original computes attention of {original.num_heads} heads"
    head += f", {CAUSAL[causal]}{how}."
    own = list(port.readings())
    if reading in own:
        return ""
    if own:
        others = [f"it is {CAUSAL[own[0][1]]}"] * (own[0][1] != causal)
        others += [f"it takes what {names} gives as {PACKED[own[0][0]]}"] * (own[0][0] != by_head)
        return f"{head} So does the port, but {' and '.join(others)}: that gives all its numbers."
    call = port.read(by_head=by_head, causal=causal)
    layer = RecordedLayer("", "attention", call.dtype, call.config, call.weights)
    (found,) = explain(Recording((layer,), (RecordedCall(0, call.inputs, call.outputs),)))
    return f"{head} The port does not:\n" + "\n".join(brief(found).said) if found.explanations else ""
