"""Right forward, wrong backward, in the parts: through the rotation, and through the query-key norm."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import GRADIENTS, Arrays, Steps, Table, after, entries
from conformance.zoo.parts.query_key_norm import has_norm, settings_of, steps_of
from conformance.zoo.parts.rotary import SIDES, has_rotary
from conformance.zoo.parts.rotary import settings_of as rotary_of
from mha_core.parts.query_key_norm import NORMS, Normed, QueryKeyNorm, norm_back, to_parameter
from mha_core.parts.rotary import Table as Angles
from mha_core.parts.rotary import rotate, rotate_back
from mha_core.reference.backward import NORMED
from mha_core.reference.state import State

# Through the rotation -----------------------------------------------------------------------------


def _back(turn: Callable[[State, NDArray, Angles], NDArray], sides: tuple[str, ...] = SIDES) -> Steps:
    """`turn(state, gradient (B, heads, L, d), cosine and sine)` in place of the way back through the rotation."""

    def of(side: str) -> Steps:
        def back(state: State, right: NDArray) -> NDArray:
            return turn(state, state[f"d_rotated_{side}"], getattr(state["rotary_tables"], side))

        return after(f"d_normed_{side}", back, has_rotary)

    return {name: step for side in sides for name, step in of(side).items()}


def _inverse(state: State, gradient: NDArray, table: Angles) -> NDArray:
    square = table.cos**2 + table.sin**2
    return rotate_back(gradient, Angles(table.cos / square, table.sin / square), rotary_of(state))


_row = Table(GRADIENTS, "The gradient goes through the transpose: da = a' cos + b' sin, db = b' cos - a' sin.")

ROTATION = (
    _row(
        "gradient-of-rotation-inverse",
        "The gradient goes through the inverse of the rotation, which divides by the attention factor.",
        _back(_inverse),
    ),
    _row(
        "gradient-of-rotation-forward",
        "The gradient turns in the direction of the rotation, not back.",
        _back(lambda state, gradient, table: rotate(gradient, table, rotary_of(state))),
    ),
    _row(
        "gradient-of-rotation-missing",
        "The gradient passes by the rotation unchanged.",
        _back(lambda state, gradient, table: gradient),
    ),
    _row(
        "gradient-of-rotated-keys-missing",
        "The gradient of keys passes by the rotation unchanged, that of queries does not.",
        _back(lambda state, gradient, table: gradient, ("keys",)),
    ),
)


# Through the norm ---------------------------------------------------------------------------------

Way = Callable[[NDArray, Normed, QueryKeyNorm], NDArray]
"""(gradient of the norm's result, its steps, settings) -> the gradient of its input."""


def _norm_back(way: Way, where: Callable[[QueryKeyNorm], bool] = lambda s: True) -> Steps:
    """`way` in place of the way back through both norms, in either order."""

    def of(order: str, name: str) -> Steps:
        given, made = NORMED[order, name]

        def back(state: State, right: NDArray) -> NDArray:
            return way(state[made], steps_of(state, name, state[given]), settings_of(state))

        return after(
            f"d_{given}", back, lambda s: has_norm(s) and settings_of(s).order == order and where(settings_of(s))
        )

    return {step: function for order, name in NORMED for step, function in of(order, name).items()}


def _parameters(change: Callable[[State, str, NDArray], NDArray], kinds: tuple[str, ...] = ("weight",)) -> Steps:
    """`change(state, name of the norm, right one)` in place of the gradients of weights, or of biases."""

    def changed(state: State, right: Arrays) -> Arrays:
        names = [(name, f"{name}.{kind}") for name in NORMS for kind in kinds]
        return {parameter: change(state, name, right[parameter]) for name, parameter in names if parameter in right}

    return entries("d_norm_parameters", changed)


def _by_weight(product: Callable[[NDArray, NDArray, Normed], NDArray], *, shared: bool = False) -> Steps:
    """`product(gradient of the result, input, steps)`, summed, in place of a weight's gradient; or of shared ones."""

    def change(state: State, name: str, right: NDArray) -> NDArray:
        if shared and settings_of(state).weight != "shared":
            return right
        given, made = NORMED[settings_of(state).order, name]
        steps = steps_of(state, name, state[given])
        return to_parameter(product(state[made], state[given], steps), settings_of(state))

    return _parameters(change)


def _first_head(gradient: NDArray, x: NDArray, steps: Normed) -> NDArray:
    product = gradient * steps.unit
    return np.where((np.arange(product.shape[1]) == 0)[:, None, None], product, 0.0)


def _per_head(state: State, name: str, right: NDArray) -> NDArray:
    heads = state.config.num_heads if name == "q_norm" else state.config.num_kv_heads
    return right / heads if settings_of(state).weight == "shared" else right


_row = Table(
    GRADIENTS, "dx = (g - xh mean(g xh) - mean(g), where the mean is taken away) / sqrt(v + eps), g = dy weight."
)
_sum = Table(GRADIENTS, "Sum dy xh over everything that shares one number of the weight: items, positions, heads.")

NORM = (
    _row(
        "gradient-of-norm-size-detached",
        "What heads are divided by is treated as a constant: the mean term is missing.",
        _norm_back(lambda g, steps, s: (g if steps.scale is None else g * steps.scale) * steps.factor),
    ),
    _row(
        "gradient-of-norm-detached",
        "No gradient goes through the norm: only its weights learn.",
        _norm_back(lambda g, steps, s: np.zeros_like(g)),
    ),
    _row("gradient-of-norm-missing", "The gradient passes by the norm unchanged.", _norm_back(lambda g, steps, s: g)),
    _row(
        "gradient-of-norm-mean-missing",
        "The mean that was taken away is treated as a constant.",
        _norm_back(lambda g, steps, s: norm_back(g, steps, replace(s, kind="rms")).x, lambda s: s.kind == "layer"),
    ),
    _row(
        "gradient-of-norm-without-weight",
        "The gradient is not multiplied by the weight.",
        _norm_back(lambda g, steps, s: norm_back(g, steps._replace(scale=None), s).x),
    ),
    _row(
        "gradient-of-norm-without-size",
        "The gradient is not divided by what the head was divided by.",
        _norm_back(lambda g, steps, s: norm_back(g, steps._replace(factor=np.ones(1)), s).x),
    ),
    _sum(
        "gradient-of-norm-weight-of-first-head",
        "The gradient of a weight that heads share is that of head 0 alone.",
        _by_weight(_first_head, shared=True),
    ),
    _sum(
        "gradient-of-norm-weight-averaged",
        "The gradient of a weight that heads share is the mean over the heads.",
        _parameters(_per_head),
    ),
    _sum(
        "gradient-of-norm-weight-from-input",
        "The gradient of the weight multiplies by the input of the norm, not by what was divided.",
        _by_weight(lambda gradient, x, steps: gradient * x),
    ),
    _sum(
        "gradient-of-norm-weight-missing",
        "The weight of the norm gets no gradient.",
        _parameters(lambda s, name, right: np.zeros_like(right)),
    ),
    _sum(
        "gradient-of-norm-bias-missing",
        "The bias of the norm gets no gradient.",
        _parameters(lambda s, name, right: np.zeros_like(right), ("bias",)),
    ),
)

BUGS = (*ROTATION, *NORM)
