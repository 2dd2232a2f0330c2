"""A few sentences on the attention layer in a wrong module: the result of `mha diagnose` on its recorded calls."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from conformance.diagnosis.brief import brief
from conformance.diagnosis.diagnose import Diagnosis
from conformance.diagnosis.diagnose import diagnose as find_bugs
from mha.coverage import class_like_attention
from mha.projections.said import LINEN, found_by_name
from mha.recordings.explain import explain
from mha.recordings.recording import METADATA_KEY, Recording
from mha.recordings.replay import RecordedSubject, judge_recording
from mha_core import SpecError
from mha_core.errors import listed
from mha_core.files.tensorfile import read_header

SHOWN = 6
"""Most names that a sentence lists."""

MOST = 3
"""Most layers of one class that are diagnosed where the same array is the first wrong one, and the faults differ."""

NOT_RECORDED = {
    "unknown": "nothing here knows its class, or what it gave is not what its projections, found by their names, give. "
    "Say where they are: mha.capture(..., layers={name: mha.Projections(...)})",
    "uncalled": "it has, or was called with, what no recording of a layer holds: the warning of mha.capture says what",
    "unasked": "mha.capture was asked for others (layers=)",
}


UNREAD = ("Nothing here knows its class.", "It does not give what its projections give by the definition.")
"""How a sentence on attention begins that was not recorded as a layer."""


@dataclass(frozen=True)
class Suspect:
    """A wrong module. `kind`: its class. `parameters`: how they compare with the original's ("same", "other", ...)."""

    kind: str
    parameters: str


@dataclass
class _Told:
    """A sentence on the layer `first`, and the other layers of which it holds, or may hold."""

    first: str
    text: str
    diagnosis: Diagnosis | None = None
    alike: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.text]
        if self.alike:
            lines.append(f"And {len(self.alike)} more alike: {_some(self.alike)}.")
        if self.others:
            lines.append(f"And {len(self.others)} more of this class, not diagnosed: {_some(self.others)}.")
        return "\n".join(lines)


FOLLOWS = "Its attention function follows the definition."
DIFFERS = "Its attention function does not follow the definition of what it is handed"
"""What is said of an attention function."""

OTHERWISE = "is attention and computes what its weights say, but not the original's"
"""What is said of a layer that is right by its own weights, and has some, settings or a mask of its own."""


def diagnosed(
    path: str | os.PathLike[str],
    wrong: Mapping[str, Suspect],
    called: Mapping[str, str],
    judged: Collection[str],
    progress: Callable[[str], None] = lambda text: None,
    handed: Mapping[str, str] = MappingProxyType({}),
    beside: Callable[[str, Recording], str] = lambda owner, own: "",
) -> dict[str, str]:
    """Return a dict: name of a wrong module -> the diagnosis of its attention layer, judged with its own weights.

    A recorded attention layer belongs to the module of its name, if that was compared. Otherwise it belongs to the
    nearest called module around it. Layers of one class with the same first wrong array share a diagnosis, if it
    explains the wrong outputs of all of them.

    Args:
        path: a recording of modules.
        wrong: name of each wrong module -> its Suspect, in the order of the calls.
        called: name of each module that was called -> its class.
        judged: the names of the modules that were compared with the original's.
        progress: called with a text on the current step.
        handed: name of a module -> a sentence that compares its attention function's arguments with the original's.
        beside: a function: (name of a module, recording of its attention layer) -> a sentence on how config, weights or
            mask differ from the original's; "" if they don't.
    """
    if not wrong:
        return {}
    try:
        recording = Recording.load(path) if METADATA_KEY in read_header(path).metadata else None
    except SpecError as error:
        return {next(iter(wrong)): f"No attention is diagnosed: {error}"}
    layers: dict[str, str] = {}
    recorded = () if recording is None else tuple(dict.fromkeys(layer.name for layer in recording.layers))
    for one in recorded:
        owner = one if one in judged else _holder(one, called)
        if owner in wrong:
            layers[one] = owner
    told: dict[tuple[object, ...], list[_Told]] = {}
    found: dict[str, list[_Told]] = {}
    for name, owner in layers.items():
        assert recording is not None
        progress(f"the attention of {owner or 'the model'}")
        own = _alone(recording, name)
        stage, layer = _stage(own), own.layer_of(0)
        held = beside(owner, own) if stage is None and list(layers.values()).count(owner) == 1 else ""
        held = "" if wrong[owner].parameters == "reordered" and "differs in" in held else held  # the order says more
        key = (wrong[owner].parameters, _given(own), held) if stage is None else stage
        before = told.setdefault((layer.kind, key), [])
        alike = next((one for one in before if one.diagnosis is None or _explains(one.diagnosis, own)), None)
        if alike is not None:
            alike.alike.append(name)
        elif len(before) == MOST or any(one.diagnosis and not one.diagnosis.explanations for one in before):
            before[-1].others.append(name)
        else:
            who = "As a layer it" if name == owner else f"{name}, as a layer,"
            before.append(_sentence(who, own, key, wrong[owner].parameters, path, handed.get(name, held)))
            found.setdefault(owner, []).append(before[-1])
    texts = {owner: "\n".join(map(str, ones)) for owner, ones in found.items()}
    unread = {one.name: one.why for one in (recording.unread or () if recording is not None else ())}
    for name, suspect in wrong.items():
        if name in layers.values() or any(_stands_in(layer, name) or _stands_in(name, layer) for layer in recorded):
            continue
        if name in unread or class_like_attention(suspect.kind.rpartition(".")[2]):
            why = unread.get(name, "unknown")
            said = _to_record(name, suspect.kind, called, recording) if why == "unknown" else ""
            texts[name] = said or f"Its attention was not recorded: {NOT_RECORDED[why]}."
    return texts


def _to_record(name: str, kind: str, called: Mapping[str, str], recording: Recording | None) -> str:
    """Return how the cause in a layer that was not recorded is found; "" if its projections have no known names."""
    inside = [one[len(name) + 1 :] for one in called if name and _stands_in(one, name) and one != name]
    if any(called[f"{name}/{one}"].startswith("flax.linen.") for one in inside if f"{name}/{one}" in called):
        return f"{UNREAD[0]} {LINEN}."
    found = found_by_name(inside)
    if found is None:
        return ""
    layers = () if recording is None else recording.layers
    heads = next((one.config.num_heads for one in layers if one.kind == kind), None)
    roles = ", ".join(f'{role}="{getattr(found, role)}"' for role in ("query", "key", "value", "output"))
    said = f"{{{name!r}: mha.Projections({roles}{f', num_heads={heads}' if heads else ''})}}"
    with_heads = "" if heads else ", num_heads"
    return (
        f"{UNREAD[1]} For the cause, record the port once more, by "
        f'mha.capture(port, "layer.safetensors", layers={said}), with batch_first{with_heads}, mask and causal said '
        "too where it has them its own way; then `mha diagnose layer.safetensors`."
    )


def _holder(layer: str, called: Collection[str]) -> str:
    """The module next around a layer, of those that were called."""
    around = layer
    while around and (around == layer or around not in called):
        around = re.sub(r"(^|[./])[^./]*$", "", around)
    return around


def _stands_in(layer: str, module: str) -> bool:
    return not module or layer.startswith((f"{module}.", f"{module}/"))


def _alone(recording: Recording, name: str) -> Recording:
    """The calls of one layer."""
    return replace(
        recording, calls=tuple(call for call in recording.calls if recording.layers[call.layer].name == name)
    )


def _stage(recording: Recording) -> str | None:
    """The first array that is not what the layer's own weights give; None if all are."""
    for result in judge_recording(recording):
        if result.status != "equal":
            return result.mismatches[0].stage if result.mismatches else result.message
    return None


def _sentence(
    who: str, own: Recording, key: object, parameters: str, path: str | os.PathLike[str], handed: str
) -> _Told:
    """The diagnosis of a layer; one that is right by its own weights leaves what it holds and is given."""
    name, at_seam = own.layer_of(0).name, own.layer_of(0).is_at_seam
    if at_seam and not isinstance(key, str):
        what = "What it is handed (queries, keys, values, mask, scale), or what is done with its output"
        before = handed or f"{what}, is not the original's."
        return _Told(name, f"{FOLLOWS} {before}")
    if not isinstance(key, str) and handed:
        return _Told(name, f"{name or 'It'} {OTHERWISE}: {handed}")
    if not isinstance(key, str):
        what, more = "its settings or its mask", ""
        if parameters != "same":
            ordered = "the order of " * (parameters in ("unseen", "reordered"))
            what = f"{ordered}its parameters, its settings or its mask"
            command = f"mha diagnose {path} --weights ORIGINAL"
            more = f" With a recording of the original, {command} looks for a wrong order in them."
        follows = f"{who} follows the definition of its own weights ({_given(own)})"
        return _Told(name, f"{follows}: so {what} is not the original's.{more}")
    try:
        (found,) = explain(own) if len(own.dtypes) == 1 else explain(own)[:1]
    except SpecError as error:
        return _Told(name, f"{who} could not be diagnosed: {error}")
    wrong = found.mismatch.message if found.mismatch is not None else key
    said = [f"{who} does not follow the definition of its own weights: {wrong}.", *brief(found).said]
    if at_seam:
        said[0] = f"{DIFFERS}: {wrong}."
        said += [handed] * bool(handed)
    return _Told(name, "\n".join(said), found)


def _explains(diagnosis: Diagnosis, own: Recording) -> bool:
    """Whether what explains one layer explains another."""
    bugs = list(dict.fromkeys(bug for one in diagnosis.explanations for bug in one.bugs))
    if not bugs:
        return False
    subjects = [(RecordedSubject(own, dtype), own.cases(dtype)) for dtype in own.dtypes]
    return all(find_bugs(subject, cases, bugs=bugs).explanations for subject, cases in subjects)


def _given(own: Recording) -> str:
    """What a layer's results depend on besides its weights, as `mha diagnose` read it."""
    call, layer = own.calls[0], own.layer_of(0)
    masks = [name for name, value in vars(call.inputs.mask).items() if hasattr(value, "dtype") or value]
    return f"{layer.config.num_heads} heads, {'mask: ' + ', '.join(masks) if masks else 'no mask'}"


def _some(names: Iterable[str]) -> str:
    return listed([name or "the model" for name in names], SHOWN)
