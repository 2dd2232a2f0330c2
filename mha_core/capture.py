"""Functions for the capture hooks of all frameworks: read calls of our own and of d2l.ai's layers."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mha_core import layouts
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask
from mha_core.call.rotary import PLACES, RotaryInputs
from mha_core.config import AttentionConfig
from mha_core.errors import SpecError
from mha_core.weights import Weights

ToArray = Callable[[Any], NDArray]
"""Copies a framework's array, or anything that NumPy takes, to a NumPy array."""

MASK_FIELDS = tuple(field.name for field in fields(AttentionMask))


class ReadCall(NamedTuple):
    """One call of somebody's layer, translated to this project's config, weights and inputs, in NumPy copies.

    Args:
        config, weights, inputs: the layer and the call.
        outputs: the arrays that the layer returned: "output", and "weights" if it returned them per head.
        dtype: the dtype in which the layer computed, by name. bfloat16 numbers are in float32 arrays.
        parameters: the name of the dtype in which the layer holds its weights; None: the same as `dtype`.
        assumed: a text on settings that are assumed, because neither the layer nor its numbers show them; "" if none.
    """

    config: AttentionConfig
    weights: Weights
    inputs: AttentionInputs
    outputs: Mapping[str, NDArray]
    dtype: str
    parameters: str | None = None
    assumed: str = ""


class Pulled(NamedTuple):
    """The outputs and gradients of one run of a module, forward and backward, in NumPy.

    A backend's function `pulled(held, dtype, call, inputs, cotangents)` returns it. The function casts the parameters
    of the module `held` to `dtype` (None: no cast) and runs `call(held, inputs)`. `cotangents`: gradients of some
    outputs. Keys of inputs and outputs (places) are paths in nested containers, such as ("0",) for the first item.

    Args:
        outputs: place -> output.
        inputs: place -> gradient with respect to the input at that place.
        parameters: name -> gradient, for each parameter that is not frozen.
    """

    outputs: dict[Any, NDArray]
    inputs: dict[Any, NDArray]
    parameters: dict[str, NDArray]


class LayerAdapter:
    """A base class of adapters that read the calls of one class of layers; see `mha.recordings.hooks.Adapter`.

    Attributes:
        kind: the class of layers, in words.
        layer_type: the class of layers.
    """

    kind: str
    layer_type: type

    def matches(self, layer: Any) -> bool:
        return isinstance(layer, self.layer_type)

    def check(self, layer: Any) -> None:
        """Raise nothing: every layer of this class can be recorded."""


def own_call(
    config: AttentionConfig,
    weights: Weights,
    arguments: Mapping[str, Any],
    output: Any,
    to_array: ToArray,
    *,
    training: bool,
    dtypes: tuple[str, str],
) -> ReadCall:
    """Return a call of this project's layer as a ReadCall. `dtypes`: the dtypes of its arithmetic and its weights.

    `arguments`: name -> argument of the layer's call. `to_array`: converts an array of the framework to NumPy.
    """
    plain = (bool, int, tuple, type(None))
    given: dict[str, Any] = {
        name: value if isinstance(value, plain) else to_array(value)
        for name, value in arguments.items()
        if name not in PLACES
    }
    if given["dropout_keep"] is None:
        refuse_dropout(training=training, rate=config.dropout)
    if isinstance(given["window"], list):
        given["window"] = tuple(given["window"])
    mask = AttentionMask(**{name: given[name] for name in MASK_FIELDS if name in given})
    own = {name: given[name] for name in ("dropout_keep", "past_keys", "past_values") if name in given}
    rotary = RotaryInputs.of(*map(arguments.get, PLACES))
    rotary = rotary and rotary.map_arrays(lambda _, array: to_array(array))
    inputs = AttentionInputs(given["queries"], given["keys"], given["values"], mask, **own, rotary=rotary)
    results = output if isinstance(output, tuple) else (output,)
    outputs = {"output": to_array(results[0])}
    if arguments["return_weights"]:
        outputs["weights"] = to_array(results[1])
    return ReadCall(config, weights, inputs, outputs, *dtypes)


def d2l_call(
    arrays: Mapping[str, NDArray],
    arguments: Mapping[str, Any],
    output: Any,
    folded_weights: Any,
    to_array: ToArray,
    *,
    layout: str,
    num_heads: int,
    dtypes: tuple[str, str],
) -> ReadCall:
    """Return a call of d2l.ai's layer as a ReadCall. `dtypes`: the dtypes of its arithmetic and its weights.

    `arrays`: the layer's weights in the weight layout `layout`. `folded_weights`: attention weights (B * H, Lq, Lk).
    """
    config, weights = layouts.get(layout).read(arrays, num_heads=num_heads)
    queries, keys, values, *more = (None if value is None else value for value in arguments.values())
    lens = None if not more or more[0] is None else as_lens(to_array(more[0]))
    inputs = AttentionInputs(to_array(queries), to_array(keys), to_array(values), AttentionMask(valid_lens=lens))
    outputs = {"output": to_array(output)}
    if folded_weights is not None:
        folded = to_array(folded_weights)
        outputs["weights"] = folded.reshape(len(inputs.queries), num_heads, *folded.shape[1:])
    return ReadCall(config, weights, inputs, outputs, *dtypes)


def arguments_of(signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return name -> argument of a call, with defaults. Those caught by **kwargs are also listed by their own names."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    more = [name for name, parameter in signature.parameters.items() if parameter.kind is parameter.VAR_KEYWORD]
    arguments = dict(bound.arguments)
    for name in more:
        arguments |= bound.arguments[name]
    return arguments


def as_called(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """Return the bound arguments of a call. Arguments that were given by keyword stay keyword arguments.

    `Signature.bind` makes them positional. A decorator in the library transformers that sets one by keyword then fails.

    >>> def forward(x, mask=None, **more): ...
    >>> as_called(inspect.signature(forward), [1], {"mask": 2}).kwargs
    {'mask': 2}
    """
    either, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [
        one.replace(kind=keyword) if one.kind is either and position >= len(args) else one
        for position, one in enumerate(signature.parameters.values())
    ]
    return signature.replace(parameters=sorted(parameters, key=lambda one: one.kind)).bind(*args, **kwargs)


def as_lens(lens: NDArray) -> NDArray:
    """Return lengths as integers; examples of d2l.ai also give them as floating-point numbers, such as 3.0."""
    return lens.astype(np.int64) if lens.dtype.kind == "f" and (lens == np.floor(lens)).all() else lens


def has_d2l_parts(layer: Any, call: Callable[..., Any], kind: type) -> bool:
    """Return whether `layer` has num_heads and W_q, W_k, W_v, W_o of type `kind`, and `call` has d2l.ai's arguments."""
    parts = (getattr(layer, f"W_{part}", None) for part in "qkvo")
    return hasattr(layer, "num_heads") and all(isinstance(part, kind) for part in parts) and takes_lens(call)


def takes_lens(call: Callable[..., Any]) -> bool:
    """Return whether a function's first arguments are d2l.ai's: queries, keys, values and valid_lens."""
    return list(inspect.signature(call).parameters)[:4] == ["queries", "keys", "values", "valid_lens"]


def refuse_dropout(*, training: bool, rate: float) -> None:
    """Raise SpecError if dropout is active (training, rate > 0), because the dropped weights can't be observed."""
    if training and rate > 0.0:
        raise SpecError(
            f"dropout={rate} is active, and which weights it drops can't be seen. "
            "Run the layer as in inference, or with dropout 0"
        )


def one_dtype(dtypes: Iterable[str]) -> str:
    """Return the dtype that parameters, inputs and output have in common, by name. SpecError if `dtypes` differ."""
    found = sorted(set(dtypes))
    if len(found) != 1:
        raise SpecError(f"a call in mixed precision can't be recorded: it has {', '.join(found)}")
    return found[0]


def outermost(modules: Iterable[tuple[str, Any]], choose: Callable[[str, Any], Any], separator: str) -> Iterator[Any]:
    """Yield (name, module, adapter) of each module for which `choose(name, module)` returns an adapter.

    Submodules of such a module are skipped, unless `adapter.open` is True. `separator` (such as ".") joins names.
    """
    found: list[str] = []
    for name, module in modules:
        within = any(outer == "" or name.startswith(outer + separator) for outer in found)
        adapter = None if within else choose(name, module)
        if adapter is not None:
            if not getattr(adapter, "open", False):
                found.append(name)
            yield name, module, adapter


class NoneFoundError(SpecError):
    """An error: a model holds no layer that can be captured."""


def none_found(target: Any) -> NoneFoundError:
    """Return the error for a model in which no attention layer is found that can be captured."""
    return NoneFoundError(f"{type(target).__name__} has no attention layer that is known here and was asked for")
