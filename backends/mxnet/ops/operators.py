"""MXNet's operators by their own names, views, and custom gradients, which the fast path needs beside `mx.np`.

`mx.np` has no function for some operators that reach oneDNN, and another, slower one for others.
"""

import ctypes
import itertools
import traceback
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from mxnet.base import _LIB, MXCallbackList, NDArrayHandle, c_handle_array, c_str, c_str_array, check_call
from mxnet.ndarray.ndarray import _new_alloc_handle

from backends.mxnet.ops.framework import mx

Backward = Callable[[Sequence[mx.np.ndarray], Sequence[bool]], Sequence[mx.np.ndarray | None]]
"""(gradients of the outputs, whether each input needs one) -> the gradients of the inputs."""


def operator(name: str, **attributes: Any) -> Callable[..., Any]:
    """Return a function of mx.np arrays that runs MXNet's operator `name` with these attributes.

    The returned function also takes `out`, the array or list of arrays to write into, and more attributes as keywords.
    MXNet's own function is slower, because it encodes all attributes in every call.
    """
    handle = ctypes.c_void_p()
    check_call(_LIB.NNGetOpHandle(c_str(name), ctypes.byref(handle)))

    def call(*arrays: mx.np.ndarray, out: Any = None, **more: Any) -> Any:
        given = {**attributes, **more} if more else attributes
        keys, texts = _encoded(tuple(given), tuple(map(str, given.values())))
        written = () if out is None else (out,) if isinstance(out, mx.nd.NDArray) else out
        count = ctypes.c_int(len(written))
        results = ctypes.POINTER(NDArrayHandle)()
        if written:
            results = ctypes.cast(c_handle_array(written), ctypes.POINTER(NDArrayHandle))
        kinds = ctypes.POINTER(ctypes.c_int)()
        check_call(
            _LIB.MXImperativeInvokeEx(
                handle,
                len(arrays),
                c_handle_array(arrays),
                ctypes.byref(count),
                ctypes.byref(results),
                len(given),
                keys,
                texts,
                ctypes.byref(kinds),
            )
        )
        if out is not None:
            return out
        made = [mx.np.ndarray(NDArrayHandle(results[number])) for number in range(count.value)]
        return made[0] if len(made) == 1 else made

    return call


@lru_cache(maxsize=1024)
def _encoded(names: tuple[str, ...], texts: tuple[str, ...]) -> tuple[Any, Any]:
    """Names and values of attributes as the library takes them."""
    return c_str_array(names), c_str_array(texts)


def view(x: mx.np.ndarray, shape: tuple[int, ...]) -> mx.np.ndarray:
    """Return x in another shape without a copy; `x.reshape` would make one. x must have elements."""
    handle = NDArrayHandle()
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    check_call(_LIB.MXNDArrayReshape64(x.handle, len(shape), sizes, False, ctypes.byref(handle)))
    return mx.np.ndarray(handle, writable=x.writable)


def row_range(x: mx.np.ndarray, start: int, stop: int) -> mx.np.ndarray:
    """Return `x[start:stop]` as a view, for 0 <= start < stop."""
    handle = NDArrayHandle()
    check_call(_LIB.MXNDArraySlice(x.handle, start, stop, ctypes.byref(handle)))
    return mx.np.ndarray(handle, writable=x.writable)


@mx.util.use_np
def unwritten(like: mx.np.ndarray) -> mx.np.ndarray:
    """Return an array like `like` that gets its memory when it is first written, not at once as from `mx.np.empty`.

    This matters because Python may queue the operators of many blocks before the first one runs.
    """
    return mx.np.ndarray(handle=_new_alloc_handle(like.shape, like.ctx, True, like.dtype))


@mx.util.use_np
def record(inputs: Sequence[mx.np.ndarray], outputs: Sequence[mx.np.ndarray], backward: Backward) -> None:
    """If autograd is recording, register `backward` to compute the gradients of `inputs` from those of `outputs`.

    mx.autograd.Function would stop at the first input that needs no gradient, and overwrite gradients instead of
    adding to them. `backward` runs in a thread of MXNet, which has settings of its own.
    """
    if not mx.autograd.is_recording():
        return

    @mx.util.use_np
    def run(num_outputs: int, num_inputs: int, handles: Any, requests: Any, *_: Any) -> int:
        arrays = [_array(handle) for handle in handles[: num_outputs + num_inputs]]
        wanted = [request != 0 for request in requests[:num_inputs]]
        try:
            gradients = backward(arrays[:num_outputs], wanted)
            for into, gradient, request in zip(arrays[num_outputs:], gradients, requests[:num_inputs], strict=True):
                if request == ADD:
                    _add(into, gradient, out=into)
                elif request:
                    _copy(gradient, out=into)
        except Exception:  # it can't go through the library, which raises an MXNetError of its own
            traceback.print_exc()
            return False
        return True

    def forget(_: Any) -> int:
        del _recorded[key]
        return True

    key = next(_counter)
    callbacks = (mx.autograd.Function._bwd_functype(run), mx.autograd.Function._del_functype(forget))
    function = ctypes.CFUNCTYPE(ctypes.c_int)
    pointers = (function * 2)(*(ctypes.cast(callback, function) for callback in callbacks))
    contexts = (ctypes.c_void_p * 2)(None, None)
    table = MXCallbackList(2, ctypes.cast(pointers, ctypes.POINTER(function)), contexts)
    _recorded[key] = table, callbacks, pointers, contexts
    check_call(
        _LIB.MXCustomFunctionRecord(
            len(inputs), c_handle_array(inputs), len(outputs), c_handle_array(outputs), ctypes.byref(table)
        )
    )


def _array(handle: int) -> mx.np.ndarray:
    return mx.nd.NDArray(ctypes.cast(handle, NDArrayHandle)).as_np_ndarray()


ADD = 3
"""The request of autograd to add a gradient to the array that it is written to (grad_req "add")."""

_recorded: dict[int, Any] = {}
"""The callbacks that the library holds pointers to; they must live as long as the graph."""

_counter = itertools.count()
_add, _copy = operator("_npi_add"), operator("_copy")
