"""The fewest cases that kill every bug."""

from __future__ import annotations

SMALLEST_SET = (
    "window-zero",
    "every-source",
    "dropout-off",
    "dot",
    "scale",
    "additive",
    "square-bias-per-head",
    "square-dropout",
    "scores-shifted",
    "nan-in-open-key",
    "softcap",
    "heads-given-split",
    "blocks-of-uneven-lengths",
    "decoding-step-in-parts",
)
"""As `KillTable.smallest_set` found them; a test keeps them enough, and each of them needed."""
