"""The frameworks in which an exercise can be written: their arrays from NumPy's and back, in a worker process."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.subjects.quiet import quiet_stderr
from mha.learn.exercise import NUMPY
from mha_core.backend import load
from mha_core.errors import one_line


@dataclass(frozen=True)
class Dialect:
    """A framework in which exercises are written.

    Attributes:
        module: the module that is imported first.
        heading: the first lines of a file in this framework, such as imports.
        kind: the name of the class of its arrays, inside `module`.
        give: a function: (the module, a NumPy array) -> the framework's array.
    """

    module: str
    heading: str
    kind: str
    give: Callable[[Any, NDArray], Any]


def _mxnet(mx: Any, array: NDArray) -> Any:
    mx.npx.set_np()
    return mx.np.array(array, dtype=array.dtype)


def _jax(jax: Any, array: NDArray) -> Any:
    jax.config.update("jax_enable_x64", True)  # this process is the learner's alone
    return jax.numpy.asarray(array)


DIALECTS = {
    NUMPY: Dialect("numpy", "import numpy as np", "ndarray", lambda numpy, array: array),
    "torch": Dialect("torch", "import torch", "Tensor", lambda torch, array: torch.from_numpy(array)),
    "tf": Dialect("tensorflow", "import tensorflow as tf", "Tensor", lambda tf, array: tf.constant(array)),
    "jax": Dialect("jax", "import jax\nimport jax.numpy as jnp", "Array", _jax),
    "mxnet": Dialect("mxnet", "from mxnet import np, npx", "np.ndarray", _mxnet),
}
"""Name of a framework -> how an exercise is written in it."""


def prepare(name: str) -> str:
    """Import a framework through its backend; return "" or, if that fails, the reason in one line."""
    try:
        with quiet_stderr():
            load(name)  # MXNet can't be imported without what its backend does first
            importlib.import_module(DIALECTS[name].module)
    except Exception as error:
        return f"{name} can't be used here: {one_line(error)}"
    return ""


def given(name: str, value: Any) -> Any:
    """Return a NumPy array converted to an array of the framework; anything else unchanged."""
    dialect = DIALECTS[name]
    if not isinstance(value, np.ndarray):
        return value
    return dialect.give(importlib.import_module(dialect.module), value)


def taken(name: str, value: Any) -> Any:
    """Return an array of the framework converted to a NumPy array; anything else unchanged (it is refused later)."""
    if name == NUMPY:
        return value
    dialect = DIALECTS[name]
    kind: Any = importlib.import_module(dialect.module)
    for part in dialect.kind.split("."):
        kind = getattr(kind, part)
    if not isinstance(value, kind):
        return value
    return importlib.import_module(f"backends.{name}.ops.framework").to_numpy(value)
