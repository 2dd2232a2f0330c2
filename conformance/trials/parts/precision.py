"""Rounding at any step: to another dtype, to eight bits, to so many digits."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.trials.changes import Bent
from conformance.trials.faults import Dice, Fault
from conformance.trials.parts.words import Parts, needs_of

POINTS = (
    "q_in",
    "k_in",
    "v_in",
    "q_w",
    "k_w",
    "v_w",
    "o_w",
    "q",
    "k",
    "v",
    "scaled",
    "scores",
    "weights",
    "heads",
    "output",
)

ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "8 bits": 2.0**-8, "two decimals": 5e-3}


def parts() -> Parts:
    return {f"rounded: {point}": partial(_rounded, point=point) for point in POINTS}


def _rounded(dice: Dice, point: str) -> Fault:
    kind = dice.one_of(list(ROUNDOFF))
    change = Bent(f"rounded to {kind}", partial(rounded, kind=kind))
    return Fault("rounded", ((point, change),), needs=needs_of(point), roundoff=ROUNDOFF[kind])


def rounded(x: NDArray, kind: str) -> NDArray:
    """In float64, the nearest numbers of this kind; eight bits are 127 steps of the largest number to either side.

    >>> rounded(np.array([1.0, 0.3]), "8 bits")
    array([1.       , 0.2992126])
    """
    if kind == "bfloat16":  # eight significant bits; numbers as small or large as float32 itself ends are none here
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.round(mantissa * 256.0), exponent - 8)
    if kind == "8 bits":
        step = np.abs(x).max(initial=0.0) / 127.0
        return np.round(x / step) * step if step > 0.0 and np.isfinite(step) else x
    if kind == "two decimals":
        return np.round(x, 2)
    return x.astype(kind).astype(np.float64)
