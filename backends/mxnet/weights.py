"""Canonical weights into Gluon blocks and out of them, exact to the bit."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from numpy.typing import NDArray

from backends.mxnet.layers import MultiHeadAttention
from backends.mxnet.ops.framework import check_computes, mx, to_array, to_numpy
from mha_core.config import AttentionConfig
from mha_core.weights import Weights, check_weights, common_dtype


@mx.util.use_np
def from_weights(
    config: AttentionConfig,
    weights: Mapping[str, NDArray],
    *,
    dtype: Any = None,
    ctx: mx.Context | None = None,
) -> MultiHeadAttention:
    """Return an initialised layer that holds copies of these weights.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`.
        dtype: the dtype of the parameters. Default: the dtype of the arrays.
        ctx: the context of the parameters. Default: the current context.

    Raises:
        SpecError: the weights do not fit the config; or no dtype is given and the arrays have several.
        BackendError: a dtype that MXNet does not compute in.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2)
    >>> weights = init_weights(config, seed=0)
    >>> layer = from_weights(config, weights)
    >>> all((to_weights(layer)[name] == weights[name]).all() for name in weights)
    True
    """
    checked = check_weights(config, weights)
    dtype = check_computes("weights", common_dtype(checked) if dtype is None else dtype)
    ctx = mx.current_context() if ctx is None else ctx
    layer = MultiHeadAttention(**asdict(config), dtype=dtype)
    for name, parameter in named_parameters(layer).items():
        # Zeros first: every other initialiser would draw from the global random state.
        parameter.initialize(init=mx.init.Zero(), ctx=ctx)
        parameter.set_data(to_array(checked[name], dtype, ctx))
    return layer


@mx.util.use_np
def to_weights(layer: MultiHeadAttention) -> Weights:
    """Return name -> weight of a layer, as read-only NumPy copies. Names are canonical, such as "q_proj.weight".

    Raises:
        SpecError: the input widths are not known yet, or a parameter is not finite.
    """
    config = layer.config
    return check_weights(config, {name: to_numpy(p.data()) for name, p in named_parameters(layer).items()})


def named_parameters(layer: MultiHeadAttention) -> dict[str, mx.gluon.Parameter]:
    """Return name -> parameter. Names are canonical, such as "q_proj.weight". `save_parameters` writes these names."""
    return layer._collect_params_with_prefix()
