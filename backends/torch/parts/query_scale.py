"""Query scale in PyTorch: the factors of a call, and the queries times them; see `mha_core.parts.query_scale`."""

from __future__ import annotations

import torch
from torch import Tensor

from backends.torch.ops.framework import constant_result, numbers
from mha_core.call.call import Call
from mha_core.call.query_scale import counted_scale
from mha_core.call.rotary import check_not_negative
from mha_core.call.sizes import CallSizes
from mha_core.parts.query_scale import QueryScale


def query_factors(call: Call[Tensor], settings: QueryScale | None) -> Tensor | None:
    """(Lq,) or (1 or B, Lq): the factor of each query, in the dtype of the queries, on their device.

    Args:
        call: as `placed` gives it, and checked.
        settings: those of the layer; None gives no factors.

    Raises:
        SpecError: a negative position, where its number can be read.
    """
    given, x = call.rotary, call.queries
    if settings is None:
        return None
    if given is not None and given.query_scale is not None:
        return given.query_scale
    offset, query_len = call.mask.query_offset, x.shape[-2]
    if given is not None and given.positions is not None:
        positions = given.positions
    elif isinstance(offset, int):
        return _counted(settings, offset, query_len).to(device=x.device, dtype=x.dtype)
    else:
        first = torch.as_tensor(offset, dtype=torch.int64, device=x.device)
        positions = first.reshape(-1, 1) + torch.arange(query_len, device=x.device)
    known = numbers(positions)
    if known is not None:
        check_not_negative(known)
    assert settings.beta is not None
    assert settings.length is not None
    steps = (positions.to(torch.int64).clamp(min=0) + settings.shift) // settings.length
    wide = steps.to(torch.promote_types(x.dtype, torch.float32))  # half precision is too coarse for a logarithm
    return (1.0 + settings.beta * torch.log1p(wide)).to(x.dtype)


def scale_queries(queries: Tensor, factors: Tensor | None) -> Tensor:
    """(B, H, Lq, d): each query times its factor; as they are without factors."""
    return queries if factors is None else queries * factors[..., None, :, None]


@constant_result
def _counted(settings: QueryScale, query_offset: int, query_len: int) -> Tensor:
    return torch.tensor(counted_scale(settings, query_offset, CallSizes(1, query_len, query_len)))
