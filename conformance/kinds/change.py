"""Change: what turns one array into another, at one place of the definition. Setting: the call that it is part of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from mha_core import AttentionConfig, AttentionInputs
from mha_core.call.sizes import CallSizes
from mha_core.features import FEATURES
from mha_core.reference.state import State

MASKS = {"valid_lens": "lengths", "allowed": "a keep-mask", "causal": "a causal mask", "window": "a window"}
"""Sources of a mask that are no row of FEATURES, in words; a bias is one."""


@dataclass(frozen=True, eq=False)
class Setting:
    """One call, on whose sizes and features a change may depend. Calls of equal sizes are equal settings."""

    config: AttentionConfig
    sizes: CallSizes
    inputs: AttentionInputs

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and (self.config, self.sizes) == (other.config, other.sizes)

    def __hash__(self) -> int:
        return hash((self.config, self.sizes))

    @cached_property
    def has(self) -> frozenset[str]:
        """Names of FEATURES and of MASKS: what the layer and the call have."""
        mask = self.inputs.mask
        masks = (name for name in MASKS if getattr(mask, name) is not None and getattr(mask, name) is not False)
        return frozenset((*(row.name for row in FEATURES if row.present(self.config, self.inputs)), *masks))

    @classmethod
    def of(cls, state: State | Problem) -> Setting:
        """Return the setting of a run, or of a problem."""
        return cls(state.config, state.sizes, state.inputs)


SIZES: dict[str, Callable[[Setting], float]] = {
    "scale": lambda s: s.config.softmax_scale,
    "head_dim": lambda s: s.config.head_dim,
    "num_heads": lambda s: s.config.num_heads,
    "embed_dim": lambda s: s.config.embed_dim,
    "query_dim": lambda s: s.config.query_dim,
    "key_dim": lambda s: s.config.key_dim,
    "value_dim": lambda s: s.config.value_dim,
    "output_dim": lambda s: s.config.output_dim,
    "value_head_dim": lambda s: s.config.value_head_dim,
    "num_kv_heads": lambda s: s.config.num_kv_heads,
    "heads per kv head": lambda s: s.config.num_heads // s.config.num_kv_heads,
    "key length": lambda s: s.sizes.key_len,
    "query length": lambda s: s.sizes.query_len,
    "batch size": lambda s: s.sizes.batch,
    "past length": lambda s: s.sizes.past_len,
    "head_dim rounded up to a multiple of 8": lambda s: -(-s.config.head_dim // 8) * 8,
    "head_dim rounded up to a power of 2": lambda s: 1 << (s.config.head_dim - 1).bit_length(),
    "p": lambda s: s.config.dropout,
    "(1 - p)": lambda s: 1.0 - s.config.dropout,
}
"""Name -> the size, the layer's scale, or the rate p of dropout; the likeliest first."""

Apply = Callable[[NDArray, tuple[str, ...], Setting], NDArray]
"""(array, its axes, the call) -> the changed array. It raises DoesNotApply at sizes where it can't be made."""


@dataclass(frozen=True, eq=False)
class Change:
    """One change of an array.

    Args:
        slug: a name in kebab-case that no other change has, with its numbers: "times-0.9", "heads-reversed".
        words: to be read after "<the array> are ": "multiplied by 0.9".
        apply: makes the changed array.
        fix: what to do about it, where that is known.
    """

    slug: str
    words: str
    apply: Apply
    fix: str = ""

    def made(self, array: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
        """Return the changed array; one without elements as it is. Bools count as 0 and 1."""
        if not array.size:
            return array
        with any_numbers:
            return self.apply(array * 1.0 if array.dtype == bool else array, axes, setting)


def elementwise(slug: str, words: str, function: Callable[[NDArray], NDArray]) -> Change:
    """Return the change of each element by itself."""
    return Change(slug, words, lambda array, axes, setting: function(array))


LEAVE_OUT = "Remove what does this."

FUNCTIONS: dict[str, tuple[str, Callable[[NDArray], NDArray]]] = {
    "relu": ("max(x, 0)", lambda x: np.maximum(x, 0.0)),
    "abs": ("|x|", np.abs),
    "tanh": ("tanh(x)", np.tanh),
    "sigmoid": ("1 / (1 + exp(-x))", lambda x: 1.0 / (1.0 + np.exp(-x))),
    "squared": ("x^2", np.square),
    "root": ("sign(x) * sqrt(|x|)", lambda x: np.sign(x) * np.sqrt(np.abs(x))),
    "exp": ("exp(x)", np.exp),
    "softsign": ("x / (1 + |x|)", lambda x: x / (1.0 + np.abs(x))),
    "sign": ("sign(x)", np.sign),
    "integers": ("round(x)", np.round),
}
"""Name -> (the formula, function)."""

EACH = "changed: each x becomes {}"
"""The words of a function, for its formula."""
