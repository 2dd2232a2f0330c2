"""Native: what somebody else's layer can express, and such a layer as a subject of the conformance suite.

Each backend's `native/subjects.py` makes the layers of its framework into subjects with this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mha_core.backend import Run
from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import as_valid_lens
from mha_core.config import AttentionConfig
from mha_core.dtypes import check_dtype
from mha_core.errors import SpecError
from mha_core.weights import Weights

WIDTHS = ("query_dim", "key_dim", "value_dim", "output_dim")
"""The sizes that differ from embed_dim only in layers that have an argument for it."""


@dataclass(frozen=True)
class Capabilities:
    """What a layer can express of the definition; everything else is a reason why a case can't be asked of it.

    Attributes:
        scores: the score functions that it has.
        scale: whether the factor of "scaled_dot" can be chosen.
        head_dim: whether head_dim * num_heads may differ from embed_dim.
        value_head_dim: whether value heads may have another width than key heads.
        grouped: whether there may be fewer key/value heads than query heads.
        widths: which of query_dim, key_dim, value_dim, output_dim may differ from embed_dim.
        bias: whether it takes an additive bias on the scores.
        dropout_keep: whether it takes a given keep-mask.
        softcap: whether scores can be capped.
        past: whether it takes the keys and values of earlier decoding steps.
        bare: whether it can do without the four projections.
        only_lengths: whether the number of first keys, of each item or query, is the only mask that it takes.

    >>> from mha_core import AttentionConfig
    >>> Capabilities().why_not(AttentionConfig(12, 4, num_kv_heads=2, key_dim=9))
    'fewer key heads than query heads; key_dim other than embed_dim'
    """

    scores: tuple[str, ...] = ("scaled_dot",)
    scale: bool = False
    head_dim: bool = False
    value_head_dim: bool = False
    grouped: bool = False
    widths: tuple[str, ...] = ()
    bias: bool = True
    dropout_keep: bool = False
    softcap: bool = False
    past: bool = False
    bare: bool = False
    only_lengths: bool = False

    def why_not(self, config: AttentionConfig, inputs: AttentionInputs | None = None) -> str | None:
        """None, or what the layer has no way to be told, of the config and of one call."""
        lacking = []
        if config.score not in self.scores:
            lacking.append(f"score {config.score!r}")
        if config.scale is not None and not self.scale:
            lacking.append("a scale of one's own")
        if config.head_dim * config.num_heads != config.embed_dim and not self.head_dim:
            lacking.append("head_dim other than embed_dim / num_heads")
        if config.value_head_dim != config.head_dim and not self.value_head_dim:
            lacking.append("value heads of another width than key heads")
        if config.num_kv_heads != config.num_heads and not self.grouped:
            lacking.append("fewer key heads than query heads")
        lacking += [
            f"{width} other than embed_dim"
            for width in WIDTHS
            if getattr(config, width) != config.embed_dim and width not in self.widths
        ]
        if inputs is not None and inputs.mask.bias is not None and not self.bias:
            lacking.append("an additive bias")
        if inputs is not None and inputs.dropout_keep is not None and not self.dropout_keep:
            lacking.append("a given dropout keep-mask")
        if config.softcap is not None and not self.softcap:
            lacking.append("a softcap")
        if inputs is not None and inputs.past_keys is not None and not self.past:
            lacking.append("past keys and values")
        if not config.projections and not self.bare:
            return "attention without projections"
        if inputs is not None and self.only_lengths and not _is_lengths(config, inputs):
            lacking.append("a mask that is not the first keys of each query, the same in all heads")
        return "; ".join(lacking) or None


OPERATION = Capabilities(
    scores=("scaled_dot", "dot"),
    scale=True,
    head_dim=True,
    value_head_dim=True,
    grouped=True,
    widths=WIDTHS,
    bare=True,
)
"""What an attention operator has that is given queries, keys and values in heads: projections are the caller's."""


def _is_lengths(config: AttentionConfig, inputs: AttentionInputs) -> bool:
    return as_valid_lens(inputs.mask, inputs.check(config), config.num_heads) is not None


def one_width(layer: str, config: AttentionConfig) -> int:
    """H * d, in a layer where that is how many rows each projection makes, such as d2l.ai's; SpecError elsewhere.

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
    """One layer of a framework, along one of its paths, as a subject.

    A factory in `native/subjects.py` is the subclass itself: `mha check --subject
    backends.torch.native.subjects:MultiheadAttentionSubject` calls it with the dtype.

    Attributes:
        name: as reports show it, such as "torch.nn.MultiheadAttention (need_weights)".
        dtypes: what it computes in on a CPU.
        capabilities: what it can express.
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
        """None, or what of this case the layer has no way to be told."""
        return self.capabilities.why_not(config, inputs)

    @abstractmethod
    def prepare(self, config: AttentionConfig, weights: Weights) -> Run:
        """Make the layer from canonical weights; the function returned runs it."""
