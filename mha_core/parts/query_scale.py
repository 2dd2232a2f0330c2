"""Query scale by position: each query is multiplied by a factor that grows with its position, and keys are not.

    settings   QueryScale, a field of AttentionConfig
    factors    (1 or B, Lq): t = 1 + beta log(1 + floor((position + shift) / length)), in float64
    queries    (B, H, Lq, d): q t, after norm and rotation, before the product with keys

A cache needs nothing of it, for it holds keys. What a call says of it: `mha_core.call.query_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from mha_core.errors import SpecError

Rule = Literal["llama4", "ministral3"]

SHIFTS: dict[str, int] = {"llama4": 1, "ministral3": 0}
"""What each rule adds to a position before it divides by the length."""


@dataclass(frozen=True)
class QueryScale:
    """How queries are scaled by their positions. Frozen; checked when it is made.

    Args:
        rule: "llama4", which divides position + 1, or "ministral3" (Mistral 4 too), which divides the position. None:
            each call gives the factors themselves.
        beta: factor of the logarithm, in a layer with a rule: `attn_scale` of Llama 4's config, `llama_4_scaling_beta`
            of Ministral 3's.
        length: how many positions have one factor: `floor_scale` of Llama 4's config, and
            `original_max_position_embeddings` of Ministral 3's.

    Raises:
        SpecError: a field that is out of its range, is missing, or belongs to a rule where there is none.

    >>> QueryScale("llama4", beta=0.1, length=8192).shift
    1
    >>> QueryScale("llama4", beta=0.1)
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: query_scale.rule 'llama4' lacks 'length' (it needs: beta, length)
    """

    rule: Rule | None = None
    beta: float | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        if self.rule is not None and self.rule not in get_args(Rule):
            known = ", ".join(get_args(Rule))
            raise SpecError(f"query_scale.rule must be one of {known}, or None. Got {self.rule!r}.")
        for name in ("beta", "length"):
            if self.rule is None and getattr(self, name) is not None:
                known = ", ".join(get_args(Rule))
                raise SpecError(f"query_scale.{name} belongs to a rule ({known}). Got {getattr(self, name)!r}.")
            if self.rule is not None and getattr(self, name) is None:
                raise SpecError(f"query_scale.rule {self.rule!r} lacks {name!r} (it needs: beta, length)")
        if self.rule is None:
            return
        beta, length = self.beta, self.length
        if isinstance(beta, bool) or not isinstance(beta, (int, float)) or not math.isfinite(beta):
            raise SpecError(f"query_scale.beta must be a finite number. Got {beta!r}.")
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise SpecError(f"query_scale.length must be a positive integer. Got {length!r}.")
        object.__setattr__(self, "beta", float(beta))  # the dataclass is frozen

    @classmethod
    def of(cls, given: QueryScale | Mapping[str, Any] | bool | None) -> QueryScale | None:
        """The settings of a mapping of fields; True for factors that calls give; None for False."""
        if given is None or isinstance(given, QueryScale):
            return given
        if isinstance(given, bool):
            return cls() if given else None
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping):
            raise SpecError(
                f"query_scale must be QueryScale settings, a mapping of their fields, or None. Got {given!r}."
            )
        for name in given:
            if name not in known:
                raise SpecError(f"query_scale has no field {name!r} (known: {', '.join(known)})")
        return cls(**given)

    @property
    def shift(self) -> int:
        """What is added to a position before it is divided: 1, or 0."""
        return SHIFTS[self.rule or "ministral3"]

    def factors(self, positions: NDArray[np.integer]) -> NDArray[np.float64]:
        """(..., L) positions -> (..., L) factors; the layer has a rule.

        >>> QueryScale("llama4", beta=0.5, length=4).factors(np.array([0, 2, 3, 7])).round(4)
        array([1.    , 1.    , 1.3466, 1.5493])
        """
        assert self.beta is not None
        assert self.length is not None
        steps = (positions.astype(np.int64) + self.shift) // self.length  # integers: the floor is exact
        factors: NDArray[np.float64] = 1.0 + self.beta * np.log1p(steps.astype(np.float64))
        return factors
