"""Score functions, scales and dropout."""

from __future__ import annotations

import numpy as np

from conformance.cases.case import Case
from conformance.cases.parts import fixed, prime_config


def cases() -> list[Case]:
    """The cases of this topic, in the order of `mha cases`."""
    return [
        Case(
            "dropout",
            "weights dropped without rescaling, or shared by heads",
            prime_config(dropout=0.3),
            batch=4,
            mask=fixed(valid_lens=np.array([3, 7, 5, 0])),
            dropout=True,
        ),
        Case(
            "dropout-off",
            "dropout that acts, or rescales, outside training",
            prime_config(dropout=0.3),
            mask=fixed(valid_lens=np.array([3, 7])),
        ),
        Case("dot", "an unscaled score that is scaled all the same", prime_config(score="dot")),
        Case("scale", "a given scale ignored", prime_config(scale=0.5)),
        Case(
            "additive",
            "the additive score's matrices exchanged, or its tanh left out",
            prime_config(score="additive", score_dim=8),
            mask=fixed(valid_lens=np.array([5, 0])),
        ),
        Case(
            "additive-grouped",
            "grouped heads under an additive score",
            prime_config(num_heads=6, num_kv_heads=3, score="additive", score_dim=8),
        ),
    ]
