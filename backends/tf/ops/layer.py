"""`AttentionLayer`, the base of the Keras layers: it makes, builds and calls a layer, with heads or without.

A layer casts its inputs under a mixed policy alone, such as "mixed_float16", where Keras would by default; and none
reads Keras' implicit masks: one on the queries passes on to the output, as through a Dense layer, and only the
arguments exclude keys.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import keras
import numpy as np

from backends.tf.ops.framework import Shape, as_tensor, cast_by_policy, describe, spec_errors_kept
from backends.tf.ops.masks import placed
from mha_core import AttentionConfig, SpecError
from mha_core.call.arguments import ArraySpec, holds_arrays, settled
from mha_core.call.call import FLOATS, Call, LayerSpec, Widths
from mha_core.call.checks import check_call, check_dropout_keep, check_one_dtype, describe_argument
from mha_core.call.masks import ARRAY_SOURCES
from mha_core.call.rotary import PLACES
from mha_core.dtypes import check_dropout

_ARRAYS = (*FLOATS, *ARRAY_SOURCES, "dropout_keep", *PLACES)
"""The arguments of a call that may be arrays."""

_TUPLES = ("positions", "rotary")
"""The arguments that may also be tuples of arrays or lists, and tuples of such."""


class AttentionLayer(keras.Layer):
    """A base of Keras layers called with queries, keys and values first. A subclass defines `call` and `build`."""

    def __init__(self, dropout: float, widths: Widths = (None, None, None), **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self._allow_non_tensor_positional_args = True  # Keras would refuse a list as valid_lens
        self._convert_input_args = False  # Keras would turn np.True_ into a tensor; see `__call__`
        self._given_widths = self._widths = widths
        self.dropout = keras.layers.Dropout(check_dropout(dropout), autocast=False, dtype=self.dtype_policy)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`call`, as Keras calls it; it sees tensors in place of NumPy's arrays, and builds the layer for them."""
        with spec_errors_kept():
            args = tuple(map(as_tensor, args))
            symbolic = any(isinstance(given, keras.KerasTensor) for given in (*args, *kwargs.values()))
            kwargs = {name: _as_tensors(name, given, symbolic=symbolic) for name, given in kwargs.items()}
            args, kwargs = cast_by_policy(self, (args, kwargs))
            if not self.built:
                _check_first_call(**dict(zip(("queries", "keys", "values"), args, strict=False)), **kwargs)
        return super().__call__(*args, **kwargs)

    def _in_tensors(self, call: Call[Any], training: bool | None) -> Call[Any]:
        """The call in tensors, of a layer that is built by now; SpecError for a keep-mask outside training."""
        call = placed(call, self)
        if not self.built:
            _check_first_call(call.queries, call.keys, call.values)
            self.build(call.queries.shape, call.keys.shape, call.values.shape)
        check_dropout_keep(call.dropout_keep, training=bool(training))
        return call

    def _dtype(self) -> str | None:
        """The dtype that the inputs must have: the layer's compute dtype; None for a layer without parameters."""
        return self.compute_dtype if self.weights else None


def split_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two dicts: the keywords of an `AttentionConfig`, and all others, which Keras takes or refuses."""
    of_config = {field.name: options[field.name] for field in fields(AttentionConfig) if field.name in options}
    return of_config, {name: value for name, value in options.items() if name not in of_config}


def input_widths(queries: Shape, keys: Shape, values: Shape, given: Widths) -> Widths:
    """Return (Dq, Dk, Dv): each is the `given` width, or if that is None, the shape's. SpecError if the two differ."""
    specs = []
    for name, shape in (("queries", queries), ("keys", keys), ("values", values)):
        if shape is None:
            raise SpecError(f"{name} must be a tensor or an array.")
        specs.append(ArraySpec(tuple(shape), "float32"))  # the dtype is the call's affair
    check_call(Call(specs[0], specs[1], specs[2]), LayerSpec(widths=given))
    dq, dk, dv = (spec.shape[2] if width is None else width for spec, width in zip(specs, given, strict=True))
    return dq, dk, dv


def _as_tensors(name: str, given: Any, *, symbolic: bool) -> Any:
    """The argument with tensors in place of arrays of NumPy; in a tuple also of lists, which Keras refuses there.

    `symbolic`: whether this call builds a model. In one that is loaded, Keras gives a list for what was a tuple.
    """
    if name not in _TUPLES:
        return as_tensor(given) if name in _ARRAYS else given
    if isinstance(given, tuple) or (symbolic and isinstance(given, list) and holds_arrays(given)):
        return tuple(_as_tensors(name, part, symbolic=symbolic) for part in given)
    return as_tensor(settled(name, given))


def _check_first_call(queries: Any = None, keys: Any = None, values: Any = None, *_: Any, **__: Any) -> None:
    """Raise SpecError for an input that is no array, or has a dtype that TensorFlow lacks: no layer can take it."""
    given = {"queries": queries, "keys": keys, "values": values}
    specs = [describe_argument(name, array, describe) for name, array in given.items()]
    if any(isinstance(array, np.ndarray) for array in given.values()):
        check_one_dtype([spec.dtype for spec in specs])
