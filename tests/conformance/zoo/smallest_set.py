"""The fewest cases that kill every bug."""

from __future__ import annotations

SMALLEST_SET = (
    "valid-lens-as-many-items-as-queries",
    "valid-lens-as-many-items-as-keys",
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
    "query-key-norm-all",
    "query-key-norm-half-precision",
    "query-scale",
    "query-scale-positions",
    "query-scale-given",
    "chunked-bidirectional",
    "chunked-past",
    "chunked-window",
    "rotary",
    "rotary-tables",
    "rotary-llama3",
    "rotary-yarn",
    "rotary-longrope",
    "rotary-axes-interleaved",
    "clip-qkv-at-the-limit",
    "value-norm-past",
    "value-scale",
)
"""As `KillTable.smallest_set` found them; a test keeps them enough, and each of them needed."""
