"""MXNet: what its import needs, its dtypes, its devices, and arrays in and out.

The other files take `mx` from here, so that none imports it without what the import needs.

Half of MXNet's functions behave as NumPy's only within `np_shape` and `np_array`, two settings of a
thread that `npx.set_np()` switches on for good. That is the caller's choice, so everything here that
makes or combines arrays stands under `mx.util.use_np`, which switches them on for one call.
"""

import importlib.util
import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import ArraySpec, describe_array, holds_arrays, is_convertible, settled
from mha_core.errors import BackendError


def numpy_version() -> str:
    """Return the version of NumPy that MXNet would import."""
    return np.__version__


def has_distutils() -> bool:
    """Return whether distutils can be imported: Python 3.12 has none, but setuptools may provide it."""
    return sys.version_info < (3, 12) or importlib.util.find_spec("distutils") is not None


def check_preconditions() -> None:
    """Raise BackendError if NumPy is too new for MXNet, or if distutils can't be imported."""
    if int(numpy_version().split(".")[0]) >= 2:
        raise BackendError(
            f"MXNet 1.9.1 runs on numpy < 2. Got numpy {numpy_version()}. Install another with: pip install 'numpy<2'"
        )
    if not has_distutils():
        raise BackendError(
            "MXNet 1.9.1 needs distutils, which Python 3.12 took out and setuptools brings back. "
            "Install it with: pip install setuptools"
        )


if importlib.util.find_spec("mxnet") is not None:  # else the import below says that it is missing
    check_preconditions()
    if "bool" not in vars(np):
        # NumPy 1.24 took this name out. MXNet reads it when it is imported and again later: it stays.
        np.bool = np.bool_  # type: ignore[attr-defined]

with warnings.catch_warnings():
    # MXNet's own import uses old names of NumPy and distutils.
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"mxnet\b")
    import mxnet as mx

MXNET_DTYPES = ("float64", "float32")
"""The dtypes that the layers compute in. Not float16, which fails on a CPU, and only when the result is read."""


ARRAY_DTYPES = ("float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool")
"""The dtypes that MXNet has arrays of."""


def devices() -> tuple[str, ...]:
    """Return "cpu", then "gpu:0" and so on for what MXNet sees."""
    return ("cpu", *(f"gpu:{index}" for index in range(mx.context.num_gpus())))


def context_of(name: str) -> mx.Context:
    """Return the mx.Context of a name in `devices()`."""
    return mx.cpu() if name == "cpu" else mx.gpu(int(name.removeprefix("gpu:")))


def check_computes(name: str, dtype: Any) -> str:
    """Return the dtype's name. Raise BackendError, which tells the array's `name`, if MXNet can't compute in it."""
    dtype_name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if dtype_name not in MXNET_DTYPES:
        raise BackendError(
            f"the MXNet layers compute in {' and '.join(MXNET_DTYPES)} only. Got {name} of {dtype_name}."
        )
    return dtype_name


def describe(array: Any) -> ArraySpec | None:
    """Return the ArraySpec (shape and dtype) of an MXNet or NumPy array; None for anything else."""
    if isinstance(array, mx.nd.NDArray):
        return ArraySpec(tuple(array.shape), np.dtype(array.dtype).name)
    return describe_array(array) if isinstance(array, np.ndarray) else None


def to_numpy(array: mx.np.ndarray) -> NDArray:
    """Return the array in NumPy. This waits for its numbers, so that an error in a queued operation is raised here."""
    array.wait_to_read()  # asnumpy waits too, but not for an array without elements
    return array.asnumpy()


@mx.util.use_np
def to_array(array: NDArray, dtype: str, ctx: mx.Context) -> mx.np.ndarray:
    """Return a copy of the array as an MXNet array. In-place operations on it do not reach the caller's array."""
    return mx.np.array(array, dtype=dtype, ctx=ctx)


@mx.util.use_np
def as_mxnet(array: Any, ctx: mx.Context, dtype: str | None = None) -> Any:
    """Return `array` (an mx.nd array, a NumPy array or a list of arrays) as one mx.np array on `ctx`.

    An mx.nd array keeps its gradient. `dtype` is the dtype for a NumPy array; None keeps its own. Anything else is
    returned unchanged, and so are arrays that `mha_core` refuses, or whose dtype MXNet lacks.
    """
    if isinstance(array, mx.nd.NDArray):
        return (array if isinstance(array, mx.np.ndarray) else array.as_np_ndarray()).as_in_ctx(ctx)
    if isinstance(array, (list, tuple)) and holds_arrays(array):
        return mx.np.stack([as_mxnet(settled("", part), ctx) for part in array])
    if not is_convertible(array) or array.dtype.name not in ARRAY_DTYPES:
        return array
    return to_array(settled("", array), dtype or array.dtype.name, ctx)


def numbers(array: Any) -> Any:
    """Return an MXNet array of integers as a NumPy array; anything else unchanged."""
    return to_numpy(array) if isinstance(array, mx.nd.NDArray) else array


def context_of_call(layer: mx.gluon.Block, *inputs: Any) -> mx.Context:
    """Return the context of a call: that of its first MXNet array, else of the parameters, else the current one."""
    for array in inputs:
        if isinstance(array, mx.nd.NDArray):
            return array.ctx
    parameter = first_parameter(layer)
    return mx.current_context() if parameter is None else parameter.list_ctx()[0]


def first_parameter(layer: mx.gluon.Block) -> mx.gluon.Parameter | None:
    """Return the first parameter of a layer or of its children; None if there is none.

    `collect_params` is not used: it makes a dict of all parameters, which takes as long as ten operators in each call.
    """
    for parameter in layer._reg_params.values():
        return parameter
    found = (first_parameter(child) for child in layer._children.values())
    return next((parameter for parameter in found if parameter is not None), None)


# Operations and blocks in place of MXNet's own, where those are wrong or lack something.


@mx.util.use_np
def select(condition: mx.np.ndarray, x: mx.np.ndarray, otherwise: float) -> mx.np.ndarray:
    """Return `x` where `condition` is True, and the constant `otherwise` elsewhere. There the gradient of `x` is 0.

    For a Python number, MXNet's `where` would multiply the gradient by the condition, and 0 * NaN is NaN. So the
    constant becomes an array. An empty `x` is returned unchanged, because `where` would crash the process.
    """
    if x.size == 0:
        return x
    return mx.np.where(condition, x, mx.np.full((1,), otherwise, dtype=x.dtype, ctx=x.ctx))


@mx.util.use_np
def nothing(shape: tuple[int, ...], *sources: mx.np.ndarray) -> mx.np.ndarray:
    """Return an empty array of `shape` whose backward pass gives each source a gradient of zeros.

    It replaces operations on empty arrays, where MXNet fails or leaves gradients unwritten (random memory).
    """
    total = mx.np.zeros(shape, dtype=sources[0].dtype, ctx=sources[0].ctx)
    for x in sources:
        if x.size:
            x = mx.np.matmul(mx.np.zeros((0, x.size), dtype=x.dtype, ctx=x.ctx), x.reshape(x.size, 1))
        total = total + x.reshape(shape)
    return total


@mx.util.use_np
class Dense(mx.gluon.nn.Dense):
    """A Dense that also has a gradient (zeros) for an empty input; Gluon's Dense has none in float32."""

    def forward(self, x: mx.np.ndarray) -> mx.np.ndarray:
        if x.size:
            return super().forward(x)
        with mx.autograd.pause():
            shape = super().forward(x).shape  # also decides the input width, where that is open
        return nothing(shape, x, *(parameter.data(x.ctx) for parameter in self.params.values()))


@mx.util.use_np
class KeywordBlock(mx.gluon.Block):
    """A Block whose call takes keywords. Gluon's own Block passes only positional arguments to `forward` and hooks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for hook in self._forward_pre_hooks.values():
            hook(self, args)
        result = self.forward(*args, **kwargs)
        for hook in self._forward_hooks.values():
            hook(self, args, result)
        return result

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        """Warn that this has no effect: the layer depends on numbers in its masks, which no symbolic graph knows."""
        if active:
            warnings.warn(
                f"hybridize() changes nothing of {type(self).__name__}, which has no symbolic graph", stacklevel=2
            )


def dense(prefix: str, in_units: int | None, units: int, bias: bool, dtype: Any) -> Dense:
    """Return a Dense on the last axis; the first call decides its input width if `in_units` is None."""
    check_computes("parameters", dtype)
    return Dense(units, use_bias=bias, flatten=False, dtype=dtype, in_units=in_units or 0, prefix=prefix)


def in_width(layer: Dense) -> int | None:
    """Return the input width of a Dense; None before its first call."""
    return max(layer.weight.shape[1], 0) or None  # unknown is 0, or -1 within np_shape
