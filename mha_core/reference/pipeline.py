"""The reference: multi-head attention in float64, forward and backward, as a pipeline of steps.

A step is a function of the State that returns one array (or, backward, a dict of gradients); the
runner stores it under the step's name. `FORWARD` and `BACKWARD` are the two pipelines. Replacing
one step makes a variant of the definition: `run(..., forward={**FORWARD, "scores": mine})`.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from mha_core.call.arguments import CallSizes
from mha_core.call.inputs import AttentionInputs, read_only
from mha_core.config import AttentionConfig
from mha_core.errors import SpecError
from mha_core.reference.backward import BACKWARD, collect_gradients
from mha_core.reference.forward import FORWARD
from mha_core.reference.state import State, Step
from mha_core.stages import STAGES, Trace
from mha_core.weights import Weights, check_weights, weight_shapes


def run(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] | None = None,
    backward: Mapping[str, Step] | None = None,
) -> Trace:
    """Compute attention and its gradients in float64, step by step.

    Args:
        config, weights, inputs: the layer and the call. Numbers of any dtype are used as they are.
        forward, backward: step name -> function, in order; they replace the tables FORWARD and BACKWARD.

    Returns:
        A Trace of float64 arrays: all seven stages, and gradients if `inputs.cotangent` is given.

    Raises:
        SpecError: before any arithmetic, if the weights or the inputs do not fit the config, or if a function of NumPy
            has been replaced in this process by one that computes something else.
    """
    return trace_of(run_state(config, weights, inputs, forward=forward, backward=backward))


def run_state(
    config: AttentionConfig,
    weights: Weights,
    inputs: AttentionInputs,
    *,
    forward: Mapping[str, Step] | None = None,
    backward: Mapping[str, Step] | None = None,
    sizes: CallSizes | None = None,
) -> State:
    """Compute attention as `run` does, and return the State, which holds the array of every step.

    If `sizes`, which an earlier check returned, is given, nothing is checked again. Raises as `run` does.
    """
    check_numpy()
    if sizes is None:
        weights, sizes = check_weights(config, weights), inputs.check(config)
    state = State(
        config=config,
        parameters={name: weights[name].astype(np.float64) for name in weight_shapes(config)},
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


_NUMBERS = tuple(number / 7 for number in (-11, -2, 1, 5))
"""No float32 holds one of them."""

_EXACT: Mapping[str, tuple[float, ...]] = {
    "exp": tuple(map(math.exp, _NUMBERS)),
    "tanh": tuple(map(math.tanh, _NUMBERS)),
    "einsum": tuple(_NUMBERS[i] * _NUMBERS[j] + _NUMBERS[i + 1] * _NUMBERS[j + 1] for i in (0, 2) for j in (0, 2)),
}
"""Function of NumPy that the reference uses -> what Python's own arithmetic gives in place of it for these numbers."""


def check_numpy() -> None:
    """Raise SpecError if a module has replaced functions of NumPy in this process by less exact ones.

    The reference may run in the process of a user's layer, as in `mha.diagnose`, with all that the layer imports.
    """
    numbers = np.array(_NUMBERS)
    pairs = numbers.reshape(2, 2)
    found: dict[str, NDArray] = {
        "exp": np.exp(numbers),
        "tanh": np.tanh(numbers),
        "einsum": np.einsum("ik,jk->ij", pairs, pairs).reshape(-1),
    }
    for name, exact in _EXACT.items():
        for number, wanted in zip(found[name].tolist(), exact, strict=True):
            if not math.isclose(number, wanted, rel_tol=1e-15):
                raise SpecError(
                    f"np.{name} gives {number!r} in this process where Python's arithmetic gives {wanted!r}: a module "
                    "that was imported has replaced NumPy's own function, so nothing can be judged here"
                )


def trace_of(state: State) -> Trace:
    """Return the stages, and the gradients if the backward pipeline ran, as read-only arrays."""
    gradients = None
    if state.inputs.cotangent is not None:
        gradients = {name: read_only(array) for name, array in collect_gradients(state).items()}
    return Trace(**{name: read_only(state[name]) for name in STAGES}, gradients=gradients)
