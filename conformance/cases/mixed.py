"""In what two calls differ, and a call that differs from another in one of these alone."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from conformance.cases.case import Case
from conformance.cases.problem import Problem, split_inputs
from mha_core import AttentionInputs, AttentionMask, RotaryInputs
from mha_core.call.rotary import ARRAYS, POSITIONS, TABLES

PAST = "past keys and values"

FIELDS: Mapping[str, tuple[str, ...]] = {
    "queries": ("queries",),
    "keys": ("keys",),
    "values": ("values",),
    PAST: ("past_keys", "past_values"),
    "lengths": ("valid_lens",),
    "mask `allowed`": ("allowed",),
    "bias": ("bias",),
    "causal mask, window or positions": ("causal", "window", "query_offset"),
    "mode of training or its keep-mask": ("dropout_keep",),
    "wish for gradients": ("cotangent",),
    "rotary positions or their tables": ARRAYS,
}
"""What two calls may differ in -> the fields that it is made of, of AttentionInputs or its mask."""

ONE_ARRAY = "use of one array for queries, keys and values"
SPLIT = "form of the inputs (heads split or merged)"
LAYOUT = "layout of the arrays in memory"

SIZES = {"number of items": "batch", "number of queries": "query_len", "number of keys": "key_len"}

AXES: Mapping[str, Mapping[str, int]] = {
    **{name: {"batch": -3, "query_len": -2} for name in ("queries", "cotangent")},
    **{name: {"batch": -3, "key_len": -2} for name in ("keys", "values")},
    **{name: {"batch": -4} for name in ("past_keys", "past_values")},
    **{name: {"batch": -4, "query_len": -2, "key_len": -1} for name in ("allowed", "bias", "dropout_keep")},
    "valid_lens": {"batch": 0, "query_len": 1},
    "query_offset": {"batch": 0},
    **{name: {"batch": -2, "key_len" if name.startswith("key") else "query_len": -1} for name in POSITIONS},
    **{name: {"batch": -3, "query_len": -2} for name in ("cos", "sin")},
    **{name: {"batch": -3, "key_len": -2} for name in ("key_cos", "key_sin")},
}
"""Array -> which of its axes counts what; of queries, keys and values that are not split."""

OF_MASK = tuple(name for name in AttentionMask().__dict__)

BROADCAST = ("allowed", "bias", *TABLES)
"""Arrays that are broadcast along an axis of size 1."""


def differences(case: Case, other: Case) -> list[str]:
    """Return the names of arrays and settings that differ in two calls. Longer axes are cut to the shorter length."""
    found = [words for words, name in SIZES.items() if getattr(case, name) != getattr(other, name)]
    a, b = case.build().inputs, other.build().inputs
    found += [
        part for part, names in FIELDS.items() if not all(_same(_field(a, name), _field(b, name)) for name in names)
    ]
    found += [words for words, of in ((ONE_ARRAY, _is_one), (SPLIT, attrgetter("is_split"))) if of(a) != of(b)]
    if case.sizes() == other.sizes() and a.is_split == b.is_split and _layout(a) != _layout(b):
        found.append(LAYOUT)
    return found


def mixed(case: Case, other: Case, part: str) -> Problem | None:
    """Return the problem of `case` with one part (a name from `differences`) taken from `other`; None if invalid."""
    problem = case.build()
    inputs, given = problem.inputs, other.build().inputs
    if part in SIZES:
        can_be = not (inputs.is_split or given.is_split or case.past_len or other.past_len)
        return replace(problem, inputs=_resized(case, other, SIZES[part])) if can_be else None
    if part == ONE_ARRAY:
        one = _is_one(given)
        keys, values = (inputs.queries,) * 2 if one else (inputs.keys.copy(), inputs.values.copy())
        fits = keys.shape == inputs.keys.shape and values.shape == inputs.values.shape
        return problem.with_inputs(keys=keys, values=values) if fits else None
    if part == SPLIT:
        return replace(problem, inputs=split_inputs(inputs, problem.config) if given.is_split else inputs.merged())
    if part == LAYOUT:
        turned = {name: np.asfortranarray(getattr(inputs, name)) for name in ("queries", "keys", "values")}
        return replace(problem, inputs=_with(inputs, turned))
    sizes = {name: getattr(case, name) for name in SIZES.values()}
    fields = {name: _fitted(name, _field(given, name), sizes) for name in FIELDS[part]}
    return replace(problem, inputs=_with(inputs, fields))


def _field(inputs: AttentionInputs, name: str) -> Any:
    """A field of the call, of its mask or of its rotary positions; those of new keys, also where one array is both."""
    if name in ARRAYS:
        own = getattr(inputs.rotary, name, None)
        return getattr(inputs.rotary, name.removeprefix("key_"), None) if own is None else own
    return getattr(inputs.mask if name in OF_MASK else inputs, name)


def _with(inputs: AttentionInputs, fields: Mapping[str, Any]) -> AttentionInputs:
    mask = {name: value for name, value in fields.items() if name in OF_MASK}
    turning = {name: value for name, value in fields.items() if name in ARRAYS}
    own = {name: value for name, value in fields.items() if name not in (*OF_MASK, *ARRAYS)}
    if turning:
        rotary = {name: _field(inputs, name) for name in ARRAYS} | turning
        is_given = any(value is not None for value in rotary.values())
        own["rotary"] = RotaryInputs(**rotary) if is_given else None
    return replace(inputs, mask=replace(inputs.mask, **mask), **own)


def _is_one(inputs: AttentionInputs) -> bool:
    return inputs.queries is inputs.keys is inputs.values


def _layout(inputs: AttentionInputs) -> list[tuple[int, ...]]:
    return [array.strides for array in (inputs.queries, inputs.keys, inputs.values) if array.size > 1]


def _same(a: Any, b: Any) -> bool:
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is b or (type(a) is type(b) and bool(a == b))
    if a.ndim != b.ndim or a.dtype != b.dtype:
        return False
    reach = tuple(slice(min(sizes)) for sizes in zip(a.shape, b.shape, strict=True))
    return np.array_equal(a[reach], b[reach], equal_nan=a.dtype.kind == "f")


# Sizes ----------------------------------------------------------------------------------------------------------


def _resized(case: Case, other: Case, size: str) -> AttentionInputs:
    """The call with one size of another: what is too long is cut off, what is missing is of the other."""
    inputs, given, length = case.build().inputs, other.build().inputs, getattr(other, size)
    sizes = {name: getattr(case, name) for name in SIZES.values()} | {size: length}
    fields: dict[str, Any] = {}
    for name in AXES:
        array, donor = _field(inputs, name), _fitted(name, _field(given, name), sizes)
        axis = AXES[name].get(size)
        if not isinstance(array, np.ndarray):
            continue
        if axis is not None and np.ndim(donor) == array.ndim > axis and array.shape[axis] > 1:
            more = np.take(donor, range(array.shape[axis], max(length, array.shape[axis])), axis=axis, mode="wrap")
            array = np.concatenate([array, more], axis)
        fields[name] = _fitted(name, array, sizes)
    if _is_one(inputs):
        fields["keys"] = fields["values"] = fields["queries"]
    return _with(inputs, fields)


def _fitted(name: str, value: Any, sizes: Mapping[str, int]) -> Any:
    """A field of a call for other sizes: arrays are cut off, or go on from their beginning."""
    if not isinstance(value, np.ndarray):
        return value
    for size, axis in AXES[name].items():
        is_there = -value.ndim <= axis < value.ndim and value.shape[axis] > 0
        if is_there and not (name in BROADCAST and value.shape[axis] == 1):
            value = np.take(value, np.arange(sizes[size]) % value.shape[axis], axis=axis)
    return np.minimum(value, sizes["key_len"]) if name == "valid_lens" else value
