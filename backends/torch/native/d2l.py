"""d2l.ai's layer: multi-head attention as in "Dive into Deep Learning", section 11.5, written anew.

It computes what the book's layer does, which differs from the definition: scores of padded keys are
overwritten with -1e6, so a row without a valid key averages all values.
(https://d2l.ai/chapter_attention-mechanisms-and-transformers/multihead-attention.html)
"""

import torch
from torch import Tensor, nn

from backends.torch.ops.heads import transpose_output, transpose_qkv

FILL = -1e6
"""The score that padded keys get."""


def masked_softmax(scores: Tensor, valid_lens: Tensor | None) -> Tensor:
    """Return the softmax of scores (N, Lq, Lk) over the keys. It masks keys j >= valid_lens, (N,) or (N, Lq), in place.

    >>> masked_softmax(torch.zeros(2, 1, 4), torch.tensor([2, 0]))[:, 0]
    tensor([[0.5000, 0.5000, 0.0000, 0.0000],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    if valid_lens is not None:
        lens = valid_lens[:, None] if valid_lens.ndim == 1 else valid_lens
        padded = torch.arange(scores.shape[-1], device=scores.device) >= lens[..., None]
        scores[padded.expand(scores.shape)] = FILL
    return torch.softmax(scores, dim=-1)


class D2lDotProductAttention(nn.Module):
    """Scaled dot-product attention over a batch that the heads are folded into; it stores the weights of its last call.

    >>> D2lDotProductAttention(0.0)(torch.ones(1, 2, 3), torch.ones(1, 4, 3), torch.ones(1, 4, 5)).shape
    torch.Size([1, 2, 5])
    """

    attention_weights: Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None) -> Tensor:
        """(N, Lq, d), (N, Lk, d), (N, Lk, dv) -> (N, Lq, dv)."""
        scores = torch.bmm(queries, keys.transpose(1, 2)) / queries.shape[-1] ** 0.5
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class D2lMultiHeadAttention(nn.Module):
    """Multi-head attention of width `num_hiddens`, whose only mask is valid_lens. The first call decides input widths.

    >>> layer = D2lMultiHeadAttention(100, 5, 0.5)
    >>> layer(torch.ones(2, 4, 100), torch.ones(2, 6, 100), torch.ones(2, 6, 100), torch.tensor([3, 2])).shape
    torch.Size([2, 4, 100])
    """

    def __init__(self, num_hiddens: int, num_heads: int, dropout: float, bias: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention = D2lDotProductAttention(dropout)
        self.W_q = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_k = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_v = nn.LazyLinear(num_hiddens, bias=bias)
        self.W_o = nn.LazyLinear(num_hiddens, bias=bias)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None) -> Tensor:
        """Return (B, Lq, num_hiddens) from (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv) and valid_lens (B,) or (B, Lq)."""
        split = (
            transpose_qkv(projection(x), self.num_heads)
            for projection, x in ((self.W_q, queries), (self.W_k, keys), (self.W_v, values))
        )
        lens = None if valid_lens is None else valid_lens.repeat_interleave(self.num_heads, dim=0)
        return self.W_o(transpose_output(self.attention(*split, lens), self.num_heads))
