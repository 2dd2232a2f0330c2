"""What a condition is, and the words that conditions are made of: of one call.

A `Call` is made at the moment of the call, since it notes what its arrays hold then; who records a suite makes one for
every call of every prepared layer, in order. A condition is met by a suite if it holds for one of its calls.

What can't be seen in `AttentionInputs` is no condition: lengths given as a list, or arrays of the other byte order, are
ordinary arrays by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.arguments import CallSizes
from mha_core.call.masks import allowed_keys, padding_keys


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a prepared layer.

    Args:
        config, weights: those that it was prepared with; the weights as they are at this call.
        inputs: as given to the layer.
        dtype: the dtype of the run by name; bfloat16 numbers lie in float32 arrays.
        prepared: which prepared layer.
        thread: which thread it is asked in.
        training: whether a keep-mask is given. gradients: whether a cotangent is.
    """

    config: AttentionConfig
    weights: Mapping[str, np.ndarray]
    inputs: AttentionInputs
    dtype: str
    prepared: int = 0
    thread: int = 0
    training: bool = False
    gradients: bool = False
    digests: Mapping[str, bytes] = field(init=False, default_factory=dict)
    kept: dict[str, Any] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in (*ARRAYS, *(f"weights:{key}" for key in self.weights)):
            array = arr(self, name)
            if array is not None:
                self.digests[name] = _digest(array)


@dataclass(frozen=True)
class Condition:
    """Something that a user's call could well be.

    Args:
        name: unique. words: the same, to be read.
        holds: (call, the calls of the same prepared layer before it) -> what is true if it is met.
    """

    name: str
    words: str
    holds: Callable[[Call, list[Call]], object]


# ---- one call

FLOATS = ("queries", "keys", "values", "past_keys", "past_values", "cotangent", "bias")
INTS = ("valid_lens", "query_offset")
BOOLS = ("allowed", "dropout_keep")
ARRAYS = (*FLOATS, *INTS, *BOOLS)
OF_MASK = ("bias", "valid_lens", "query_offset", "allowed")


def arr(c: Call, name: str) -> np.ndarray | None:
    """An array of the call by its name, "weights:..." for a weight; None where there is none, or a plain integer."""
    if name.startswith("weights:"):
        return c.weights.get(name.removeprefix("weights:"))
    given = getattr(c.inputs.mask if name in OF_MASK else c.inputs, name)
    return given if isinstance(given, np.ndarray) else None


def _digest(array: np.ndarray) -> bytes:
    hashed = hashlib.blake2b(repr((array.shape, array.dtype.str)).encode(), digest_size=16)
    hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.digest()


class Sizes(NamedTuple):
    """b items, h query heads, g key heads, lq queries, lk keys with the past, d and dv head widths, w* the widths."""

    b: int
    h: int
    g: int
    lq: int
    lk: int
    new: int
    past: int
    d: int
    dv: int
    wq: int
    wk: int
    wv: int
    wo: int


def z(c: Call) -> Sizes:
    x, k = c.inputs, c.config
    past = 0 if x.past_keys is None else x.past_keys.shape[2]
    new = x.keys.shape[-2]
    return Sizes(
        x.queries.shape[0], k.num_heads, k.num_kv_heads, x.queries.shape[-2], new + past, new, past, k.head_dim,
        k.value_head_dim, k.query_dim, k.key_dim, k.value_dim, k.output_dim,
    )  # fmt: skip


def shape(c: Call) -> tuple[int, int, int]:
    """(B, Lq, Lk)."""
    return z(c).b, z(c).lq, z(c).lk


def ordinary(c: Call) -> bool:
    """Not of size 0 anywhere."""
    return min(shape(c)) > 0


def prime(n: int) -> bool:
    return n > 1 and all(n % k for k in range(2, int(n**0.5) + 1))


def power(n: int) -> bool:
    """A power of two, from 2 on."""
    return n > 1 and n & (n - 1) == 0


def m(c: Call) -> Any:
    return c.inputs.mask


def lens(c: Call) -> np.ndarray | None:
    """The lengths as int64 (B,) or (B, Lq)."""
    given = m(c).valid_lens
    return None if given is None else np.asarray(given).astype(np.int64)


def offsets(c: Call) -> np.ndarray:
    """The offsets as int64 (1,) or (B,), where positions matter; else [0]."""
    return np.asarray(m(c).query_offset).astype(np.int64).reshape(-1) if m(c).has_positions else np.zeros(1, np.int64)


def kinds(c: Call) -> frozenset[str]:
    """Of "lens", "allowed", "bias", "causal", "window", "offset": what the mask has."""
    mask = m(c)
    has = {
        "lens": mask.valid_lens is not None,
        "allowed": mask.allowed is not None,
        "bias": mask.bias is not None,
        "causal": mask.causal,
        "window": mask.window is not None,
        "offset": bool(offsets(c).any()),
    }
    return frozenset(name for name, there in has.items() if there)


def sources(c: Call) -> frozenset[str]:
    """Of "lens", "allowed", "bias", "causal", "window": `kinds` without the offset, which is none by itself."""
    return kinds(c) - {"offset"}


def has(c: Call, *names: str) -> bool:
    """Whether it has all of these kinds of mask, or features."""
    return set(names) <= kinds(c) | feats(c)


def feats(c: Call) -> frozenset[str]:
    """The features of a call beyond the plain layer."""
    k, x = c.config, c.inputs
    biases = [getattr(k.bias, name) for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
    there = {
        "softcap": k.softcap is not None,
        "scale": k.scale is not None,
        "additive": k.score == "additive",
        "dot": k.score == "dot",
        "grouped": k.num_kv_heads < k.num_heads,
        "head_dim": k.projections and k.head_dim * k.num_heads != k.embed_dim,
        "value_head_dim": k.value_head_dim != k.head_dim,
        "widths": k.projections and len({k.query_dim, k.key_dim, k.value_dim, k.output_dim}) > 1,
        "bare": not k.projections,
        "split": x.queries.ndim == 4,
        "past": x.past_keys is not None and x.past_keys.shape[2] > 0,
        "dropout": x.dropout_keep is not None,
        "gradients": x.cotangent is not None,
        "all_biases": all(biases),
        "no_biases": k.projections and not any(biases),
        "some_biases": any(biases) and not all(biases),
    }
    return frozenset(name for name, has_it in there.items() if has_it)


def full(c: Call) -> np.ndarray:
    """Bool (B, H, Lq, Lk): all sources of the mask."""
    if "full" not in c.kept:
        c.kept["full"] = allowed_keys(m(c), CallSizes(z(c).b, z(c).lq, z(c).lk, z(c).past), z(c).h)
    return c.kept["full"]


def full_of(c: Call, *names: str) -> np.ndarray:
    """The same of these sources alone; "causal" and "window" bring the offset."""
    none = {"valid_lens": None, "allowed": None, "bias": None, "causal": False, "window": None}
    fields = {"lens": "valid_lens"}
    only = {fields.get(name, name): getattr(m(c), fields.get(name, name)) for name in names}
    sizes = CallSizes(z(c).b, z(c).lq, z(c).lk, z(c).past)
    return allowed_keys(replace(m(c), **{**none, **only}), sizes, z(c).h)


def padding(c: Call) -> np.ndarray:
    """Bool (B, Lk): keys that the lengths alone, or `allowed` alone, exclude for a whole item."""
    return padding_keys(m(c), CallSizes(z(c).b, z(c).lq, z(c).lk, z(c).past))


def empty_rows(c: Call) -> np.ndarray:
    """Bool (B, H, Lq): rows without an allowed key, where there are keys."""
    return ~full(c).any(axis=-1) if ordinary(c) else np.zeros((z(c).b, z(c).h, z(c).lq), bool)


def empty_by(c: Call, *names: str) -> bool:
    """Whether these sources alone leave some row without a key."""
    return ordinary(c) and set(names) <= kinds(c) and bool((~full_of(c, *names).any(axis=-1)).any())


def pattern(c: Call, name: str) -> str:
    """The shape of `allowed` or `bias`: a letter for each axis that is not 1, of B, H, Q, K; as in "B11K" and "QK"."""
    array = arr(c, name)
    if array is None:
        return "none"
    return "".join("1" if n == 1 else letter for n, letter in zip(array.shape, "BHQK"[4 - array.ndim :], strict=True))


def by(c: Call, axis: int) -> bool:
    """Whether `full` differs along an axis: 0 the items, 1 the heads, 2 the queries, 3 the keys."""
    mask = full(c)
    return mask.size > 0 and bool((mask != mask.take([0], axis=axis)).any())
