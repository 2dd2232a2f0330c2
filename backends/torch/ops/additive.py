"""The additive score as a PyTorch module with its parameters, for attention with heads or without."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from backends.torch.ops.attention import additive_score
from backends.torch.ops.framework import linear


class AdditiveScore(nn.Module):
    """w . tanh(A q + C k): (..., H, Lq, Dq) and (..., G, Lk, Dk) -> (..., H, Lq, Lk)."""

    def __init__(
        self,
        query_dim: int | None,
        key_dim: int | None,
        score_dim: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.query = linear(query_dim, score_dim, False, device=device, dtype=dtype)
        self.key = linear(key_dim, score_dim, False, device=device, dtype=dtype)
        self.vector = nn.Parameter(torch.empty(score_dim, device=device, dtype=dtype))
        # As nn.Linear(score_dim, 1) draws its weight.
        nn.init.uniform_(self.vector, -(score_dim**-0.5), score_dim**-0.5)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return additive_score(self.query(queries), self.key(keys), self.vector)
