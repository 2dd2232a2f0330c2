"""Probes: small runs that show where JAX and Flax differ from the definition, where no case of the suite can.

Each returns a sentence of what was seen, or None if it does not happen in the versions installed. The
table `deviations.toml` beside this names them.
"""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from backends.jax.native.d2l import masked_softmax
from backends.jax.ops.framework import device_of, scope

HEADS, WIDTH = 2, 6
"""Number of heads and width of the layers in this file."""


def linen_additive_mask() -> str | None:
    """flax.linen reads an additive mask, 0 or -1e9, as bool, and so excludes the keys that were to be open."""
    return _inverted(lambda x, mask: nn.dot_product_attention(x, x, x, mask=mask, deterministic=True))


def nnx_additive_mask() -> str | None:
    """flax.nnx reads an additive mask, 0 or -1e9, as bool, and so excludes the keys that were to be open."""
    return _inverted(lambda x, mask: nnx.dot_product_attention(x, x, x, mask=mask))


def _inverted(attend: Callable[[Array, Array], Array]) -> str | None:
    x = _normal(1, 3, HEADS, 4)
    additive = jnp.asarray([[[[0.0, 0.0, -1e9]]]])
    given, meant, inverted = (attend(x, mask) for mask in (additive, additive == 0.0, additive != 0.0))
    if not (given == inverted).all():
        return None
    same = "mask=[0, 0, -1e9] gives bit for bit what [False, False, True] gives"
    return f"{same}, {_far(given, meant):.2g} off what it means"


def jax_infinite_bias_row() -> str | None:
    """A bias of -inf on all keys of a query, in jax.nn.dot_product_attention."""
    x, excluded = _normal(1, 3, HEADS, 4), jnp.asarray([False, True, False])[None, None, :, None]
    by_bias = jax.nn.dot_product_attention(x, x, x, bias=jnp.where(excluded, -jnp.inf, jnp.zeros((1, 1, 3, 3))))
    by_mask = jax.nn.dot_product_attention(x, x, x, mask=jnp.broadcast_to(~excluded, (1, 1, 3, 3)))
    if not jnp.isnan(by_bias[:, 1]).all() or not _far(by_mask[:, 1], x.mean(axis=1)) < 1e-6:
        return None
    return "bias=-inf on a whole row gives NaN, mask=False on the same row the mean of the values; neither gives 0"


def jax_query_lengths_alone() -> str | None:
    """query_seq_lengths without key_value_seq_lengths, in jax.nn.dot_product_attention."""
    x, lens = _normal(1, 3, HEADS, 4), jnp.asarray([2], jnp.int32)
    alone = jax.nn.dot_product_attention(x, x, x, query_seq_lengths=lens)[:, 2]
    both = jax.nn.dot_product_attention(x, x, x, query_seq_lengths=lens, key_value_seq_lengths=jnp.full_like(lens, 3))
    if not alone.any() or both[:, 2].any():
        return None
    return f"a query beyond its length gets {_largest(alone):.3g} (the mean of all values), and 0 if both are given"


def jax_mask_of_three_axes() -> str | None:
    """A mask of three axes on as many items as heads, in jax.nn.dot_product_attention."""
    x = _normal(HEADS, 3, HEADS, 4)
    mask = jnp.ones((HEADS, 3, 3), bool).at[0, :, 2].set(False)
    given = jax.nn.dot_product_attention(x, x, x, mask=mask)
    per_head = jax.nn.dot_product_attention(x, x, x, mask=mask[None])
    if _far(given, per_head) > 0.0:
        return None
    per_item = jax.nn.dot_product_attention(x, x, x, mask=mask[:, None])
    return f"a mask (B, Lq, Lk) is one for each head; as one for each item it would be {_far(given, per_item):.3g} away"


def jax_finite_fill() -> str | None:
    """Finite biases below what jax.nn.dot_product_attention writes over excluded scores."""
    return _outscored(lambda x, mask, bias: jax.nn.dot_product_attention(x, x, x, bias, mask), -3e38)


def linen_finite_fill() -> str | None:
    """Finite biases as low as what flax.linen.dot_product_attention writes over excluded scores."""
    lowest = float(jnp.finfo(jnp.float32).min)
    return _outscored(lambda x, mask, bias: nn.dot_product_attention(x, x, x, bias, mask, deterministic=True), lowest)


def _outscored(attend: Callable[[Array, Array, Array], Array], low: float) -> str | None:
    x, allowed = _normal(1, 3, HEADS, 4), jnp.asarray([True, False, False])[None, None, None]
    heads = attend(x, jnp.broadcast_to(allowed, (1, 1, 3, 3)), jnp.full((1, 1, 3, 3), low))
    wanted = jnp.broadcast_to(x[:, :1], x.shape)
    if _far(heads, wanted) < 1e-3:
        return None
    return f"with a bias of {low:.4g}, keys that the mask excludes get weight: heads are {_far(heads, wanted):.2g} off"


def jax_float16_compiled() -> str | None:
    """float16 in jax.nn.dot_product_attention: by itself, and under jax.jit."""
    x = _normal(1, 3, HEADS, 4).astype(jnp.float16)
    by_itself = jax.nn.dot_product_attention(x, x, x)
    try:
        jax.jit(jax.nn.dot_product_attention)(x, x, x)
    except ValueError as error:
        return f"{by_itself.dtype} op by op; under jax.jit ValueError: {str(error).splitlines()[0]}"
    return None


def linen_dropout_shared() -> str | None:
    """The keep-mask that flax.linen draws."""
    x = jnp.ones((3, 4, HEADS, 4))
    options: dict[str, Any] = {"dropout_rng": jax.random.key(0), "dropout_rate": 0.5, "deterministic": False}
    kept = nn.dot_product_attention_weights(x, x, **options) != 0.0
    if not (kept == kept[:1, :1]).all():
        return None
    return f"one keep-mask for all {kept.shape[0]} items and {kept.shape[1]} heads (broadcast_dropout=True)"


def linen_half_softmax() -> str | None:
    """The dtype of flax.linen's softmax on bfloat16 inputs."""
    queries, keys = _normal(1, 5, HEADS, 8).astype(jnp.bfloat16), _normal(1, 3000, HEADS, 8).astype(jnp.bfloat16)
    own, wide = (
        nn.dot_product_attention_weights(queries, keys, deterministic=True, force_fp32_for_softmax=force)
        for force in (False, True)
    )
    error, wide_error = (_largest(weights.astype(jnp.float32).sum(axis=-1) - 1.0) for weights in (own, wide))
    if error < 100 * wide_error:
        return None
    return f"weights over 3000 keys in bfloat16 sum to 1 within {error:.2g}; {wide_error:.2g} with a float32 softmax"


def nnx_dropout_rate_changes_arithmetic() -> str | None:
    """dropout_rate=0.1 with deterministic=True, against dropout_rate=0, in flax.nnx."""
    with scope("float64", device_of("cpu")):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 5, WIDTH)))
        plain, inactive = (_nnx(rate, dtype=jnp.float64)(x, deterministic=True) for rate in (0.0, 0.1))
        far = _far(plain, inactive)
    if far < 1e-12:
        return None
    return f"dropout_rate=0.1, switched off, changes float64 outputs by {far:.2g} against dropout_rate=0"


def nnx_precision_ignored() -> str | None:
    """precision="highest" in flax.nnx.MultiHeadAttention: which matrix products get it."""

    def count(dropout_rate: float) -> tuple[int, int]:
        graph, state = nnx.split(_nnx(dropout_rate, precision="highest"))
        traced = jax.make_jaxpr(lambda state, x: nnx.merge(graph, state)(x, deterministic=True))
        program = str(traced(state, _inputs()))
        return program.count("(Precision.HIGHEST, Precision.HIGHEST)"), program.count("dot_general[")

    (few, products), (every, _) = count(0.0), count(0.1)
    if few == every:
        return None
    return f"precision='highest' reaches {few} of {products} matrix products, and {every} with a dropout_rate"


def nnx_causal_with_padding() -> str | None:
    """is_causal=True with a padding mask (B, 1, 1, Lk), in flax.nnx.MultiHeadAttention."""
    layer: Any = _nnx(0.0)
    if not _takes_is_causal(layer):
        return None
    x = _inputs()
    mask = jnp.ones((1, 1, 1, x.shape[1]), bool)
    layer(x, mask=mask, is_causal=True)  # this way it works
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of sowing, from flax 0.12.6 on
            layer(x, mask=mask, is_causal=True, sow_weights=True)
    except ValueError as error:
        return f"fine by itself; with sow_weights=True ValueError: {str(error).splitlines()[0]}"
    return None


def nnx_causal_decoding() -> str | None:
    """is_causal=True while decoding step by step, in flax.nnx.MultiHeadAttention."""
    layer: Any = _nnx(0.0, decode=True)
    if not _takes_is_causal(layer):
        return None
    x, steps = _inputs(), {}
    for causal in (False, True):
        layer.init_cache(x.shape)
        steps[causal] = jnp.concatenate([layer(x[:, i : i + 1], is_causal=causal) for i in range(x.shape[1])], axis=1)
    full = layer(x, is_causal=True, decode=False)
    if _far(steps[True], full) < 1e-5 or _far(steps[False], full) > 1e-5:
        return None
    far = f"{_far(steps[True], full):.2g} off the full pass, 0 without is_causal"
    return f"each step attends to the first key alone: {far}"


def nnx_full_cache() -> str | None:
    """A step more than the cache of flax.nnx.MultiHeadAttention has positions."""
    layer, x = _nnx(0.0, decode=True), _inputs()
    layer.init_cache((1, 4, WIDTH))
    for at in range(5):
        step = layer(x[:, at : at + 1])
    layer.init_cache((1, 5, WIDTH))
    for at in (0, 1, 2, 4):
        without = layer(x[:, at : at + 1])
    if _far(step, without) > 1e-5:
        return None
    return f"a fifth step with a cache of 4 gives what it gives without the fourth, to within {_far(step, without):.1g}"


def d2l_low_scores() -> str | None:
    """Scores below -1e6, in d2l.ai's softmax."""
    weights = masked_softmax(jnp.asarray([[[-3e6, -3e6, 0.0]]]), jnp.asarray([2]))
    if not weights[0, 0, 2] > 0.0:
        return None
    return f"two allowed keys that score -3e6 get {weights[0, 0, 0]:.3g} each, the excluded one {weights[0, 0, 2]:.3g}"


def d2l_half_precision() -> str | None:
    """A valid length of 0 in float16, in d2l.ai's softmax."""
    half, single = (masked_softmax(jnp.zeros((1, 1, 4), dtype), jnp.asarray([0])) for dtype in ("float16", "float32"))
    if not jnp.isnan(half).all() or jnp.isnan(single).any():
        return None
    return f"a valid length of 0 gives weights {single[0, 0, 0]} in float32 and NaN in float16, where -1e6 is -inf"


def flax_initializer() -> str | None:
    """How flax.linen.MultiHeadDotProductAttention draws its weights: by lecun_normal, not uniformly."""
    width = 128
    layer = nn.MultiHeadDotProductAttention(HEADS)
    kernel = layer.init(jax.random.key(0), jnp.ones((1, 1, width)))["params"]["query"]["kernel"]
    bound = (6.0 / (2 * width)) ** 0.5
    beyond = float((jnp.abs(kernel) > bound).mean())
    if not beyond:
        return None
    return f"{100 * beyond:.2g} % of a fresh query kernel lie beyond {bound:.3g}, the most that the definition draws"


def jax_narrows_float64() -> str | None:
    """float64 arrays outside a scope with 64-bit types, in flax.linen.MultiHeadDotProductAttention."""
    layer, x = nn.MultiHeadDotProductAttention(HEADS), np.ones((1, 3, WIDTH))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        output, _ = layer.init_with_output(jax.random.key(0), x)
    if output.dtype == np.float64 or said:
        return None
    return f"inputs of {x.dtype} give an output of {output.dtype}, without a warning"


def _nnx(dropout_rate: float, *, dtype: Any = jnp.float32, **options: Any) -> nnx.MultiHeadAttention:
    options = {"decode": False, **options}
    return nnx.MultiHeadAttention(
        HEADS, WIDTH, dropout_rate=dropout_rate, param_dtype=dtype, rngs=nnx.Rngs(0), **options
    )


def _takes_is_causal(layer: nnx.MultiHeadAttention) -> bool:
    return "is_causal" in inspect.signature(layer.__call__).parameters


def _normal(*shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def _largest(array: Array) -> float:
    return float(jnp.abs(array).max())


def _far(one: Array, other: Array) -> float:
    return _largest(one - other)


def _inputs() -> Array:
    """(1, 5, WIDTH)."""
    return _normal(1, 5, WIDTH)
