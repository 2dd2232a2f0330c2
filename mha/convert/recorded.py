"""Recorded calls of original layers, and the proof that layers read from a file reproduce them.

A call comes from what `mha.capture` writes, with the names of the layers, or from a file of one call as
`mha infer` takes it. A layer is proved if the reference, with the weights that were read, gives the recorded
outputs within the computed bounds, and does not give them with scores or projections of half the size: a call
whose outputs hardly depend on these could not tell one layer from another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from mha.convert.verify import VerificationFailed
from mha.infer.evidence import AT_ONCE, EXP_ULPS, KEYS_PER_BLOCK
from mha.infer.observed import Observed
from mha.recipes.judge import Judgement, judge_original
from mha.recordings.recording import METADATA_KEY, Recording
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, SpecError
from mha_core.call.masks import allowed_keys
from mha_core.dtypes import round_to, storage_dtype
from mha_core.weights import Weights

MOST_NAMED = 6
"""Most names that a message lists."""

OTHER_SCALE = 0.5
"""Factor on the scores and on each projection; calls that prove a layer must show each of these changes."""


@dataclass(frozen=True, eq=False)
class OriginalCall:
    """One recorded call: its inputs with each possible mask, by the name of the mask; and its outputs by stage."""

    name: str
    inputs: Mapping[str, AttentionInputs]
    outputs: Mapping[str, NDArray]


@dataclass(frozen=True, eq=False)
class OriginalLayer:
    """The recorded calls of one layer of the original model.

    Attributes:
        name: its name in the model; "" where the record does not say.
        dtype: the dtype in which it computed.
        calls: its calls.
        config, weights: its config and weights, if they were recorded; else None.
    """

    name: str
    dtype: str
    calls: tuple[OriginalCall, ...]
    config: AttentionConfig | None = None
    weights: Weights | None = None


@dataclass(frozen=True)
class Proof:
    """The result of `prove`: the layer reproduces the recorded calls.

    Attributes:
        calls: the number of calls.
        ratio: the worst error / allowed error.
        dtype: the dtype in which the original computed.
        mask: the mask that fits, where the record does not say which it was; else "".
    """

    calls: int
    ratio: float
    dtype: str
    mask: str = ""


def load_recorded(path: str | Path) -> list[OriginalLayer]:
    """Read a recording that `mha.capture` wrote, or a file of one call as `mha infer` takes it.

    Raises:
        SpecError: there is no such file, or it is neither.
    """
    path = Path(path)
    if not _is_recording(path):
        return [_of_observed(Observed.load(path))]
    recording = Recording.load(path)
    layers = []
    for position, layer in enumerate(recording.layers):
        calls = tuple(
            OriginalCall(name, {"": call.inputs}, call.outputs)
            for name, call in zip(recording.names, recording.calls, strict=True)
            if call.layer == position
        )
        if calls:
            layers.append(OriginalLayer(layer.name, layer.dtype, calls, layer.config, layer.weights))
    return layers


def pair(recorded: Sequence[OriginalLayer], prefixes: Sequence[str]) -> dict[str, OriginalLayer]:
    """Pair layers of a file with recorded layers: prefix -> recorded layer; prefixes without calls are left out.

    Names belong together if their parts are equal, or if one ends with the parts of the other; "/" counts as ".":
    the model that was captured may be a part of the one that was saved. If no name belongs to any, layers go by
    their order, as many as there are.

    Raises:
        SpecError: names and numbers fit nothing, or a layer could be several.

    >>> calls = [OriginalLayer("layer.1.attn", "float32", ()), OriginalLayer("layer.0.attn", "float32", ())]
    >>> {prefix: layer.name for prefix, layer in pair(calls, ["encoder/layer/0/attn", "encoder/layer/1/attn"]).items()}
    {'encoder/layer/1/attn': 'layer.1.attn', 'encoder/layer/0/attn': 'layer.0.attn'}
    """
    found: dict[str, OriginalLayer] = {}
    for layer in recorded:
        fitting = [prefix for prefix in prefixes if layer.name and _parts(prefix) == _parts(layer.name)]
        fitting = fitting or [prefix for prefix in prefixes if layer.name and prefix and _end_alike(prefix, layer.name)]
        if len(fitting) > 1:
            raise SpecError(f"the recorded layer {layer.name!r} could be any of {_listed(fitting)}; choose a prefix")
        for prefix in fitting:
            if prefix in found:
                raise SpecError(
                    f"the layer at prefix {prefix!r} was recorded as {found[prefix].name!r} and as {layer.name!r}, or "
                    "with two sets of weights; record it once"
                )
            found[prefix] = layer
    if not found and len(recorded) == len(prefixes):
        return dict(zip(sorted(prefixes, key=_numbered), recorded, strict=True))
    if not found:
        raise SpecError(
            f"no recorded layer has the name of one in the file, and there are {len(recorded)} and {len(prefixes)} of "
            f"them (recorded: {_listed([layer.name for layer in recorded])}; in the file: {_listed(prefixes)})"
        )
    return found


def as_recorded(config: AttentionConfig, layer: OriginalLayer) -> AttentionConfig:
    """The config with the recorded scale and softcap of the scores, which no array shows."""
    if layer.config is None:
        return config
    return replace(config, scale=layer.config.scale, softcap=layer.config.softcap)


def prove(layer: OriginalLayer, config: AttentionConfig, weights: Weights, where: str) -> Proof:
    """Prove that these weights give the recorded outputs, call by call.

    Args:
        layer: the recorded calls.
        config, weights: as they were read from the file, in any dtype that holds them.
        where: the layer's name for messages.

    Raises:
        VerificationFailed: they give something else; the message has the first difference.
        SpecError: a call does not fit the layer, or the calls can't tell the layer from others.
    """
    precision = replace(Precision.of(layer.dtype), exp_ulps=EXP_ULPS, key_block=KEYS_PER_BLOCK)
    worst, masks, untold = 0.0, [], dict(_others(config, weights))
    for call in layer.calls:
        judged = {mask: _judged(call, mask, config, weights, precision) for mask in call.inputs}
        mask, best = min(judged.items(), key=lambda item: item[1].worst)
        if not best.equal:
            raise VerificationFailed(
                f"{where} does not give what was recorded of {call.name or 'it'}: {best.mismatches[0].message}"
                + _other_weights(layer, weights)
            )
        worst = max(worst, best.worst)
        masks.append(mask)
        for what, (other, changed) in list(untold.items()):
            if _shows(call, mask, other, changed, precision):
                del untold[what]
    if untold:
        raise SpecError(
            f"what was recorded of {where} proves nothing: {next(iter(untold))} of half the size would give the "
            f"same within the bound of {layer.dtype}. Record a call of several tokens, with "
            "numbers that are not all alike"
            + ("" if layer.dtype in ("float64", "float32") else ", in float32: those weights in float32 are the same")
        )
    return Proof(len(layer.calls), worst, layer.dtype, " and ".join(dict.fromkeys(filter(None, masks))))


def _judged(
    call: OriginalCall, mask: str, config: AttentionConfig, weights: Weights, precision: Precision
) -> Judgement:
    problem = Problem(config, weights, call.inputs[mask], call.outputs)
    problem.inputs.check(config)
    return max((judge_original(piece, precision) for piece in _pieces(problem)), key=lambda judgement: judgement.worst)


def _others(config: AttentionConfig, weights: Weights) -> Iterator[tuple[str, tuple[AttentionConfig, Weights]]]:
    """Layers that the calls must tell from this one: name of what has half the size -> config and weights.

    Scores may show through biases alone, in a call whose inputs are so small that no matrix does.
    """
    if config.score == "scaled_dot":
        scale = config.head_dim**-0.5 if config.scale is None else config.scale
        yield "scores", (replace(config, scale=scale * OTHER_SCALE), weights)
    for name in weights:
        if name.endswith("_proj.weight"):
            yield name, (config, {**weights, name: weights[name] * weights[name].dtype.type(OTHER_SCALE)})


def _shows(call: OriginalCall, mask: str, config: AttentionConfig, weights: Weights, precision: Precision) -> bool:
    """Whether this config and these weights give another output than the one recorded in this call."""
    problem = Problem(config, weights, call.inputs[mask], call.outputs)
    return any(not judge_original(piece, precision).equal for piece in _pieces(problem))


def _pieces(problem: Problem) -> Iterator[Problem]:
    """The problem in parts of some batch items and queries, so that the bounds of each fit into memory."""
    inputs, config = problem.inputs, problem.config
    sizes = inputs.check(config)
    row = max(1, sizes.key_len * config.num_heads * config.value_head_dim)
    plain = not inputs.is_split and inputs.dropout_keep is None and inputs.past_keys is None
    if sizes.batch * sizes.query_len * row <= AT_ONCE or not plain:
        yield problem
        return
    # Piece by piece, every source of the mask but the bias becomes one array.
    allowed = allowed_keys(inputs.mask, sizes, config.num_heads)
    bias = None if inputs.mask.bias is None else np.broadcast_to(inputs.mask.bias, allowed.shape)
    rows = max(1, AT_ONCE // row)
    for b, start in product(range(sizes.batch), range(0, sizes.query_len, rows)):
        item, i = slice(b, b + 1), slice(start, start + rows)
        mask = AttentionMask(allowed=allowed[item, :, i], bias=None if bias is None else bias[item, :, i])
        piece = AttentionInputs(inputs.queries[item, i], inputs.keys[item], inputs.values[item], mask)
        outputs = {
            name: array[item, i] if name == "output" else array[item, :, i]
            for name, array in problem.recorded.items()
            if name in ("output", "weights", "heads")
        }
        yield Problem(config, problem.weights, piece, outputs)


def _other_weights(layer: OriginalLayer, weights: Weights) -> str:
    """The weights that differ from the recorded ones, in words; "" where none were recorded or all agree."""
    if layer.weights is None:
        return ""
    other = []
    for name in {**layer.weights, **weights}:
        one, two = layer.weights.get(name), weights.get(name)
        if (
            one is None
            or two is None
            or one.shape != two.shape
            or not np.array_equal(round_to(one, layer.dtype), round_to(two, layer.dtype))
        ):
            other.append(name)
    return f"\nthe recorded layer holds other weights: {', '.join(other)}" if other else ""


def _of_observed(observed: Observed) -> OriginalLayer:
    inputs = {
        words: AttentionInputs(observed.queries, observed.keys, observed.values, mask)
        for words, mask in observed.masks.items()
    }
    outputs = {"output": observed.output.astype(storage_dtype(observed.dtype))}
    return OriginalLayer("", observed.dtype, (OriginalCall("", inputs, outputs),))


def _is_recording(path: Path) -> bool:
    """Whether a file has the metadata that `mha.capture` writes; whether it is damaged, its reader finds out."""
    try:
        with safe_open(path, framework="numpy") as file:
            return METADATA_KEY in (file.metadata() or {})
    except (SafetensorError, OSError, TypeError, ValueError):
        return False


def _parts(name: str) -> list[str]:
    return re.split(r"[./]", name)


def _end_alike(one: str, other: str) -> bool:
    short, long = sorted((_parts(one), _parts(other)), key=len)
    return long[-len(short) :] == short


def _numbered(prefix: str) -> list[tuple[str, int]]:
    """A sort key that puts layer 10 after layer 2."""
    return [(text, int(number or -1)) for text, number in re.findall(r"(\D*)(\d*)", prefix)]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:MOST_NAMED]))
    return shown + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
