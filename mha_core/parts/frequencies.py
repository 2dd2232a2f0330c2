"""Rules of the angles by which rotary positions turn: those that checkpoints name in `rope_parameters`.

A rule has the fields that Hugging Face's configs give it, under the same names, `rope_type` first. It changes the
inverse frequencies base ** (-2 i / r) of the r / 2 pairs, and some multiply cosine and sine by an attention factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mha_core.errors import SpecError

Frequencies = tuple[NDArray[np.float64], float]
"""(r / 2,) inverse frequencies, and the attention factor."""


def plain(base: float, width: int) -> NDArray[np.float64]:
    """(r / 2,): base ** (-2 i / r), the frequencies without a rule (arXiv:2104.09864, section 3.2.2).

    >>> plain(10000.0, 4)
    array([1.  , 0.01])
    """
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


@dataclass(frozen=True)
class FrequencyRule:
    """A rule that changes rotary frequencies: `frequencies` returns them, (r / 2,), and the attention factor.

    The `length` given to `frequencies` is the largest position of the call and its past, plus 1.

    Raises:
        SpecError: a field that is no number, or out of its range.
    """

    NEEDS_LENGTH: ClassVar[bool] = False
    """Whether the frequencies depend on the length of the sequence."""

    rope_type: str

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            object.__setattr__(self, field.name, _settled(f"{self.rope_type!r}: {field.name}", str(field.type), value))
        if RULES.get(self.rope_type) is not type(self):
            raise SpecError(f"rotary.rule {type(self).__name__} has another rope_type. Got {self.rope_type!r}.")

    def frequencies(self, base: float, width: int, length: int) -> Frequencies:
        raise NotImplementedError


@dataclass(frozen=True)
class Linear(FrequencyRule):
    """A rule that divides every frequency by the factor (kaiokendev, 2023; arXiv:2306.15595).

    >>> Linear(factor=4.0).frequencies(10000.0, 4, length=8)
    (array([0.25  , 0.0025]), 1.0)
    """

    rope_type: str = "linear"
    factor: float = 1.0

    def frequencies(self, base: float, width: int, length: int) -> Frequencies:
        return plain(base, width) / self.factor, 1.0


@dataclass(frozen=True)
class Dynamic(FrequencyRule):
    """A rule with a larger base for sequences longer than in training (NTK-aware scaling; bloc97, 2023).

    Keys of the past keep the angles that they got when they were new.
    """

    NEEDS_LENGTH: ClassVar[bool] = True

    rope_type: str = "dynamic"
    factor: float = 1.0
    max_position_embeddings: int = 2048

    def frequencies(self, base: float, width: int, length: int) -> Frequencies:
        trained = self.max_position_embeddings
        stretch = self.factor * max(length, trained) / trained - (self.factor - 1.0)
        return plain(base * stretch ** (width / (width - 2)) if width > 2 else base, width), 1.0


@dataclass(frozen=True)
class Llama3(FrequencyRule):
    """A rule that divides low frequencies by the factor and keeps high ones (Llama 3.1; arXiv:2407.21783)."""

    rope_type: str = "llama3"
    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def frequencies(self, base: float, width: int, length: int) -> Frequencies:
        inverse, trained = plain(base, width), self.original_max_position_embeddings
        waves = 2.0 * math.pi / inverse
        low, high = self.low_freq_factor, self.high_freq_factor
        share = np.clip((trained / waves - low) / (high - low), 0.0, 1.0)
        return (1.0 - share) * inverse / self.factor + share * inverse, 1.0


@dataclass(frozen=True)
class Yarn(FrequencyRule):
    """A rule that blends divided and plain frequencies, and multiplies cosine and sine (arXiv:2309.00071).

    With f(m) = 0.1 m ln(factor) + 1, the attention factor is `attention_factor` if it is given; else
    f(mscale) / f(mscale_all_dim) if both are given; else f(1).
    """

    rope_type: str = "yarn"
    factor: float = 1.0
    original_max_position_embeddings: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def frequencies(self, base: float, width: int, length: int) -> Frequencies:
        def channel(turns: float) -> float:
            """Return the pair that makes so many turns over the length that the model was trained for."""
            ratio = self.original_max_position_embeddings / (turns * 2.0 * math.pi)
            return width * math.log(ratio) / (2.0 * math.log(base))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        high += 0.001 if low == high else 0.0
        ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0.0, 1.0)
        inverse = plain(base, width)
        return inverse / self.factor * ramp + inverse * (1.0 - ramp), self._attention_factor()

    def _attention_factor(self) -> float:
        def of(mscale: float) -> float:
            return 1.0 if self.factor <= 1.0 else 0.1 * mscale * math.log(self.factor) + 1.0

        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return of(self.mscale) / of(self.mscale_all_dim)
        return of(1.0)


@dataclass(frozen=True)
class LongRope(FrequencyRule):
    """A rule that divides frequencies by numbers: `short_factor` up to the trained length, else `long_factor`.

    A call uses one list for all its positions (arXiv:2402.13753). The attention factor, if it is not given, is
    sqrt(1 + ln(factor) / ln(original_max_position_embeddings)).
    """

    NEEDS_LENGTH: ClassVar[bool] = True

    rope_type: str = "longrope"
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    original_max_position_embeddings: int = 4096
    factor: float = 1.0
    attention_factor: float | None = None

    def frequencies(self, base: float, width: int, length: int) -> Frequencies:
        trained = self.original_max_position_embeddings
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != width // 2:
                raise SpecError(
                    f"rotary.rule 'longrope': {name} must have a number for each of the {width // 2} pairs. "
                    f"Got {len(getattr(self, name))}."
                )
        factors = np.array(self.long_factor if length > trained else self.short_factor)
        attention = self.attention_factor
        if attention is None:
            attention = 1.0 if self.factor <= 1.0 else math.sqrt(1.0 + math.log(self.factor) / math.log(trained))
        return plain(base, width) / factors, attention


@dataclass(frozen=True)
class Proportional(FrequencyRule):
    """A rule that turns only the first pairs. Their frequencies are the same as if all pairs turned (Gemma 4).

    >>> Proportional(partial_rotary_factor=0.5).frequencies(10000.0, 8, length=1)[0].round(4)
    array([1. , 0.1, 0. , 0. ])
    """

    rope_type: str = "proportional"
    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    def frequencies(self, base: float, width: int, length: int) -> Frequencies:
        inverse = plain(base, width) / self.factor
        inverse[int(self.partial_rotary_factor * width // 2) :] = 0.0
        return inverse, 1.0


RULES: dict[str, type[FrequencyRule]] = {
    **{"linear": Linear, "dynamic": Dynamic, "llama3": Llama3},
    **{"yarn": Yarn, "longrope": LongRope, "proportional": Proportional},
}
"""Every rule by its `rope_type`."""


def rule_of(given: FrequencyRule | Mapping[str, Any] | None) -> FrequencyRule | None:
    """Return the rule that a mapping such as `rope_parameters` (without `rope_theta`) describes; None for "default".

    Raises:
        SpecError: an unknown name or field, or a missing field.

    >>> rule_of({"rope_type": "linear", "factor": 4})
    Linear(rope_type='linear', factor=4.0)
    >>> rule_of({"rope_type": "linear", "factr": 4})
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: rotary.rule 'linear' has no field 'factr' (its fields: factor)
    >>> rule_of({"rope_type": "default", "rope_theta": 5e5})
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: rotary.rule does not take 'rope_theta': give it as base=500000.0, and leave it out
    """
    if given is None or isinstance(given, FrequencyRule):
        return given
    if not isinstance(given, Mapping) or "rope_type" not in given:
        raise SpecError(f"rotary.rule must have a rope_type of default, {', '.join(RULES)}. Got {given!r}.")
    named = dict(given)
    name = named.pop("rope_type")
    for field, instead in ELSEWHERE.items():
        if field in named and field not in NEEDED.get(name, ()):
            said = instead.format(named[field])
            raise SpecError(f"rotary.rule does not take {field!r}: give it as {said}, and leave it out")
    if name == "default" and not named:
        return None
    if name not in RULES:
        raise SpecError(f"rotary.rule {name!r} is not known (known: default, {', '.join(RULES)})")
    known = [field.name for field in fields(RULES[name]) if field.name != "rope_type"]
    for field in named:
        if field not in known:
            raise SpecError(f"rotary.rule {name!r} has no field {field!r} (its fields: {', '.join(known)})")
    missing = [field for field in NEEDED[name] if field not in named]
    if missing:
        raise SpecError(f"rotary.rule {name!r} lacks {missing[0]!r} (it needs: {', '.join(NEEDED[name])})")
    return RULES[name](**named)


ELSEWHERE = {
    "rope_theta": "base={}",
    "partial_rotary_factor": "width={} * head_dim",
    "mrope_section": "sections={}",
    "mrope_interleaved": "sections_interleaved={}",
}
"""A key of `rope_parameters` that is no field of a rule -> the field of Rotary that takes it."""

NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor", "max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "proportional": ("partial_rotary_factor",),
}
"""The fields without which a mapping is no rule: a default would be a number that nobody chose."""


def _settled(name: str, kind: str, value: Any) -> Any:
    """The value of a field in its type; SpecError for another type, or a number out of its range."""
    if kind.startswith("tuple"):
        if not isinstance(value, (list, tuple)):
            raise SpecError(f"rotary.rule {name} must be a list of numbers. Got {value!r}.")
        return tuple(_settled(name, "float", number) for number in value)
    if kind in ("str", "bool"):
        if not isinstance(value, {"str": str, "bool": bool}[kind]):
            raise SpecError(f"rotary.rule {name} must be a {kind}. Got {value!r}.")
        return value
    if value is None and kind.endswith("None"):
        return None
    whole = kind == "int"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise SpecError(f"rotary.rule {name} must be {'an integer' if whole else 'a number'}. Got {value!r}.")
    if not (math.isfinite(value) and value > 0):
        raise SpecError(f"rotary.rule {name} must be positive. Got {value!r}.")
    return value if whole else float(value)
