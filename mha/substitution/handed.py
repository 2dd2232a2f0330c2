"""What a wrong module hands to its attention, beside what its original hands over where it is given the same."""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from mha.recordings.at_seam import intercepted, prove
from mha.recordings.capture import capture
from mha.recordings.function_bugs import has_sinks
from mha.recordings.hooks import hooks_of
from mha.recordings.modules.diagnosed import DIFFERS, FOLLOWS
from mha.recordings.modules.recording import ModuleCall
from mha.recordings.recording import HANDED_KEY, METADATA_KEY, Recording
from mha.substitution.allowance import FACTOR
from mha.substitution.masks import allowed_in
from mha.substitution.original import Original, OriginalCall
from mha.substitution.recorded.walk import recordings_apart
from mha.substitution.reports.report import WhereReport
from mha.substitution.substitute import Substitution
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.call.masks import allowed_keys
from mha_core.errors import listed
from mha_core.files.tensorfile import read_header
from mha_core.seam import Handover

SWALLOWING = 1e30
"""A bias that large stands for an exclusion: with it every score of its row is lost."""

MOST = 4
"""Most differences of a layer that are said."""

Given = tuple[AttentionConfig, AttentionInputs]
"""What one call of an attention function is handed, in terms of the definition."""


@dataclass(frozen=True)
class Handing:
    """A comparison of two modules, a port's and its original, by the arguments that they give to attention functions.

    Attributes:
        text: the comparison in a sentence.
        first: the first difference, in words; "" for none.
        apart: names of the arguments that differ: "queries", "keys", "values", "scale", "sinks", "bias", "mask".
        allowed: for each call, bool (B, H, Lq, Lk), True where the port's mask lets a query attend to a key.
        due: for each call, the same array for the original's mask.
    """

    text: str
    first: str
    apart: tuple[str, ...]
    allowed: tuple[NDArray[np.bool_], ...]
    due: tuple[NDArray[np.bool_], ...]


def handed_over(
    own: Original, ready: Sequence[Substitution], recording: Recording, name: str, model: Any
) -> Handing | None:
    """Return a comparison (Handing) of the arguments that a module and its original give to attention functions.

    Return None if a call of either attention function can't be read, or if the numbers of calls differ.

    Args:
        own, model: the original's modules and calls, and the original model itself.
        ready: each call of the port's module, with the original's call.
        recording: the port's recording, with the calls of its attention functions.
        name: name of the port's module.
    """
    layers = {i for i, layer in enumerate(recording.layers) if layer.name == name and layer.is_at_seam}
    theirs = [(recording.layers[call.layer].config, call.inputs) for call in recording.calls if call.layer in layers]
    try:
        exact, narrow = (
            [one for substitution in ready for one in _handed(own, model, substitution, dtype)]
            for dtype in ("float64", recording.layers[min(layers)].dtype)
        )
    except (SpecError, ValueError):
        return None
    if not len(theirs) == len(exact) == len(narrow):
        return None
    unit = UNIT_ROUNDOFF[recording.layers[min(layers)].dtype]
    found = [
        difference
        for port, one, other in zip(theirs, exact, narrow, strict=True)
        for difference in _differences(port, one, other, unit)
    ]
    names = tuple(dict.fromkeys(what for what, _ in found))
    same = [what for what in ("queries", "keys", "values", "mask") if what not in names]
    rest = f" {listed(same, 4).capitalize()} are the original's." if same else ""
    text = "What it hands to its attention function is what the original hands over."
    if found:
        text = f"What it hands to its attention function is not what the original hands over: {found[0][1]}.{rest}"
    first = found[0][1] if found else ""
    return Handing(text, first, names, tuple(map(_allowed, theirs)), tuple(map(_allowed, exact)))


def _handed(own: Original, model: Any, ready: Substitution, dtype: str) -> list[Given]:
    """What the original's module hands over where it is given what the port's was given."""
    found: list[Given] = []

    def seen(name: str, module: Any, handover: Handover | SpecError) -> None:
        if isinstance(handover, SpecError):
            raise handover
        found.append(handover.given())

    call: OriginalCall = ready.call
    with intercepted(hooks_of(model), model, lambda one: one.recorded(seen)):
        own.run(call, [ready.given], dtype)
    return found


def _differences(port: Given, exact: Given, narrow: Given, unit: float) -> Iterator[tuple[str, str]]:
    """What differs, and how, of two calls; `narrow` is the original's in the port's dtype."""
    (config, inputs), (wanted_config, wanted) = port, exact
    sinks = [has_sinks(one) for one in (inputs, wanted, narrow[1])]
    if sinks[0] != sinks[1]:
        does, other = ("sinks", "none") if sinks[0] else ("no sinks", "some")
        yield "sinks", f"it hands over {does}, the original {other}"
    for name in ("queries", "keys", "values"):
        got, expected, rounded = (
            getattr(one, name)[:, :, : -1 if sink and name != "queries" else None]
            for one, sink in zip((inputs, wanted, narrow[1]), sinks, strict=True)
        )
        if got.shape != expected.shape:
            yield name, f"{name} are {got.shape}, the original's {expected.shape}"
            continue
        rounding = max(np.abs(rounded - expected).max(initial=0.0), unit * np.abs(expected).max(initial=0.0))
        difference = np.abs(got - expected)
        if difference.max(initial=0.0) > FACTOR * rounding:
            worst = np.unravel_index(difference.argmax(), difference.shape)
            at = list(map(int, worst))
            yield name, f"{name}{at} is {got[worst]:.6g}, the original's {expected[worst]:.6g}"
    for name in ("softmax_scale", "softcap"):
        one, other = getattr(config, name), getattr(wanted_config, name)
        if (one is None) != (other is None) or (one is not None and abs(one - other) > FACTOR * unit * abs(other)):
            yield "scale", f"{name.removeprefix('softmax_')} is {_number(one)}, the original's {_number(other)}"
    if inputs.keys.shape[2] == wanted.keys.shape[2]:
        yield from _biases_apart(port, exact, narrow, unit)
        allowed, due = (_allowed(one) for one in (port, exact))
        if allowed.shape == due.shape and not np.array_equal(allowed, due):
            worst = tuple(map(int, np.argwhere(allowed != due)[0]))
            can = "may" if allowed[worst] else "may not"
            item, head, query, key = worst
            yield "mask", f"in item {item}, head {head}, query {query} {can} attend to key {key}"


def _biases_apart(port: Given, exact: Given, narrow: Given, unit: float) -> Iterator[tuple[str, str]]:
    """Where what is added to the scores of keys that both may attend to differs; a sink is the bias of the last key."""
    got, expected, rounded = (_bias(one) for one in (port, exact, narrow))
    if got.shape != expected.shape or rounded.shape != expected.shape:
        return
    counted = _allowed(port) & _allowed(exact) & (np.abs(expected) < SWALLOWING) & (np.abs(got) < SWALLOWING)
    rounding = max(
        (np.abs(rounded - expected) * counted).max(initial=0.0), unit * np.abs(expected * counted).max(initial=0.0)
    )
    difference = np.abs(got - expected) * counted
    if difference.max(initial=0.0) > FACTOR * max(rounding, unit):
        worst = np.unravel_index(difference.argmax(), difference.shape)
        at, last = list(map(int, worst)), has_sinks(exact[1]) and worst[3] == difference.shape[3] - 1
        what = f"the sink of head {at[1]}" if last else f"the bias at {at}"
        yield "sinks" if last else "bias", f"{what} is {got[worst]:.6g}, the original's {expected[worst]:.6g}"


def _bias(given: Given) -> NDArray:
    config, inputs = given
    sizes = inputs.check(config)
    shape = (sizes.batch, config.num_heads, sizes.query_len, sizes.key_len)
    bias = inputs.mask.bias
    return np.array(np.broadcast_to(0.0 if bias is None else bias, shape), dtype=np.float64)


def _allowed(given: Given) -> NDArray[np.bool_]:
    config, inputs = given
    sizes = inputs.check(config)
    found = allowed_keys(inputs.mask, sizes, config.num_heads)
    shape = (sizes.batch, config.num_heads, sizes.query_len, sizes.key_len)
    return np.array(np.broadcast_to(found, shape))


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}"


def of_wrong(
    own: Original, model: Any, path: str | os.PathLike[str], ready: Mapping[str, Sequence[Substitution]]
) -> dict[str, Handing]:
    """Return name of a wrong module -> a comparison of its attention function's arguments with the original's.

    `path`: the port's recording. `ready`: name of a wrong module -> its calls, each with the original's call.
    """
    recording = _recorded(path, METADATA_KEY) if ready else None
    at_seam = {layer.name for layer in recording.layers if layer.is_at_seam} if recording is not None else set()
    said = {
        name: handed_over(own, substitutions, recording, name, model)
        for name, substitutions in ready.items()
        if recording is not None and name in at_seam
    }
    return {name: handing for name, handing in said.items() if handing is not None}


def sides_of_wrong(
    own: Original, model: Any, path: str | os.PathLike[str], ready: Mapping[str, Sequence[Substitution]]
) -> dict[str, Handing]:
    """Return name of a wrong module -> comparison (Handing) of its attention function and the function's arguments.

    If the function itself is wrong, "function" is first in `Handing.apart`; names of wrong arguments follow. A module
    is included only if its layer and its attention function were both recorded. Arguments as for `of_wrong`.
    """
    recording = _recorded(path, HANDED_KEY) if ready else None
    found: dict[str, Handing] = {}
    for name in ready if recording is not None else ():
        assert recording is not None
        judgements = [
            prove(problem, recording.layer_of(position).dtype).judgement
            for position, problem in enumerate(recording.problems)
            if recording.layer_of(position).name == name
        ]
        before = handed_over(own, ready[name], recording, name, model) if judgements else None
        differs = next((one.mismatches[0].message for one in judgements if not one.equal), "")
        if differs:
            handing = before or Handing("", "", (), (), ())
            text = f"{DIFFERS}: {differs}.{handing.text and chr(10)}{handing.text}"
            found[name] = replace(handing, text=text, apart=("function", *handing.apart))
        elif before is not None:
            found[name] = replace(before, text=f"{FOLLOWS} {before.text}")
    return found


def _maker(one: Substitution, allowed: NDArray[np.bool_]) -> tuple[str, ...] | None:
    """The modules around a call's module that are given the mask it uses, and last the one around them, which is not.

    It is None if the module is not given it, or if the model itself is.
    """
    names, calls = [], one.recording.calls
    call: ModuleCall | None = one.recorded
    while call is not None and any(_is_this(one.recording.array(at), allowed) for at in call.given):
        call = None if call.within is None else calls[call.within]
        names += [] if call is None else [one.recording.modules[call.module].name]
    return tuple(names) if names and call is not None else None


def _is_this(array: NDArray, allowed: NDArray[np.bool_]) -> bool:
    """Whether an array is a mask of these allowed keys; True in it may allow a key, or exclude it."""
    read = allowed_in(array) if array.ndim > 1 and array.shape[-2:] == allowed.shape[-2:] else None
    try:
        return read is not None and any((np.broadcast_to(one, allowed.shape) == allowed).all() for one in (read, ~read))
    except ValueError:
        return False


def with_makers_of_masks(
    report: WhereReport, ready: Mapping[str, Sequence[Substitution]], handed: Mapping[str, Handing]
) -> WhereReport:
    """Return the report with a wrong mask blamed on the module that makes it, not on modules that only use it.

    A module uses the mask if its attention function gets a wrong mask, and no other wrong argument. The maker is the
    innermost module around it that does not get the mask as an input. If the model itself gets it, no module is blamed.

    Args:
        ready: name of a wrong module -> its calls, each with the original's call.
        handed: name of a wrong module -> the comparison of its attention function's arguments with the original's.
    """
    results = {one.name: one for one in report.results}
    for name, handing in handed.items():
        makers = set(map(_maker, ready[name], handing.allowed)) if handing.apart == ("mask",) else set()
        found = makers.pop() if len(makers) == 1 and len(handing.allowed) == len(ready[name]) else None
        if found is None:
            continue
        *inside, maker = found
        given = [name, *inside]
        for inner in given:
            results[inner] = replace(results[inner], status="caused upstream", own_lines=False)
        if results[maker].status == "wrong":
            continue
        different = sum(int((one != due).sum()) for one, due in zip(handing.allowed, handing.due, strict=True))
        note = f"in {name}, which uses it as it is: {handing.first}; the original makes its own there"
        results[maker] = replace(
            results[maker],
            status="wrong",
            own_lines=True,
            place=f"the mask that it gives to {given[-1]}",
            index=(),
            got=float(different),
            expected=0.0,
            ratio=np.inf,
            notes=(*results[maker].notes, note),
        )
    return replace(report, results=tuple(results[one.name] for one in report.results))


def held_otherwise(own: Original, model: Any, ready: Sequence[Substitution], port: Recording) -> str:
    """Return how a port's attention layer differs from its original in config, weights or mask; "" for no difference.

    `ready`: the layer's calls, each with the original's call. `port`: a recording of this layer alone.
    """
    try:
        with warnings.catch_warnings(), capture(model, probe=False) as seen:
            warnings.simplefilter("ignore")
            for one in ready:
                own.run(one.call, [one.given], port.layer_of(0).dtype)
        many = len(seen.layers), len({call.layer for call in port.calls}), len(seen.calls)
        if many != (1, 1, len(port.calls)) or seen.layers[0].is_at_seam or port.layer_of(0).is_at_seam:
            return ""
        found = recordings_apart(seen.recording, port, unseen=False).results
    except SpecError:
        return ""
    told = [each.message for one in found for each in one.causes if each.part in ("config", "weights", "mask")]
    return f"{listed(list(dict.fromkeys(told)), MOST)}." if told else ""


def _recorded(path: str | os.PathLike[str], key: str) -> Recording | None:
    """What a file holds under this key; None if nothing that can be read."""
    if key not in read_header(path).metadata:
        return None
    with suppress(SpecError):
        return Recording.load(path, key)
    return None
