"""Multi-head attention, defined once: sizes, masks, head order, weights, and a float64 reference.

Importing this package imports NumPy and safetensors, and no framework.

>>> import numpy as np
>>> from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights, reference
>>> config = AttentionConfig(embed_dim=6, num_heads=2)
>>> weights = init_weights(config, seed=0)
>>> rng = np.random.default_rng(1)
>>> inputs = AttentionInputs(
...     queries=rng.normal(size=(2, 4, 6)),
...     keys=rng.normal(size=(2, 5, 6)),
...     values=rng.normal(size=(2, 5, 6)),
...     mask=AttentionMask(valid_lens=np.array([3, 2])),
... )
>>> trace = reference.run(config, weights, inputs)
>>> trace.output.shape, trace.weights.shape
((2, 4, 6), (2, 2, 4, 5))
"""

from mha_core.call.inputs import AttentionInputs
from mha_core.call.masks import AttentionMask
from mha_core.call.positions import sinusoidal_positions
from mha_core.call.rotary import RotaryInputs
from mha_core.config import AttentionConfig, ProjectionBias
from mha_core.errors import BackendError, SpecError
from mha_core.parts.query_key_norm import QueryKeyNorm
from mha_core.parts.rotary import Rotary
from mha_core.stages import STAGES, Trace, stage_shapes
from mha_core.weights import check_weights, init_weights, load_weights, save_weights, weight_shapes

__all__ = [
    "STAGES",
    "AttentionConfig",
    "AttentionInputs",
    "AttentionMask",
    "BackendError",
    "ProjectionBias",
    "QueryKeyNorm",
    "Rotary",
    "RotaryInputs",
    "SpecError",
    "Trace",
    "check_weights",
    "init_weights",
    "load_weights",
    "save_weights",
    "sinusoidal_positions",
    "stage_shapes",
    "weight_shapes",
]
