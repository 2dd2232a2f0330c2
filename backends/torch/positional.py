"""Sinusoidal positions as a PyTorch module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mha_core.config import check_dropout
from mha_core.positions import check_positions, sinusoidal_positions


class PositionalEncoding(nn.Module):
    """Adds sinusoidal positions to (B, L, embed_dim), then drops out (see mha_core.sinusoidal_positions).

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
        table = torch.tensor(sinusoidal_positions(max_len, embed_dim), device=device)
        self.register_buffer("positions", table.to(dtype or torch.get_default_dtype()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, embed_dim) -> (B, L, embed_dim). SpecError if the sequence or its width does not fit."""
        max_len, embed_dim = self.positions.shape
        check_positions(x.shape[1], x.shape[2], embed_dim=embed_dim, max_len=max_len)
        return self.dropout(x + self.positions[: x.shape[1]])
