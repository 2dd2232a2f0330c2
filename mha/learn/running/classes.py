"""A learner's class of a framework as a subject: its parameters are the judge's, its call is that of d2l.ai."""

import importlib
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.learn.running.dialects import given, taken
from mha_core import AttentionConfig, AttentionInputs, SpecError
from mha_core.call.masks import as_valid_lens
from mha_core.subject import Capabilities
from mha_core.weights import Weights

PARAMETERS = {"w_q": "q_proj.weight", "w_k": "k_proj.weight", "w_v": "v_proj.weight", "w_o": "out_proj.weight"}
"""Layer in the class -> the matrix (out, in) that it gets."""

NAME = "MultiHeadAttention"

NEEDED = f"{NAME} must have the layers {', '.join(PARAMETERS)}"

NOT_CALLED = "the layer {} is never called"

CAPABILITIES = Capabilities("query_dim", "key_dim", "value_dim", only_lengths=True)
"""What the class is asked: any widths of the inputs, and lengths."""


class ClassSubject:
    """A class MultiHeadAttention(num_hiddens, num_heads) as a subject of `mha check`.

    Attributes:
        made: the class.
        dialect: its framework.
    """

    made: Callable[..., Any]
    dialect: str

    name = NAME
    dtypes = ("float32",)

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """Return None if the exercise asks for this case, else in words the feature that it does not ask for."""
        why = CAPABILITIES.why_not(config, inputs)
        if why is None and any(astuple(config.bias)):
            return "biases of the projections"
        if why is None and _lengths(config, inputs) is None:
            return "lengths of each query, or of 0"
        if why is None and not all(np.isfinite(x).all() for x in (inputs.queries, inputs.keys, inputs.values)):
            return "NaN"
        return why

    def prepare(self, config: AttentionConfig, weights: Weights) -> Callable[[AttentionInputs], NDArray]:
        """Make the layer, and return the function that calls it."""
        layer = self.made(config.num_heads * config.head_dim, config.num_heads)
        matrices = {name: np.asarray(weights[key]) for name, key in PARAMETERS.items()}

        def run(inputs: AttentionInputs) -> NDArray:
            arrays = inputs.queries, inputs.keys, inputs.values, _lengths(config, inputs)
            tensors = [given(self.dialect, array) for array in arrays]
            answer: NDArray = taken(self.dialect, CALLS[self.dialect](layer, matrices, tensors, 0))
            return answer

        return run


def _lengths(config: AttentionConfig, inputs: AttentionInputs) -> NDArray[np.integer] | None:
    """The lengths (B,) of a call, 1 at least; None if it has others."""
    found = as_valid_lens(inputs.mask, inputs.check(config), config.num_heads)
    if found is None or not found.size or found.min() < 1:
        return None
    if found.ndim == 2:
        if (found != found[:, :1]).any():
            return None
        found = found[:, 0]
    return np.asarray(found, np.int32)


def _layers(layer: Any) -> dict[str, Any]:
    """The four layers of an object by name."""
    missing = [name for name in PARAMETERS if not hasattr(layer, name)]
    if missing:
        raise SpecError(f"{NEEDED}. Missing: {', '.join(missing)}.")
    return {name: getattr(layer, name) for name in PARAMETERS}


def _torch(layer: Any, matrices: dict[str, NDArray], tensors: list[Any], training: int) -> Any:
    torch = importlib.import_module("torch")
    layer.eval()
    with torch.no_grad():
        layer(*tensors)  # now lazy layers know their sizes
        for name, linear in _layers(layer).items():
            if torch.nn.parameter.is_lazy(linear.weight):
                raise SpecError(NOT_CALLED.format(name))
            linear.weight.copy_(torch.from_numpy(matrices[name]))
        layer.train(bool(training))
        return layer(*tensors)


def _tf(layer: Any, matrices: dict[str, NDArray], tensors: list[Any], training: int) -> Any:
    layer(*tensors)
    for name, dense in _layers(layer).items():
        if not dense.built:
            raise SpecError(NOT_CALLED.format(name))
        dense.kernel.assign(matrices[name].T)
    return layer(*tensors, training=True) if training else layer(*tensors)


def _jax(layer: Any, matrices: dict[str, NDArray], tensors: list[Any], training: int) -> Any:
    jax = importlib.import_module("jax")
    variables = layer.init(jax.random.key(0), *tensors)
    held = set(variables.get("params", {}))
    if held != set(PARAMETERS):
        raise SpecError(f"{NEEDED}. Got {', '.join(sorted(held))}.")
    variables = {"params": {name: {"kernel": matrix.T} for name, matrix in matrices.items()}}
    if training:
        return layer.apply(variables, *tensors, training=True, rngs={"dropout": jax.random.key(training)})
    return layer.apply(variables, *tensors)


def _mxnet(layer: Any, matrices: dict[str, NDArray], tensors: list[Any], training: int) -> Any:
    layer.initialize(force_reinit=True)
    layer(*tensors)
    for name, dense in _layers(layer).items():
        dense.weight.set_data(given("mxnet", matrices[name]))
    if training:
        with importlib.import_module("mxnet").autograd.record():
            return layer(*tensors)
    return layer(*tensors)


CALLS: dict[str, Callable[[Any, dict[str, NDArray], list[Any], int], Any]] = {
    "torch": _torch,
    "tf": _tf,
    "jax": _jax,
    "mxnet": _mxnet,
}
"""Framework -> (layer, matrices, [queries, keys, values, lengths], training) -> the output.

A first call tells the widths. `training`: 0, or the number of a call in training.
"""
