"""The only tolerances: how far each element of each stage and gradient may lie from the reference.

Computed, not chosen. Errors are carried through the same steps as the reference: every step has a bound under its own
name (`forward.py`, `backward.py`), and the rules of `bounded.py` say what each operation adds. The tolerance of an
element is the smaller of the deterministic and the probabilistic bound; in float64, twice that, because the reference
rounds as well. Where the definition says "exactly", it is 0.

The bounds hold while nothing overflows and the subject computes with the precision that it declares.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.backward import BACKWARD_BOUNDS
from conformance.bounds.bounded import Bounded, Rounding
from conformance.bounds.forward import FORWARD_BOUNDS
from conformance.bounds.precision import Precision
from conformance.bounds.steps import Bounds
from mha_core.reference.backward import collect_gradients
from mha_core.reference.state import State
from mha_core.stages import GRADIENT, STAGES


def allowed_error(state: State, precision: Precision) -> dict[str, NDArray]:
    """The error allowed in each element.

    Args:
        state: the reference's run of a problem that is rounded to the storage dtype already.
        precision: the dtypes in which the subject computes.

    Returns:
        Stage name -> array of the stage's shape; "gradients.NAME" -> array of the gradient's shape.
    """
    return _smaller(_all_bounds, state, precision)


def allowed_error_of_steps(state: State, precision: Precision) -> dict[str, NDArray]:
    """The error allowed in each element of the result of every step, by the step's name, as `allowed_error` has it.

    Gradients that a step gives in a dict are there by "STEP.NAME". Steps that compute no numbers (`allowed`, `padding`)
    have no entry, and none that gives None.
    """
    return _smaller(_bounds_of_steps, state, precision)


def _smaller(
    bounds_of: Callable[[State, Rounding], dict[str, Bounded]], state: State, precision: Precision
) -> dict[str, NDArray]:
    """The smaller of both bounds, for the roundings of both sides; exact where the definition is."""
    with np.errstate(all="ignore"):  # NaN and infinity are data; their places are compared exactly
        worst = bounds_of(state, Rounding(precision, probabilistic=False))
        likely = bounds_of(state, Rounding(precision, probabilistic=True))
        sides = 2.0 if precision.storage == "float64" else 1.0
        allowed = {name: sides * np.fmin(worst[name].e, likely[name].e) for name in worst}
    for array in allowed.values():
        array[np.isnan(array)] = 0.0  # beside a NaN, which is compared exactly
    _exact_where_defined(allowed, state)
    return allowed


def _exact_where_defined(allowed: dict[str, NDArray], state: State) -> None:
    """Excluded weights are exactly 0, the weight of a lone key is exactly 1, a row without a key gives
    exactly 0 and then the output bias, and no gradient reaches padding.
    """
    keys, padding, past_len = state["allowed"], state["padding"], state.sizes.past_len
    row_has_key = keys.any(axis=-1)
    allowed["weights"][~keys | (keys.sum(axis=-1, keepdims=True) == 1)] = 0.0
    allowed["heads"][~row_has_key] = 0.0
    allowed["output"][~row_has_key.any(axis=1)] = 0.0
    for name in ("keys", "values"):
        for gradient, where in ((name, padding[:, past_len:]), (f"past_{name}", padding[:, :past_len])):
            array = allowed.get(f"{GRADIENT}{gradient}")
            if array is not None:  # (B, L, width), or (B, heads, L, width)
                rows = array if array.ndim == 3 else array.swapaxes(1, 2)
                rows[where] = 0.0


def _all_bounds(state: State, rounding: Rounding) -> dict[str, Bounded]:
    """Stage name, or "gradients.NAME" -> its bound."""
    bounds = step_bounds(state, rounding)
    found: dict[str, Bounded] = {name: bounds[name] for name in STAGES}
    if state.inputs.cotangent is not None:
        found.update({f"{GRADIENT}{name}": gradient for name, gradient in collect_gradients(bounds).items()})
    return found


def _bounds_of_steps(state: State, rounding: Rounding) -> dict[str, Bounded]:
    """Step, or "STEP.NAME" of a gradient that it gives in a dict -> its bound."""
    found: dict[str, Bounded] = {}
    for step, bound in step_bounds(state, rounding).steps.items():
        named = {f"{step}.{name}": one for name, one in bound.items()} if isinstance(bound, dict) else {step: bound}
        found.update({name: one for name, one in named.items() if isinstance(one, Bounded)})
    return found


def step_bounds(state: State, rounding: Rounding) -> Bounds:
    """The bound of every step that the reference ran."""
    bounds = Bounds(state, rounding)
    with_gradients = state.inputs.cotangent is not None
    for name, bound in {**FORWARD_BOUNDS, **(BACKWARD_BOUNDS if with_gradients else {})}.items():
        bounds.steps[name] = bound(bounds)
    return bounds
