"""The seam in Keras: calls of `keras.ops.dot_product_attention`, and of `_compute_attention` of layers of KerasHub."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from backends.tf.native.modules import layers_in
from backends.tf.ops.framework import to_numpy
from mha_core.capture import one_dtype
from mha_core.errors import SpecError
from mha_core.seam import AttentionCall, Handle, Handover, caller, in_place_of, number

_FUNCTION = keras.ops.dot_product_attention
_SIGNATURE = inspect.signature(_FUNCTION)


@contextmanager
def intercept_attention(target: Any, handle: Handle) -> Iterator[None]:
    """Return a context in which `handle` runs in place of each call of Keras's attention function inside the target.

    The function is `keras.ops.dot_product_attention`. In KerasHub's layers it is the method `_compute_attention`, and
    `dot_product_attention` is not replaced inside this method. `handle(AttentionCall)` returns the call's result.
    `AttentionCall.module` is the innermost running layer.
    """
    inside: list[str] = []

    def name_of(one: Any) -> str | None:
        return ("" if one is target else one.path or one.name) if isinstance(one, keras.Layer) else None

    function = _FUNCTION  # this name stands for the other one meanwhile

    def intercepted(*args: Any, **kwargs: Any) -> Any:
        if inside:
            return function(*args, **kwargs)
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

    def of_layer(layer: keras.Layer) -> Callable[..., Any]:
        own = layer._compute_attention
        signature = inspect.signature(own)

        def computed(*args: Any, **kwargs: Any) -> Any:
            name = name_of(layer) or ""

            def run() -> Any:
                inside.append(name)
                try:
                    return own(*args, **kwargs)
                finally:
                    inside.pop()

            given = signature.bind(*args, **kwargs).arguments
            return handle(
                AttentionCall(
                    name,
                    layer,
                    read=lambda: _read_layer(layer, given),
                    run=run,
                    give=lambda output: _give(output, given["query"]),
                )
            )

        return computed

    with in_place_of(function, intercepted), ExitStack() as stack:
        for layer in layers_in(target):
            if not type(layer).__module__.startswith("keras.") and hasattr(layer, "_compute_attention"):
                stack.callback(vars(layer).pop, "_compute_attention", None)
                vars(layer)["_compute_attention"] = of_layer(layer)  # not by assignment: Keras would track it
        yield


NUMBERS = {"scale": ("_inv_norm_factor", "_inverse_sqrt_key_dim"), "softcap": ("logit_soft_cap",)}
"""A setting of a call -> the attributes in which layers of KerasHub keep it."""


def _read_layer(layer: keras.Layer, given: Mapping[str, Any]) -> Callable[[Any], Handover]:
    if not {"query", "key", "value"} <= given.keys():
        raise SpecError(f"{type(layer).__name__}._compute_attention takes {', '.join(given)}, which is not read")
    cache = next((name for name in given if "cache" in name and given[name] is not None), None)
    if cache is not None:
        raise SpecError(f"{type(layer).__name__}._compute_attention is called with {cache}, which has no translation")
    mask = given.get("attention_mask")
    masks = {} if mask is None else {"mask": keras.ops.cast(mask if len(mask.shape) == 4 else mask[:, None], "bool")}
    found = {name: next((getattr(layer, one, None) for one in names), None) for name, names in NUMBERS.items()}
    settings = {"scale": number("scale", found["scale"]), "attn_logits_soft_cap": number("softcap", found["softcap"])}
    with_output = _read((given["query"], given["key"], given["value"]), {**masks, **settings})
    return lambda output: with_output(output[0] if isinstance(output, tuple) else output)


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
