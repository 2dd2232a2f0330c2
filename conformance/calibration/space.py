"""The space of calibration: whatever a correct implementation may meet, at odds that are written down here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from conformance.calibration.odds import odds, spread, spread_sizes
from conformance.calibration.parts import SPACE_OF_PARTS
from conformance.cases.assemble import STYLES
from conformance.cases.choices import Made, Space, lengths_up_to_all
from mha_core.config import PROJECTIONS

HEADS = (1, 2, 3, 4, 6, 8)
"""H, each as likely as the next; G is any of its divisors."""


_FACTORS = (*(1.0,) * 64, *spread(0.03, 20.0))
_STYLES = (*("normal",) * 28, *tuple(STYLES) * 3)  # Gaussian in 31 of 70


def _pairs_of_heads() -> tuple[tuple[int, int], ...]:
    """(G, H / G), as often as they are likely: the number of a head count's divisors divides 12."""
    pairs = []
    for heads in HEADS:
        divisors = [groups for groups in range(1, heads + 1) if heads % groups == 0]
        pairs += [(groups, heads // groups) for groups in divisors] * (12 // len(divisors))
    return tuple(sorted(pairs))


_PAIRS = _pairs_of_heads()


def _heads_of_a_group(made: Made) -> Sequence[int]:
    return [per_group for groups, per_group in _PAIRS if groups == made["G"]]


_BATCHES = {"short": range(1, 5), "many keys": (1,), "many queries": range(1, 9)}
_QUERIES = {"short": spread_sizes(24), "many keys": spread_sizes(4), "many queries": range(32, 129)}
_KEYS = {"short": spread_sizes(32), "many keys": range(128, 513), "many queries": spread_sizes(12)}


def _usual_offset(made: Made) -> Sequence[Any]:
    """The offset at which the last query stands at the last key, or the length of the past; or one per item."""
    return made.get("Lp", 0) or max(made["Lk"] - made["Lq"], 0), "per item"


WIDE: Space = {
    "G": tuple(groups for groups, _ in _PAIRS),
    "H/G": _heads_of_a_group,
    **dict.fromkeys(("d", "dv", "Dq", "Dk", "Dv", "Do"), spread_sizes(64)),
    "S": spread_sizes(16),
    "score": odds({"scaled_dot": 7, "dot": 1, "additive": 2}),
    "projections": odds({True: 19, False: 1}),
    "split": (False, True),
    **dict.fromkeys((f"{name}.bias" for name in PROJECTIONS), odds({False: 2, True: 3})),
    "scale": (*(None,) * 256, *spread(np.exp(-4.0), np.exp(1.0))),
    "dropout": odds({0.0: 17, 0.1: 2, 0.5: 1}),
    "lengths": odds({"short": 8, "many keys": 1, "many queries": 1}),
    "B": lambda made: _BATCHES[made["lengths"]],
    "Lq": lambda made: _QUERIES[made["lengths"]],
    "Lk": lambda made: _KEYS[made["lengths"]],
    "past": odds({False: 17, True: 3}),
    "Lp": lambda made: range(1, made["Lk"] + 1),
    "masked": odds({False: 1, True: 3}),
    "valid_lens": odds({None: 14, "per item": 3, "per query": 3}),
    "valid_lens.*": lengths_up_to_all,
    "allowed": odds({None: 6, "QK": 1, "BHQK": 1}),
    "allowed.share": (0.95, 0.7, 0.3),
    "lone": odds({None: 38, "Q": 1, "BQ": 1}),
    "bias": odds({None: 26, "HK": 7, "BHQK": 7}),
    "bias.style": _STYLES,
    "bias.excludes": (False,),  # excluding bias does it, with a bias and without
    "large bias": odds({None: 18, "Q": 1, "BHQ": 1}),
    "large bias.size": (1e3, -1e3),
    "excluding bias": odds({None: 18, "K": 1, "BQK": 1}),
    "causal": odds({False: 7, True: 3}),
    "window": odds({False: 17, True: 3}),
    "window.left": (None, 3),
    "window.right": (4, 2),
    "query_offset": _usual_offset,
    "query_offset.*": lambda made: range(-2, made["Lk"] + 1),
    "padding is NaN": (False,),
    "weights times": _FACTORS,
    "weights.style": _STYLES,
    "weights.seed": range(2**31),
    "biases times": (1.0, 1.0, 0.1, 30.0),
    "inputs times": _FACTORS,
    "cotangent times": (*(1.0,) * 64, *spread(1e-4, 1.0)),
    "style": (*(None,) * len(_STYLES), *_STYLES),  # one for all arrays in half of the problems
    "style of *": _STYLES,
    "seed": range(2**31),
    **SPACE_OF_PARTS,
}
"""What the problems of calibration are chosen from."""

OF_ONE_CALL = (
    *("valid_lens.", "query_offset.", "allowed.share", "bias.style", "large bias.size"),
    *("style", "inputs times", "cotangent times", "seed"),
)
"""How the names of those choices begin that differ between the calls of a layer; it has the others once for all."""
