"""Sample: a measured array beside the expected one; Change: what turns the one into the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mha_core.call.sizes import CallSizes
from mha_core.config import AttentionConfig


class Setting(NamedTuple):
    """The sizes on which a change may depend: those of the layer and of the call."""

    config: AttentionConfig
    sizes: CallSizes


@dataclass(frozen=True, eq=False)
class Sample:
    """Two arrays of one shape.

    Args:
        measured, expected: equal shapes. A NaN in either is a place that was not measured.
        axes: the name of each axis: "item", "head", "query", "key", "channel", "input channel", ...
        setting: of the problem that they are from.
        unit: the relative error of what was measured.
    """

    measured: NDArray
    expected: NDArray
    axes: tuple[str, ...]
    setting: Setting
    unit: float = 1e-13

    @property
    def known(self) -> NDArray[np.bool_]:
        return ~(np.isnan(self.measured) | np.isnan(self.expected))

    def is_given_by(self, array: NDArray) -> bool:
        """Whether an array equals the measured one within its error, wherever that is known."""
        if array.shape != self.measured.shape:
            return False
        known = self.known
        most = np.abs(self.measured[known]).max(initial=0.0)
        with np.errstate(all="ignore"):
            off = np.abs(array - self.measured) > 1000.0 * self.unit * most
        return not bool(((off | np.isnan(array)) & known).any())

    @property
    def differs(self) -> bool:
        return not self.is_given_by(self.expected)


@dataclass(frozen=True, eq=False)
class Change:
    """One change of an array.

    Args:
        slug: a name in kebab-case that no other change has, with its numbers: "times-0.9", "heads-reversed".
        words: what was measured, to be read after "<the stage> is the definition's ": "times 0.9".
        apply: (array, axes, setting) -> the changed array. It raises DoesNotApply at sizes where it can't be made.
    """

    slug: str
    words: str
    apply: Callable[[NDArray, tuple[str, ...], Setting], NDArray]
