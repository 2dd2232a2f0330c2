"""The fewest cases that kill every bug."""

from __future__ import annotations

SMALLEST_SET = (
    "window-zero",
    "every-source",
    "dropout-off",
    "additive",
    "square-bias-per-head",
    "square-dropout",
    "scores-shifted",
    "nan-in-open-key",
    "softcap",
    "blocks-of-uneven-lengths",
    "unscaled-by-head",
    "query-key-norm-before",
    "query-key-norm-after",
    "query-key-norm-half-precision",
    "rotary",
    "rotary-tables",
    "rotary-llama3",
    "rotary-yarn",
    "rotary-longrope",
    "rotary-axes-interleaved",
    "rotary-bare",
)
"""As `KillTable.smallest_set` found them; a test keeps them enough, and each of them needed."""
