"""Pack: arrays as the page holds them, one string for all; view.js unpacks them.

Weights are rounded to three significant digits, which float16 keeps from 6e-5 up. Queries and keys are multiples of a
step, the largest of the head over 255. Each head has its low bytes first, then its high ones, which compress better. A
difference is one byte: its sign, and the logarithm of its share of what rounding allows.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.view.data import Picture
from mha.view.sizes import block

ONE, STEPS, MOST = 96, 12, 126
"""The code of a share of 1, the codes of a factor of ten, the largest code: 10^((126 - 96) / 12) = 316."""

LEAST = ONE - 3 * STEPS
"""The code of a thousandth, and of what is less."""

HALF, NOT_FINITE = 255, 65535
"""Steps from 0 to the largest number of a head; what stands for NaN and infinity."""

BEYOND, NOT_A_NUMBER = 127, -128
"""The codes of what is more than that, and of NaN."""


class Pack:
    """Bytes of arrays, one after another."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> int:
        """Append bytes; their position."""
        start = len(self._bytes)
        self._bytes += data
        return start

    def text(self) -> str:
        """Return everything as text: compressed, in base 64."""
        return base64.b64encode(zlib.compress(bytes(self._bytes), 9)).decode()

    def picture(self, picture: Picture) -> dict[str, Any]:
        """Append a picture's arrays. Return name -> position in the pack, and the scales of queries and keys."""
        if not picture.part.is_exact:
            return {"blocks": self.add(blocks(picture.weights, block(picture.part)).tobytes())}
        where = picture.where
        same = bool((where == where[:1]).all())
        found: dict[str, Any] = {
            "weights": self.add(halves(picture.weights)),
            "where": self.add(b"".join(np.packbits(head).tobytes() for head in (where[:1] if same else where))),
            "masks": 1 if same else len(where),
        }
        for name, array in (("queries", picture.queries), ("keys", picture.keys)):
            data, steps = multiples(array)
            found |= {name: self.add(data), f"{name}Steps": steps}
        if picture.shares is not None:
            found["shares"] = self.add(codes(picture.shares).tobytes())
        return found


def halves(array: NDArray) -> bytes:
    """Return an array (H, ...) as bytes of float16: for each head its numbers' low bytes, then their high bytes.

    Each is rounded to three digits before, or float16 could move the third. Beyond its range they become infinite.
    """
    wide = array.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = 10.0 ** (np.floor(np.log10(np.abs(wide))) - 2)
        return _planes(np.where(np.isfinite(wide) & (unit > 0), np.rint(wide / unit) * unit, wide).astype("<f2"))


def _planes(array: NDArray) -> bytes:
    """Two-byte numbers (H, ...): for each head their low bytes, then their high bytes."""
    pairs = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8).reshape(len(array), -1, 2)
    return pairs.swapaxes(1, 2).tobytes()


def multiples(array: NDArray) -> tuple[bytes, list[float]]:
    """Return (H, ...) as bytes of 16-bit integers, round(x / step) + 256 or, if not finite, 65535; and the steps.

    >>> data, steps = multiples(np.array([[255.0, -2.0, np.nan]]))
    >>> np.frombuffer(data, np.uint8).reshape(2, 3).tolist(), steps
    ([[255, 254, 255], [1, 0, 255]], [1.0])
    """
    rows = array.reshape(len(array), -1).astype(np.float64)
    finite = np.isfinite(rows)
    largest = np.where(finite, np.abs(rows), 0.0).max(axis=1, initial=0.0)
    steps = [one / HALF or 1.0 for one in largest.tolist()]
    counts = np.rint(np.where(finite, rows, 0.0) / np.array(steps)[:, None]) + HALF + 1
    return _planes(np.where(finite, counts, NOT_FINITE).astype("<u2")), steps


def codes(shares: NDArray) -> NDArray[np.int8]:
    """Return the signed shares (difference / allowed difference) as logarithms in one byte each, to within 10 %.

    >>> codes(np.array([0.0, 1.0, -0.1, 1e-9, 100.0, np.nan])).tolist()
    [0, 96, -84, 60, 120, -128]
    """
    with np.errstate(all="ignore"):
        size = np.rint(ONE + STEPS * np.log10(np.abs(shares)))
        code = np.sign(shares) * np.where(size > MOST, BEYOND, np.clip(size, LEAST, MOST))
    code = np.where(shares == 0.0, 0.0, np.where(np.isnan(shares), NOT_A_NUMBER, code))
    return code.astype(np.int8)


def blocks(weights: NDArray, side: int) -> NDArray[np.uint8]:
    """Return the largest weight w of each block of (H, Lq, Lk), as round(255 * sqrt(w)); NaN counts as 1."""
    heads, *lengths = weights.shape
    room = [(0, 0), *((0, -length % side) for length in lengths)]
    padded = np.pad(np.nan_to_num(weights, nan=1.0), room)
    by_block = padded.reshape(heads, padded.shape[1] // side, side, padded.shape[2] // side, side)
    return np.rint(255.0 * np.sqrt(np.clip(by_block.max(axis=(2, 4)), 0.0, 1.0))).astype(np.uint8)
