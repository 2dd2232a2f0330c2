"""Query scale in JAX: the factors of a call, and the queries times them; see `mha_core.parts.query_scale`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax.typing import Dtype
from jax import Array

from backends.jax.ops.framework import numbers
from backends.jax.ops.masks import within
from mha_core.call.call import Call
from mha_core.call.checks import LONGEST
from mha_core.call.query_scale import counted_scale
from mha_core.call.rotary import check_not_negative
from mha_core.call.sizes import CallSizes
from mha_core.parts.query_scale import QueryScale


def query_factors(call: Call[Any], settings: QueryScale | None, *, dtype: Dtype) -> Array | None:
    """(Lq,) or (1 or B, Lq): the factor of each query.

    Args:
        call: as `placed` gives it, and checked.
        settings: those of the layer; None gives no factors.
        dtype: of the factors: that of projected queries, which a layer with a `dtype` casts.

    Raises:
        SpecError: a negative position, where its number can be read.
    """
    given = call.rotary
    if settings is None:
        return None
    if given is not None and given.query_scale is not None:
        return jnp.asarray(given.query_scale).astype(dtype)
    offset, query_len = call.mask.query_offset, call.queries.shape[-2]
    if given is not None and given.positions is not None:
        positions = given.positions
    elif isinstance(offset, int):
        return jnp.asarray(counted_scale(settings, offset, CallSizes(1, query_len, query_len)).astype(dtype))
    else:
        positions = offset
    known = numbers(positions)
    if known is not None:
        check_not_negative(known)
    assert settings.beta is not None
    assert settings.length is not None
    most = LONGEST - query_len - settings.shift  # so that no sum overflows where JAX has no int64
    index = within(positions, (0, most), is_checked=False)
    if given is None or given.positions is None:
        index = index.reshape(-1, 1) + jnp.arange(query_len)
    steps = (index + settings.shift) // settings.length
    wide = steps.astype(jnp.promote_types(dtype, jnp.float32))  # half precision is too coarse for a logarithm
    return (1.0 + settings.beta * jnp.log1p(wide)).astype(dtype)


def scale_queries(queries: Array, factors: Array | None) -> Array:
    """(B, H, Lq, d): each query times its factor; as they are without factors."""
    return queries if factors is None else queries * factors[..., None, :, None]
