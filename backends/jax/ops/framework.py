"""JAX: its dtypes by name, its devices, arrays from NumPy, and a scope for float64."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import ArraySpec, describe_array, holds_arrays, is_convertible, settled
from mha_core.dtypes import DTYPES
from mha_core.errors import SpecError

Method = TypeVar("Method", bound=Callable[..., Any])

JAX_DTYPES: dict[str, np.dtype] = {name: jnp.dtype(name) for name in DTYPES}

if hasattr(jax, "enable_x64"):
    _enable_x64 = jax.enable_x64
else:  # where JAX has it up to 0.7
    from jax.experimental import enable_x64 as _enable_x64


def devices() -> tuple[str, ...]:
    """Return the names of the devices that JAX sees: "cpu", then "gpu:0" or "tpu:0" and so on."""
    return ("cpu", *_accelerators())


def device_of(name: str) -> jax.Device:
    """Return the jax.Device of a name in `devices()`."""
    return jax.local_devices(backend="cpu")[0] if name == "cpu" else _accelerators()[name]


def dtypes(device: str) -> tuple[str, ...]:
    """Return the names of the dtypes that a device itself computes in; JAX emulates the others there."""
    return DTYPES if device.split(":")[0] in ("cpu", "gpu") else ("float32", "bfloat16")


@contextmanager
def scope(dtype: str, device: jax.Device) -> Iterator[None]:
    """Return a context in which new arrays are on `device`, and float64 is enabled if `dtype` is "float64"."""
    with jax.default_device(device):
        if dtype == "float64":
            with _enable_x64(True):
                yield
        else:
            yield


def any_rank(method: Method) -> Method:
    """Return the method with rank promotion allowed inside, whatever the user sets jax_numpy_rank_promotion to."""

    @wraps(method)
    def run(*args: Any, **kwargs: Any) -> Any:
        with jax.numpy_rank_promotion("allow"):
            return method(*args, **kwargs)

    return cast("Method", run)


def check_enabled(name: str, dtype: Any) -> None:
    """Raise SpecError, which names the array `name`, if JAX would silently replace its dtype by a narrower one."""
    if dtype is not None and jax.dtypes.canonicalize_dtype(dtype) != jnp.dtype(dtype):
        raise SpecError(
            f"{name} is {jnp.dtype(dtype)}, which JAX turns into {jax.dtypes.canonicalize_dtype(dtype)} while "
            "64-bit types are off. Enable them (jax.config.update('jax_enable_x64', True)), or give float32."
        )


def check_fields(layer: Any) -> None:
    """Raise SpecError if JAX would silently narrow a linen module's dtype or param_dtype."""
    for name in ("dtype", "param_dtype"):
        check_enabled(name, getattr(layer, name, None))


def layer_dtype(layer: Any) -> str | None:
    """Return the dtype of a bound linen module's parameters. None if it has none, or casts them to its `dtype`."""
    if layer.dtype is not None or not hasattr(layer, "param_dtype"):
        return None
    made = jax.tree.leaves(layer.variables.get("params", {}))  # none before `init`
    return str(jnp.dtype(made[0].dtype if made else layer.param_dtype))


def to_array(name: str, array: Any) -> jax.Array:
    """Return the argument `name`, a JAX array, a NumPy array or a list, as a JAX array.

    Raises:
        SpecError: the array is float64, or holds an integer beyond 32 bits, while JAX's 64-bit types are off.
    """
    if isinstance(array, (np.ndarray, np.generic)):
        if array.dtype.kind == "f":
            check_enabled(name, array.dtype)
        elif array.dtype.kind in "iu" and array.size:
            limits = jnp.iinfo(jax.dtypes.canonicalize_dtype(array.dtype))
            if array.min() < limits.min or array.max() > limits.max:
                raise SpecError(f"{name} must fit in {limits.dtype} while JAX's 64-bit types are off.")
    return jnp.asarray(array)


def as_jax(name: str, array: Any, dtype: str | None = None) -> Any:
    """Return `array` (a NumPy array or a list of JAX arrays) as one JAX array. `name` is for error messages.

    `dtype` is the dtype for a NumPy array; None keeps its own. Anything else is returned unchanged, and so are arrays
    that `mha_core` refuses or JAX would narrow.
    """
    if isinstance(array, (list, tuple)) and holds_arrays(array):
        return jnp.asarray(array)
    if not is_convertible(array):
        return array
    array = settled(name, array)
    return jnp.asarray(array, dtype) if jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype else array


def describe(array: Any) -> ArraySpec | None:
    """Return the ArraySpec (shape and dtype) of a JAX or NumPy array; None for anything else."""
    return describe_array(array) if isinstance(array, (jax.Array, np.ndarray)) else None


def numbers(array: Any) -> NDArray | None:
    """Return an array as a NumPy array; None if JAX traces it, or if reading it would wait for a device."""
    if isinstance(array, np.ndarray):
        return array
    is_near = has_values(array) and all(device.platform == "cpu" for device in array.devices())
    return np.asarray(array) if is_near else None


def has_values(array: Any) -> bool:
    """Return whether all arrays in a tree have numbers that can be read: tracers have none."""
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(array))


def has_symbols(*sizes: Any) -> bool:
    """Return whether some size is a symbol, as in a program that `jax.export` makes for every size."""
    return not all(isinstance(size, int) for size in sizes)


def to_numpy(array: jax.Array) -> NDArray:
    """Return the array as a NumPy array; bfloat16 becomes float32, which holds each of its numbers exactly."""
    numbers = np.asarray(array)
    return numbers.astype(np.float32) if array.dtype == jnp.bfloat16 else numbers


def in_width(declared: int | None, variables: Mapping[str, Any], *path: str) -> int | None:
    """Return a Dense's input width: `declared`, or else that of the kernel at `path`. None if there is no kernel."""
    if declared is not None:
        return declared
    node: Any = variables
    for key in ("params", *path, "kernel"):
        if key not in node:
            return None
        node = node[key]
    return node.shape[0]


def _accelerators() -> dict[str, jax.Device]:
    found = [device for device in jax.local_devices() if device.platform != "cpu"]
    return {f"{device.platform}:{index}": device for index, device in enumerate(found)}
