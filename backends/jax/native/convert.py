"""Flax's own attention layers, and d2l.ai's, to canonical weights and back, exact to the bit.

`to_native(config, weights, "linen")` makes a layer, `from_native(layer)` reads one, of any kind; `to_linen` and
`from_linen` have a linen layer and its variables apart. Names and shapes of the arrays stand in `mha_core.layouts`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from numpy.typing import DTypeLike, NDArray

from backends.jax.native import live_probe, trees
from backends.jax.native.d2l import D2lMultiHeadAttention
from backends.jax.ops.framework import check_enabled, to_numpy
from backends.jax.weights import Variables
from mha_core import AttentionConfig, SpecError, check_weights, layouts
from mha_core.config import PROJECTIONS
from mha_core.dtypes import round_to
from mha_core.layouts import Layout
from mha_core.subject import one_width
from mha_core.weights import Weights, common_dtype

LINEN, NNX, D2L = (layouts.get(name) for name in ("linen", "nnx", "d2l-jax"))

LAYOUT_OF: dict[type, Layout] = {
    nn.MultiHeadDotProductAttention: LINEN,
    nnx.MultiHeadAttention: NNX,
    D2lMultiHeadAttention: D2L,
}
"""Kind of layer -> its layout."""


# Any of them ------------------------------------------------------------------------------------------


def to_native(
    config: AttentionConfig,
    weights: Mapping[str, NDArray],
    layout: str = "linen",
    *,
    dtype: DTypeLike | None = None,
    **options: Any,
) -> nn.Module | nnx.Module:
    """Return a layer of Flax or of d2l.ai that holds copies of these weights.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`.
        layout: "linen" for flax.linen.MultiHeadDotProductAttention, "nnx" for flax.nnx.MultiHeadAttention, "d2l-jax"
            for d2l.ai's layer. Linen layers are bound to their variables: `layer.unbind()` gives layer and variables.
        dtype: the dtype of the parameters. Default: the dtype of the arrays.
        options: further arguments of the layer's constructor, such as `precision`.

    Raises:
        SpecError: the layer can't hold these weights, or `layout` is unknown.

    >>> import numpy as np
    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2, key_dim=5)
    >>> weights = {name: array.astype(np.float32) for name, array in init_weights(config, seed=0).items()}
    >>> layer = to_native(config, weights)
    >>> layer(np.ones((1, 4, 6)), np.ones((1, 3, 5)), np.ones((1, 3, 6))).shape
    (1, 4, 6)
    >>> from_native(layer)[0] == config
    True
    """
    if layout not in MAKERS:
        raise SpecError(f"layout {layout!r} is of no layer in Flax (there are: {', '.join(MAKERS)})")
    made = MAKERS[layout](config, weights, dtype=dtype, **options)
    return made[0].bind(made[1]) if isinstance(made, tuple) else made


def from_native(
    layer: nn.Module | nnx.Module, *, variables: Variables | None = None, probe: bool = True
) -> tuple[AttentionConfig, Weights]:
    """Return a layer's config, and its weights by canonical name, such as "q_proj.weight" (read-only NumPy copies).

    The kind of layer decides whether `from_linen`, `from_nnx` or `from_d2l` reads it.

    Args:
        layer: a flax.linen.MultiHeadDotProductAttention, a flax.nnx.MultiHeadAttention or a d2l.ai layer.
        variables: the variables of a linen layer, as `layer.apply` takes them. Default: those that it is bound to.
        probe: as in `from_linen`.

    Raises:
        SpecError: `layer` is of another class; a linen layer is unbound and no `variables` are given; `variables` are
            given for an nnx layer; or the function that reads the layer raises it.
    """
    kind = layout_of(layer)
    if isinstance(layer, nnx.MultiHeadAttention):
        if variables is not None:
            raise SpecError("variables must be None for a flax.nnx.MultiHeadAttention, which holds its own parameters")
        return from_nnx(layer, probe=probe)
    linen: Any = layer
    if variables is None:
        if linen.scope is None:
            raise SpecError(f"{type(layer).__name__} is bound to no variables: give those that layer.apply takes")
        linen, variables = linen.unbind()
    return (from_linen if kind is LINEN else from_d2l)(linen, variables, probe=probe)


def layout_of(layer: nn.Module | nnx.Module) -> Layout:
    """Return the Layout (names and shapes of the parameters) of a layer. SpecError for a layer that can't be read.

    >>> layout_of(nn.MultiHeadDotProductAttention(2)).name
    'linen'
    >>> layout_of(nn.Dense(2))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: Dense is no layer that can be read here (there are: \
flax.linen.MultiHeadDotProductAttention, flax.nnx.MultiHeadAttention, D2lMultiHeadAttention)
    """
    for kind, layout in LAYOUT_OF.items():
        if isinstance(layer, kind):
            return layout
    known = "flax.linen.MultiHeadDotProductAttention, flax.nnx.MultiHeadAttention, D2lMultiHeadAttention"
    raise SpecError(f"{type(layer).__name__} is no layer that can be read here (there are: {known})")


# flax.linen -------------------------------------------------------------------------------------------


def to_linen(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: DTypeLike | None = None, **options: Any
) -> tuple[nn.MultiHeadDotProductAttention, Variables]:
    """Return a flax.linen.MultiHeadDotProductAttention, and the variables to apply it with.

    The layer has one switch for all biases. If the config has only some of them, the others are zeros.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`.
        dtype: the dtype of the parameters. Default: the dtype of the arrays.
        options: further fields of the layer, such as `precision`.

    Raises:
        SpecError: the layer can't have these sizes, score or heads; or `backends.jax.from_weights` refuses the weights.

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
    """Return the config of a linen layer, and its weights by canonical name, as read-only NumPy copies.

    bfloat16 parameters come out as float32, which holds each of them exactly.

    Args:
        layer, variables: as `layer.apply` takes them.
        probe: whether to check, by a few small calls in its own dtype, that the layer computes what its weights say. A
            subclass or a custom function (attention_fn, qkv_dot_general) can change that.

    Raises:
        SpecError: the layer has normalize_qk or decode, which canonical weights can't express; the variables do not
            fit the layer; or, unless probe=False, the layer computes something else or can't be run (as under jit).
    """
    _refuse(layer, normalize_qk=False, decode=False)
    config, weights = LINEN.read(_arrays_of(variables), num_heads=layer.num_heads)
    _check_features("qkv_features", layer.qkv_features, config.num_heads * config.head_dim)
    _check_features("out_features", layer.out_features, config.output_dim)
    config = replace(config, dropout=layer.dropout_rate)
    if probe:
        live_probe.check_linen(layer, config, weights, variables)
    return config, weights


# flax.nnx ---------------------------------------------------------------------------------------------


def to_nnx(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: DTypeLike | None = None, **options: Any
) -> nnx.MultiHeadAttention:
    """Return a flax.nnx.MultiHeadAttention with these weights; its keys and values must have the same width.

    Raises:
        SpecError: key_dim and value_dim differ, or `to_linen` refuses the config or the weights.

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
    # Flax before 0.12 has no such argument: there, keys are as wide as queries.
    widths = {} if config.key_dim == config.query_dim else {"in_kv_features": config.key_dim}

    layer = nnx.MultiHeadAttention(
        num_heads=config.num_heads,
        in_features=config.query_dim,
        qkv_features=config.num_heads * config.head_dim,
        out_features=config.output_dim,
        dropout_rate=config.dropout,
        use_bias="query/bias" in arrays,
        param_dtype=param_dtype,
        # Nothing need be drawn: every kernel is replaced.
        **{"decode": False, "rngs": nnx.Rngs(0), "kernel_init": nnx.initializers.zeros, **widths, **options},
    )
    nnx.update(layer, nnx.State(_variables(arrays)["params"]))
    return layer


def from_nnx(layer: nnx.MultiHeadAttention, *, probe: bool = True) -> tuple[AttentionConfig, Weights]:
    """Return the config of an nnx layer, and its weights by canonical name, as read-only NumPy copies.

    `probe` and the errors are as in `from_linen`. The probe runs a copy of the layer.
    """
    _refuse(layer, normalize_qk=False, decode=False)
    params = trees.pure_dict(nnx.state(layer, nnx.Param))
    config, weights = NNX.read(flat_arrays(params), num_heads=layer.num_heads)
    _check_features("qkv_features", layer.qkv_features, config.num_heads * config.head_dim)
    _check_features("out_features", layer.out_features, config.output_dim)
    _check_features("in_features", layer.in_features, config.query_dim)
    for width in (config.key_dim, config.value_dim):
        _check_features("in_kv_features", getattr(layer, "in_kv_features", layer.in_features), width)
    config = replace(config, dropout=layer.dropout_rate)
    if probe:
        live_probe.check_nnx(layer, config, weights)
    return config, weights


# d2l.ai's -------------------------------------------------------------------------------------------


def to_d2l(
    config: AttentionConfig, weights: Mapping[str, NDArray], *, dtype: DTypeLike | None = None
) -> tuple[D2lMultiHeadAttention, Variables]:
    """Return d2l.ai's layer (see `backends.jax.native.d2l`), and the variables to apply it with.

    Raises:
        SpecError: `to_linen` refuses the weights; or a projection's output is not as wide as the layer (num_hiddens).
    """
    hiddens = one_width("d2l.ai's layer", config)
    arrays, param_dtype = _layer_arrays(D2L, config, weights, dtype)
    use_bias = "W_q/bias" in arrays
    layer = D2lMultiHeadAttention(hiddens, config.num_heads, config.dropout, use_bias, param_dtype)
    return layer, _variables(arrays)


def from_d2l(
    layer: D2lMultiHeadAttention, variables: Variables, *, probe: bool = True
) -> tuple[AttentionConfig, Weights]:
    """Return the config of d2l.ai's layer, and its weights by canonical name, as read-only NumPy copies.

    Args:
        layer, variables: as `layer.apply` takes them.
        probe: as in `from_linen`.

    Raises:
        SpecError: the variables do not fit the layer; or, unless probe=False, the layer computes something else, or
            can't be run.
    """
    config, weights = D2L.read(_arrays_of(variables), num_heads=layer.num_heads)
    for projection in PROJECTIONS:
        _check_features("num_hiddens", layer.num_hiddens, weights[f"{projection}.weight"].shape[0])
    config = replace(config, dropout=layer.dropout)
    if probe:
        live_probe.check_d2l(layer, config, weights, variables)
    return config, weights


MAKERS: dict[str, Callable[..., Any]] = {"linen": to_linen, "nnx": to_nnx, "d2l-jax": to_d2l}
"""Layout -> function that makes a layer of it; it returns (layer, variables) with linen, the layer with nnx."""


# Between ----------------------------------------------------------------------------------------------


def flat_arrays(tree: Any) -> dict[str, NDArray]:
    """Return name -> NumPy array, for a tree of parameters or of their gradients. Names are like "query/kernel"."""
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
    # JAX may keep the memory that it is given: `arrays` are copies to which there is no other reference.
    flat = {name: jnp.asarray(array) for name, array in arrays.items()}
    return {"params": unflatten_dict(flat, sep="/")}


def _arrays_of(variables: Variables) -> dict[str, NDArray]:
    if not variables.get("params"):
        raise SpecError("variables must hold the collection 'params', as layer.init returns it")
    return flat_arrays(variables["params"])


def _refuse(layer: Any, **wanted: Any) -> None:
    """SpecError if a field of the layer differs from `wanted`: weights and config could not express it."""
    for name, value in wanted.items():
        given = getattr(layer, name)
        if given not in (value, None):
            raise SpecError(f"{name} must be {value} in {type(layer).__name__}: weights can't tell it. Got {given!r}.")


def _check_features(name: str, declared: int | None, found: int) -> None:
    if declared is not None and declared != found:
        raise SpecError(f"{name} must be {found}, as the parameters have it. Got {declared}.")
