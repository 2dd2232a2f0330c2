"""Any Gluon block, run by itself in another dtype: what `mha where` asks of an original."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from backends.mxnet.ops.framework import mx, to_numpy
from mha_core.capture import Pulled


def hold(block: mx.gluon.Block) -> mx.gluon.Block:
    """Return the object to keep for calling the block again later: here the block itself."""
    return block


def parameters_of(held: mx.gluon.Block) -> dict[str, mx.gluon.Parameter]:
    """Return every parameter in a block by its name."""
    return dict(held.collect_params().items())


def numbers_in(parameter: mx.gluon.Parameter) -> NDArray:
    """Return the numbers of a parameter in NumPy."""
    return to_numpy(parameter.data())


def is_training(block: mx.gluon.Block) -> bool:
    """Return whether a call of the block may draw random numbers."""
    return bool(mx.autograd.is_training())


def is_part(held: mx.gluon.Block, outer: mx.gluon.Block, name: str, module: mx.gluon.Block) -> bool:
    """Return whether `hold(module)` made `held`. `module` must be the submodule of `outer` whose name is `name`."""
    return module is held


@contextmanager
def computing(held: mx.gluon.Block, dtype: str) -> Iterator[Callable[..., Any]]:
    """Return a context that yields the block as a function, with its parameters cast to `dtype`.

    The function takes keywords too, which Gluon's blocks do not.
    """
    before = {id(one): (one, one.dtype, one.data()) for one in held.collect_params().values()}
    try:
        for parameter, own, _ in before.values():
            if np.dtype(own).kind == "f":
                parameter.cast(dtype)
        yield called(held)
    finally:
        for parameter, own, data in before.values():
            parameter.cast(own)
            parameter.set_data(data)


def called(held: mx.gluon.Block) -> Callable[..., Any]:
    """Return the block as a function that takes keywords too. It passes them on by position where that is possible."""

    def run(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(held.forward).bind(*args, **kwargs)
        return held(*bound.args, **bound.kwargs)

    return run


@mx.util.use_np
def to_native(array: NDArray, dtype: str | None) -> Any:
    """Return the array as an mx.np array; floating-point numbers are cast to `dtype`, unless it is None."""
    return mx.np.array(array, dtype=dtype if dtype is not None and array.dtype.kind == "f" else array.dtype)


class _Tap(mx.autograd.Function):
    """The identity, whose gradient `note` is told."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        super().__init__()
        self._note = note

    def forward(self, value: Any) -> Any:
        return value.copy()

    def backward(self, gradient: Any) -> Any:
        self._note(gradient.copy())  # its numbers can't be read here: that waits for what waits for this
        return gradient


class _Joined(mx.autograd.Function):
    """The first of the arrays; the others are joined to it with a gradient of zero, since MXNet must reach each."""

    def forward(self, first: Any, *others: Any) -> Any:
        self._others = [one * 0 for one in others]
        return first.copy()

    def backward(self, gradient: Any) -> Any:
        return (gradient, *self._others)


def tapped(value: Any, note: Callable[[Any], None]) -> Any:
    """Return a copy of the array; the backward pass calls `note(gradient)`. Return None if autograd is off."""
    return _Tap(note)(value) if mx.autograd.is_recording() else None


def settle() -> None:
    """Wait until MXNet's own threads have finished, for example with the backward pass of `tapped`."""
    mx.nd.waitall()


def pulled(
    held: mx.gluon.Block,
    dtype: str | None,
    call: Callable[..., dict[Any, Any]],
    inputs: Mapping[Any, Any],
    cotangents: Mapping[Any, NDArray],
) -> Pulled:
    """Run one block forward and backward, as `Pulled` says."""
    with nullcontext(held) if dtype is None else computing(held, dtype) as run:
        try:
            return _pulled(held, run, call, inputs, cotangents, by=inputs)
        except mx.MXNetError:  # indices, which its functions give as floating-point numbers, have no gradients
            return _pulled(held, run, call, inputs, cotangents, by={})


def _pulled(
    held: mx.gluon.Block,
    run: Callable[..., Any],
    call: Callable[..., dict[Any, Any]],
    inputs: Mapping[Any, Any],
    cotangents: Mapping[Any, NDArray],
    *,
    by: Mapping[Any, Any],
) -> Pulled:
    """`pulled`, by some of the inputs."""
    leaves = {place: one.copy() for place, one in by.items()}
    for leaf in leaves.values():
        leaf.attach_grad()
    trained = {name: one for name, one in parameters_of(held).items() if one.grad_req != "null"}
    parameters = {name: one.data() for name, one in trained.items()}
    distinct = {id(one): one for one in (*leaves.values(), *parameters.values())}
    heads, back = [], []
    with mx.autograd.record(train_mode=False):
        outputs = call(run, {**inputs, **leaves})
        for place, array in cotangents.items() if distinct else ():
            heads.append(_Joined()(outputs[place], *distinct.values()))
            gradient = to_native(array, None).astype(heads[-1].dtype)
            back.append(gradient if isinstance(heads[-1], mx.np.ndarray) else gradient.as_nd_ndarray())
    gradients = mx.autograd.grad(heads, list(distinct.values()), head_grads=back, train_mode=False) if distinct else []
    found = dict(zip(distinct, map(to_numpy, gradients), strict=True))
    return Pulled(
        {place: to_numpy(one) for place, one in outputs.items()},
        {place: found[id(one)] for place, one in leaves.items()},
        {name: found[id(one)] for name, one in parameters.items()},
    )
