"""The scores that a layer may have: a dot product, or the additive score with its parameters.

Each is called with queries and keys for all scores at once. The fast path takes its `operands`, and scores blocks of
them as `in_blocks` says.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from backends.torch.ops.attention import Score, additive_score, dot_score
from backends.torch.ops.framework import linear


@dataclass(frozen=True)
class DotScore:
    """A score function, q.k * scale: (B, H, Lq, d) and (B, G, Lk, d) -> (B, H, Lq, Lk)."""

    scale: float

    def __call__(self, queries: Tensor, keys: Tensor) -> Tensor:
        return dot_score(queries, keys, self.scale)

    def operands(self, queries: Tensor, keys: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return queries and parts of keys unchanged."""
        return queries, keys

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(self.scale)


class AdditiveScore(nn.Module):
    """A score function with parameters, w . tanh(A q + C k): (..., H, Lq, Dq), (..., G, Lk, Dk) -> (..., H, Lq, Lk)."""

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

    def operands(self, queries: Tensor, keys: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return A q (B, H, Lq, S), and a tuple with C k (B, G, L, S) for each array of keys. All blocks share them."""
        return self.query(queries), tuple(map(self.key, keys))

    def in_blocks(self) -> Score:
        """Return this score function as a `Score`, which can score one block of queries at a time."""
        return Score(vector=self.vector)
