"""Query-key norm: each query and each key is divided by its size before their product.

    xh = (x - mean) / sqrt(variance + eps), or without the mean: x / sqrt(mean(x ** 2) + eps)
    y  = (offset + weight) * xh + bias

The mean is over one head, or over all heads of a token. Weights: `q_norm.weight`, `k_norm.weight`, and biases.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mha_core.errors import SpecError

Kind = Literal["rms", "layer"]
Scope = Literal["head", "all"]
Order = Literal["before", "after"]
WeightShape = Literal["shared", "per_head", "none"]
Product = Literal["float32", "dtype"]

NORMS = ("q_norm", "k_norm")
"""The names of the two norms, of queries and of keys, as weights have them."""


@dataclass(frozen=True)
class QueryKeyNorm:
    """The settings of a query-key norm. Frozen; checked when they are made.

    Args:
        kind: "rms" (arXiv:1910.07467), or "layer", which subtracts the mean first (arXiv:1607.06450).
        scope: whether the mean is over one "head" (Qwen 3), or over "all" heads of a token (OLMo 2).
        order: whether it acts "before" the rotation, or "after" (Hunyuan). Without rotary positions both are the same.
        eps: the number added to the mean square, under the root.
        offset: 0, or 1 where the arrays hold w - 1 in place of w (Gemma).
        weight: "shared": one (d,) for all heads. "per_head": (H * d,) for queries and (G * d,) for keys. "none". Scope
            "all" excludes "shared".
        bias: whether there are biases in the shape of the weights.
        product: how a half-precision layer multiplies by the weight. "float32" (Gemma, OLMo 2) means in float32, and
            "dtype" (Llama, Qwen) in the layer's dtype. The mean is always in float32 or float64.

    Raises:
        SpecError: a field that is out of its range, or contradicts another.

    >>> QueryKeyNorm("layer", bias=True).weight
    'shared'
    >>> QueryKeyNorm(scope="all")
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: query_key_norm.weight must be per_head or none with scope 'all'. Got 'shared'.
    """

    kind: Kind = "rms"
    scope: Scope = "head"
    order: Order = "before"
    eps: float = 1e-6
    offset: int = 0
    weight: WeightShape = "shared"
    bias: bool = False
    product: Product = "float32"

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                known = ", ".join(map(str, get_args(kind)))
                raise SpecError(f"query_key_norm.{name} must be one of {known}. Got {getattr(self, name)!r}.")
        eps = self.eps
        if isinstance(eps, bool) or not isinstance(eps, (int, float)) or not (math.isfinite(eps) and eps > 0.0):
            raise SpecError(f"query_key_norm.eps must be a positive number. Got {eps!r}.")
        object.__setattr__(self, "eps", float(eps))  # the dataclass is frozen
        if isinstance(self.offset, bool) or self.offset not in (0, 1):
            raise SpecError(f"query_key_norm.offset must be 0 or 1. Got {self.offset!r}.")
        if not isinstance(self.bias, bool):
            raise SpecError(f"query_key_norm.bias must be True or False. Got {self.bias!r}.")
        if self.scope == "all" and self.weight == "shared":
            raise SpecError("query_key_norm.weight must be per_head or none with scope 'all'. Got 'shared'.")
        if self.weight == "none" and (self.bias or self.offset):
            raise SpecError(
                f"query_key_norm.bias and offset belong to weights. Got bias={self.bias}, offset={self.offset}, "
                "weight='none'."
            )

    @classmethod
    def of(cls, given: QueryKeyNorm | Mapping[str, Any] | str | None) -> QueryKeyNorm | None:
        """Return the settings from a mapping of fields, or from a kind alone; None if `given` is None."""
        if given is None or isinstance(given, QueryKeyNorm):
            return given
        if isinstance(given, str):
            return cls(kind=given)  # type: ignore[arg-type]  # checked there
        if not isinstance(given, Mapping):
            raise SpecError(
                f"query_key_norm must be QueryKeyNorm settings, a mapping of their fields, or None. Got {given!r}."
            )
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise SpecError(f"query_key_norm has no field {name!r} (known: {', '.join(known)})")
        return cls(**given)

    def eps_in(self, tiny: float) -> float:
        """Return `eps`. SpecError if it is below `tiny`, the smallest normal number of the dtype of the arithmetic.

        A framework that flushes smaller numbers to 0 would return NaN for a head of zeros.

        >>> QueryKeyNorm(eps=1e-50).eps_in(tiny=2.0**-126)
        Traceback (most recent call last):
        ...
        mha_core.errors.SpecError: query_key_norm.eps rounds to 0 in this dtype, whose smallest is 1.18e-38. Got 1e-50.
        """
        if self.eps < tiny:
            raise SpecError(
                f"query_key_norm.eps rounds to 0 in this dtype, whose smallest is {tiny:.3g}. Got {self.eps!r}."
            )
        return self.eps

    @property
    def start(self) -> float:
        """Return the initial value of a norm's weight: 1 - offset, with which the norm multiplies by 1."""
        return 1.0 - self.offset

    def weight_shapes(self, num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, tuple[int, ...]]:
        """Return the names of the weights, in order, with their shapes.

        >>> QueryKeyNorm(weight="per_head").weight_shapes(num_heads=4, num_kv_heads=2, head_dim=3)
        {'q_norm.weight': (12,), 'k_norm.weight': (6,)}
        """
        if self.weight == "none":
            return {}
        shapes: dict[str, tuple[int, ...]] = {}
        for name, heads in zip(NORMS, (num_heads, num_kv_heads), strict=True):
            size = head_dim if self.weight == "shared" else heads * head_dim
            shapes |= {f"{name}.{kind}": (size,) for kind in (("weight", "bias") if self.bias else ("weight",))}
        return shapes


class Normed(NamedTuple):
    """The steps of a norm of x (B, heads, L, d).

    factor: (B, heads or 1, L, 1): 1 / sqrt(variance + eps). unit: (B, heads, L, d): x, or x - mean, times factor.
    scale: offset + weight, which broadcasts with `unit`; None without weights. result: unit * scale + bias.
    """

    factor: NDArray
    unit: NDArray
    scale: NDArray | None
    result: NDArray


def norm(x: NDArray, settings: QueryKeyNorm, weight: NDArray | None, bias: NDArray | None) -> Normed:
    """Return the norm of x (B, heads, L, d) and its steps as one Normed. weight, bias: (d,), (heads * d,) or None.

    >>> norm(np.array([[[[3.0, 4.0]]]]), QueryKeyNorm(eps=1e-12), np.array([1.0, 2.0]), None).result.round(3)
    array([[[[0.849, 2.263]]]])
    """
    axes = mean_axes(settings)
    centred = x - x.mean(axis=axes, keepdims=True) if settings.kind == "layer" else x
    factor = 1.0 / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + settings.eps)
    unit = centred * factor
    scale = None if weight is None else settings.offset + by_head(weight, x.shape)
    result = unit if scale is None else scale * unit
    return Normed(factor, unit, scale, result if bias is None else result + by_head(bias, x.shape))


def mean_axes(settings: QueryKeyNorm) -> tuple[int, ...]:
    """Return the axes of (B, heads, L, d) over which the mean goes."""
    return (1, 3) if settings.scope == "all" else (3,)


def by_head(parameter: Any, shape: tuple[Any, ...]) -> Any:
    """Return a weight or bias that broadcasts with (B, heads, L, d): (d,) as it is, (heads * d,) as (heads, 1, d).

    `parameter` may be an array of any framework. With one head, both shapes are (d,).
    """
    return parameter if parameter.shape[0] == shape[3] else parameter.reshape((shape[1], 1, shape[3]))


class NormGradients(NamedTuple):
    """The gradients of a norm: of x (B, heads, L, d), and of weight and bias in their shapes (None without them)."""

    x: NDArray
    weight: NDArray | None
    bias: NDArray | None


def norm_back(gradient: NDArray, normed: Normed, settings: QueryKeyNorm) -> NormGradients:
    """Return the gradients of a norm's input and parameters, from the gradient (B, heads, L, d) of its result."""
    axes = mean_axes(settings)
    through = gradient if normed.scale is None else gradient * normed.scale
    inside = through - normed.unit * (through * normed.unit).mean(axis=axes, keepdims=True)
    if settings.kind == "layer":
        inside = inside - through.mean(axis=axes, keepdims=True)
    weight = bias = None
    if normed.scale is not None:
        weight = to_parameter(gradient * normed.unit, settings)
        bias = to_parameter(gradient, settings) if settings.bias else None
    return NormGradients(inside * normed.factor, weight, bias)


def to_parameter(x: NDArray, settings: QueryKeyNorm) -> NDArray:
    """Return x (B, heads, L, d) summed to the shape of a norm's weight: (d,) if heads share it, else (heads * d,)."""
    return x.sum(axis=(0, 1, 2)) if settings.weight == "shared" else x.sum(axis=(0, 2)).reshape(-1)


_CHOICES = {"kind": Kind, "scope": Scope, "order": Order, "weight": WeightShape, "product": Product}
