"""The dtypes and units of roundoff in which a subject computes, from which its bounds follow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Self

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha_core.backend import SoftmaxKernel
from mha_core.dtypes import DTYPES, round_to

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""Largest relative error of rounding to the format."""

FLUSHED = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
"""Magnitudes below this may become 0: the smallest normal number, since processors may flush subnormal ones.

In float16 it is the smallest subnormal number, because every processor keeps those when it converts.
"""


@dataclass(frozen=True)
class Precision:
    """The arithmetic of a subject (a tested layer): dtypes and two properties of its softmax.

    Args:
        storage: dtype of the array in which the result of each stage is stored.
        accumulator: dtype in which sums of products are formed.
        reduction: dtype in which sums without products are formed, such as the gradient of a bias.
        softmax: dtype of the softmax arithmetic.
        multiply: format to which the factors of a matrix product are rounded first, such as "tf32" or "bfloat16". The
            name of the storage dtype means that they are not rounded.
        exp_ulps: error of one exponential, in units in the last place. 4 covers the vectorised
            exponentials of all four frameworks; PyTorch's fused CPU kernel has 20.
        key_block: how many keys an online softmax reads at a time; None where it reads each row whole.
    """

    storage: str
    accumulator: str
    reduction: str
    softmax: str
    multiply: str
    exp_ulps: float = 4.0
    key_block: int | None = None

    @classmethod
    def of(cls, dtype: str) -> Self:
        """Return the default precision of a dtype: matrix products and softmax are computed in at least float32.

        Plain sums are in the storage dtype, because XLA and Eigen add up a half-precision bias gradient in half.

        >>> Precision.of("bfloat16").accumulator
        'float32'
        """
        wide = dtype if dtype == "float64" else "float32"
        return cls(storage=dtype, accumulator=wide, reduction=dtype, softmax=wide, multiply=dtype)

    def with_multiply(self, multiply: str) -> Self:
        """Return this precision with the factors of products rounded to another format first, such as "tf32"."""
        return replace(self, multiply=multiply)

    def with_kernel(self, kernel: SoftmaxKernel) -> Self:
        """Return this precision with `exp_ulps` and `key_block` of a backend's softmax."""
        return replace(self, exp_ulps=kernel.exp_ulps, key_block=kernel.key_block)

    def key_blocks(self, key_len: int) -> int:
        """Return the number of blocks in which the softmax reads a row of `key_len` keys.

        >>> fused = replace(Precision.of("float32"), key_block=512)
        >>> fused.key_blocks(512), fused.key_blocks(513), Precision.of("float32").key_blocks(513)
        (1, 2, 1)
        """
        return 1 if self.key_block is None else max(1, ceil(key_len / self.key_block))

    @property
    def u(self) -> float:
        """Return the unit roundoff of the storage dtype."""
        return UNIT_ROUNDOFF[self.storage]

    @property
    def ua(self) -> float:
        """Return the unit roundoff of the accumulator dtype."""
        return UNIT_ROUNDOFF[self.accumulator]

    @property
    def ur(self) -> float:
        """Return the unit roundoff of plain sums (`reduction`)."""
        return UNIT_ROUNDOFF[self.reduction]

    @property
    def us(self) -> float:
        """Return the unit roundoff of the softmax arithmetic."""
        return UNIT_ROUNDOFF[self.softmax]

    @property
    def um(self) -> float:
        """Return the unit roundoff of the `multiply` format; 0 if that is the storage dtype (nothing is rounded)."""
        return 0.0 if self.multiply == self.storage else UNIT_ROUNDOFF[self.multiply]

    @cached_property
    def tau(self) -> float:
        """Return the magnitude below which numbers may become 0 when they are stored."""
        return FLUSHED[self.storage]

    @property
    def lost_weight(self) -> float:
        """Return the number below which an attention weight may become 0.

        A weight below `tau` may become 0 when it is stored. Libraries compute half of its exponential and double it.
        That half may be flushed to 0 where the exponential is below twice the softmax dtype's smallest normal number.

        >>> float32 = Precision.of("float32")
        >>> float32.lost_weight / float32.tau
        2.0
        """
        return max(self.tau, 2.0 * FLUSHED[self.softmax])

    @cached_property
    def linear_below(self) -> float:
        """Return the size below which errors are added linearly instead of by their squares.

        Errors this small come from flushing to zero: all have the same sign. Squares of errors below 1e-140 underflow.
        """
        return max(min(1e12 * self.tau, 2.0**-14), 1e-140)


def narrower(outputs: Sequence[NDArray], dtype: str) -> str | None:
    """Return the narrowest dtype that holds all outputs exactly, if it is narrower than `dtype`; else None.

    >>> narrower([np.array([0.5, 1 / 3])], "float64"), narrower([np.array([1 / 3], "float32")], "float64")
    (None, 'float32')
    """
    if not any(np.count_nonzero(np.nan_to_num(output)) for output in outputs):
        return None
    wider = DTYPES[: DTYPES.index(dtype) + 1]
    for other in ("bfloat16", "float16", "float32"):
        if other not in wider and all(_is_held_by(output, other) for output in outputs):
            return other
    return None


NEARLY = 16.0
"""Roundoffs, of the mean number, that arrays may be off on average which differ by their dtype alone."""


def stored_in(pairs: Sequence[tuple[NDArray, NDArray]], dtype: str) -> str | None:
    """Return the narrowest dtype that holds all computed arrays exactly, if it is narrower than `dtype`; else None.

    Args:
        pairs: pairs (computed array, right array). If they differ by more than rounding explains, the result is None.
        dtype: the dtype in which the arrays should have been computed.

    >>> third = np.array([1 / 3, 2 / 3])
    >>> stored_in([(third.astype("float16").astype("float64"), third)], "float64")
    'float16'
    >>> stored_in([(np.round(third), third)], "float64")
    """
    found = narrower([own for own, _ in pairs], dtype)
    if found is None or any(own.shape != right.shape for own, right in pairs):
        return None
    own, right = (np.concatenate([np.ravel(pair[at]) for pair in pairs]) for at in (0, 1))
    finite = np.isfinite(own) & np.isfinite(right)
    off, size = np.abs(own - right)[finite].sum(), np.abs(right[finite]).sum()
    return found if off <= NEARLY * UNIT_ROUNDOFF[found] * size else None


def _is_held_by(array: NDArray, dtype: str) -> bool:
    if array.dtype.kind == "c":  # a subject's answer, and none that is held by real numbers
        return False
    with any_numbers:
        return bool(np.array_equal(array, round_to(array, dtype).astype(np.float64), equal_nan=True))
