"""Hypothesis: one complete reading of the arrays, which gives a config and canonical weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.infer.hypotheses.candidates import Slice
from mha_core import AttentionConfig
from mha_core.config import PROJECTIONS
from mha_core.parts.query_key_norm import NORMS

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
    """Which rows of which array are which projection, and how the layer uses them.

    Attributes:
        q, k, v, o: the four projections.
        orders: the order of the rows of each of the four, one of candidates.ORDERS.
        heads, kv_heads: H and G.
        scale: one of SCALES.
        mask: the name of one of the record's masks.
        tiled: whether query head h reads key head h % G, not h // (H // G).
        bq, bk, bv, bo: the biases; None for none.
        settings: fields of an AttentionConfig that no array shows -> their values (`mha.infer.settings`).
        norms: the weights of the norms of queries and of keys; empty for none.
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
    tiled: bool = False
    bq: Slice | None = None
    bk: Slice | None = None
    bv: Slice | None = None
    bo: Slice | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    norms: tuple[Slice, ...] = ()

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
        """Whether the output depends on a key bias: else it adds one number to all scores of a row."""
        return not self.settings.keys().isdisjoint(("rotary", "query_key_norm"))

    def rows(self, role: str) -> NDArray:
        """(heads, width) positions of the rows of a projection or of its bias: "q", "k", "v", "o", "bq", ..."""
        part: Slice = getattr(self, role)
        return part.read(*self._split(role))

    def _split(self, role: str) -> tuple[int, str]:
        """The number of heads of a projection or of its bias, and the order of their rows."""
        if role == "bo":
            return 1, "hd"
        return self.heads if role[-1] in "qo" else self.kv_heads, self.orders["qkvo".index(role[-1])]

    def is_readable(self) -> bool:
        """Whether the axes of the arrays allow all of its orders and numbers of heads, and its heads their settings."""
        if "rotary" in self.settings and self.settings["rotary"].width > self.head_dim:
            return False
        if any(weight.count != self.head_dim for weight in self.norms):
            return False
        roles = [role for role in ("q", "k", "v", "o", "bq", "bk", "bv", "bo") if getattr(self, role) is not None]
        return all(getattr(self, role).rows(*self._split(role)) is not None for role in roles)

    def is_plain(self) -> bool:
        """Whether no rows are used twice, unless the file has several copies of them."""
        if len({part.source.names for part in self.weights}) == len(self.weights):
            return True
        used = Counter((part.source.names, part.kind, part.part) for part in self.weights)
        arrays = Counter({names: len(names) for names, _, _ in used})
        whole = Counter(part.source.names for part in self.weights if part.kind == "whole")
        cut = {part.source.names for part in self.weights if part.kind != "whole"}
        return all(count <= len(names) for (names, _, _), count in used.items()) and all(
            whole[names] + (names in cut) <= arrays[names] for names in arrays
        )

    def kv_of(self) -> NDArray:
        """(H,) which key head each query head reads."""
        return kv_of(self.heads, self.kv_heads, self.tiled)

    def canonical(self) -> tuple[AttentionConfig, dict[str, NDArray]]:
        """The config and the canonical weights, in float64, of this reading.

        Tiled key heads become repeated ones: the query heads that read one key head are moved together.
        """
        order = np.argsort(self.kv_of(), kind="stable")
        found: dict[str, NDArray] = {}
        for letter, projection in zip("qkvo", PROJECTIONS, strict=True):
            for role in (letter, f"b{letter}"):
                part: Slice | None = getattr(self, role)
                if part is None:
                    continue
                rows = self.rows(role)
                if letter == "q" or role == "o":
                    rows = rows[order]
                picked = part.source.flat[rows.reshape(-1)]
                found[f"{projection}.{'weight' if role == letter else 'bias'}"] = picked.T if role == "o" else picked
        found |= {f"{name}.weight": weight.source.flat for name, weight in zip(NORMS, self.norms, strict=False)}
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
            **self.settings,
        )
        return config, {name: np.ascontiguousarray(array) for name, array in found.items()}

    def function(self) -> bytes:
        """A digest that is equal for hypotheses which compute one function: heads in another order, equal arrays.

        Key biases are left out where the output does not depend on them. Norm weights of ones are as none.
        """
        config, weights = (self if self.key_bias_acts else replace(self, bk=None)).canonical()
        h, g = config.num_heads, config.num_kv_heads
        rows: Mapping[str, NDArray] = {
            "q": weights["q_proj.weight"].reshape(g, h // g, -1),
            "bq": weights.get("q_proj.bias", np.zeros(config.head_dim * h)).reshape(g, h // g, -1),
            "o": weights["out_proj.weight"].T.reshape(g, h // g, -1),
            "k": weights["k_proj.weight"].reshape(g, -1),
            "v": weights["v_proj.weight"].reshape(g, -1),
            "bk": weights.get("k_proj.bias", np.zeros(config.head_dim * g)).reshape(g, -1),
            "bv": weights.get("v_proj.bias", np.zeros(config.value_head_dim * g)).reshape(g, -1),
        }
        groups = []
        for group in range(g):
            queries = sorted(_digest(*(rows[name][group, i] for name in ("q", "bq", "o"))) for i in range(h // g))
            groups.append(b"".join(queries) + _digest(*(rows[name][group] for name in ("k", "bk", "v", "bv"))))
        bias = weights.get("out_proj.bias", np.zeros(config.output_dim))
        norms = [weights.get(f"{name}.weight", np.ones(config.head_dim)) for name in NORMS]
        settings = dict(self.settings)
        if config.query_key_norm is not None:
            settings["query_key_norm"] = replace(config.query_key_norm, weight="none")
        said = f"{self.mask} {settings}".encode()
        return _digest(bias, np.array(config.softmax_scale), *norms) + said + b"".join(sorted(groups))


def kv_of(heads: int, kv_heads: int, tiled: bool) -> NDArray:
    """(H,) which key head each query head reads.

    >>> kv_of(4, 2, tiled=False), kv_of(4, 2, tiled=True)
    (array([0, 0, 1, 1]), array([0, 1, 0, 1]))
    """
    return np.arange(heads) % kv_heads if tiled else np.arange(heads) // (heads // kv_heads)


def _digest(*arrays: NDArray) -> bytes:
    return sha256(b"".join(np.ascontiguousarray(array + 0.0).tobytes() for array in arrays)).digest()  # -0 is 0
