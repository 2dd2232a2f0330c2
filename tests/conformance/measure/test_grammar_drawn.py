"""Numbers are expressions of sizes only where that is no accident; of changes drawn at random nearly all are found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance.measure.designs import CONFIGS
from conformance.measure.grammar.expressions import expressions_of
from conformance.measure.grammar.numbers import neat
from conformance.measure.grammar.sample import Setting
from conformance.measure.read.fit import fit
from conformance.zoo.bug import DoesNotApply
from mha_core.call.sizes import CallSizes
from tests.conformance.measure.samples import LENGTHS, OTHERS, Made, samples_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

# Numbers as expressions of sizes ----------------------------------------------------------------------------------

SETTINGS = [Setting(config, CallSizes(*sizes)) for config, sizes in zip(CONFIGS, LENGTHS, strict=False)]
PLAIN = [Setting(config, CallSizes(1, 3, 5)) for config in CONFIGS[6:9]]


@pytest.mark.parametrize("unit", [1e-13, 6e-7])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_random_numbers_are_no_expression_of_sizes(count, unit):
    rng = np.random.default_rng(count)
    for number in np.exp(rng.uniform(-5.0, 5.0, 300)) * rng.choice([-1.0, 1.0], 300):
        (constant,) = expressions_of([(number, setting) for setting in SETTINGS[:count]], unit=unit)
        assert constant.at(SETTINGS[-1]) == pytest.approx(number, rel=1000 * unit)
    if count > 1:
        for numbers in np.exp(rng.uniform(-5.0, 5.0, (300, count))):
            found = expressions_of(list(zip(numbers, SETTINGS, strict=False)), unit=unit)
            assert not any(one.name for one in found)  # at most a constant, if they happen to be near each other


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("1 / sqrt(query_dim)", lambda s: s.config.query_dim**-0.5),
        ("-1 / num_heads", lambda s: -1.0 / s.config.num_heads),
        ("key length - 1", lambda s: s.sizes.key_len - 1),
        ("head_dim / value_head_dim", lambda s: s.config.head_dim / s.config.value_head_dim),
        ("1 / (query length + key length)", lambda s: 1.0 / (s.sizes.query_len + s.sizes.key_len)),
        ("2.5 * sqrt(head_dim)", lambda s: 2.5 * s.config.head_dim**0.5),
        ("ln(key length)", lambda s: np.log(s.sizes.key_len)),
    ],
)
def test_expressions_are_named_and_hold_at_other_sizes(words, number):
    other = Setting(CONFIGS[4], CallSizes(3, 7, 11))
    # Sums and differences are symmetric, and written with the likelier size first.
    found = expressions_of([(float(number(setting)), setting) for setting in SETTINGS])
    assert found[0].words in (words, words.replace("query length + key length", "key length + query length"))
    assert found[0].at(other) == pytest.approx(number(other), rel=1e-9)


def test_sizes_that_are_equal_in_all_settings_are_said():
    found = expressions_of([(setting.config.query_dim**-0.5, setting) for setting in PLAIN])
    assert found[0].words.startswith("1 / sqrt(embed_dim) (or of query_dim, key_dim, value_dim, output_dim: equal")
    assert found[0].slug == "1/sqrt(embed_dim)"
    assert [one.name for one in found[1:3]] == ["1 / sqrt(query_dim)", "1 / sqrt(key_dim)"]


@pytest.mark.parametrize(
    ("number", "words"),
    [(0.97, "0.97"), (2.0, "2"), (1 / 3, "1/3"), (-2 / 3, "-2/3"), (1 / 127, "1/127"), (np.log2(np.e), "log2 e")],
)
def test_neat_numbers_are_written_neatly(number, words):
    assert neat(number * (1.0 + 1e-13))[0] == words


def test_what_is_wanted_neat_is_not_claimed_of_a_number_that_is_known_roughly():
    words, number = neat(0.33331, tolerance=1e-3)
    assert number == 0.33331
    assert words == "0.333"


# Changes drawn at random ------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(("draw", "count", "least"), [(a_whole, 40, 0.97), (a_part, 20, 0.85)])
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
