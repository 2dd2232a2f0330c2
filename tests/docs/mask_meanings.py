"""What each framework's mask means, measured, and in the words of docs/masks.md.

One head, queries of zeros, values that are the unit vectors, projections that change nothing: every key that a query
may attend to gets the same weight, and the output is the weights.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

OPEN = np.array([[True, False, True], [True, True, False]])
"""A mask of two queries and three keys."""

EMPTY = np.array([[False, False, False], [True, True, True]])
"""The same with a query that may attend to nothing, where True means that it may."""

Ask = Callable[[NDArray | None, bool], Any]
"""Mask (2, 3), bool or float, and whether the layer is told to be causal -> the weights (2, 3) that it used."""


def unit() -> tuple[NDArray, NDArray, NDArray]:
    """Queries (1, 2, 3), keys and values (1, 3, 3)."""
    return np.zeros((1, 2, 3), "float32"), np.zeros((1, 3, 3), "float32"), np.eye(3, dtype="float32")[None]


def torch_mha() -> Ask:
    """`torch.nn.MultiheadAttention`, attn_mask."""
    import torch

    layer = torch.nn.MultiheadAttention(3, 1, bias=False, batch_first=True).eval()
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.eye(3).repeat(3, 1))
        layer.out_proj.weight.copy_(torch.eye(3))

    def ask(mask: NDArray | None, causal: bool) -> Any:
        given = None if mask is None else torch.tensor(mask)
        if causal:
            return None  # is_causal is a hint about a mask that must be given all the same
        with torch.no_grad():
            return layer(*map(torch.tensor, unit()), attn_mask=given)[0][0].numpy()

    return ask


def torch_sdpa() -> Ask:
    """`torch.nn.functional.scaled_dot_product_attention`, attn_mask."""
    import torch

    def ask(mask: NDArray | None, causal: bool) -> Any:
        given = None if mask is None else torch.tensor(mask)
        queries, keys, values = (torch.tensor(array)[:, None] for array in unit())
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(queries, keys, values, attn_mask=given, is_causal=causal)[0, 0].numpy()

    return ask


def keras_mha() -> Ask:
    """`keras.layers.MultiHeadAttention`, attention_mask."""
    import keras

    layer = keras.layers.MultiHeadAttention(1, 3, use_bias=False)
    layer.build((1, 2, 3), (1, 3, 3), (1, 3, 3))
    layer.set_weights([np.eye(3, dtype="float32").reshape(weight.shape) for weight in layer.get_weights()])

    def ask(mask: NDArray | None, causal: bool) -> Any:
        queries, keys, values = unit()
        given = None if mask is None else mask[None]
        return np.asarray(layer(queries, values, keys, attention_mask=given, use_causal_mask=causal))[0]

    return ask


def linen_mha() -> Ask:
    """`flax.linen.MultiHeadDotProductAttention`, mask."""
    import flax.linen as nn
    import jax

    layer = nn.MultiHeadDotProductAttention(num_heads=1, use_bias=False)
    drawn = layer.init(jax.random.key(0), *unit())
    weights = jax.tree.map(lambda array: np.eye(3, dtype="float32").reshape(array.shape), drawn)

    def ask(mask: NDArray | None, causal: bool) -> Any:
        given = None if mask is None else mask[None, None]
        return None if causal else np.asarray(layer.apply(weights, *unit(), mask=given))[0]

    return ask


def nnx_mha() -> Ask:
    """`flax.nnx.MultiHeadAttention`, mask."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    layer = nnx.MultiHeadAttention(1, 3, use_bias=False, decode=False, rngs=nnx.Rngs(0))
    state = nnx.state(layer, nnx.Param)
    nnx.update(layer, jax.tree.map(lambda array: np.eye(3, dtype="float32").reshape(array.shape), state))

    def ask(mask: NDArray | None, causal: bool) -> Any:
        given = None if mask is None else jnp.asarray(mask[None, None])
        queries, keys, values = map(jnp.asarray, unit())
        return None if causal else np.asarray(layer(queries, keys, values, mask=given))[0]

    return ask


def jax_nn() -> Ask:
    """`jax.nn.dot_product_attention`, mask."""
    import jax

    def ask(mask: NDArray | None, causal: bool) -> Any:
        given = None if mask is None else mask[None, None]
        queries, keys, values = (array[:, :, None] for array in unit())
        return np.asarray(jax.nn.dot_product_attention(queries, keys, values, mask=given, is_causal=causal))[0, :, 0]

    return ask


def mxnet_softmax() -> Ask:
    """`mx.npx.softmax`, the only one of MXNet 1.9 that excludes anything: lengths, no mask."""
    from backends.mxnet.ops.framework import mx

    def ask(mask: NDArray | None, causal: bool) -> Any:
        if causal or mask is None or mask.any(axis=-1).all():
            return None
        length = mx.np.array(mask.sum(axis=-1), dtype="int32")
        return mx.npx.softmax(mx.np.zeros((2, 3)), axis=-1, length=length, use_length=True).asnumpy()

    return ask


def ours(name: str) -> Ask:
    """`backends.NAME`, `allowed`."""
    from mha_core import AttentionConfig, AttentionInputs, AttentionMask
    from mha_core.backend import load

    eye = np.eye(3, dtype="float32")
    weights = {f"{part}.weight": eye for part in ("q_proj", "k_proj", "v_proj", "out_proj")}
    run = load(name).prepare(AttentionConfig(embed_dim=3, num_heads=1), weights, dtype="float32")

    def ask(mask: NDArray | None, causal: bool) -> Any:
        given: dict[str, Any] = {} if mask is None else {"allowed" if mask.dtype == bool else "bias": mask}
        output = run(AttentionInputs(*unit(), mask=AttentionMask(causal=causal, **given))).output
        return None if output is None else output[0]

    return ask


SUBJECTS: dict[str, tuple[str, str, str, Callable[[], Ask]]] = {
    **{
        name: (f"`backends.{name}`", "`allowed`, `bias`", name, partial(ours, name))
        for name in ("torch", "tf", "jax", "mxnet")
    },
    "torch-mha": ("`torch.nn.MultiheadAttention`", "`attn_mask`", "torch", torch_mha),
    "torch-sdpa": ("`torch` `scaled_dot_product_attention`", "`attn_mask`", "torch", torch_sdpa),
    "keras-mha": ("`keras.layers.MultiHeadAttention`", "`attention_mask`", "tf", keras_mha),
    "linen-mha": ("`flax.linen.MultiHeadDotProductAttention`", "`mask`", "jax", linen_mha),
    "nnx-mha": ("`flax.nnx.MultiHeadAttention`", "`mask`", "jax", nnx_mha),
    "jax-nn": ("`jax.nn.dot_product_attention`", "`mask`", "jax", jax_nn),
    "mxnet-softmax": ("`mx.npx.softmax`", "`length`", "mxnet", mxnet_softmax),
}
"""Id -> what is called, its argument, its framework, and what asks it. Ours first."""


def attended(weights: Any) -> str:
    """Which keys got a weight, row by row: "101 110"; and rows that are NaN or all 0 in words.

    >>> attended(np.array([[0.5, 0, 0.5], [0, 0, 0]])), attended(np.array([[np.nan] * 3]))
    ('101 000', 'NaN')
    """
    return " ".join("NaN" if np.isnan(row).any() else "".join(str(int(w > 0)) for w in row) for row in weights)


def measured(ask: Ask) -> dict[str, str]:
    """What a layer does with each kind of mask; "-" where it has no such argument, or the error."""
    true = answer(ask, OPEN)
    empty = ~EMPTY if true == attended(~OPEN) else EMPTY
    return {
        "bool": true,
        "float": answer(ask, np.where(OPEN, np.float32(0), np.float32(-1e9))),
        "empty": answer(ask, empty),
        "causal": answer(ask, None, causal=True),
    }


def answer(ask: Ask, mask: NDArray | None, *, causal: bool = False) -> str:
    """What `attended` says of the weights, or the kind of the error."""
    try:
        weights = ask(mask, causal)
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error).__name__
    return "-" if weights is None else attended(weights)


TRUE_ATTENDS, TRUE_IGNORES = attended(OPEN), attended(~OPEN)

WORDS = {
    "bool": {TRUE_ATTENDS: "attend", TRUE_IGNORES: "**ignore**", "-": "takes lengths alone"},
    "float": {
        TRUE_ATTENDS: "added to the scores",
        TRUE_IGNORES: "**taken for False and True**: the mask is inverted",
        "ValueError": "refused",
        "-": "takes lengths alone",
    },
    "empty": {"000 111": "weights 0", "NaN 111": "**NaN**", "111 111": "**attends to all keys**"},
    "causal": {"100 110": "query 0 sees key 0 alone: top-left", "110 111": "bottom-right", "-": "none of its own"},
}
"""What was measured -> what it means; anything else fails."""


def in_words(name: str) -> str:
    """The row of the page on one layer."""
    layer, argument, _, asked = SUBJECTS[name]
    found = measured(asked())
    ours = ("all four `backends`", argument) if layer.startswith("`backends.") else (layer, argument)
    return f"| {' | '.join([*ours, *(words[found[kind]] for kind, words in WORDS.items())])} |"
