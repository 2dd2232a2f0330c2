"""The space of calibration: whatever a correct implementation may meet, at odds that are written down here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conformance.cases.assemble import STYLES
from conformance.cases.choices import (
    RULES_OF_CASES,
    Made,
    Space,
    even_widths,
    lengths_up_to_all,
    ways_to_stand,
    weights_of_scope,
)
from conformance.cases.drawn.query_scale import scales_of
from mha_core.config import PROJECTIONS

HEADS = (1, 2, 3, 4, 6, 8)
"""H, each as likely as the next; G is any of its divisors."""


def odds(parts: Mapping[Any, int]) -> tuple[Any, ...]:
    """Options, each as often as its number says.

    >>> odds({False: 3, True: 1})
    (False, False, False, True)
    """
    return tuple(option for option, times in parts.items() for _ in range(times))


def spread_sizes(most: int) -> tuple[int, ...]:
    """1..most, repeated so that each order of magnitude is as likely as the next.

    >>> sizes = spread_sizes(64)
    >>> sizes[0], sizes[-1], len(set(sizes)), round(sum(size < 8 for size in sizes) / len(sizes), 1)
    (1, 64, 64, 0.5)
    """
    places = (np.arange(512) + 0.5) / 512
    return tuple(int(size) for size in np.exp(places * np.log(most + 1.0)))


def spread(least: float, most: float) -> tuple[float, ...]:
    """64 numbers from least to most, each order of magnitude as likely as the next."""
    return tuple(float(number) for number in np.geomspace(least, most, 64))


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


def _ways_to_stand(made: Made) -> Sequence[str]:
    """What calls say of positions; offsets by item, which differ from call to call, may be negative."""
    return [way for way in ways_to_stand(made) if not (way == "counted" and made.get("query_offset") == "per item")]


def _scales(made: Made) -> Sequence[Any]:
    """None in 8 of 11, as rules need it; offsets by item differ from call to call, and may be negative."""
    known = scales_of(made)
    if not made.get("rotary") and made.get("query_offset") == "per item":
        known = (None, "given")
    return (None,) * 7 + tuple(known)


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
    "softcap": (*(None,) * 363, *spread(0.01, 1000.0)),  # in 15 of 100, from far below to far above the scores
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
    "rotary": odds({False: 7, True: 3}),
    "rotary.width": even_widths,
    "rotary.interleaved": (False, True),
    "rotary.start": odds({"first": 3, "last": 1}),
    "rotary.base": (10000.0, 500000.0, 10.0),
    "rotary.rule": (*(None,) * 6, *RULES_OF_CASES),
    "rotary.sections": odds({None: 6, "in a row": 1, "in turn": 1}),
    "rotary.given": _ways_to_stand,
    "rotary.reach": (20, 300, 5000, 2**17),
    "norm": odds({None: 7, "rms": 2, "layer": 1}),
    "norm.scope": odds({"head": 3, "all": 1}),
    "norm.weight": weights_of_scope,
    "norm.order": ("before", "after"),
    "norm.eps": (1e-6, 1e-5, *spread(1e-8, 1.0)),
    "norm.offset": (0, 1),
    "norm.bias": odds({False: 2, True: 1}),
    "query scale": _scales,
    "query scale.beta": (0.1, *spread(0.01, 2.0), -0.3),
    "query scale.length": (1, 3, 16, 100, 8192),
    "chunk": odds({None: 8, 3: 1, 16: 1, 1: 1}),
    "chunk.start": ("at 0", "elsewhere", "per item"),
    "clip": (*(None,) * 120, *spread(0.03, 30.0)),
    "value norm": (*(None,) * 120, *spread(1e-8, 1.0)),
    "value scale": (*(None,) * 200, *spread(0.1, 10.0), -0.7, -3.0),
}
"""What the problems of calibration are chosen from."""

OF_ONE_CALL = (
    *("valid_lens.", "query_offset.", "allowed.share", "bias.style", "large bias.size"),
    *("style", "inputs times", "cotangent times", "seed"),
)
"""How the names of those choices begin that differ between the calls of a layer; it has the others once for all."""
