"""The fewest cases that kill every bug."""

from __future__ import annotations

SMALLEST_SET = (
    "every-source",
    "dropout-off",
    "additive",
    "square-bias-per-head",
    "scores-shifted",
    "nan-in-open-key",
    "blocks-of-uneven-lengths",
    "softcap-windowed",
    "bare-capped",
    "unscaled-by-head",
    "query-key-norm-before",
    "query-key-norm-after",
    "query-key-norm-layer",
    "rotary-last-interleaved",
    "rotary-yarn",
    "rotary-axes-interleaved",
    "rotary-bare",
)
"""As `KillTable.smallest_set` found them; a test keeps them enough, and each of them needed."""
