"""Hooks for `mha.capture`: how calls of an EinsumAttention are heard and read; see `Hooks` in `recordings.hooks`."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from mha_parity.core.capture import ReadCall, arguments_of, none_found, one_dtype, own_call

from mha_einsum.layer import EinsumAttention
from mha_einsum.layout import EINSUM


def versions() -> dict[str, str]:
    """Package -> version of what computes."""
    return {"numpy": np.__version__}


def parts_of(module: Any) -> tuple[Collection[str], Callable[[], Collection[int]] | None]:
    """A layer has no parts but its arrays."""
    return list(module.arrays), lambda: [id(module)]


@contextmanager
def watch(target: Any, choose: Callable[[str, Any], Any], seen: Callable[..., None]) -> Iterator[None]:
    """Tell `seen` of every call of the layer: its class has another `__call__` meanwhile."""
    if choose("", target) is None:
        raise none_found(target)
    original = EinsumAttention.__call__
    signature = inspect.signature(original)

    def call(layer: EinsumAttention, *args: Any, **kwargs: Any) -> Any:
        output = original(layer, *args, **kwargs)
        if layer is target:
            arguments = arguments_of(signature, (layer, *args), kwargs)
            del arguments["self"]
            seen("", layer, arguments, output)
        return output

    EinsumAttention.__call__ = call  # type: ignore[method-assign]  # for as long as the context lasts
    try:
        yield
    finally:
        EinsumAttention.__call__ = original  # type: ignore[method-assign]


class OwnLayer:
    """EinsumAttention: its call is the definition's."""

    kind = "mha_einsum.layer.EinsumAttention"

    def matches(self, layer: Any) -> bool:
        return isinstance(layer, EinsumAttention)

    def check(self, layer: EinsumAttention) -> None:
        """Everything about it can be recorded."""

    def read(self, layer: EinsumAttention, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        config, weights = EINSUM.read(layer.arrays, num_heads=layer.num_heads)
        dtype = one_dtype(array.dtype.name for array in (arguments["queries"], *layer.arrays.values()))
        return own_call(config, weights, arguments, output, np.array, training=False, dtypes=(dtype, dtype))


ADAPTERS = (OwnLayer(),)
"""How the layers that are known here are read."""
