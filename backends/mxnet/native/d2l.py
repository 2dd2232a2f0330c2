"""d2l.ai's layer: multi-head attention of "Dive into Deep Learning", section 11.5, anew.

It computes what the book's MXNet tab does, which differs from the definition: scores of padded keys are
overwritten with -1e6, so a row without a valid key averages all values.
(https://d2l.ai/chapter_attention-mechanisms-and-transformers/multihead-attention.html)
"""

from typing import Any

from backends.mxnet.ops.framework import mx
from backends.mxnet.ops.heads import transpose_output, transpose_qkv

FILL = -1e6
"""The score that padded keys get."""


@mx.util.use_np
def masked_softmax(scores: mx.np.ndarray, valid_lens: mx.np.ndarray | None) -> mx.np.ndarray:
    """Return the softmax of scores (N, Lq, Lk) over the keys. Keys j >= valid_lens, (N,) or (N, Lq), are masked.

    >>> weights = masked_softmax(mx.np.zeros((2, 1, 4)), mx.np.array([2, 0]))
    >>> weights[:, 0].asnumpy().tolist()
    [[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]
    """
    if valid_lens is None:
        return mx.npx.softmax(scores)
    shape = scores.shape
    lens = valid_lens.repeat(shape[1]) if valid_lens.ndim == 1 else valid_lens.reshape(-1)
    filled = mx.npx.sequence_mask(scores.reshape(-1, shape[-1]), lens, True, value=FILL, axis=1)
    return mx.npx.softmax(filled).reshape(shape)


@mx.util.use_np
class D2lMultiHeadAttention(mx.gluon.Block):
    """Multi-head attention of width `num_hiddens`, whose only mask is valid_lens. The first call decides input widths.

    It stores the queries, scores, weights and heads of its last call, each with the heads folded into the batch.

    >>> layer = D2lMultiHeadAttention(100, 5, 0.5)
    >>> layer.initialize()
    >>> x = mx.np.ones((2, 4, 100))
    >>> layer(x, x, x, mx.np.array([3, 2])).shape
    (2, 4, 100)
    """

    def __init__(self, num_hiddens: int, num_heads: int, dropout: float, use_bias: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.shown: dict[str, mx.np.ndarray] = {}
        self.dropout = mx.gluon.nn.Dropout(dropout)
        for name in ("W_q", "W_k", "W_v", "W_o"):
            setattr(self, name, mx.gluon.nn.Dense(num_hiddens, use_bias=use_bias, flatten=False))

    def forward(
        self, queries: mx.np.ndarray, keys: mx.np.ndarray, values: mx.np.ndarray, valid_lens: mx.np.ndarray | None
    ) -> mx.np.ndarray:
        """Return (B, Lq, num_hiddens) from (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv) and valid_lens (B,) or (B, Lq)."""
        projected = (self.W_q(queries), self.W_k(keys), self.W_v(values))
        split = [transpose_qkv(x, self.num_heads) for x in projected]
        if valid_lens is not None:
            valid_lens = valid_lens.repeat(self.num_heads, axis=0)
        scores = mx.npx.batch_dot(split[0], split[1], transpose_b=True) / split[0].shape[-1] ** 0.5
        weights = masked_softmax(scores, valid_lens)
        heads = mx.npx.batch_dot(self.dropout(weights), split[2])
        self.shown = {"queries": split[0], "scores": scores, "weights": weights, "heads": heads}
        return self.W_o(transpose_output(heads, self.num_heads))
