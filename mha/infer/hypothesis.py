"""A hypothesis: one complete reading of the arrays, which gives a config and canonical weights."""

from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from mha.infer.arrays import Slice
from mha_core import AttentionConfig, Rotary
from mha_core.config import PROJECTIONS

SCALES = {
    "1 / sqrt(head_dim)": lambda h: h.head_dim**-0.5,
    "1": lambda h: 1.0,
    "1 / sqrt(width of all query heads)": lambda h: (h.heads * h.head_dim) ** -0.5,
    "1 / sqrt(query_dim)": lambda h: h.q.source.inputs**-0.5,
    "1 / head_dim": lambda h: 1.0 / h.head_dim,
}
"""Scale of the scores, in words -> a function that gives its value; the usual one first."""

DEFAULT_SCALE = next(iter(SCALES))


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """A hypothesis: which rows of which array are which projection, and how the layer uses them.

    Attributes:
        q, k, v, o: the four projections.
        orders: for each of the four, the order of its rows: "hd" (head by head) or "dh" (channel by channel).
        heads, kv_heads: the numbers of query heads and key heads.
        scale: the scale of the scores in words, a key of SCALES.
        mask: the name of the mask, a key of `Observed.masks`.
        bq, bk, bv, bo: the biases; None if there are none.
        rotary: the settings of rotary positions, which are in no array; None without rotary positions.
    """

    q: Slice
    k: Slice
    v: Slice
    o: Slice
    orders: tuple[str, str, str, str]
    heads: int
    kv_heads: int
    scale: str
    mask: str
    bq: Slice | None = None
    bk: Slice | None = None
    bv: Slice | None = None
    bo: Slice | None = None
    rotary: Rotary | None = None

    @property
    def head_dim(self) -> int:
        return self.q.count // self.heads

    @property
    def value_head_dim(self) -> int:
        return self.o.count // self.heads

    @property
    def scale_value(self) -> float:
        return float(SCALES[self.scale](self))

    @property
    def weights(self) -> tuple[Slice, Slice, Slice, Slice]:
        return self.q, self.k, self.v, self.o

    @property
    def biases(self) -> tuple[Slice | None, ...]:
        return self.bq, self.bk, self.bv, self.bo

    @property
    def key_bias_acts(self) -> bool:
        """Return whether the output depends on a key bias.

        Without rotary positions it does not: a key bias then adds the same number to all scores of a query.
        """
        return self.rotary is not None

    def rows(self, role: str) -> NDArray:
        """Return ints (heads, width): each head's rows in the array of the projection or bias `role`, such as "bq"."""
        part: Slice = getattr(self, role)
        return part.read(*self._split(role))

    def _split(self, role: str) -> tuple[int, str]:
        """The number of heads of a projection or of its bias, and the order of their rows."""
        if role == "bo":
            return 1, "hd"
        return self.heads if role[-1] in "qo" else self.kv_heads, self.orders["qkvo".index(role[-1])]

    def is_readable(self) -> bool:
        """Return whether all arrays can be split into heads as `orders` say, and heads are wide enough for `rotary`."""
        if self.rotary is not None and (self.rotary.width or 0) > self.head_dim:
            return False
        roles = [role for role in ("q", "k", "v", "o", "bq", "bk", "bv", "bo") if getattr(self, role) is not None]
        return all(getattr(self, role).rows(*self._split(role)) is not None for role in roles)

    def is_plain(self) -> bool:
        """Return whether no two weights are the same rows of an array. They may be if the array has an equal copy."""
        used = Counter((part.source.names, part.kind == "whole" or part.part) for part in self.weights)
        return all(count <= len(names) for (names, _), count in used.items())

    def kv_of(self) -> NDArray:
        """Return int (H,): the number of the key head that each query head attends to."""
        return kv_of(self.heads, self.kv_heads)

    def canonical(self) -> tuple[AttentionConfig, dict[str, NDArray]]:
        """Return (config, canonical weights in float64) of the layer that this hypothesis describes."""
        found: dict[str, NDArray] = {}
        for letter, projection in zip("qkvo", PROJECTIONS, strict=True):
            for role in (letter, f"b{letter}"):
                part: Slice | None = getattr(self, role)
                if part is None:
                    continue
                picked = part.source.flat[self.rows(role).reshape(-1)]
                found[f"{projection}.{'weight' if role == letter else 'bias'}"] = picked.T if role == "o" else picked
        config = AttentionConfig(
            self.o.source.inputs,
            self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_head_dim=self.value_head_dim,
            query_dim=self.q.source.inputs,
            key_dim=self.k.source.inputs,
            value_dim=self.v.source.inputs,
            output_dim=self.o.source.inputs,
            bias={p: f"{p}.bias" in found for p in PROJECTIONS},
            scale=None if self.scale_value == self.head_dim**-0.5 else self.scale_value,
            rotary=self.rotary,
        )
        return config, {name: np.ascontiguousarray(array) for name, array in found.items()}

    def function(self) -> bytes:
        """Return a digest that is equal for hypotheses that compute the same function.

        A key bias does not change the digest if the output does not depend on it.
        """
        config, weights = (self if self.key_bias_acts else replace(self, bk=None)).canonical()
        said = f"{config.num_heads} {config.num_kv_heads} {config.softmax_scale} {self.mask} {self.rotary}"
        digest = sha256(said.encode())
        for name, array in sorted(weights.items()):
            if array.any() or name.endswith(".weight"):  # a bias of zeros is as none
                digest.update(name.encode() + (array + 0.0).tobytes())  # -0 is 0
        return digest.digest()


def kv_of(heads: int, kv_heads: int) -> NDArray:
    """Return int (H,): the number of the key head that each query head attends to.

    >>> kv_of(4, 2)
    array([0, 0, 1, 1])
    """
    return np.arange(heads) // (heads // kv_heads)
