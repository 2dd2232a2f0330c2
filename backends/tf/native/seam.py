"""The seam in Keras: calls of `keras.ops.dot_product_attention` inside a model."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.ops.framework import to_numpy
from mha_core.capture import one_dtype
from mha_core.errors import SpecError
from mha_core.seam import AttentionCall, Handle, Handover, caller, in_place_of, number

_FUNCTION = keras.ops.dot_product_attention
_SIGNATURE = inspect.signature(_FUNCTION)


@contextmanager
def intercept_attention(target: Any, handle: Handle) -> Iterator[None]:
    """Have `handle` take each call of `keras.ops.dot_product_attention` while the target runs.

    The call belongs to the innermost layer that is running.
    """

    def name_of(one: Any) -> str | None:
        return ("" if one is target else one.path or one.name) if isinstance(one, keras.Layer) else None

    function = _FUNCTION  # this name stands for the other one meanwhile

    def intercepted(*args: Any, **kwargs: Any) -> Any:
        name, module = caller(name_of, sys._getframe(1))
        return handle(
            AttentionCall(
                name,
                module,
                read=lambda: _read(args, kwargs),
                run=lambda: function(*args, **kwargs),
                give=lambda output: _give(output, _SIGNATURE.bind(*args, **kwargs).arguments["query"]),
            )
        )

    with in_place_of(function, intercepted):
        yield


def _give(output: NDArray, query: Any) -> Any:
    """An output (B, heads, L, d) as the function returns it: (B, L, heads, d)."""
    return keras.ops.convert_to_tensor(output.swapaxes(1, 2), dtype=query.dtype)


def _read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[Any], Handover]:
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    if not tf.executing_eagerly():
        raise SpecError("it runs inside a tf.function, and has no numbers; run it eagerly")
    query, key, value = (_in_heads(given[name]) for name in ("query", "key", "value"))
    masks = tuple(np.array(to_numpy(given[name])) for name in ("mask", "bias") if given[name] is not None)

    def with_output(output: Any) -> Handover:
        own = [given["query"], given["key"], given["value"], *([] if output is None else [output])]
        dtype = one_dtype(keras.backend.standardize_dtype(tensor.dtype) for tensor in own)
        found = None if output is None else _in_heads(output)
        numbers = number("scale", given["scale"]), number("softcap", given["attn_logits_soft_cap"])
        return Handover(query, key, value, found, dtype, masks, bool(given["is_causal"]), *numbers)

    return with_output


def _in_heads(tensor: Any) -> NDArray:
    """A copy as (B, heads, L, d) of what is (B, L, heads, d)."""
    return np.array(to_numpy(tensor)).swapaxes(1, 2)
