"""AttentionInputs: everything that one run of a layer is given, as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mha_core.checks import CallSizes, check_call, check_valid_lens
from mha_core.config import AttentionConfig
from mha_core.dtypes import DTYPES, round_to
from mha_core.errors import SpecError
from mha_core.masks import AttentionMask


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """What one run is given.

    Args:
        queries, keys, values: (B, Lq, Dq), (B, Lk, Dk), (B, Lk, Dv).
        mask: which keys each query may attend to.
        dropout_keep: bool (B, H, Lq, Lk); True keeps a weight. Its presence makes this a training step.
        cotangent: (B, Lq, Do), the gradient of some loss with respect to the output. Its presence
            asks for gradients.
    """

    queries: NDArray
    keys: NDArray
    values: NDArray
    mask: AttentionMask = field(default_factory=AttentionMask)
    dropout_keep: NDArray | None = None
    cotangent: NDArray | None = None

    def check(self, config: AttentionConfig) -> CallSizes:
        """Return the sizes of this run, or raise SpecError naming what does not fit `config`."""
        sizes = check_call(
            queries=self.queries,
            keys=self.keys,
            values=self.values,
            mask=self.mask,
            dropout_keep=self.dropout_keep,
            num_heads=config.num_heads,
            widths=(config.query_dim, config.key_dim, config.value_dim),
        )
        if self.mask.valid_lens is not None:
            check_valid_lens(self.mask.valid_lens, self.keys.shape[1])
        if self.cotangent is not None:
            output = (*self.queries.shape[:2], config.output_dim)
            if self.cotangent.shape != output or str(self.cotangent.dtype) not in DTYPES:
                raise SpecError(
                    f"cotangent must be floating-point of the output's shape {output}. "
                    f"Got {self.cotangent.dtype} {self.cotangent.shape}."
                )
        return sizes

    def rounded(self, dtype: str) -> AttentionInputs:
        """The same inputs with every floating-point array rounded to `dtype` (see `round_to`)."""
        return replace(
            self,
            queries=round_to(self.queries, dtype),
            keys=round_to(self.keys, dtype),
            values=round_to(self.values, dtype),
            mask=self.mask.map_arrays(lambda name, array: round_to(array, dtype) if name == "bias" else array),
            cotangent=None if self.cotangent is None else round_to(self.cotangent, dtype),
        )

    def as_float64(self) -> AttentionInputs:
        """The same numbers in float64."""
        return self.rounded("float64")


def read_only(array: NDArray) -> NDArray:
    """A view of `array` that cannot be written through."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
