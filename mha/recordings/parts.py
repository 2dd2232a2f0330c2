"""RecordedLayer and RecordedCall: the parts of a recording."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mha_core import STAGES, AttentionConfig, AttentionInputs, SpecError, stage_shapes
from mha_core.dtypes import check_held, storage_dtype
from mha_core.weights import Weights

FORMAT = 1
"""Version of the file format; a change that an older reader would misread raises it."""


AT_SEAM = "{}, its attention function"
"""The kind of a layer that is recorded at its attention function; its class in place of the braces."""


@dataclass(frozen=True, eq=False)
class RecordedLayer:
    """A layer with the weights that it had during its recorded calls.

    Args:
        name: its name in the model, such as "encoder.0.attention"; "" for the model itself.
        kind: its class, such as "torch.nn.MultiheadAttention".
        dtype: the dtype in which it computes, by name; bfloat16 numbers are held in float32 arrays.
        config, weights: the layer's AttentionConfig and its canonical weights.
        parameters: the name of the weights' own dtype, if the layer casts them to `dtype` to compute; else None.
    """

    name: str
    kind: str
    dtype: str
    config: AttentionConfig
    weights: Weights
    parameters: str | None = None

    @property
    def is_at_seam(self) -> bool:
        """Return whether the layer's attention function was recorded alone, without projections."""
        return self.kind.endswith(AT_SEAM.format("")) and not self.config.projections

    @property
    def held_in(self) -> str:
        """Return the dtype of the weights, by name."""
        return self.parameters or self.dtype


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """A recorded call of a layer.

    Args:
        layer: its position among the recording's layers.
        inputs: its arguments as AttentionInputs.
        outputs: "output" -> array; also "weights" -> array if the call returned them for each head.
        assumed: in words, settings that were guessed and that no argument and no number confirms; "" if there are none.
    """

    layer: int
    inputs: AttentionInputs
    outputs: Mapping[str, NDArray]
    assumed: str = ""


def check_call(name: str, layer: RecordedLayer, call: RecordedCall) -> None:
    """Raise SpecError unless inputs and outputs of a call have its layer's shapes, and fit in its layer's dtype."""
    sizes = call.inputs.check(layer.config)
    storage = storage_dtype(layer.dtype)
    shapes = stage_shapes(layer.config, sizes.batch, sizes.query_len, sizes.key_len)
    if "output" not in call.outputs:
        raise SpecError(f"call {name!r} has no output")
    floats = {"queries": call.inputs.queries, **call.outputs}
    for stage, array in floats.items():
        if stage not in STAGES:
            raise SpecError(f"call {name!r} has an output {stage!r}, which is not known (known: {', '.join(STAGES)})")
        if stage in call.outputs and array.shape != shapes[stage]:
            raise SpecError(f"call {name!r}: {stage} must have shape {shapes[stage]}. Got {array.shape}.")
        if array.dtype != storage:
            raise SpecError(f"call {name!r}: {stage} of a layer in {layer.dtype} must be {storage}. Got {array.dtype}.")
    for what, value in {
        **vars(call.inputs),
        **call.inputs.tables(),
        "bias": call.inputs.mask.bias,
        **call.outputs,
    }.items():
        if isinstance(value, np.ndarray):
            check_held(f"call {name!r}: {what}", value, layer.dtype)
