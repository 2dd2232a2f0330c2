"""Read one layer out of an open file: its config and canonical weights, and the dtype of its arrays."""

from collections.abc import Mapping
from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from mha.formats.checkpoint import Checkpoint
from mha_core import AttentionConfig, SpecError, check_weights, weight_shapes
from mha_core.dtypes import round_to
from mha_core.features import plain_fields
from mha_core.layouts import Layout
from mha_core.weights import NAMES, Weights

Arrays = Mapping[str, NDArray]


def read_layer(
    checkpoint: Checkpoint,
    layout: Layout,
    prefix: str,
    *,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    dtype: str | None = None,
) -> tuple[AttentionConfig, Weights, str]:
    """Return (config, weights by canonical name, dtype name) of a layer, the weights cast to `dtype` if it is given.

    Weights in bfloat16 come as float32 arrays.

    Raises:
        SpecError: the arrays do not fit the layout, have several dtypes while `dtype` is None, or overflow in `dtype`.
    """
    stored = checkpoint.configs.get(prefix)
    config = None if stored is None else AttentionConfig.from_dict(dict(stored))
    if config is not None and layout.name == "canonical":
        start = f"{prefix}." if prefix else ""
        # One that the layer's config does not have is refused below, not passed over.
        every = {**dict.fromkeys(weight_shapes(config)), **dict.fromkeys(NAMES)}
        names = {name: start + name for name in every if start + name in checkpoint.entries}
    else:
        names = layout.names_of(prefix, checkpoint.entries)
    held, dtype = arrays_in(checkpoint, names, dtype)
    if config is None:
        config, weights = layout.read(held, num_heads=num_heads, num_kv_heads=num_kv_heads)
    else:
        config, weights = _read_as(config, layout, held, num_heads, num_kv_heads)
    if layout.name != "canonical":
        check_same(f"layout {layout.name!r} written again", held, layout.write(_plain(config), weights))
    return config, weights, dtype


def arrays_in(checkpoint: Checkpoint, names: Mapping[str, str], dtype: str | None) -> tuple[dict[str, NDArray], str]:
    """Read arrays from a file. Return (dict: name in the layer -> array, name of the arrays' dtype).

    Args:
        checkpoint: the file.
        names: name in the layer -> name in the file.
        dtype: the dtype to cast the arrays to. None: no cast.

    Raises:
        SpecError: the arrays have several dtypes while `dtype` is None, or numbers out of the range of `dtype`.
    """
    arrays = {own: checkpoint.array(full) for own, full in names.items()}
    given = {str(array.dtype) for array in arrays.values()}
    if dtype is None and len(given) > 1:
        raise SpecError(
            f"its arrays have several dtypes; say which it shall have (--dtype). Got {', '.join(sorted(given))}."
        )
    dtype = dtype or given.pop()
    return {name: cast(name, array, dtype) for name, array in arrays.items()}, dtype


def _read_as(
    config: AttentionConfig, layout: Layout, arrays: Arrays, num_heads: int | None, num_kv_heads: int | None
) -> tuple[AttentionConfig, Weights]:
    """Read with the config in the file, which may have settings that arrays don't show: a scale, a score function."""
    for label, given, found in (
        ("num_heads", num_heads, config.num_heads),
        ("num_kv_heads", num_kv_heads, config.num_kv_heads),
    ):
        if given is not None and given != found:
            raise SpecError(f"{label} must be {found}, which the config in the file's metadata says. Got {given}.")
    if layout.name == "canonical":
        return config, check_weights(config, arrays)
    derived, weights = layout.read(arrays, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads)
    plain = replace(_plain(config), embed_dim=derived.embed_dim)
    if plain != derived:
        off = next(
            field.name for field in fields(derived) if getattr(plain, field.name) != getattr(derived, field.name)
        )
        raise SpecError(
            f"the config in the file's metadata does not fit its arrays: {off} is {getattr(config, off)} in the one "
            f"and {getattr(derived, off)} by the others"
        )
    return config, weights


def _plain(config: AttentionConfig) -> AttentionConfig:
    """The config's sizes, with the scores and scale that layers of the foreign layouts have."""
    return replace(config, **plain_fields())


def cast(name: str, array: NDArray, dtype: str) -> NDArray:
    """Return an array cast to `dtype` (bfloat16 as float32). Raises SpecError if a number is out of its range."""
    wide = array.astype(np.float32) if str(array.dtype) == "bfloat16" else array
    cast = round_to(wide, dtype)
    if np.isfinite(wide).all() and not np.isfinite(cast).all():
        raise SpecError(f"{name} has numbers beyond the range of {dtype}, such as {wide[~np.isfinite(cast)][0]:g}")
    return cast


def check_same(what: str, wanted: Arrays, found: Arrays) -> list[str]:
    """Compare two dicts of arrays bit by bit. Return the names of the arrays (all zeros) that only `found` has.

    Raises SpecError if `found` lacks or changes an array of `wanted`, or has a further array that is not all zeros.
    `what`: the name of `found` in messages.
    """
    for name, array in wanted.items():
        other = found.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            raise SpecError(f"{what} lacks {name} as it was: {array.dtype} {array.shape}")
        if np.ascontiguousarray(other).tobytes() != np.ascontiguousarray(array).tobytes():
            raise SpecError(f"{what} has other numbers in {name}")
    extra = [name for name in found if name not in wanted]
    for name in extra:
        if np.any(found[name]):
            raise SpecError(f"{what} has {name}, which is not zero and was not there")
    return extra
