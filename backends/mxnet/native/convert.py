"""Gluon layers of others, and d2l.ai's: their weights, exact to the bit.

`to_native(config, weights, "mxnet-selfatt")` makes a layer, `from_native(layer)` reads one. How such a layer names
and packs its parameters stands in `mha_core.layouts`, not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from backends.mxnet.native import live_probe
from backends.mxnet.native.cells import DenseAttention, InterleavedEncDecAttention, InterleavedSelfAttention, legacy
from backends.mxnet.native.d2l import D2lMultiHeadAttention
from backends.mxnet.ops.framework import check_computes, mx, to_array, to_numpy
from mha_core import AttentionConfig, SpecError, check_weights, layouts
from mha_core.layouts import Layout
from mha_core.subject import one_width
from mha_core.weights import Weights, common_dtype

LAYOUTS = ("d2l-mxnet", "mxnet-selfatt", "mxnet-encdec")
"""The layouts that a Gluon block can have here."""


def to_native(
    config: AttentionConfig,
    weights: Mapping[str, NDArray],
    layout: str = "gluon",
    *,
    dtype: Any = None,
    ctx: mx.Context | None = None,
) -> mx.gluon.Block:
    """Return an initialised layer of the design `layout`, with copies of these weights.

    Args:
        config, weights: see `mha_core.AttentionConfig` and `mha_core.check_weights`. A layer that has one
            switch for several biases gets zeros for those that the config does not have.
        layout: "gluon" for Dense projections of any widths, "d2l-mxnet" for d2l.ai's layer, "mxnet-selfatt"
            and "mxnet-encdec" for the interleaved operators.
        dtype: the dtype of the parameters. Default: the dtype of the arrays.
        ctx: the context of the parameters. Default: the current context.

    Raises:
        SpecError: the layer can't hold these weights, or `layout` is unknown.
        BackendError: a dtype that MXNet does not compute in.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2, key_dim=5, value_dim=4)
    >>> to_native(config, init_weights(config, seed=0)).W_k.weight.shape
    (6, 5)
    """
    if layout not in MAKERS:
        raise SpecError(f"layout {layout!r} is of no layer in MXNet (there are: {', '.join(MAKERS)})")
    checked = check_weights(config, weights)
    arrays = layouts.get(LAYOUT_OF[layout]).write(config, checked)
    dtype = check_computes("weights", common_dtype(checked) if dtype is None else dtype)
    semantics: Callable[[Any], Any] = mx.util.use_np if layout == "d2l-mxnet" else legacy

    @semantics
    def make() -> mx.gluon.Block:
        block = MAKERS[layout](config, {name for name in arrays if name.endswith("bias")})
        block.cast(dtype)
        write_block(block, arrays, ctx=ctx)
        return block

    return make()


def from_native(
    layer: mx.gluon.Block, *, layout: str | None = None, num_heads: int | None = None, probe: bool = True
) -> tuple[AttentionConfig, Weights]:
    """Return the config of a Gluon block with a known layout, and its weights by canonical name, as read-only copies.

    The config has the sizes and the number of heads, and `dropout` if the layer has one.

    Args:
        layer: a block whose parameters have the names of a layout, such as W_q.weight.
        layout: one of LAYOUTS. Default: the one whose names the parameters have.
        num_heads: H. Default: the layer's own `num_heads`.
        probe: whether to check, by a few small calls in its own dtype, that the block computes what its weights say,
            since the names of parameters prove little. Hooks run too. The block is left as it was.

    Raises:
        SpecError: the parameters fit no layout, have no size yet, or are not finite; the number of heads is not known.
            Unless probe=False, also if the block computes something else, if its `forward` has other arguments than
            the layers here, or if it runs an interleaved operator in float64.

    >>> from mha_core import AttentionConfig, init_weights
    >>> config = AttentionConfig(6, 2, head_dim=5, bias={"q_proj": True, "k_proj": True, "v_proj": True})
    >>> layer = to_native(config, init_weights(config, seed=0), "mxnet-selfatt", dtype="float32")
    >>> from_native(layer)[0] == config
    True
    """
    found = layout_of(layer) if layout is None else layouts.get(layout)
    heads = getattr(layer, "num_heads", None) if num_heads is None else num_heads
    config, weights = found.read(read_block(layer), num_heads=heads)
    dropout = getattr(layer, "dropout", 0.0)
    config = replace(config, dropout=getattr(dropout, "_rate", dropout))
    if probe:
        live_probe.check_block(layer, config, weights)
    return config, weights


def layout_of(layer: mx.gluon.Block) -> Layout:
    """Return the Layout (names and shapes of the parameters) of a block. SpecError if no layout has these names.

    >>> layout_of(mx.gluon.nn.Dense(3, in_units=2))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: Dense has the parameters weight, bias, which are those of no layout here \
(there are: d2l-mxnet, mxnet-selfatt, mxnet-encdec)
    """
    names = list(_parameters(layer))
    for name in LAYOUTS:
        layout = layouts.get(name)
        if set(layout.required) <= set(names) <= {*layout.required, *layout.optional}:
            return layout
    raise SpecError(
        f"{type(layer).__name__} has the parameters {', '.join(names) or '(none)'}, which are those of no layout here "
        f"(there are: {', '.join(LAYOUTS)})"
    )


def read_block(layer: mx.gluon.Block) -> dict[str, NDArray]:
    """Return name -> array of each parameter of a block. SpecError if one has no size or no values yet."""
    arrays = {}
    for name, parameter in _parameters(layer).items():
        if parameter._data is None:
            raise SpecError(f"{name} has no values yet: initialise the layer, and call it once")
        arrays[name] = to_numpy(parameter.data())
    return arrays


def write_block(layer: mx.gluon.Block, arrays: Mapping[str, NDArray], *, ctx: mx.Context | None = None) -> None:
    """Set a block's parameters to these arrays, by name. The block is initialised first if it was not.

    The parameters become arrays of `mx.np` if `npx.is_np_array()`, else of `mx.nd`.
    """
    ctx = mx.current_context() if ctx is None else ctx
    for name, parameter in _parameters(layer).items():
        array = arrays[name]
        parameter.shape = array.shape
        # Zeros first: every other initialiser would draw from the global random state.
        parameter.initialize(init=mx.init.Zero(), ctx=ctx)
        values = to_array(array, parameter.dtype, ctx)
        parameter.set_data(values if mx.util.is_np_array() else values.as_nd_ndarray())


def parameter_gradients(layer: mx.gluon.Block) -> dict[str, NDArray]:
    """Return name -> gradient of each parameter of a block."""
    return {name: to_numpy(parameter.grad()) for name, parameter in _parameters(layer).items()}


def _parameters(layer: mx.gluon.Block) -> dict[str, mx.gluon.Parameter]:
    """The names that `save_parameters` writes, for which Gluon has no public function."""
    return layer._collect_params_with_prefix()


Maker = Callable[[AttentionConfig, set[str]], mx.gluon.Block]


def _d2l(config: AttentionConfig, biases: set[str]) -> mx.gluon.Block:
    hiddens = one_width("d2l.ai's layer", config)
    return D2lMultiHeadAttention(hiddens, config.num_heads, config.dropout, use_bias=bool(biases))


def _dense(config: AttentionConfig, biases: set[str]) -> mx.gluon.Block:
    if config.num_kv_heads != config.num_heads:
        raise SpecError(
            "a layer of Gluon Dense projections has as many key heads as query heads. "
            f"Got num_heads={config.num_heads}, num_kv_heads={config.num_kv_heads}."
        )
    keys, values = config.num_heads * config.head_dim, config.num_heads * config.value_head_dim
    return DenseAttention(
        (config.query_dim, config.key_dim, config.value_dim),
        (keys, keys, values, config.output_dim),
        config.num_heads,
        use_bias=bool(biases),
        dropout=config.dropout,
    )


def _self_attention(config: AttentionConfig, biases: set[str]) -> mx.gluon.Block:
    return InterleavedSelfAttention(
        config.query_dim,
        config.num_heads,
        units=config.num_heads * config.head_dim,
        output_width=config.output_dim,
        biases=("ff_in.bias" in biases, "ff_out.bias" in biases),
        dropout=config.dropout,
    )


def _encoder_decoder(config: AttentionConfig, biases: set[str]) -> mx.gluon.Block:
    return InterleavedEncDecAttention(
        (config.query_dim, config.key_dim),
        config.num_heads,
        units=config.num_heads * config.head_dim,
        output_width=config.output_dim,
        biases=("ff_q.bias" in biases, "ff_kv.bias" in biases, "ff_out.bias" in biases),
        dropout=config.dropout,
    )


MAKERS: dict[str, Maker] = {
    "gluon": _dense,
    "d2l-mxnet": _d2l,
    "mxnet-selfatt": _self_attention,
    "mxnet-encdec": _encoder_decoder,
}
"""Layout -> function that makes a layer of it without values."""

LAYOUT_OF = {name: "d2l-mxnet" if name == "gluon" else name for name in MAKERS}
"""Layout, or "gluon" for the layer of any widths -> the layout of its arrays."""
