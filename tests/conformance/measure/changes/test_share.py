"""Of changes drawn at random, on arrays of several stages, nearly all are found, and right at other sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.read.fit import fit
from conformance.zoo.bug import DoesNotApply
from tests.conformance.measure.changes.worlds import OTHERS, Made, samples_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

STAGES = (
    ("item", "head", "query", "key"),
    ("item", "head", "query", "channel"),
    ("item", "query", "merged channel"),
)

Drawn = tuple[str, Made]
Rng = np.random.Generator


def along(values: NDArray, array: NDArray, axis: int) -> NDArray:
    shape = [1] * array.ndim
    shape[axis] = -1
    return np.asarray(values).reshape(shape)


def a_number(rng: Rng) -> float:
    return float(f"{rng.uniform(0.2, 1.5):.{rng.integers(1, 4)}g}")


def a_function(rng: Rng, axes: tuple[str, ...]) -> Drawn:
    c = a_number(rng)
    size = ("head_dim", "num_heads", "query_dim", "output_dim")[rng.integers(4)]
    power = (-1.0, -0.5, 0.5)[rng.integers(3)]
    made: dict[str, Made] = {
        f"times {c} {size}^{power}": lambda x, s: c * x * getattr(s.config, size) ** power,
        f"times {c}": lambda x, s: c * x,
        f"plus {c}": lambda x, s: x + c,
        f"affine {c}": lambda x, s: c * x - c / 3,
        f"tanh cap {c}": lambda x, s: c * np.tanh(x / c),
        f"clip {c}": lambda x, s: np.clip(x, -c, c),
        f"leaky {c}": lambda x, s: np.where(x > 0.0, x, c / 2 * x),
        f"power {c}": lambda x, s: np.sign(x) * np.abs(x) ** (c + 0.6),
        f"threshold {c}": lambda x, s: np.where(np.abs(x) < c / 3, 0.0, x),
        f"grid {c}": lambda x, s: np.round(x / (c / 10)) * (c / 10),
        f"bits {int(10 * c)}": lambda x, s: np.ldexp(
            np.round(np.ldexp(np.frexp(x)[0], 2 + int(10 * c))), np.frexp(x)[1] - 2 - int(10 * c)
        ),
    }
    return list(made.items())[rng.integers(len(made))]


def an_order(rng: Rng, axes: tuple[str, ...]) -> Drawn:
    axis, k, m = -int(rng.integers(1, len(axes) + 1)), int(rng.integers(1, 4)), int(rng.integers(2, 4))
    orders: dict[str, Callable[[int], NDArray]] = {
        "reversed": lambda n: np.arange(n)[::-1],
        f"rolled {k}": lambda n: np.roll(np.arange(n), k),
        f"clamped {k}": lambda n: np.minimum(np.arange(n) + k, n - 1),
        f"first of {m}": lambda n: np.arange(n) // m * m,
        f"modulo {m}": lambda n: np.arange(n) % m,
        f"blocks of {m} reversed": lambda n: np.concatenate(
            [np.arange(a, min(n, a + m))[::-1] for a in range(0, n, m)]
        ),
    }
    name, order = list(orders.items())[rng.integers(len(orders))]
    return f"{axes[axis]} {name}", lambda x, s: np.take(x, order(x.shape[axis]), axis=axis)


def a_mix(rng: Rng, axes: tuple[str, ...]) -> Drawn:
    axis, c = -int(rng.integers(1, len(axes) + 1)), a_number(rng)
    made: dict[str, Made] = {
        "neighbour": lambda x, s: x + c * np.roll(x, 1, axis),
        "share": lambda x, s: (1 - c) * x + c * np.flip(x, axis),
        "centred": lambda x, s: x - x.mean(axis=axis, keepdims=True),
        "sum": lambda x, s: x - c * x.sum(axis=axis, keepdims=True),
        "running sum": lambda x, s: np.cumsum(x, axis=axis),
        "decay": lambda x, s: x * c ** along(np.arange(x.shape[axis]), x, axis),
        "slope": lambda x, s: x + c * along(np.arange(x.shape[axis]), x, axis),
        "over index": lambda x, s: x / (1.0 + along(np.arange(x.shape[axis]), x, axis)),
    }
    name, one = list(made.items())[rng.integers(len(made))]
    return f"{axes[axis]} {name} {c}", one


def a_whole(rng: Rng, axes: tuple[str, ...]) -> Drawn:
    return (a_function, an_order, a_mix)[rng.integers(3)](rng, axes)


def a_part(rng: Rng, axes: tuple[str, ...]) -> Drawn:
    # Of the last two axes: those before them are too short in some samples to tell one part from another.
    axis, k = -int(rng.integers(1, 3)), int(rng.integers(0, 3))
    places: dict[str, Callable[[NDArray, int], NDArray]] = {
        "odd": lambda i, n: i % 2 == 1,
        f"index {k}": lambda i, n: i == k,
        "last": lambda i, n: i == n - 1,
        f"from {k + 1}": lambda i, n: i > k,
        "second half": lambda i, n: i >= n // 2,
    }
    where, place = list(places.items())[rng.integers(len(places))]
    name, change = (a_function, a_mix)[rng.integers(2)](rng, axes)

    def made(x: NDArray, s: object) -> NDArray:
        flags = along(place(np.arange(x.shape[axis]), x.shape[axis]), x, axis)
        return np.where(flags, change(x, s), x)  # type: ignore[arg-type]

    return f"{name} at {axes[axis]} {where}", made


@pytest.mark.parametrize(("draw", "count", "least"), [(a_whole, 60, 0.97), (a_part, 30, 0.85)])
def test_the_share_that_is_found_and_right_at_other_sizes(draw, count, least):
    asked, missed = 0, []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        axes = STAGES[rng.integers(len(STAGES))]
        name, made = draw(rng, axes)
        samples = samples_of(made, axes, seed=seed)
        if not any(sample.differs for sample in samples):
            continue
        asked += 1
        others = samples_of(made, axes, seed=seed + 1, lengths=OTHERS)
        if not any(is_right(change, others) for change in fit(samples)):
            missed.append(f"{axes}: {name}")
    assert len(missed) <= (1.0 - least) * asked, "\n".join(missed)


def is_right(change, others):
    try:
        return all(one.is_given_by(change.apply(one.expected, one.axes, one.setting)) for one in others)
    except DoesNotApply:
        return False
