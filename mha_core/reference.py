"""The reference: multi-head attention in float64, forward and backward, as a pipeline of steps.

A step is a function of the State that returns one array (or, backward, a dict of gradients); the
runner stores it under the step's name. `FORWARD` and `BACKWARD` are the two pipelines. Replacing
one step makes a variant of the definition: `run(..., forward={**FORWARD, "scores": mine})`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha_core.backward import (
    BACKWARD,
    collect_gradients,
    d_additive_hidden,
    d_bias,
    d_heads,
    d_k_proj,
    d_kept_weights,
    d_keys,
    d_out_proj,
    d_output,
    d_past,
    d_q_proj,
    d_queries,
    d_score_parameters,
    d_scores,
    d_similarity,
    d_v_proj,
    d_values,
    d_weights,
    new_part,
    project_backward,
)
from mha_core.checks import CallSizes
from mha_core.config import AttentionConfig
from mha_core.forward import (
    FORWARD,
    additive_hidden,
    after_past,
    allowed,
    cap,
    dropout_factor,
    heads,
    kept_weights,
    key_inputs,
    keys,
    new_keys,
    new_padding,
    new_values,
    output,
    padding,
    project,
    queries,
    scores,
    similarity,
    value_inputs,
    values,
    weights,
)
from mha_core.heads import repeat_kv_heads
from mha_core.inputs import AttentionInputs, read_only
from mha_core.stages import STAGES, Trace
from mha_core.weights import Weights, check_weights

__all__ = [
    "BACKWARD",
    "FORWARD",
    "State",
    "Step",
    "additive_hidden",
    "after_past",
    "allowed",
    "cap",
    "collect_gradients",
    "d_additive_hidden",
    "d_bias",
    "d_heads",
    "d_k_proj",
    "d_kept_weights",
    "d_keys",
    "d_out_proj",
    "d_output",
    "d_past",
    "d_q_proj",
    "d_queries",
    "d_score_parameters",
    "d_scores",
    "d_similarity",
    "d_v_proj",
    "d_values",
    "d_weights",
    "dropout_factor",
    "heads",
    "kept_weights",
    "key_inputs",
    "keys",
    "new_keys",
    "new_padding",
    "new_part",
    "new_values",
    "output",
    "padding",
    "project",
    "project_backward",
    "queries",
    "run",
    "run_state",
    "scores",
    "similarity",
    "value_inputs",
    "values",
    "weights",
]


@dataclass
class State:
    """What a step may read: the problem, and the arrays of earlier steps by name.

    Inputs that are split into heads are merged here, whatever the caller gave; `is_split` remembers it.
    """

    config: AttentionConfig
    weights: Weights
    inputs: AttentionInputs
    sizes: CallSizes
    is_split: bool = False
    arrays: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    def heads_of(self, name: str) -> NDArray:
        """The stage `keys` or `values` with each head repeated for the query heads that read it."""
        return repeat_kv_heads(self[name], self.config.num_heads)

    def trace(self) -> Trace:
        """The stages, and the gradients if the backward pipeline ran, as read-only arrays."""
        gradients = None
        if self.inputs.cotangent is not None:
            gradients = {name: read_only(array) for name, array in collect_gradients(self).items()}
        return Trace(**{name: read_only(self[name]) for name in STAGES}, gradients=gradients)


Step = Callable[[State], Any]


def run(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] | None = None,
    backward: Mapping[str, Step] | None = None,
) -> Trace:
    """Run the pipeline in float64.

    Args:
        config, weights, inputs: the problem. Numbers of any dtype are used as they are.
        forward, backward: pipelines in place of FORWARD and BACKWARD.

    Returns:
        A Trace of float64 arrays: all seven stages, and gradients if `inputs.cotangent` is given.

    Raises:
        SpecError: before any arithmetic, if the weights or the inputs do not fit the config.
    """
    return run_state(config, weights, inputs, forward=forward, backward=backward).trace()


def run_state(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] | None = None,
    backward: Mapping[str, Step] | None = None,
) -> State:
    """As `run`, but the State with the array of every step."""
    checked = check_weights(config, weights)
    sizes = inputs.check(config)
    state = State(
        config=config,
        weights={name: array.astype(np.float64) for name, array in checked.items()},
        inputs=inputs.merged().as_float64(),
        sizes=sizes,
        is_split=inputs.is_split,
    )
    # NaN and infinity are data here: they go where the equation sends them.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for name, step in (FORWARD if forward is None else forward).items():
            state.arrays[name] = step(state)
        if inputs.cotangent is not None:
            for name, step in (BACKWARD if backward is None else backward).items():
                state.arrays[name] = step(state)
    return state
