"""Hooks on Gluon blocks for `mha.capture`, and adapters that read the calls of attention layers."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.layers import MultiHeadAttention
from backends.mxnet.native import convert as native
from backends.mxnet.native import modules as modules
from backends.mxnet.ops.framework import mx, to_numpy
from backends.mxnet.weights import to_weights
from mha_core.capture import (
    LayerAdapter,
    ReadCall,
    arguments_of,
    as_called,
    d2l_call,
    has_d2l_parts,
    none_found,
    one_dtype,
    outermost,
    own_call,
    refuse_dropout,
)
from mha_core.errors import SpecError


def versions() -> dict[str, str]:
    """Return package -> version, of the packages that compute."""
    return {"mxnet": mx.__version__}


from_native = native.from_native


def parts_of(block: mx.gluon.Block) -> tuple[list[str], Callable[[], list[int]]]:
    """Return (names of direct children with parameters, function that returns the `id`s of all blocks inside)."""
    parts = [name for name, child in block._children.items() if child.collect_params().keys()]
    return [*parts, *block._reg_params], lambda: [id(part) for _, part in _blocks("", block)]


def modules_in(block: mx.gluon.Block) -> list[tuple[str, mx.gluon.Block]]:
    """Return (name, block) of all blocks inside a block."""
    return list(_blocks("", block))[1:]


def projects(block: mx.gluon.Block) -> bool:
    """Return whether a block is a linear projection: Dense of the last axis, without an activation."""
    return isinstance(block, mx.gluon.nn.Dense) and not block._flatten and block.act is None


def matrix_of(block: Any) -> tuple[Any, Any]:
    """Return the matrix of a projection, (out, in), and its bias, (out,) or None."""
    return block.weight.data(), None if block.bias is None else block.bias.data()


def as_array(value: Any) -> tuple[NDArray, str] | None:
    """Return a NumPy copy of an array and the name of its dtype; None for anything else."""
    return (_array(value), np.dtype(value.dtype).name) if isinstance(value, mx.nd.NDArray) else None


@contextmanager
def watch(
    target: mx.gluon.Block,
    choose: Callable[[str, Any], Any],
    seen: Callable[..., Any],
    begun: Callable[..., None] | None = None,
) -> Iterator[None]:
    """Return a context that calls `begun` before and `seen` after each call of a block that `choose` accepts.

    `mha.recordings.hooks.Hooks.watch` explains these functions. Gluon's hooks get no keywords: `forward` is replaced.
    """
    chosen = list(outermost(_blocks("", target), choose, "."))
    if not chosen:
        raise none_found(target)
    with ExitStack() as hooks:
        for name, block, _ in chosen:
            hooks.callback(vars(block).pop, "forward", None)
            vars(block)["forward"] = _forward(name, block, seen, begun)
        yield


def _blocks(name: str, block: mx.gluon.Block) -> Iterator[tuple[str, mx.gluon.Block]]:
    """The block and all in it by name, outer ones first."""
    yield name, block
    for key, child in block._children.items():
        yield from _blocks(f"{name}.{key}" if name else key, child)


def _forward(
    name: str, block: mx.gluon.Block, seen: Callable[..., Any], begun: Callable[..., None] | None
) -> Callable[..., Any]:
    original = block.forward
    signature = inspect.signature(original)

    @wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_of(signature, args, kwargs)
        if any(isinstance(value, mx.sym.Symbol) for value in arguments.values()):
            raise SpecError("a hybridized model can't be recorded: its calls have no numbers. Use hybridize(False).")
        if begun is not None:
            begun(name, block, as_called(signature, args, kwargs))
        output = original(*args, **kwargs)
        instead = seen(name, block, arguments, output)
        return output if instead is None else instead

    return forward


class OwnLayer(LayerAdapter):
    """An adapter that reads calls of backends.mxnet.MultiHeadAttention. It records them unchanged."""

    kind = "backends.mxnet.MultiHeadAttention"
    layer_type = MultiHeadAttention

    def read(self, layer: MultiHeadAttention, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        result = output[0] if isinstance(output, tuple) else output
        dtypes = _dtypes(layer, arguments["queries"], result)
        training = mx.autograd.is_training()
        return own_call(layer.config, to_weights(layer), arguments, output, _array, training=training, dtypes=dtypes)


class D2lLayer(LayerAdapter):
    """An adapter for layers like d2l.ai's: the same arguments, and the attributes W_q, W_k, W_v, W_o and num_heads."""

    kind = "d2l.mxnet.MultiHeadAttention"

    def matches(self, layer: Any) -> bool:
        return has_d2l_parts(layer, layer.forward, mx.gluon.nn.Dense)

    def probe(self, layer: Any) -> None:
        if all(parameter._data is not None for parameter in layer.collect_params().values()):  # else its call decides
            native.from_native(layer, layout="d2l-mxnet")

    def read(self, layer: Any, arguments: Mapping[str, Any], output: Any) -> ReadCall:
        rates = [part._rate for _, part in _blocks("", layer) if isinstance(part, mx.gluon.nn.Dropout)]
        refuse_dropout(training=mx.autograd.is_training(), rate=max(rates, default=0.0))
        dtypes = _dtypes(layer, next(iter(arguments.values())), output)
        inner = getattr(getattr(layer, "attention", None), "attention_weights", None)
        call = arguments, output, inner, _array
        return d2l_call(
            native.read_block(layer), *call, layout="d2l-mxnet", num_heads=int(layer.num_heads), dtypes=dtypes
        )


ADAPTERS = (OwnLayer(), D2lLayer())
"""The adapters of the layers that can be captured; each reads the calls of one kind of layer."""


def _array(array: Any) -> NDArray:
    """A copy in NumPy, which the model can't change afterwards."""
    return np.array(to_numpy(array) if isinstance(array, mx.nd.NDArray) else array)


def _dtypes(layer: mx.gluon.Block, *arrays: Any) -> tuple[str, str]:
    """The dtype of everything, as what it computes in and as what its parameters are."""
    parameters = (parameter.dtype for parameter in layer.collect_params().values())
    dtype = one_dtype(np.dtype(dtype).name for dtype in (*(array.dtype for array in arrays), *parameters))
    return dtype, dtype
