"""Canonical weights into Flax variables and out of them, exact to the bit.

A linen kernel is (in, out): the canonical `q_proj.weight` (out, in) is the transpose of
`params["q_proj"]["kernel"]`. All other names and shapes are the canonical ones.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from numpy.typing import DTypeLike, NDArray

from backends.jax.layers import MultiHeadAttention
from backends.jax.ops.framework import check_enabled, to_numpy
from mha_core import AttentionConfig, QueryKeyNorm, SpecError, check_weights, weight_shapes
from mha_core.dtypes import round_to
from mha_core.parts.query_key_norm import NORMS
from mha_core.weights import Weights, common_dtype

Variables = Mapping[str, Any]
"""The variables of a layer, {"params": {...}}: `layer.init` returns them, `layer.apply` takes them."""


def from_weights(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: DTypeLike | None = None
) -> tuple[MultiHeadAttention, Variables]:
    """Return a layer, and the variables to apply it with, which hold copies of these weights.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`.
        dtype: the dtype of the parameters. Default: the dtype of the arrays.

    Raises:
        SpecError: the weights do not fit the config; they would be float64 while JAX's 64-bit types are off; or no
            dtype is given and the arrays have several.

    >>> import numpy as np
    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2)
    >>> weights = {name: array.astype(np.float32) for name, array in init_weights(config, seed=0).items()}
    >>> layer, variables = from_weights(config, weights)
    >>> all((to_weights(variables)[name] == weights[name]).all() for name in weights)
    True
    """
    checked = check_weights(config, weights)
    param_dtype = jnp.dtype(common_dtype(checked) if dtype is None else dtype)
    check_enabled("the weights' dtype", param_dtype)
    arrays = {name: round_to(array, str(param_dtype)).astype(param_dtype) for name, array in checked.items()}
    layer = MultiHeadAttention(**vars(config), param_dtype=param_dtype)
    # JAX may keep the memory that it is given, so each array is a copy to which there is no other reference.
    params = {_path(name): jnp.asarray(np.array(array.T, order="C")) for name, array in arrays.items()}
    return layer, {"params": unflatten_dict(params)}


def to_weights(variables: Variables) -> Weights:
    """Return name -> weight of a layer, as read-only NumPy copies. Names are canonical, such as "q_proj.weight".

    bfloat16 parameters come out as float32, which holds each of them exactly.
    `mha_core.check_weights`, not this function, checks whether weights are finite and fit a config.

    Raises:
        SpecError: the variables hold no parameters.
    """
    if not variables.get("params"):
        raise SpecError("variables must hold the collection 'params', as layer.init returns it")
    weights = {name: np.array(array) for name, array in to_canonical(variables["params"]).items()}
    for array in weights.values():
        array.flags.writeable = False
    return weights


def to_canonical(params: Mapping[str, Any]) -> dict[str, NDArray]:
    """Return canonical name -> NumPy array of canonical shape, for a tree of parameters or of their gradients."""
    flat = flatten_dict(params)
    return {name: to_numpy(flat[_path(name)]).T for name in _NAMES if _path(name) in flat}


# Every canonical name there is: all biases, the query-key norm, and the additive score.
_NAMES = tuple(
    weight_shapes(AttentionConfig(1, 1, bias=True, score="additive", query_key_norm=QueryKeyNorm(bias=True)))
)


def _path(name: str) -> tuple[str, ...]:
    """The path in "params" of a canonical name: ("q_proj", "kernel") for "q_proj.weight", but ("q_norm", "weight")."""
    path = tuple(name.split("."))
    return (*path[:-1], "kernel") if path[-1] == "weight" and path[0] not in NORMS else path
