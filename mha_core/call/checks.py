"""The checks of a call's arguments, made once for the reference and all backends.

`check_call` checks shapes and dtypes alone, so it also works while a framework traces a
function; `check_numbers` checks values, where these are known. The text of a SpecError does not
depend on the framework.

Every size, position and reach has to fit in 32 bits, which is what the narrowest of the frameworks
counts with: `LONGEST` is the most that an axis or a window may have, and an offset lies in
`-LONGEST - 1..LONGEST`. Where the values of an offset are not at hand (a framework traces, or they
stand on another device), what lies beyond counts as the nearest that is allowed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mha_core.call.arguments import ArraySpec, CallSizes, Dim, describe_array, holds_long_integers
from mha_core.call.call import Call, LayerSpec
from mha_core.call.masks import AttentionMask
from mha_core.call.rotary import check_rotary
from mha_core.dtypes import DTYPES
from mha_core.errors import SpecError
from mha_core.heads import HeadShapes

LONGEST = 2**31 - 1
"""The most elements that an axis may have, and the most keys that a window may reach: the largest of int32."""

OFFSETS = (-LONGEST - 1, LONGEST)
"""The least and the largest query_offset."""


def check_call(
    call: Call[Any], layer: LayerSpec, describe: Callable[[Any], ArraySpec | None] = describe_array
) -> CallSizes:
    """Check one attention call by shapes and dtypes; return its sizes.

    `describe` returns the ArraySpec of an array of the caller's framework or of NumPy, and None for other objects.

    Raises:
        SpecError: naming the first argument that does not fit, the rule, and what was given.
    """
    specs = {name: describe_argument(name, getattr(call, name), describe) for name in ("queries", "keys", "values")}
    if layer.split and layer.head_shapes is not None and any(len(spec.shape) == 4 for spec in specs.values()):
        specs = {name: _merged(name, spec, layer.head_shapes) for name, spec in specs.items()}
    for name, spec in specs.items():
        if len(spec.shape) != 3:
            raise SpecError(f"{name} must have shape (batch, length, width). Got {_show(spec.shape)}.")
        _check_lengths(name, spec.shape)
    _check_inputs(specs, layer.widths)
    dtype = specs["queries"].dtype
    check_layer_dtype("queries", dtype, layer.dtype)

    batch, query_len, _ = specs["queries"].shape
    past_len = _check_past(call, batch, dtype, layer.head_shapes, describe)
    new_len = specs["keys"].shape[1]
    key_len = None if past_len is None or new_len is None else past_len + new_len
    if isinstance(key_len, int) and key_len > LONGEST:
        raise SpecError(f"past and new keys must be at most {LONGEST} together. Got {key_len}.")
    sizes = CallSizes(batch, query_len, key_len, past_len)
    full = (batch, layer.num_heads, query_len, sizes.key_len)
    _check_mask(call.mask, sizes, full, dtype, describe)
    if call.rotary is not None:
        check_rotary(call.rotary, layer.rotary, sizes, dtype, partial(describe_argument, describe=describe))
    if call.dropout_keep is not None:
        spec = describe_argument("dropout_keep", call.dropout_keep, describe)
        if spec.dtype != "bool":
            raise SpecError(f"dropout_keep must be boolean (True = kept). Got dtype {spec.dtype}.")
        if not _same_shape(spec.shape, full):
            raise SpecError(f"dropout_keep must have shape (B, H, Lq, Lk)={_show(full)}. Got {_show(spec.shape)}.")
    return sizes


def check_numbers(valid_lens: Any, query_offset: Any, key_len: Dim) -> None:
    """Raise SpecError unless lengths and offsets are in their ranges. Call `check_call` first.

    Args:
        valid_lens, query_offset: as in an AttentionMask, in NumPy; None where their numbers are not known.
        key_len: Lk. None means that it is not known; then `valid_lens` is not checked.
    """
    if valid_lens is not None and key_len is not None:
        check_valid_lens(valid_lens, key_len)
    if query_offset is not None:
        lowest, highest = OFFSETS
        wrong = _first_beyond(query_offset, lowest, highest)
        if wrong is not None:
            raise SpecError(f"query_offset must lie in {lowest}..{highest}. Got {wrong}.")


def check_valid_lens(valid_lens: np.ndarray, key_len: int) -> None:
    """Raise SpecError unless every valid length lies in 0..key_len."""
    wrong = _first_beyond(valid_lens, 0, key_len)
    if wrong is not None:
        raise SpecError(f"valid_lens must lie in 0..{key_len}, the number of keys. Got {wrong}.")


def check_dropout_keep(dropout_keep: Any, *, training: bool) -> None:
    """Raise SpecError if a keep-mask is given outside training, where dropout is off."""
    if dropout_keep is not None and not training:
        raise SpecError(
            "dropout_keep belongs to a training step: dropout is off outside training. "
            "Switch the layer to training, or leave dropout_keep out."
        )


def check_layer_dtype(name: str, dtype: str, layer_dtype: str | None) -> None:
    """Raise SpecError if the input `name` has a `dtype` other than the layer's. `layer_dtype=None` allows any dtype."""
    if layer_dtype is not None and dtype != layer_dtype:
        raise SpecError(f"{name} must have the dtype of the layer, {layer_dtype}. Got {dtype}.")


def check_one_dtype(dtypes: list[str]) -> None:
    """Raise SpecError unless queries, keys and values have one floating-point dtype."""
    if dtypes[0] not in DTYPES or len(set(dtypes)) > 1:
        raise SpecError(
            f"queries, keys and values must share one dtype of {', '.join(DTYPES)}. Got {', '.join(dtypes)}."
        )


def check_same_width(query_width: Dim, key_width: Dim) -> None:
    """Raise SpecError unless queries and keys can be multiplied: a dot product needs one width."""
    if not _same(query_width, key_width):
        raise SpecError(
            f"queries and keys must be equally wide for a dot product. Got widths {query_width} and {key_width}."
        )


def _merged(name: str, spec: ArraySpec, head_shapes: HeadShapes) -> ArraySpec:
    """The spec that (B, heads, L, width) has when its heads are merged."""
    heads, width = getattr(head_shapes, name)
    if len(spec.shape) != 4 or not _same_shape(spec.shape[1::2], (heads, width)):
        raise SpecError(
            f"{name} must have shape (batch, {heads} heads, length, {width}), as the other inputs have their heads "
            f"split. Got {_show(spec.shape)}."
        )
    return ArraySpec((spec.shape[0], spec.shape[2], heads * width), spec.dtype)


def _check_past(
    call: Call[Any],
    batch: Dim,
    dtype: str,
    head_shapes: HeadShapes | None,
    describe: Callable[[Any], ArraySpec | None],
) -> Dim:
    """The length of the past, 0 without one; SpecError for what does not fit."""
    past_keys, past_values = call.past_keys, call.past_values
    if past_keys is None and past_values is None:
        return 0
    if past_keys is None or past_values is None:
        missing = "past_keys" if past_keys is None else "past_values"
        raise SpecError(f"past_keys and past_values belong together. {missing} is missing.")
    if head_shapes is None:
        raise SpecError("past_keys and past_values are heads; this layer has none.")
    length: Dim = None
    for name, array, (heads, width) in (
        ("past_keys", past_keys, head_shapes.keys),
        ("past_values", past_values, head_shapes.values),
    ):
        spec = describe_argument(name, array, describe)
        if len(spec.shape) != 4 or not _same_shape(spec.shape, (batch, heads, length, width)):
            wanted = _show((batch, heads, length, width)).replace("?", "length")
            raise SpecError(f"{name} must have shape {wanted}. Got {_show(spec.shape)}.")
        if spec.dtype != dtype:
            raise SpecError(f"{name} must have the dtype of queries, {dtype}. Got {spec.dtype}.")
        length = spec.shape[2]
    return length


def describe_argument(name: str, array: Any, describe: Callable[[Any], ArraySpec | None]) -> ArraySpec:
    """Return shape and dtype of the argument `name`; SpecError if it is no array that `describe` knows."""
    is_array = hasattr(array, "shape") and hasattr(array, "dtype") and not isinstance(array, np.ma.MaskedArray)
    spec = describe(array) if is_array else None
    if spec is None:
        raise SpecError(f"{name} must be an array. Got {type(array).__name__}.")
    if holds_long_integers(array):
        return spec._replace(dtype="int64")  # integers they are; their values will be refused
    return spec


def _check_lengths(name: str, shape: tuple[Dim, ...]) -> None:
    if any(isinstance(size, int) and size > LONGEST for size in shape):
        raise SpecError(f"{name} must have at most {LONGEST} elements along each axis. Got {_show(shape)}.")


def _first_beyond(numbers: int | np.ndarray, lowest: int, highest: int) -> Any:
    """The first of these integers that does not lie in lowest..highest; None if all do."""
    if isinstance(numbers, int):  # nothing of NumPy, which a framework may be tracing
        return None if lowest <= numbers <= highest else numbers
    if numbers.size == 0 or (lowest <= int(numbers.min()) and int(numbers.max()) <= highest):
        return None
    return next(number for number in numbers.flat if not lowest <= int(number) <= highest)


def _check_inputs(specs: dict[str, ArraySpec], widths: tuple[Dim, Dim, Dim]) -> None:
    queries, keys, values = specs["queries"], specs["keys"], specs["values"]
    for name in ("keys", "values"):
        if not _same(specs[name].shape[0], queries.shape[0]):
            raise SpecError(
                f"{name} must have the batch size of queries. "
                f"Got {name} {_show(specs[name].shape)} beside queries {_show(queries.shape)}."
            )
    if not _same(values.shape[1], keys.shape[1]):
        raise SpecError(
            f"values must be as many as keys. Got values {_show(values.shape)} beside keys {_show(keys.shape)}."
        )
    for (name, spec), label, width in zip(specs.items(), ("query_dim", "key_dim", "value_dim"), widths, strict=True):
        if not _same(spec.shape[2], width):
            raise SpecError(f"{name} must be {label}={width} wide. Got {_show(spec.shape)}.")
    check_one_dtype([spec.dtype for spec in specs.values()])


def _check_mask(
    mask: AttentionMask,
    sizes: CallSizes,
    full: tuple[Dim, ...],
    dtype: str,
    describe: Callable[[Any], ArraySpec | None],
) -> None:
    if mask.valid_lens is not None:
        spec = describe_argument("valid_lens", mask.valid_lens, describe)
        if not _is_integer(spec.dtype):
            raise SpecError(f"valid_lens must be integers. Got dtype {spec.dtype}.")
        if not (_same_shape(spec.shape, full[:1]) or _same_shape(spec.shape, (full[0], full[2]))):
            raise SpecError(
                f"valid_lens must have shape (B,)=({sizes.batch},) or (B, Lq)=({sizes.batch}, {sizes.query_len}). "
                f"Got {_show(spec.shape)}."
            )
    if mask.allowed is not None:
        spec = describe_argument("allowed", mask.allowed, describe)
        if spec.dtype != "bool":
            raise SpecError(f"allowed must be boolean (True = may attend). Got dtype {spec.dtype}.")
        _check_broadcast("allowed", spec.shape, full)
    if mask.bias is not None:
        spec = describe_argument("bias", mask.bias, describe)
        if spec.dtype != dtype:
            raise SpecError(f"bias must have the dtype of queries, {dtype}. Got {spec.dtype}.")
        _check_broadcast("bias", spec.shape, full)
    _check_positions(mask, sizes, describe)


def _check_positions(mask: AttentionMask, sizes: CallSizes, describe: Callable[[Any], ArraySpec | None]) -> None:
    if not isinstance(mask.causal, bool):
        raise SpecError(f"causal must be True or False. Got {mask.causal!r}.")
    if mask.window is not None:
        window = mask.window
        if not (isinstance(window, tuple) and len(window) == 2 and all(_is_reach(reach) for reach in window)):
            raise SpecError(
                f"window must be (left, right), each a number of keys in 0..{LONGEST}, or None for unbounded. "
                f"Got {window!r}."
            )
    if isinstance(mask.query_offset, int) and not isinstance(mask.query_offset, bool):
        check_numbers(None, mask.query_offset, None)  # known even while tracing
        return
    spec = describe_argument("query_offset", mask.query_offset, describe)
    if not _is_integer(spec.dtype) or not (spec.shape == () or _same_shape(spec.shape, (sizes.batch,))):
        raise SpecError(
            f"query_offset must be an integer, or integers of shape (B,)=({sizes.batch},). "
            f"Got {spec.dtype} {_show(spec.shape)}."
        )


def _check_broadcast(name: str, shape: tuple[Dim, ...], full: tuple[Dim, ...]) -> None:
    aligned = full[len(full) - len(shape) :] if len(shape) <= len(full) else ()
    if len(shape) > len(full) or not all(
        size == 1 or _same(size, wanted) for size, wanted in zip(shape, aligned, strict=True)
    ):
        raise SpecError(f"{name} must broadcast to (B, H, Lq, Lk)={_show(full)}. Got {_show(shape)}.")


def _same(size: Dim, other: Dim) -> bool:
    return size is None or other is None or size == other


def _same_shape(shape: tuple[Dim, ...], wanted: tuple[Dim, ...]) -> bool:
    return len(shape) == len(wanted) and all(_same(a, b) for a, b in zip(shape, wanted, strict=True))


def _show(shape: tuple[Dim, ...]) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def _is_reach(reach: Any) -> bool:
    return reach is None or (isinstance(reach, int) and not isinstance(reach, bool) and 0 <= reach <= LONGEST)
