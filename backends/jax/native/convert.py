"""Flax's own attention layers, and the seed's, to canonical weights and back, exact to the bit.

What the arrays are called and how they lie is said in `mha_core.layouts`; this moves them into
live layers and out of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from numpy.typing import DTypeLike, NDArray

from backends.jax.native import live_probe
from backends.jax.native.d2l import SeedMultiHeadAttention
from backends.jax.ops.framework import check_enabled, to_numpy
from backends.jax.weights import Variables
from mha_core import layouts
from mha_core.config import PROJECTIONS, AttentionConfig
from mha_core.dtypes import round_to
from mha_core.errors import SpecError
from mha_core.layouts import Layout
from mha_core.subject import one_width
from mha_core.weights import Weights, check_weights, common_dtype

LINEN, NNX, SEED = (layouts.get(name) for name in ("linen", "nnx", "d2l-jax"))


# flax.linen -------------------------------------------------------------------------------------------


def to_linen(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: DTypeLike | None = None, **options: Any
) -> tuple[nn.MultiHeadDotProductAttention, Variables]:
    """A flax.linen.MultiHeadDotProductAttention, and the variables to apply it with.

    It gets zeros for biases that the config does not have while it has others: there is one switch for all.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`.
        dtype: of the parameters. Default: that of the arrays.
        options: further fields of the layer, such as `precision`.

    Raises:
        SpecError: such a layer can't have these sizes, score or heads; or as `backends.jax.from_weights`.

    >>> import jax, numpy as np
    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2, key_dim=5)
    >>> weights = {name: array.astype(np.float32) for name, array in init_weights(config, seed=0).items()}
    >>> layer, variables = to_linen(config, weights)
    >>> jax.tree.map(jax.numpy.shape, variables["params"]["key"])
    {'kernel': (5, 2, 3)}
    >>> from_linen(layer, variables)[0] == config
    True
    """
    arrays, param_dtype = _layer_arrays(LINEN, config, weights, dtype)
    layer = nn.MultiHeadDotProductAttention(
        num_heads=config.num_heads,
        qkv_features=config.num_heads * config.head_dim,
        out_features=config.output_dim,
        dropout_rate=config.dropout,
        use_bias="query/bias" in arrays,
        param_dtype=param_dtype,
        **options,
    )
    return layer, _variables(arrays)


def from_linen(
    layer: nn.MultiHeadDotProductAttention, variables: Variables, *, probe: bool = True
) -> tuple[AttentionConfig, Weights]:
    """Config and canonical weights of a linen layer and its variables, as read-only NumPy copies.

    bfloat16 parameters come out as float32, which holds each of them exactly.

    Args:
        layer, variables: as `layer.apply` takes them.
        probe: whether the layer is run, a few small calls in the dtype that it computes in, to see that it computes
            what its weights say: a subclass or a function of one's own (qkv_dot_general) may have it compute
            something else. False takes the weights at their word.

    Raises:
        SpecError: the layer normalises queries and keys, decodes, or has an attention function of its own,
            none of which the weights can tell; or the variables do not fit it; or, unless probe=False, it computes
            something else or can't be run (while JAX traces).
    """
    _refuse_linen(layer)
    config, weights = LINEN.read(_arrays_of(variables), num_heads=layer.num_heads)
    _check_features("qkv_features", layer.qkv_features, config.num_heads * config.head_dim)
    _check_features("out_features", layer.out_features, config.output_dim)
    config = replace(config, dropout=layer.dropout_rate)
    if probe:
        live_probe.check_linen(layer, config, weights, variables)
    return config, weights


def _refuse_linen(layer: nn.MultiHeadDotProductAttention) -> None:
    _refuse(layer, normalize_qk=False, decode=False)
    own = layer.attention_fn
    if own is not nn.dot_product_attention:
        raise SpecError(f"attention_fn must be flax.linen.dot_product_attention. Got {own!r}.")


# flax.nnx ---------------------------------------------------------------------------------------------


def to_nnx(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: DTypeLike | None = None, **options: Any
) -> nnx.MultiHeadAttention:
    """A flax.nnx.MultiHeadAttention with these weights; as `to_linen`, but keys and values are equally wide.

    Raises:
        SpecError: as `to_linen`, or key_dim and value_dim differ.

    >>> import numpy as np
    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2, bias=True)
    >>> weights = {name: array.astype(np.float32) for name, array in init_weights(config, seed=0).items()}
    >>> layer = to_nnx(config, weights)
    >>> all((from_nnx(layer)[1][name] == weights[name]).all() for name in weights)
    True
    """
    if config.key_dim != config.value_dim:
        raise SpecError(
            "flax.nnx.MultiHeadAttention has one width for keys and values, in_kv_features. "
            f"Got key_dim={config.key_dim}, value_dim={config.value_dim}."
        )
    arrays, param_dtype = _layer_arrays(NNX, config, weights, dtype)

    layer = nnx.MultiHeadAttention(
        num_heads=config.num_heads,
        in_features=config.query_dim,
        qkv_features=config.num_heads * config.head_dim,
        out_features=config.output_dim,
        in_kv_features=config.key_dim,
        dropout_rate=config.dropout,
        use_bias="query/bias" in arrays,
        param_dtype=param_dtype,
        # Nothing need be drawn: every kernel is replaced.
        **{"decode": False, "rngs": nnx.Rngs(0), "kernel_init": nnx.initializers.zeros, **options},
    )
    nnx.update(layer, nnx.State(_variables(arrays)["params"]))
    return layer


def from_nnx(layer: nnx.MultiHeadAttention, *, probe: bool = True) -> tuple[AttentionConfig, Weights]:
    """Config and canonical weights of an nnx layer, as read-only NumPy copies.

    Args:
        layer: it stays as it is; a copy of it is run.
        probe: as in `from_linen`.

    Raises:
        SpecError: as `from_linen`.
    """
    _refuse(layer, normalize_qk=False, decode=False)
    if layer.attention_fn is not nnx.dot_product_attention:
        raise SpecError(f"attention_fn must be flax.nnx.dot_product_attention. Got {layer.attention_fn!r}.")
    params = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    config, weights = NNX.read(flat_arrays(params), num_heads=layer.num_heads)
    _check_features("qkv_features", layer.qkv_features, config.num_heads * config.head_dim)
    _check_features("out_features", layer.out_features, config.output_dim)
    _check_features("in_features", layer.in_features, config.query_dim)
    for width in (config.key_dim, config.value_dim):
        _check_features("in_kv_features", layer.in_kv_features, width)
    config = replace(config, dropout=layer.dropout_rate)
    if probe:
        live_probe.check_nnx(layer, config, weights)
    return config, weights


# The seed's -------------------------------------------------------------------------------------------


def to_seed(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: DTypeLike | None = None
) -> tuple[SeedMultiHeadAttention, Variables]:
    """The seed's layer (see `backends.jax.native.d2l`), and the variables to apply it with.

    Raises:
        SpecError: as `to_linen`; or a width is not num_hiddens, which all four projections make.
    """
    hiddens = one_width("d2l.ai's layer", config)
    arrays, param_dtype = _layer_arrays(SEED, config, weights, dtype)
    use_bias = "W_q/bias" in arrays
    layer = SeedMultiHeadAttention(hiddens, config.num_heads, config.dropout, use_bias, param_dtype)
    return layer, _variables(arrays)


def from_seed(
    layer: SeedMultiHeadAttention, variables: Variables, *, probe: bool = True
) -> tuple[AttentionConfig, Weights]:
    """Config and canonical weights of the seed's layer, as read-only NumPy copies.

    Args:
        layer, variables: as `layer.apply` takes them.
        probe: as in `from_linen`.

    Raises:
        SpecError: the variables do not fit the layer; or, unless probe=False, it computes something else than they
            say or can't be run.
    """
    config, weights = SEED.read(_arrays_of(variables), num_heads=layer.num_heads)
    for projection in PROJECTIONS:
        _check_features("num_hiddens", layer.num_hiddens, weights[f"{projection}.weight"].shape[0])
    config = replace(config, dropout=layer.dropout)
    if probe:
        live_probe.check_seed(layer, config, weights, variables)
    return config, weights


# Between ----------------------------------------------------------------------------------------------


def flat_arrays(tree: Any) -> dict[str, NDArray]:
    """A tree of parameters, or of their gradients, as NumPy arrays by the names of a layout: "query/kernel"."""
    return {name: to_numpy(array) for name, array in flatten_dict(tree, sep="/").items()}


def _layer_arrays(
    layout: Layout, config: AttentionConfig, weights: Mapping[str, NDArray], dtype: DTypeLike | None
) -> tuple[dict[str, Any], Any]:
    """The layer's arrays by relative name in the parameters' dtype, and that dtype."""
    checked = check_weights(config, weights)
    param_dtype = jnp.dtype(common_dtype(checked) if dtype is None else dtype)
    check_enabled("the weights' dtype", param_dtype)
    written = layout.write(config, {name: round_to(array, str(param_dtype)) for name, array in checked.items()})
    return {name: array.astype(param_dtype) for name, array in written.items()}, param_dtype


def _variables(arrays: Mapping[str, NDArray]) -> Variables:
    # JAX may keep the memory that it is given: `arrays` are copies that nobody else holds.
    flat = {name: jnp.asarray(array) for name, array in arrays.items()}
    return {"params": unflatten_dict(flat, sep="/")}


def _arrays_of(variables: Variables) -> dict[str, NDArray]:
    if not variables.get("params"):
        raise SpecError("variables must hold the collection 'params', as layer.init returns it")
    return flat_arrays(variables["params"])


def _refuse(layer: Any, **wanted: Any) -> None:
    """SpecError if a field of the layer says something that weights and config can't."""
    for name, value in wanted.items():
        given = getattr(layer, name)
        if given not in (value, None):
            raise SpecError(f"{name} must be {value} in {type(layer).__name__}: weights can't tell it. Got {given!r}.")


def _check_features(name: str, declared: int | None, found: int) -> None:
    if declared is not None and declared != found:
        raise SpecError(f"{name} must be {found}, as the parameters have it. Got {declared}.")
