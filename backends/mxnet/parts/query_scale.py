"""Query scale in MXNet: the factors of a call, and the queries times them; see `mha_core.parts.query_scale`."""

from __future__ import annotations

from backends.mxnet.ops.framework import mx, numbers, to_array
from mha_core.call.call import Call
from mha_core.call.query_scale import counted_scale, scale_of_call
from mha_core.call.sizes import CallSizes
from mha_core.parts.query_scale import QueryScale


@mx.util.use_np
def query_factors(call: Call[mx.np.ndarray], settings: QueryScale | None) -> mx.np.ndarray | None:
    """(Lq,) or (1 or B, Lq): the factor of each query, in the dtype of the queries, in their context.

    Args:
        call: as `placed` gives it, and checked.
        settings: those of the layer; None gives no factors.

    Raises:
        SpecError: a negative position.
    """
    given, x, offset = call.rotary, call.queries, call.mask.query_offset
    if settings is None:
        return None
    if given is not None and given.query_scale is not None:
        return given.query_scale
    sizes = CallSizes(1, x.shape[-2], x.shape[-2])
    if isinstance(offset, int) and (given is None or given.positions is None):
        made = counted_scale(settings, offset, sizes)
    else:
        read = None if given is None else given.map_arrays(lambda _, array: numbers(array))
        made = scale_of_call(settings, read, numbers(offset), sizes)
    return to_array(made, x.dtype, x.ctx)


@mx.util.use_np
def scale_queries(queries: mx.np.ndarray, factors: mx.np.ndarray | None) -> mx.np.ndarray:
    """(B, H, Lq, d): each query times its factor; as they are without factors."""
    if factors is None or queries.size == 0:
        return queries
    return queries * (factors[None, :, None] if factors.ndim == 1 else factors[:, None, :, None])
