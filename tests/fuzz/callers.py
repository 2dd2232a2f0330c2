"""How the reference and a user of each framework make one call; everything comes back in NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import load
from mha_core.call.checks import check_dropout_keep
from mha_core.call.masks import ARRAY_SOURCES
from mha_core.weights import Weights
from tests.backends.drivers import drive
from tests.fuzz.call_kinds import Own

MASK = (*ARRAY_SOURCES, "causal", "window")


@dataclass(frozen=True)
class Call:
    """One call of one layer.

    Args:
        config, weights, dtype: of the layer; the weights are of `dtype`.
        arguments: by name; arrays of NumPy, lists and so on, and `Own` arrays.
        method: "call", "weights" (the call with return_weights), "stages" or "attend".
        training: whether the layer is in training.
        what: the call in words, for the report.
    """

    config: AttentionConfig
    weights: Weights
    dtype: str
    arguments: Mapping[str, Any]
    method: str
    training: bool
    what: str = field(default="", compare=False)


def inputs_of(call: Call) -> AttentionInputs:
    """What the reference is given; SpecError for what a layer of this dtype refuses."""
    given = {name: value.array if isinstance(value, Own) else value for name, value in call.arguments.items()}
    mask = AttentionMask(**{name: given.pop(name) for name in MASK if name in given})
    inputs = AttentionInputs(mask=mask, **given)
    check_dropout_keep(inputs.dropout_keep, training=call.training)
    inputs.check(call.config, call.dtype if call.weights else None)
    return inputs


def asker(name: str) -> Callable[[Call], Trace]:
    """How backend `name` is asked."""
    load(name)
    package = importlib.import_module(f"backends.{name}")
    framework = importlib.import_module(f"backends.{name}.ops.framework")
    driver = drive(name)
    made: list[Any] = [None, None]  # the weights of the last call, and their layer

    def ask(call: Call) -> Trace:
        with _dtype_there(name, framework, call.dtype):
            if made[0] is not call.weights:
                layer = package.from_weights(call.config, call.weights)
                made[:] = call.weights, {"module": layer[0], "variables": layer[1]} if name == "jax" else layer
            layer = made[1]
            given = {
                key: _own(driver, value) if isinstance(value, Own) else value for key, value in call.arguments.items()
            }
            arrays = [given.pop(key) for key in ("queries", "keys", "values")]
            if call.method in ("call", "weights"):
                if call.method == "weights":
                    given["return_weights"] = True
                result = driver._call(layer, arrays, call.training, given)
                named = dict(
                    zip(("output", "weights"), result if isinstance(result, tuple) else (result,), strict=False)
                )
            else:
                named = driver._ask(call.method, layer, arrays, call.training, given)._asdict()
            named.pop("present", None)
            return Trace(**{stage: framework.to_numpy(array) for stage, array in named.items()})

    return ask


@contextmanager
def _dtype_there(name: str, framework: Any, dtype: str) -> Iterator[None]:
    """JAX has float64 only where it is asked for."""
    if name == "jax":
        with framework.scope(dtype, framework.device_of("cpu")):
            yield
    else:
        yield


def _own(driver: Any, own: Own) -> Any:
    """An array of the framework; that of NumPy if the framework has none that is the same."""
    array = own.array
    try:
        made = driver.array(array)
        same = driver.numpy(made)
    except (TypeError, ValueError, RuntimeError, OverflowError, KeyError):
        return array
    return made if same.dtype == array.dtype and same.shape == np.shape(array) and _equal(same, array) else array


def _equal(one: NDArray, other: NDArray) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
