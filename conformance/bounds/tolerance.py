"""The only tolerances: how far each element of each stage and gradient may lie from the reference.

Computed, not chosen. Errors are carried through the same steps as the reference: every step has a bound under its own
name (`forward.py`, `backward.py`), and the rules of `bounded.py` say what each operation adds. The tolerance of an
element is the smaller of the deterministic and the probabilistic bound; in float64, twice that, because the reference
rounds as well. Where the definition says "exactly", it is 0.

The bounds hold while nothing overflows and the subject computes with the precision that it declares.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.bounds.backward import BACKWARD_BOUNDS
from conformance.bounds.bounded import Bound, Bounded, Bounds, Rounding
from conformance.bounds.forward import FORWARD_BOUNDS, least
from conformance.bounds.precision import Precision
from mha_core.heads import merge_heads
from mha_core.reference.backward import collect_gradients
from mha_core.reference.state import State
from mha_core.stages import GRADIENT, STAGES, is_gradient

SURELY = 0.999
"""A factor for what `AllowedError.least` gives, since sums are rounded here too, in another order."""


class AllowedError(Mapping[str, NDArray]):
    """A mapping: name of a stage, or "gradients.NAME" -> array with the allowed error of each element.

    An array is computed when it is first read, because many layers under test return no gradients.

    Args:
        state: a run of the reference, with weights and inputs rounded to the storage dtype.
        precision: the arithmetic of the layer under test.
    """

    def __init__(self, state: State, precision: Precision) -> None:
        gradients = {} if state.inputs.cotangent is None else collect_gradients(state)
        self._names = (*STAGES, *(f"{GRADIENT}{name}" for name in gradients))
        self._found: dict[str, NDArray] = {}
        self._bounds: tuple[Bounds, Bounds] | None = _worst_and_likely(state, precision)

    def __getitem__(self, name: str) -> NDArray:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._found:
            self._look_at(gradients=is_gradient(name))
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def least(self) -> dict[str, NDArray]:
        """Return lower limits of the allowed errors of "weights" and "output", which take far less time to compute.

        The dict is empty for layers with projections or dropout, and after the allowed errors themselves are computed.
        """
        if self._bounds is None:
            return {}
        state = self._bounds[0].state
        if state.config.projections or state.inputs.dropout_keep is not None:
            return {}
        with any_numbers:
            worst, likely = (least(bounds.rounding, state) for bounds in self._bounds)
            found = {name: SURELY * np.fmin(worst[name], likely[name]) for name in worst}
        return {"weights": found["weights"], "output": merge_heads(found["heads"])}

    def _look_at(self, *, gradients: bool) -> None:
        """Compute the stages, which the gradients' bounds begin with; and the gradients."""
        assert self._bounds is not None  # else there would be nothing to find
        if not self._found:
            self._found = _smaller(_of_stages, self._bounds)
        if gradients:
            self._found |= _smaller(_of_gradients, self._bounds)
        if len(self._found) == len(self._names):
            self._bounds = None  # they take several times as much memory


def allowed_error_of_steps(state: State, precision: Precision) -> dict[str, NDArray]:
    """Return step name -> array with the allowed error of each element of its result (see `AllowedError`).

    Gradients that a step returns in a dict have names "STEP.NAME". Steps that compute no numbers (`allowed`, `padding`)
    or return None have no entry.
    """
    return _smaller(_of_steps, _worst_and_likely(state, precision))


def _worst_and_likely(state: State, precision: Precision) -> tuple[Bounds, Bounds]:
    worst, likely = (Rounding(precision, probabilistic=probabilistic) for probabilistic in (False, True))
    return Bounds(state, worst), Bounds(state, likely)


def _smaller(
    bounded: Callable[[Bounds], dict[str, Bounded]], worst_and_likely: tuple[Bounds, Bounds]
) -> dict[str, NDArray]:
    """The smaller of both bounds, for the roundings of both sides; exact where the definition is."""
    state, precision = worst_and_likely[0].state, worst_and_likely[0].rounding.precision
    with any_numbers:  # NaN and infinity are data; their places are compared exactly
        worst, likely = (bounded(bounds) for bounds in worst_and_likely)
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
    if "output" in allowed:
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


def _of_stages(bounds: Bounds) -> dict[str, Bounded]:
    """Stage -> its bound."""
    _run(FORWARD_BOUNDS, bounds)
    return {name: bounds[name] for name in STAGES}


def _of_gradients(bounds: Bounds) -> dict[str, Bounded]:
    """The name of a gradient -> its bound; those of the stages have been found."""
    _run(BACKWARD_BOUNDS, bounds)
    return {f"{GRADIENT}{name}": gradient for name, gradient in collect_gradients(bounds).items()}


def _of_steps(bounds: Bounds) -> dict[str, Bounded]:
    """Step, or "STEP.NAME" of a gradient that it gives in a dict -> its bound."""
    found: dict[str, Bounded] = {}
    for step, bound in of_all(bounds).steps.items():
        named = {f"{step}.{name}": one for name, one in bound.items()} if isinstance(bound, dict) else {step: bound}
        found.update({name: one for name, one in named.items() if isinstance(one, Bounded)})
    return found


def of_all(bounds: Bounds) -> Bounds:
    """Compute the error bound of each step in turn, put it into `bounds.steps`, and return `bounds`."""
    _run(FORWARD_BOUNDS, bounds)
    if bounds.state.inputs.cotangent is not None:
        _run(BACKWARD_BOUNDS, bounds)
    return bounds


def _run(each: Mapping[str, Bound], bounds: Bounds) -> None:
    for name, bound in each.items():
        bounds.steps[name] = bound(bounds)
