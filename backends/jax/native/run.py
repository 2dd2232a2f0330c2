"""`JaxSubject`, the base of the subjects in JAX: runs layers of Flax and JAX, with NumPy arrays in and out."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from backends.jax.backend import COMPILER_OPTIONS
from backends.jax.ops import framework
from backends.jax.ops.framework import JAX_DTYPES, to_array, to_numpy
from mha_core import AttentionConfig, AttentionInputs, AttentionMask, Trace
from mha_core.backend import Run
from mha_core.call.masks import allowed_keys
from mha_core.subject import NativeSubject
from mha_core.weights import Weights

Stages = dict[str, Array]
"""Name of a stage -> its array, of the stages that a layer exposes; "output" is always among them."""

Forward = Callable[..., Stages]
"""(parameters, floats, **told) -> Stages, where floats are the arrays of `AttentionInputs.leaves`."""


class JaxSubject(NativeSubject):
    """A base of JAX's test subjects: it runs a jitted layer and its backward pass, with NumPy arrays in and out."""

    def __init__(self, dtype: str = "float64") -> None:
        super().__init__(dtype)
        self._last: tuple[AttentionConfig, Any] | None = None

    @abstractmethod
    def make(self, config: AttentionConfig, weights: Weights) -> tuple[Any, Forward]:
        """Return the layer's parameters as a tree of JAX arrays, and the function that runs a layer of this config."""

    @abstractmethod
    def canonical(self, config: AttentionConfig, gradients: Any) -> Mapping[str, NDArray]:
        """Return the gradients of the parameters by canonical name."""

    def tell(self, config: AttentionConfig, inputs: AttentionInputs) -> dict[str, Any]:
        """Return the mask as keyword arguments of the layer. Values other than arrays are static in jit."""
        return {"mask": bool_mask(config, inputs)}

    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        device, dtype = framework.device_of(self.device), JAX_DTYPES[self.dtype]
        with framework.scope(self.dtype, device):
            params, forward = self.make(config, weights)
        # Cases of one config often stand together: what is compiled for one serves the next if its shapes are equal.
        if self._last is None or self._last[0] != config:
            self._last = config, _compiled(forward, device)
        compiled = self._last[1]

        def run(inputs: AttentionInputs) -> Trace:
            told = self.tell(config, inputs)
            cotangent = None if inputs.cotangent is None else inputs.cotangent.astype(dtype)
            with framework.scope(self.dtype, device):
                stages, gradients = compiled(
                    params,
                    {name: to_array(name, array.astype(dtype)) for name, array in inputs.leaves().items()},
                    {name: to_array(name, value) for name, value in told.items() if isinstance(value, np.ndarray)},
                    None if cotangent is None else to_array("cotangent", cotangent),
                    tuple((name, value) for name, value in told.items() if not isinstance(value, np.ndarray)),
                )
            shown: Any = {name: to_numpy(stage) for name, stage in stages.items()}
            if gradients is None:
                return Trace(**shown)
            d_params, d_floats = gradients
            by_name = {name: to_numpy(gradient) for name, gradient in d_floats.items()}
            return Trace(**shown, gradients={**by_name, **self.canonical(config, d_params)})

        return run


def _compiled(forward: Forward, device: jax.Device) -> Any:
    """(parameters, floats, arrays, cotangent, options) -> the stages, and with a cotangent the gradients."""

    def compute(
        params: Any, floats: Stages, arrays: Stages, cotangent: Array | None, options: tuple[tuple[str, Any], ...]
    ) -> tuple[Stages, Any]:
        def shown(params: Any, floats: Stages) -> tuple[Array, Stages]:
            stages = forward(params, floats, **arrays, **dict(options))
            return stages["output"], stages

        if cotangent is None:
            return shown(params, floats)[1], None
        _, pull_back, stages = jax.vjp(shown, params, floats, has_aux=True)
        return stages, pull_back(cotangent)

    return jax.jit(compute, static_argnames="options", compiler_options=COMPILER_OPTIONS.get(device.platform))


def bool_mask(config: AttentionConfig, inputs: AttentionInputs, mask: AttentionMask | None = None) -> NDArray | None:
    """Return a mask (default: `inputs.mask`) as bools (B, H, Lq, Lk), True = attend; None if all keys are allowed."""
    allowed = allowed_keys(inputs.mask if mask is None else mask, inputs.check(config), config.num_heads)
    return None if allowed.all() else allowed
