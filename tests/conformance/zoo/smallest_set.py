"""The fewest cases that kill every bug."""

SMALLEST_SET = (
    "valid-lens-as-many-items-as-queries",
    "valid-lens-as-many-items-as-keys",
    "allowed",
    "every-source",
    "dropout-off",
    "square-bias-per-head",
    "scores-shifted",
    "softcap-additive",
    "blocks-of-uneven-lengths",
    "softcap-windowed",
    "nan-under-softcap",
    "bare-capped",
    "query-key-norm-before",
    "query-key-norm-after",
    "query-key-norm-layer",
    "rotary",
    "rotary-yarn",
    "rotary-axes-interleaved",
    "rotary-bare",
)
"""As `KillTable.smallest_set` found them; a test keeps them enough, and each of them needed."""
