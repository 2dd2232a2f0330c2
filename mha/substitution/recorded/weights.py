"""Weights and settings of two layers, compared; and whose weights a layer holds."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from mha.recordings.origins import DIAGNOSED, WeightIndex, has_the_same, narrower, same_numbers, what_it_is
from mha.recordings.recording import RecordedLayer
from mha.substitution.reports.report import Difference
from mha_core import AttentionConfig
from mha_core.config import PROJECTIONS, ProjectionBias
from mha_core.heads import repeat_kv_heads
from mha_core.parts.rotary import Rotary
from mha_core.weights import weight_shapes

APART = ("embed_dim", "bias", "scale", "score_dim")
"""The fields of a config that are compared otherwise: the scale as a number, others by the shapes of arrays."""

SETTINGS = tuple(field.name for field in fields(AttentionConfig) if field.name not in APART)
"""The settings that must be equal."""


SIZES = ("num_heads", "num_kv_heads", "head_dim", "value_head_dim", "query_dim", "key_dim", "value_dim", "output_dim")
"""The settings that are sizes."""

OF_OTHER_SIZES = "its sizes are not the original's, as those of another model"


def layer_differences(a: RecordedLayer, b: RecordedLayer, index: WeightIndex) -> tuple[list[Difference], list[str]]:
    """Return (differences, notes) of the port's layer `b` and the original's `a`, in settings and weights.

    Weights are compared after rounding to the narrower of the two dtypes. A missing bias counts as zeros, repeated key
    heads count as grouped heads, and the scale of the scores may be multiplied into the query weights.

    `index`: the arrays of all layers of the original.
    """
    dtype = narrower(a.dtype, b.dtype)
    own, other = _comparable(a), _comparable(b)
    settings, notes = _settings(a, b, dtype)
    if settings.keys() & {"query_dim", "output_dim"}:  # what else differs follows from it
        sizes = [
            f"{name} {getattr(b.config, name)} for {getattr(a.config, name)}" for name in settings if name in SIZES
        ]
        return [Difference("config", f"{OF_OTHER_SIZES}: {', '.join(sizes)}", "sizes")], notes
    if settings.keys() & {"projections", "score"}:
        return list(settings.values()), notes  # they have other arrays
    if a.config.num_kv_heads != b.config.num_kv_heads and a.config.num_heads == b.config.num_heads:
        own, other = _repeated(a, own), _repeated(b, other)
        if all(same_numbers(own[name], other[name], dtype) for name in own if name in other):
            del settings["num_kv_heads"]
            notes.append(f"{b.config.num_kv_heads} key heads for {a.config.num_kv_heads}, repeated: the same layer")
    if "scale" in settings and _scale_is_in_weights(a, b, own, other, dtype):
        del settings["scale"]
        notes.append("the scale is part of the query weights on one side: the same layer")
        other = {**other, **{name: own[name] for name in own if name.startswith("q_proj.")}}
    found = list(settings.values())
    parted = [name for name in own if not same_numbers(own[name], other[name], dtype)]
    whose = [position for position in index.whose(b.weights, dtype) if index.layers[position] is not a]
    if parted and whose:
        names = " or ".join(dict.fromkeys(index.called[position] for position in whose))
        message = f"the port's layer holds the weights of the original's {names}"
        return [*found, Difference("weights", message)], notes
    joined = _joined(own, other, parted, dtype)
    if joined:
        message = (
            f"{', '.join(joined)} together hold the original's numbers in another order: a packed weight that was "
            f"read wrongly{DIAGNOSED}"
        )
        found.append(Difference("weights", message, ", ".join(joined)))
    if not joined and _are_others(own, other, parted):
        return [*found, Difference("weights", OF_ANOTHER_MODEL)], notes
    for both, words in _exchanged(own, other, parted, dtype):
        found.append(Difference("weights", words, ", ".join(both)))
        parted = [name for name in parted if name not in both]
    for name in parted:
        if name in joined:
            continue
        if own[name].shape != other[name].shape:
            message = f"{name} has shape {other[name].shape}; the original's has {own[name].shape}"
            found.append(Difference("weights", message, name))
            continue
        with np.errstate(invalid="ignore"):
            distance = np.abs(own[name].astype(np.float64) - other[name])
        message = f"{name} {what_it_is(name, own[name], other[name], a, index, dtype)}"
        found.append(Difference("weights", message, name, float(distance.max(initial=0.0)), 0.0))
    return found, notes


def _exchanged(
    own: Mapping[str, NDArray], other: Mapping[str, NDArray], parted: Collection[str], dtype: str
) -> Iterator[tuple[list[str], str]]:
    """Yield (names of arrays, what is said of them) for each two projections whose weights stand for each other."""
    for two in combinations(PROJECTIONS, 2):
        names = {words: [f"{one}.{kind}" for one in two] for kind, words in (("weight", "weights"), ("bias", "biases"))}
        moved = {
            words: both
            for words, both in names.items()
            if {*both} <= {*parted} and all(same_numbers(own[a], other[b], dtype) for a, b in (both, both[::-1]))
        }
        if "weights" in moved:
            yield [*chain(*moved.values())], f"the {' and '.join(moved)} of {' and '.join(two)} are exchanged"


OF_ANOTHER_MODEL = (
    "all its matrices hold other numbers than the original's, as those of another model or another state of training: "
    "load the original's weights into the port, and record it again"
)


FEW = 0.01
"""A part of an array so small that numbers drawn at random may agree in it."""


def _are_others(own: Mapping[str, NDArray], other: Mapping[str, NDArray], parted: Collection[str]) -> bool:
    """Return whether all matrices of a layer hold other numbers, and not the same in another order."""
    matrices = [name for name in own if own[name].ndim == 2]
    if not matrices or not set(matrices) <= set(parted):
        return False
    pairs = [(own[name], other[name]) for name in matrices]
    every = np.concatenate([np.ravel(one) for one, _ in pairs])
    return all(one.shape == two.shape and np.isin(two, every).mean() < FEW for one, two in pairs) and _is_apart(pairs)


def _is_apart(pairs: Sequence[tuple[NDArray, NDArray]]) -> bool:
    """Return whether arrays are further apart than rounding, noise or a factor bring them."""
    for one, two in pairs:
        left, right = np.ravel(one).astype(np.float64), np.ravel(two).astype(np.float64)
        size = np.linalg.norm(left) * np.linalg.norm(right)
        if not size or abs(left @ right) > 0.5 * size:
            return False
    return True


def _comparable(layer: RecordedLayer) -> dict[str, NDArray]:
    """The weights of a layer, with zeros for missing biases."""
    biased = replace(layer.config, bias=ProjectionBias.of(True)) if layer.config.projections else layer.config
    shapes = weight_shapes(biased)
    return {
        name: np.asarray(layer.weights[name]) if name in layer.weights else np.zeros(shape, np.float32)
        for name, shape in shapes.items()
    }


def _repeated(layer: RecordedLayer, weights: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """The weights with those of keys and values repeated for each query head."""
    config = layer.config

    def repeat(name: str, array: NDArray) -> NDArray:
        if not name.startswith(("k_proj.", "v_proj.")):
            return array
        rows = array.reshape(1, config.num_kv_heads, array.shape[0] // config.num_kv_heads, -1)
        return repeat_kv_heads(rows, config.num_heads).reshape(-1, *array.shape[1:])

    return {name: repeat(name, array) for name, array in weights.items()}


def _settings(a: RecordedLayer, b: RecordedLayer, dtype: str) -> tuple[dict[str, Difference], list[str]]:
    """The settings that differ, by name; and remarks."""
    found, notes = {}, []
    for name in SETTINGS:
        own, other = getattr(a.config, name), getattr(b.config, name)
        if isinstance(own, Rotary) and isinstance(other, Rotary):
            own, other = own.layout, other.layout  # the angles are compared call by call: recorded ones may be tables
        if own == other or (name == "score" and {own, other} == {"dot", "scaled_dot"}):
            continue
        if name == "dropout":
            notes.append(f"dropout is {other:g}, the original's {own:g}: it is off outside training")
        else:
            found[name] = Difference("config", f"{name} is {other}; the original's is {own}", name)
    own, other = a.config.softmax_scale, b.config.softmax_scale
    difference, allowed = abs(own - other), 2 * UNIT_ROUNDOFF[dtype] * abs(own)
    if difference > allowed:
        message = f"the scale is {other:.6g}; the original's is {own:.6g}{_scale_in_words(b.config)}"
        found["scale"] = Difference("config", message, "scale", difference, allowed)
    return {name: one for name, one in found.items() if name not in _follow(a.config, b.config, found)}, notes


def _follow(a: AttentionConfig, b: AttentionConfig, found: Collection[str]) -> set[str]:
    """The settings in `found` that follow from another number of heads of the same width together."""
    if "num_heads" not in found:
        return set()
    own, other = ((one.num_kv_heads * one.head_dim, one.num_kv_heads * one.value_head_dim) for one in (a, b))
    whole = a.num_heads * a.head_dim == b.num_heads * b.head_dim and own == other
    usual = all(np.isclose(one.softmax_scale, one.head_dim**-0.5, rtol=1e-6) for one in (a, b))
    return {*("num_kv_heads", "head_dim", "value_head_dim") * whole, *("scale",) * usual}


def _scale_in_words(config: AttentionConfig) -> str:
    known = {
        1.0: "none at all",
        config.head_dim**-1.0: "1 / head_dim, without the root",
        config.embed_dim**-0.5: "1 / sqrt(embed_dim)",
        config.head_dim**0.5: "sqrt(head_dim)",
        config.head_dim**-0.5: "1 / sqrt(head_dim)",
    }
    same = (words for value, words in known.items() if np.isclose(config.softmax_scale, value, rtol=1e-6))
    return next((f" (the port's is {words})" for words in same), "")


def _scale_is_in_weights(
    a: RecordedLayer, b: RecordedLayer, own: Mapping[str, NDArray], other: Mapping[str, NDArray], dtype: str
) -> bool:
    names = [name for name in own if name.startswith("q_proj.")]
    return bool(names) and all(
        own[name].shape == other[name].shape
        and np.allclose(
            own[name] * np.float64(a.config.softmax_scale),
            other[name] * np.float64(b.config.softmax_scale),
            rtol=4 * UNIT_ROUNDOFF[dtype],
            atol=0.0,
        )
        for name in names
    )


def _joined(
    own: Mapping[str, NDArray], other: Mapping[str, NDArray], parted: Sequence[str], dtype: str
) -> tuple[str, ...]:
    """Names of arrays that together hold the original's numbers, but not each in its own place."""
    names = tuple(name for name in parted if name.endswith(".weight") and name.split(".")[0] in PROJECTIONS[:3])
    whole = [
        name for name in names for mine in names if same_numbers(own[mine], other[name], dtype)
    ]  # these are said to hold that one
    if len(names) < 2 or whole or all(has_the_same(own[name], other[name], dtype) for name in names):
        return ()
    both = [np.sort(np.concatenate([side[name].ravel() for name in names])) for side in (own, other)]
    return names if same_numbers(both[0], both[1], dtype) else ()
