"""Capabilities of a framework's own layer, and such a layer as a subject of the conformance suite.

Each backend's `native/subjects.py` makes the layers of its framework into subjects with this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from mha_core import features as table
from mha_core.backend import Run
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import as_valid_lens
from mha_core.config import AttentionConfig
from mha_core.dtypes import check_dtype
from mha_core.errors import SpecError, meant
from mha_core.features import WIDTHS
from mha_core.parts import PARTS
from mha_core.weights import Weights

OTHER_NAMES = {"gqa": "grouped", "rope": "rotary", "kv_cache": "past", "qk_norm": "query_key_norm"}
"""What others call a feature, beside the options of a function that has it -> its name."""


@dataclass(frozen=True, init=False)
class Capabilities:
    """The features of attention that a layer supports; it is not tested on cases with other features.

    Args:
        features: names of features in the table `mha_core.features.FEATURES`.
        only_lengths: whether `valid_lens` is the only mask that the layer takes.

    Raises:
        SpecError: the table has no feature of this name.

    >>> from mha_core import AttentionConfig
    >>> Capabilities("bias").why_not(AttentionConfig(12, 4, num_kv_heads=2, key_dim=9))
    'fewer key heads than query heads; key_dim other than embed_dim'
    >>> Capabilities("bias", "grouped", "key_dim").why_not(AttentionConfig(12, 4, num_kv_heads=2, key_dim=9))
    """

    features: frozenset[str]
    only_lengths: bool

    def __init__(self, *features: str, only_lengths: bool = False) -> None:
        known = [row.name for row in table.FEATURES]
        for name in features:
            if name not in known:
                others = {option: row.name for row in table.FEATURES for option in row.options} | OTHER_NAMES
                near = f"; did you mean {others[name]}?" if others.get(name) in known else ""
                raise SpecError(
                    f"feature {name!r} is not known (known: {', '.join(known)}){near or meant(name, known)}"
                )
        object.__setattr__(self, "features", frozenset(features))  # the dataclass is frozen
        object.__setattr__(self, "only_lengths", only_lengths)

    def but(self, *more: str, without: Collection[str] = ()) -> Capabilities:
        """Return a copy that also has the features `more`, and lacks those in `without`.

        >>> sorted(Capabilities("bias", "scale").but("past", without=("scale",)).features)
        ['bias', 'past']
        """
        return Capabilities(*(self.features | set(more)) - set(without), only_lengths=self.only_lengths)

    def why_not(self, config: AttentionConfig, inputs: AttentionInputs | None = None) -> str | None:
        """Return in words which features of a config and a call the layer does not support; None if it supports all."""
        lacking = [
            row for row in table.FEATURES if row.words and row.name not in self.features and row.present(config, inputs)
        ]
        for row in lacking:
            if row.alone:
                return row.words
        said = [row.words for row in lacking]
        if inputs is not None and self.only_lengths and not _is_lengths(config, inputs):
            said.append("a mask that is not the first keys of each query, the same in all heads")
        return "; ".join(said) or None


EVERYTHING = Capabilities(*(row.name for row in table.FEATURES))
"""All features: an object with `capabilities = EVERYTHING` is asked every case."""

FIRST = EVERYTHING.but(without=PARTS)
"""Those that the definition had at first: an object that declares no capabilities may have been written then."""

OPERATION = Capabilities("bias", "dot", "scale", "head_dim", "value_head_dim", "grouped", *WIDTHS, "bare")
"""The features of an operator that is given queries, keys and values in heads, without projections of its own."""


def _is_lengths(config: AttentionConfig, inputs: AttentionInputs) -> bool:
    return as_valid_lens(inputs.mask, inputs.check(config), config.num_heads) is not None


def one_width(layer: str, config: AttentionConfig) -> int:
    """Return H * d, the width of every projection of layers like d2l.ai's; SpecError if the config's widths differ.

    >>> from mha_core import AttentionConfig
    >>> one_width("d2l.ai's layer", AttentionConfig(12, 4, output_dim=10))
    Traceback (most recent call last):
    ...
    mha_core.errors.SpecError: d2l.ai's layer needs output_dim=12 (num_heads=4, head_dim=3). Got 10.
    """
    width = config.num_heads * config.head_dim
    wanted = {"num_kv_heads": config.num_heads, "value_head_dim": config.head_dim, "output_dim": width}
    for name, size in wanted.items():
        given = getattr(config, name)
        if given != size:
            sizes = f"num_heads={config.num_heads}, head_dim={config.head_dim}"
            raise SpecError(f"{layer} needs {name}={size} ({sizes}). Got {given}.")
    return width


class NativeSubject(ABC):
    """A framework's own layer, run in one of the framework's ways (such as compiled), for `mha check` to test.

    `mha check --subject backends.torch.native.subjects:MultiheadAttentionSubject` makes an instance for each dtype.

    Attributes:
        name: its name in reports, such as "torch.nn.MultiheadAttention (need_weights)".
        dtypes: the dtypes in which it computes on a CPU.
        capabilities: the features that it can express.
    """

    name: ClassVar[str]
    dtypes: ClassVar[tuple[str, ...]] = ("float64", "float32")
    capabilities: ClassVar[Capabilities]
    device = "cpu"

    def __init__(self, dtype: str = "float64") -> None:
        if check_dtype(dtype) not in self.dtypes:
            raise SpecError(f"{self.name} does not compute in {dtype} (it does in: {', '.join(self.dtypes)})")
        self.dtype = dtype

    def supports(self, config: AttentionConfig, inputs: AttentionInputs) -> str | None:
        """Return in words which features of this case the layer does not support; None if it supports all."""
        return self.capabilities.why_not(config, inputs)

    @abstractmethod
    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """Make the layer from canonical weights, and return the function that runs it."""
