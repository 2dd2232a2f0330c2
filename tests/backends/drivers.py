"""How a user of each framework makes and calls a layer, behind one face, so that a test is written once.

Only what the frameworks do differently: arrays in and out, parameters that a first call creates,
and how training is switched on. Everything is float32, as in the frameworks' own examples.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from conformance.runner import CaseRunner
from conformance.subjects.backend import BackendSubject
from mha_core.call.call import Call
from mha_core.call.masks import ARRAY_SOURCES, AttentionMask


def as_call(arrays: list[Any], keywords: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
    """The Call that a layer makes of its arguments, and the keywords that are not part of one, as `query_block`."""
    queries, keys, values, *lens = arrays
    given = {**keywords, **({"valid_lens": lens[0]} if lens else {})}
    mask = AttentionMask(**{name: given.pop(name) for name in (*ARRAY_SOURCES, "causal", "window") if name in given})
    own = {name: given.pop(name) for name in ("dropout_keep", "past_keys", "past_values", "rotary") if name in given}
    return Call(queries, keys, values, mask, **own), given


class Driver:
    """NumPy in, one call of a framework's layer, NumPy out."""

    def __init__(self, name: str) -> None:
        self.package: ModuleType = importlib.import_module(f"backends.{name}")
        self.heads: ModuleType = importlib.import_module(f"backends.{name}.ops.heads")
        self.to_weights = importlib.import_module(f"backends.{name}.weights").to_weights

    def new(self, layer: str, *args: Any, **kwargs: Any) -> Any:
        """A layer of this class, with parameters to come."""
        return getattr(self.package, layer)(*args, **kwargs)

    def call(self, layer: Any, *arrays: Any, training: bool = False, **keywords: Any) -> Any:
        """Call it; NumPy arrays, or a tuple of them."""
        result = self._call(layer, [self.array(a) for a in arrays], training, self._convert(keywords))
        return self._results(result)

    def ask(self, method: str, layer: Any, *arrays: Any, training: bool = False, **keywords: Any) -> Any:
        """What `layer.stages` or `layer.attend` gives, in the framework's own arrays."""
        return self._ask(method, layer, [self.array(a) for a in arrays], training, self._convert(keywords))

    def weights(self, layer: Any) -> Any:
        """The canonical weights of a layer that has been called."""
        return self.to_weights(layer)

    def of_class(self, layer: Any) -> type:
        """The class that the layer is of."""
        return type(layer)

    def _results(self, result: Any) -> Any:
        """NumPy arrays in place of the framework's, in tuples of tuples too."""
        return tuple(map(self._results, result)) if isinstance(result, (tuple, list)) else self.numpy(result)

    def config(self, layer: Any) -> Any:
        return layer.config

    def array(self, array: Any) -> Any:
        raise NotImplementedError  # each framework has its own

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array)

    def _convert(self, keywords: dict[str, Any]) -> dict[str, Any]:
        return {name: self.array(value) if isinstance(value, np.ndarray) else value for name, value in keywords.items()}

    def _call(self, layer: Any, arrays: list[Any], training: bool, keywords: dict[str, Any]) -> Any:
        raise NotImplementedError  # each framework has its own

    def _ask(self, method: str, layer: Any, arrays: list[Any], training: bool, keywords: dict[str, Any]) -> Any:
        raise NotImplementedError  # each framework has its own


class TorchDriver(Driver):
    def array(self, array):
        import torch

        return None if array is None else torch.from_numpy(np.array(array))

    def numpy(self, array):
        return array.detach().numpy()

    def _call(self, layer, arrays, training, keywords):
        return layer.train(training)(*arrays, **keywords)

    def _ask(self, method, layer, arrays, training, keywords):
        call, options = as_call(arrays, keywords)
        return getattr(layer.train(training), method)(call, **options)


class TensorFlowDriver(Driver):
    def array(self, array):
        import tensorflow as tf

        return None if array is None else tf.constant(array)

    def _call(self, layer, arrays, training, keywords):
        return layer(*arrays, **keywords, training=training)

    def _ask(self, method, layer, arrays, training, keywords):
        call, others = as_call(arrays, keywords)
        return getattr(layer, method)(call, **others, training=training)


class JaxDriver(Driver):
    """A Flax module has no parameters of its own: the handle keeps them beside it."""

    def new(self, layer, *args, **kwargs):
        return {"module": super().new(layer, *args, **kwargs), "variables": None}

    def array(self, array):
        import jax.numpy as jnp

        return None if array is None else jnp.asarray(array)

    def config(self, layer):
        return layer["module"].config_of(layer["variables"] or {})

    def _call(self, layer, arrays, training, keywords):
        import jax

        if layer["variables"] is None:
            layer["variables"] = layer["module"].init(jax.random.key(0), *arrays)
        return self._apply("__call__", layer, arrays, training, keywords)

    def _ask(self, method, layer, arrays, training, keywords):
        call, options = as_call(arrays, keywords)
        return self._apply(method, layer, [call], training, options)

    def _apply(self, method, layer, arguments, training, keywords):
        import jax

        keywords = {**keywords, "deterministic": not training, "rngs": {"dropout": jax.random.key(1)}}
        return layer["module"].apply(layer["variables"], *arguments, **keywords, method=method)

    def weights(self, layer):
        return self.to_weights(layer["variables"])

    def of_class(self, layer):
        return type(layer["module"])


class MXNetDriver(Driver):
    def new(self, layer, *args, **kwargs):
        block = super().new(layer, *args, **kwargs)
        block.initialize()
        return block

    def array(self, array):
        import mxnet as mx

        return None if array is None else mx.np.array(array, dtype=np.asarray(array).dtype)

    def numpy(self, array):
        return array.asnumpy()

    def _call(self, layer, arrays, training, keywords):
        import mxnet as mx

        with mx.autograd.train_mode() if training else mx.autograd.predict_mode():
            return layer(*arrays, **keywords)

    def _ask(self, method, layer, arrays, training, keywords):
        import mxnet as mx

        mode = mx.autograd.train_mode() if training else mx.autograd.predict_mode()
        with mx.util.np_shape(True), mx.util.np_array(True), mode:
            call, own = as_call(arrays, keywords)
            return getattr(layer, method)(call, **own)


DRIVERS = {"torch": TorchDriver, "tf": TensorFlowDriver, "jax": JaxDriver, "mxnet": MXNetDriver}


def drive(backend_name: str) -> Driver:
    return DRIVERS[backend_name](backend_name)


def asked_twice(case, subject, known=None):
    """The result of a subject that is asked a case, and once more with its items in another order.

    That shows a layer that keeps something from call to call. What four calls show besides, nightly tests look for.
    """
    return CaseRunner(subject, known, "in two ways").run(case)


class AskedOnce(BackendSubject):
    """Gives its one answer to each case, and is not asked again (see `conformance.judging.repeats`)."""

    recorded = True
