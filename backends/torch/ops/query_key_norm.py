"""Query-key norm as a PyTorch module; see `mha_core.parts.query_key_norm`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mha_core.parts.query_key_norm import Order, QueryKeyNorm, by_head, mean_axes

Unnormed = Callable[[Tensor, Order], Tensor]


def unnormed(x: Tensor, order: Order) -> Tensor:
    """Return x: a layer without a norm calls this in its place."""
    return x


class HeadNorm(nn.Module):
    """A norm of a layer's projected queries (`q_norm`) or keys (`k_norm`).

    Args:
        settings: the kind of norm, its eps and its place, before or after rotation.
        size: the shape of weight and bias, (d,) or (heads * d,); None without them.
        device, dtype: the device and the dtype of the parameters.
    """

    def __init__(
        self,
        settings: QueryKeyNorm,
        size: int | None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        weight = bias = None
        if size is not None:
            weight = nn.Parameter(torch.full((size,), settings.start, device=device, dtype=dtype))
            bias = nn.Parameter(torch.zeros(size, device=device, dtype=dtype)) if settings.bias else None
        self.register_parameter("weight", weight)
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor, order: Order) -> Tensor:
        """Return x (B, heads, L, d), normalized if `order` ("before" or "after" rotation) equals `settings.order`."""
        settings = self.settings
        if settings.order != order:
            return x
        axes = mean_axes(settings)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))  # half precision is too coarse for a mean of squares
        if settings.kind == "layer":
            exact = exact - exact.mean(axes, keepdim=True)
        eps = settings.eps_in(torch.finfo(exact.dtype).tiny)
        normed = exact * torch.rsqrt(exact.square().mean(axes, keepdim=True) + eps)
        if settings.product == "dtype":
            normed = normed.to(x.dtype)
        if self.weight is not None:
            normed = normed * (settings.offset + by_head(self.weight.to(normed.dtype), x.shape))
        if self.bias is not None:
            normed = normed + by_head(self.bias.to(normed.dtype), x.shape)
        return normed.to(x.dtype)
