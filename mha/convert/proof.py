"""The proof that layers read from a file reproduce recorded calls of the original.

A layer is proved if the reference, with the weights that were read, gives the recorded outputs within the computed
bounds, and does not give them with scores or projections of half the size: a call whose outputs hardly depend on these
could not tell one layer from another.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.problem import Problem
from mha.convert.original import OriginalCall, OriginalLayer
from mha.convert.verify import VerificationFailed
from mha.infer.evidence import EXP_ULPS, KEYS_PER_BLOCK, pieces
from mha.projections.readings import distance
from mha.recipes.judge import Judgement, judge_original
from mha.recordings.recording import RecordedCall, RecordedLayer, Recording
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.capture import ReadCall
from mha_core.config import PROJECTIONS
from mha_core.dtypes import divisors, round_to
from mha_core.layouts import config_of
from mha_core.parts.rotary import in_words, positions_in
from mha_core.reference import pipeline as reference
from mha_core.weights import Weights, check_weights

OTHER_SCALE = 0.5
"""Factor on the scores and on each projection; calls that prove a layer must show each of these changes."""

NEAREST = 2
"""Readings that are judged, of all others by which a layer may be meant: those whose outputs are nearest."""

NOTHING_ELSE = (
    "\nNor does it with another number of heads, with matrices transposed or in another order, or with one other bias. "
    "Is the call of these very weights? Other packings, scales and rotary positions: --infer tries them, on one call"
)

SAME_WEIGHTS = "\nThe recorded layer holds the same weights: it computes something else, as with another mask or scale"

CAUSALITY = ("", "causal", "aligned at the last key")
"""Ends of the names of possible masks, where a record does not say which it was."""


@dataclass(frozen=True, eq=False)
class Proof:
    """A result of `prove`: a layer of a file that reproduces the recorded calls.

    Attributes:
        layer: the layer as it was read, in the dtype in which the original computed.
        calls: the recorded calls, each with a mask that reproduces the recorded output.
        ratio: the largest ratio of error to allowed error over all calls.
        mask: the names of the masks in `calls`, if the recording does not say which masks the calls had; else "".
    """

    layer: RecordedLayer
    calls: tuple[RecordedCall, ...]
    ratio: float
    mask: str = ""


def prove(layer: OriginalLayer, config: AttentionConfig, weights: Weights, where: str) -> Proof:
    """Return a Proof that `config` and `weights` give the recorded outputs of every call.

    Args:
        layer: the recorded calls.
        config, weights: the layer as it was read from the file, in any dtype that holds the weights exactly.
        where: the layer's name for messages.

    Raises:
        VerificationFailed: the weights give another output; the message has the first difference.
        SpecError: a call does not fit the layer, or other layers would give the same outputs in these calls.
    """
    precision = replace(Precision.of(layer.dtype), exp_ulps=EXP_ULPS, key_block=KEYS_PER_BLOCK)

    @cache
    def judged(index: int, mask: str) -> Judgement:
        return _judged(layer.calls[index], mask, config, weights, precision)

    def worst(masks: Sequence[str]) -> float:
        return max(judged(index, mask).worst for index, mask in enumerate(masks))

    readings = _readings(layer.calls)
    masks = min(readings, key=worst)
    for index, mask in enumerate(masks):
        found = judged(index, mask)
        if not found.equal:
            raise VerificationFailed(
                f"{where} does not give what was recorded of {layer.calls[index].name or 'it'}: "
                f"{found.mismatches[0].message}"
                + _other_weights(layer, weights)
                + _read_otherwise(layer, readings, config, weights, precision)
            )
    untold = dict(_others(config, weights))
    for call, mask in zip(layer.calls, masks, strict=True):
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
    for call in layer.calls:
        _check_turns(next(iter(call.inputs.values())), config, where)
    held = {name: round_to(array, layer.dtype) for name, array in weights.items()}
    chosen = zip(layer.calls, masks, strict=True)
    return Proof(
        RecordedLayer(where, "", layer.dtype, config, held),
        tuple(RecordedCall(0, call.inputs[mask], call.outputs) for call, mask in chosen),
        worst(masks),
        " and ".join(dict.fromkeys(filter(None, masks))),
    )


def recording_of(proofs: Sequence[Proof]) -> Recording:
    """Return the calls of all proofs as one recording."""
    calls = (replace(call, layer=index) for index, proof in enumerate(proofs) for call in proof.calls)
    return Recording(tuple(proof.layer for proof in proofs), tuple(calls))


def _readings(calls: Sequence[OriginalCall]) -> list[tuple[str, ...]]:
    """Each choice of a mask for every call: calls that do not say whether they are causal are so alike."""

    def chosen(call: OriginalCall, causality: int) -> str:
        by_end = {max(end for end, text in enumerate(CAUSALITY) if mask.endswith(text)): mask for mask in call.inputs}
        return next(by_end[end] for end in (*range(causality, -1, -1), 1, 2) if end in by_end)

    return list(dict.fromkeys(tuple(chosen(call, end) for call in calls) for end in range(len(CAUSALITY))))


def _judged(
    call: OriginalCall, mask: str, config: AttentionConfig, weights: Weights, precision: Precision
) -> Judgement:
    problem = Problem(config, weights, call.inputs[mask], call.outputs)
    return max((judge_original(piece, precision) for piece in _pieces(problem)), key=lambda judgement: judgement.worst)


def _pieces(problem: Problem) -> Iterator[Problem]:
    """The problem in parts whose bounds fit into memory."""
    return pieces(problem, problem.config.num_heads * problem.config.value_head_dim)


def _others(config: AttentionConfig, weights: Weights) -> Iterator[tuple[str, tuple[AttentionConfig, Weights]]]:
    """Layers that the calls must tell from this one: name of what has half the size -> config and weights.

    Scores may show through biases alone, in a call whose inputs are so small that no matrix does. A query-key norm
    gives the same of a matrix of half the size: the scores stand for both.
    """
    if config.score == "scaled_dot":
        scale = config.head_dim**-0.5 if config.scale is None else config.scale
        yield "scores", (replace(config, scale=scale * OTHER_SCALE), weights)
    normed = () if config.query_key_norm is None else ("q_proj.weight", "k_proj.weight")
    for name in weights:
        if name.endswith("_proj.weight") and name not in normed:
            yield name, (config, {**weights, name: weights[name] * weights[name].dtype.type(OTHER_SCALE)})


def _shows(call: OriginalCall, mask: str, config: AttentionConfig, weights: Weights, precision: Precision) -> bool:
    """Whether this config and these weights give another output than the one recorded in this call."""
    problem = Problem(config, weights, call.inputs[mask], call.outputs)
    return any(not judge_original(piece, precision).equal for piece in _pieces(problem))


def _read_otherwise(
    layer: OriginalLayer,
    readings: Sequence[Sequence[str]],
    config: AttentionConfig,
    weights: Weights,
    precision: Precision,
) -> str:
    """Return what gives the recorded calls, in a sentence: the other causality, another number of heads, or matrices
    transposed.
    """
    ranked = []
    for masks in readings:
        causal = {call.inputs[mask].mask.causal for call, mask in zip(layer.calls, masks, strict=True)}
        if len(causal) == 1:
            was = causal.pop()
            calls = [(_turned(call, mask), mask) for call, mask in zip(layer.calls, masks, strict=True)]
            far = max(_distance(call, mask, config, weights) for call, mask in calls)
            said = f"causal={not was}, not {was} as in the record"
            ranked.append((far, config, weights, said, calls))
    for masks in readings:
        calls = list(zip(layer.calls, masks, strict=True))
        for other, held, said in (*_other_readings(config, weights), *_other_bias(*calls[0], config, weights)):
            with suppress(SpecError):  # a mask of each head does not fit other numbers of heads
                ranked.append(
                    (max(_distance(call, mask, other, held) for call, mask in calls), other, held, said, calls)
                )
    for _, other, held, said, calls in sorted(ranked, key=itemgetter(0))[:NEAREST]:
        if not any(_shows(call, mask, other, held, precision) for call, mask in calls):
            return f"\nIt does with {said}"
    return NOTHING_ELSE if layer.weights is None or _other_weights(layer, weights) else SAME_WEIGHTS


def _turned(call: OriginalCall, mask: str) -> OriginalCall:
    """The call with that mask alone, causal if it was not, and not if it was."""
    inputs = call.inputs[mask]
    other = replace(inputs, mask=replace(inputs.mask, causal=not inputs.mask.causal))
    return replace(call, inputs={mask: other})


def _distance(call: OriginalCall, mask: str, config: AttentionConfig, weights: Weights) -> float:
    return distance(ReadCall(config, weights, call.inputs[mask], call.outputs, ""))[0]


def _other_readings(config: AttentionConfig, weights: Weights) -> Iterator[tuple[AttentionConfig, Weights, str]]:
    """Return other readings of a file: the config and weights, and how they differ from what was read, in words."""
    names = [name for name in weights if name.endswith("_proj.weight")]
    square = [name for name in names if len(set(weights[name].shape)) == 1]
    turned = {**weights, **{name: weights[name].reshape(weights[name].shape[::-1]).T for name in names}}
    views = "was written of views such as W.T, whose memory safetensors' NumPy writer takes as it lies"
    said = f"each matrix in the memory order of its transpose: the file {views}. Write numpy.ascontiguousarray(W.T)"
    if square == names:  # kernels of the other order have the same bytes as such views
        order = "the file has them as (in, out) where (out, in) is due, or the reverse"
        said = f"each matrix transposed: {order}; or it {views}. Write numpy.ascontiguousarray(W.T) for each W in it"
    heads = list(_other_heads(config, weights))
    yield from ((other, weights, words) for other, words in heads)
    yield config, turned, said
    yield from ((config, held, words) for held, words in _other_orders(config, weights))
    yield from ((other, turned, f"{words}, and with {said}") for other, words in heads)
    for some in dict.fromkeys([*((name,) for name in square), tuple(square)]):
        if some:
            held = {**weights, **{name: weights[name].T for name in some}}
            where = "here (in, out), which must be (out, in). Write W.T there"
            yield config, held, f"{' and '.join(some)} transposed: {where}"


def _other_orders(config: AttentionConfig, weights: Weights) -> Iterator[tuple[dict[str, NDArray], str]]:
    """The weights with the rows of queries, keys and values taken in another order, as they may be packed, in words."""
    read = [f"{role}_proj" for role in "qkv"]
    for kind in ("weight", "bias"):
        if len({weights[f"{name}.{kind}"].shape if f"{name}.{kind}" in weights else None for name in read}) > 1:
            return
    kinds = tuple(kind for kind in ("weight", "bias") if f"q_proj.{kind}" in weights)
    for some in dict.fromkeys((kinds, *((kind,) for kind in kinds))):
        rows = "rows" if some == kinds else f"rows of the {NAMED[some[0]]} alone"
        then = "add --infer, which reads them so" if some == kinds else "write weights and biases in one order"
        for order in permutations("qkv"):
            if "".join(order) != "qkv":
                pairs = list(zip(order, read, strict=True))
                moved = {f"{own}_proj.{kind}": weights[f"{at}.{kind}"] for own, at in pairs for kind in some}
                yield {**weights, **moved}, f"the {rows} in the order {', '.join(order)}, not q, k, v: {then}"
        for shape, said in SPLITS.items():
            held = dict(weights)
            for kind in some:
                whole = np.concatenate([weights[f"{name}.{kind}"] for name in read])
                heads = [config.num_heads if size == "heads" else 3 for size in shape]
                split = whole.reshape(*heads, -1, *whole.shape[1:]).swapaxes(0, 1).reshape(3, -1, *whole.shape[1:])
                for part, name in zip(split, read, strict=True):
                    held[f"{name}.{kind}"] = part.reshape(weights[f"{name}.{kind}"].shape)
            yield held, f"the {rows} {said}: {then}"


NAMED = {"weight": "weights", "bias": "biases"}
SPLITS = {  # shape of the rows of queries, keys and values -> how they stand, in words
    ("heads", "3"): "packed head by head, (heads, 3, head_dim), not in three blocks",
    ("3", "heads"): "put back: they were in three blocks, and were taken for (heads, 3, head_dim)",
}


def _other_bias(
    call: OriginalCall, mask: str, config: AttentionConfig, weights: Weights
) -> Iterator[tuple[AttentionConfig, Weights, str]]:
    """Yield the layer with one vector more in every row of its output, which a bias of the output or of values is."""
    if "output" not in call.outputs or not config.projections:
        return
    problem = Problem(config, weights, call.inputs[mask], call.outputs)
    given = [np.asarray(reference.run(one.config, one.weights, one.inputs).output) for one in _pieces(problem)]
    wanted = np.asarray(call.outputs["output"], np.float64)
    off = wanted.reshape(-1, wanted.shape[-1]) - np.concatenate([one.reshape(-1, wanted.shape[-1]) for one in given])
    off = off[np.isfinite(off).all(axis=-1)]
    if not len(off):
        return
    own = weights.get("out_proj.bias", 0.0)
    held = {**weights, "out_proj.bias": np.asarray(own + np.median(off, axis=0))}
    lacking = [name for name in ("out_proj.bias", "v_proj.bias") if name not in weights]
    said = f"the file lacks {' or '.join(lacking)}" if lacking else "out_proj.bias or v_proj.bias is another one there"
    bias = replace(config.bias, out_proj=True)
    yield replace(config, bias=bias), held, f"one vector more in every row of the output: {said}"


def _other_heads(config: AttentionConfig, weights: Weights) -> Iterator[tuple[AttentionConfig, str]]:
    """The layer with each other number of heads that its matrices can have, and that number in words."""
    projections = {name: array for name, array in weights.items() if name.startswith(PROJECTIONS)}
    for count in divisors(len(weights.get("q_proj.weight", ()))):
        with suppress(SpecError):  # keys, values, a norm or the rotary part do not fit that number
            sizes = config_of(projections, num_heads=count)
            own = {name: getattr(sizes, name) for name in ("num_heads", "num_kv_heads", "head_dim", "value_head_dim")}
            other = replace(config, **own)
            check_weights(other, weights)
            if count != config.num_heads:
                yield other, f"num_heads={count}, not {config.num_heads}"


def _check_turns(inputs: AttentionInputs, config: AttentionConfig, where: str) -> None:
    """SpecError unless the tables of a call are those that the config's rotary settings make: a file has no tables."""
    if config.rotary is None or inputs.rotary is None or not inputs.rotary.has_tables:
        return
    for table in inputs.rotary.tables():
        if positions_in(table, config.rotary, inputs.check(config).key_len) is None:
            raise SpecError(
                f"{where} was called with rotary tables that no positions give by {in_words(config.rotary)}, which is "
                "all that a file of it could say: its angles have another base, rule or sign, or several axes. "
                "To move the bits alone, with nothing said of what they compute: --moved, without --recorded"
            )


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
    if not set(weights) - set(other):
        return "\nthe recorded layer holds other weights, in every array: is the call of another layer or checkpoint?"
    return f"\nthe recorded layer holds other weights: {', '.join(other)}" if other else ""
