"""How likely the options of a choice are: each stands there as often as that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


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
