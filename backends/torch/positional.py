"""Sinusoidal positions as a PyTorch module."""

import torch
from torch import Tensor, nn

from backends.torch.ops.framework import as_tensor, describe, dtype_name
from mha_core.call.positions import check_encoded, sinusoidal_positions
from mha_core.dtypes import check_dropout


class PositionalEncoding(nn.Module):
    """A layer that adds `mha_core.sinusoidal_positions` to x (B, L, embed_dim), and then applies dropout.

    It computes in the dtype of x. If `dtype` was given, x must have it.

    >>> import torch
    >>> PositionalEncoding(4)(torch.zeros(1, 2, 4))[0, 1]
    tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """

    positions: Tensor

    def __init__(
        self,
        embed_dim: int,
        dropout: float = 0.0,
        max_len: int = 1000,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(check_dropout(dropout))
        self._given_dtype = None if dtype is None else dtype_name(dtype)
        table = torch.tensor(sinusoidal_positions(max_len, embed_dim), device=device)
        self.register_buffer("positions", table.to(dtype or torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, L, embed_dim) plus positions, after dropout. SpecError if x is too long or has another width."""
        max_len, embed_dim = self.positions.shape
        x = as_tensor(x, self.positions.device)
        layer_dtype = None if self._given_dtype is None else dtype_name(self.positions.dtype)  # `to` may change it
        check_encoded(x, embed_dim=embed_dim, max_len=max_len, layer_dtype=layer_dtype, describe=describe)
        positions = self.positions[: x.shape[1]]
        if positions.dtype != x.dtype:  # from the exact table: rounded once
            positions = torch.tensor(sinusoidal_positions(x.shape[1], embed_dim)).to(x)
        return self.dropout(x + positions)
