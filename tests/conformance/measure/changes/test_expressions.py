"""A number is named as an expression of sizes only where that can't be an accident."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.grammar.expressions import expressions_of
from conformance.measure.grammar.numbers import neat
from conformance.measure.grammar.sample import Setting
from conformance.measure.designs import CONFIGS
from mha_core.call.sizes import CallSizes
from tests.conformance.measure.changes.worlds import LENGTHS

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

SETTINGS = [Setting(config, CallSizes(*sizes)) for config, sizes in zip(CONFIGS, LENGTHS, strict=False)]
PLAIN = [Setting(config, CallSizes(1, 3, 5)) for config in CONFIGS[6:9]]


@pytest.mark.parametrize("unit", [1e-13, 6e-7])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_random_numbers_are_no_expression_of_sizes(count, unit):
    rng = np.random.default_rng(count)
    for number in np.exp(rng.uniform(-5.0, 5.0, 1000)) * rng.choice([-1.0, 1.0], 1000):
        (constant,) = expressions_of([(number, setting) for setting in SETTINGS[:count]], unit=unit)
        assert constant.at(SETTINGS[-1]) == pytest.approx(number, rel=1000 * unit)
    if count > 1:
        for numbers in np.exp(rng.uniform(-5.0, 5.0, (1000, count))):
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
