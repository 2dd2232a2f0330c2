"""Changes of an array are found again from samples of it, with a rule that holds at sizes that were not seen."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.designs import CONFIGS, generic
from conformance.measure.grammar.sample import Change, Setting
from conformance.measure.read.fit import fit
from conformance.zoo.bug import DoesNotApply
from tests.conformance.measure.samples import first_found, samples_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

# Functions of the elements, roundings, factors and summands by index ---------------------------------------------


def index(x, axis):
    shape = [1] * x.ndim
    shape[axis] = -1
    return np.arange(x.shape[axis]).reshape(shape)


def int8(x, axis):
    scale = np.abs(x).max(axis=axis, keepdims=True) / 127
    return np.round(x / scale) * scale


FUNCTIONS = {
    "times 0.97": lambda x, s: 0.97 * x,
    "negated": lambda x, s: -x,
    "times 1 / sqrt(query_dim)": lambda x, s: x / s.config.query_dim**0.5,
    "times sqrt(head_dim / query_dim)": lambda x, s: x * (s.config.head_dim / s.config.query_dim) ** 0.5,
    "times ({0} - 1) / {0}".format("key length"): lambda x, s: x * (s.sizes.key_len - 1) / s.sizes.key_len,
    "times ln 2": lambda x, s: x * np.log(2.0),
    "without its signs": lambda x, s: np.abs(x),
    "with negative numbers replaced by 0 (ReLU)": lambda x, s: np.maximum(x, 0.0),
    "with negative numbers times 0.2": lambda x, s: np.where(x > 0.0, x, 0.2 * x),
    "squared": lambda x, s: x**2,
    "to the power of 1.3, with its signs": lambda x, s: np.sign(x) * np.abs(x) ** 1.3,
    "through tanh": lambda x, s: np.tanh(x),
    "through tanh, times 3": lambda x, s: 3.0 * np.tanh(x),
    "capped by c * tanh(x / c) with c = 1.3": lambda x, s: 1.3 * np.tanh(x / 1.3),
    "capped by c * tanh(x / c) with c = head_dim": lambda x, s: s.config.head_dim * np.tanh(x / s.config.head_dim),
    "clipped at +-0.9": lambda x, s: np.clip(x, -0.9, 0.9),
    "at most 1.1: larger numbers are replaced by it": lambda x, s: np.minimum(x, 1.1),
    "plus 0.25": lambda x, s: x + 0.25,
    "plus 1 / head_dim": lambda x, s: x + 1.0 / s.config.head_dim,
    "times 2.5, plus 0.25": lambda x, s: 2.5 * x + 0.25,
    "replaced by 0 where |x| < 0.2": lambda x, s: np.where(np.abs(x) < 0.2, 0.0, x),
    "truncated to integers": lambda x, s: np.trunc(x),
    "replaced by 0": lambda x, s: np.zeros_like(x),
    "rounded to 24 significant bits (float32)": lambda x, s: x.astype(np.float32),
    "rounded to 11 significant bits (float16 (or TF32))": lambda x, s: x.astype(np.float16),
    "rounded to multiples of 0.0625": lambda x, s: np.round(x * 16) / 16,
    "rounded down to multiples of 0.05": lambda x, s: np.floor(x / 0.05) * 0.05,
    "rounded to multiples of 0.001": lambda x, s: np.round(x, 3),
    "rounded to multiples of 1/255": lambda x, s: np.round(x * 255) / 255,
    "rounded to 8-bit integers scaled by the largest of the whole array": lambda x, s: int8(x, None),
    "rounded to 8-bit integers scaled by the largest of the key axis": lambda x, s: int8(x, -1),
    "plus 0.1 * (key index - query index)": lambda x, s: x + 0.1 * (index(x, 3) - index(x, 2)),
    "plus -0.25 * |key index - query index|": lambda x, s: x - 0.25 * np.abs(index(x, 3) - index(x, 2)),
    "times 0.9^head index": lambda x, s: x * 0.9 ** index(x, 1),
    "times 1 / (key index + 1)": lambda x, s: x / (index(x, 3) + 1),
    "plus 0.1 * head index": lambda x, s: x + 0.1 * index(x, 1),
    "times 1 + 0.2 * query index": lambda x, s: x * (1 + 0.2 * index(x, 2)),
    "plus 2^(-8 (head index + 1) / n)": lambda x, s: x + 2.0 ** (-8.0 * (index(x, 1) + 1) / x.shape[1]),
}


# Orders of an axis ---------------------------------------------------------------------------------------------


def on(axis, order):
    """The array with index order(n) at each place of an axis."""
    return lambda x, s: np.take(x, order(x.shape[axis]), axis=axis)


def moved(n, a, b):
    order = np.arange(n)
    order[[a, b]] = order[[b, a]]
    return order


ORDERS = {
    "with its key axis in reverse order": on(3, lambda n: np.arange(n)[::-1]),
    "with its key axis rolled by -4": on(3, lambda n: np.roll(np.arange(n), -4)),
    "with its head axis with 0 and 1 exchanged": on(1, lambda n: moved(n, 0, 1)),
    "with its key axis with 1 and the last exchanged": on(3, lambda n: moved(n, 1, -1)),
    "with its query axis the last one everywhere": on(2, lambda n: np.full(n, n - 1)),
    "with its query axis shifted by +1, the end repeated": on(2, lambda n: np.minimum(np.arange(n) + 1, n - 1)),
    "with its key axis within each block of 3 in reverse order": on(
        3, lambda n: np.concatenate([np.arange(k, min(n, k + 3))[::-1] for k in range(0, n, 3)])
    ),
    "with its key axis the first of each block of 2 in its place": on(3, lambda n: np.arange(n) // 2 * 2),
}

# Mixes along an axis --------------------------------------------------------------------------------------------

MIXES = {
    "plus 0.1 times itself with its key axis rolled by +1": lambda x, s: x + 0.1 * np.roll(x, 1, 3),
    "times 0.8, plus 0.2 times itself with its query axis rolled by -1": lambda x, s: 0.8 * x + 0.2 * np.roll(x, -1, 2),
    "less its mean over the key axis": lambda x, s: x - x.mean(axis=3, keepdims=True),
    "plus 0.3 times its mean over the head axis": lambda x, s: x + 0.3 * x.mean(axis=1, keepdims=True),
    "replaced by its mean over the query axis": lambda x, s: np.broadcast_to(x.mean(axis=2, keepdims=True), x.shape),
    "replaced by its running sum along the key axis": lambda x, s: np.cumsum(x, axis=3),
    "replaced by its softmax along the key axis": lambda x, s: np.exp(x) / np.exp(x).sum(axis=3, keepdims=True),
    "plus 1 / sqrt(head_dim) times both its neighbours on the key axis, in a ring": lambda x, s: (
        x + s.config.head_dim**-0.5 * (np.roll(x, 1, 3) + np.roll(x, -1, 3))
    ),
    "less its largest over the key axis": lambda x, s: x - x.max(axis=3, keepdims=True),
}

# Of a part -------------------------------------------------------------------------------------------------------


def at(change, part):
    """The change where part(item, head, query, key, shape, setting) holds."""

    def made(x, s):
        return np.where(part(*np.indices(x.shape), x.shape, s), change(x, s), x)

    return made


def half(x, s):
    return 0.5 * x


PARTS = {
    "times 0.5, at head 0 only": at(half, lambda b, h, i, j, n, s: h == 0),
    "times 0.5, at key 2 only": at(half, lambda b, h, i, j, n, s: j == 2),
    "replaced by 0, at the last key only": at(lambda x, s: 0.0 * x, lambda b, h, i, j, n, s: j == n[3] - 1),
    "times 0.5, at the 3rd last key only": at(half, lambda b, h, i, j, n, s: j == n[3] - 3),
    "times -0.5, at odd heads only": at(lambda x, s: -x / 2, lambda b, h, i, j, n, s: h % 2 == 1),
    "through tanh, at even queries only": at(lambda x, s: np.tanh(x), lambda b, h, i, j, n, s: i % 2 == 0),
    "times 0.5, at keys from 6 on only": at(half, lambda b, h, i, j, n, s: j >= 6),
    "times 0.5, at key = query only": at(half, lambda b, h, i, j, n, s: i == j),
    "plus 0.3 where key index - query index > 0": at(lambda x, s: x + 0.3, lambda b, h, i, j, n, s: j > i),
    "times 0.5, at key > query + 1, counted from the end only": at(
        half, lambda b, h, i, j, n, s: j - i - n[3] + n[2] > 1
    ),
    "times 0.5, at odd heads and key 0 only": at(half, lambda b, h, i, j, n, s: (h % 2 == 1) & (j == 0)),
    "with its key axis in reverse order, at odd heads only": at(
        lambda x, s: x[..., ::-1], lambda b, h, i, j, n, s: h % 2 == 1
    ),
    "plus 0.1 times itself with its key axis rolled by +1, at head 1 only": at(
        lambda x, s: x + 0.1 * np.roll(x, 1, 3), lambda b, h, i, j, n, s: h == 1
    ),
    "replaced by 0, at keys after the last full block of 4 (where 4 does not divide their number) only": at(
        lambda x, s: 0.0 * x, lambda b, h, i, j, n, s: j >= n[3] // 4 * 4
    ),
    "times 0.25, at the second half of keys only": at(lambda x, s: x / 4, lambda b, h, i, j, n, s: j >= n[3] // 2),
}

# Other axes, and two changes -------------------------------------------------------------------------------------


def by_query(x, s):
    keys = (np.arange(x.shape[3])[None] - np.arange(x.shape[2])[:, None]) % x.shape[3]
    return np.take_along_axis(x, np.broadcast_to(keys, x.shape), 3)


def but_key_0(x):
    x = x.copy()
    x[..., 0] = 0.0
    return x


def odd_heads(x, change):
    x = x.copy()
    x[:, 1::2] = change(x[:, 1::2])
    return x


def exchanged(x, a, b):
    order = np.arange(x.shape[3])
    order[[a, b]] = order[[b, a]]
    return x[..., order]


def cut_twice(x, s):
    cut = x.reshape(x.shape[0], x.shape[2], x.shape[1], x.shape[3]).swapaxes(1, 2)
    return odd_heads(cut, lambda y: 2.0 * y)


TOGETHER = {
    "with its head axis rolled by +1, times 0.5": lambda x, s: 0.5 * np.roll(x, 1, 1),
    "read in the order of the axes (item, query, head, key) and not transposed": lambda x, s: np.ascontiguousarray(
        x.swapaxes(1, 2)
    ).reshape(x.shape),
    "cut into axes (item, query, head, key) as if it were in that order": lambda x, s: x.reshape(
        x.shape[0], x.shape[2], x.shape[1], x.shape[3]
    ).swapaxes(1, 2),
    "with its key axis rolled by the query index": by_query,
    "with its head axis rolled by +1, then through tanh": lambda x, s: np.tanh(np.roll(x, 1, 1)),
    "with its key axis in reverse order, then with negative numbers replaced by 0 (ReLU)": lambda x, s: np.maximum(
        x[..., ::-1], 0.0
    ),
    "with its key axis with 1 and 3 exchanged, times 0.5": lambda x, s: 0.5 * exchanged(x, 1, 3),
    "with its head axis in reverse order, then with its key axis rolled by +1": lambda x, s: np.roll(x[:, ::-1], 1, 3),
    "times 0.9, then replaced by 0, at key 0 only": lambda x, s: but_key_0(0.9 * x),
    "times 0.9, then clipped at +-0.9": lambda x, s: 0.9 * np.clip(x, -1.0, 1.0),
    "with its head axis shifted by +1, 0 at the end, then with its key axis in reverse order": lambda x, s: (
        np.concatenate([x[:, 1:, :, ::-1], 0.0 * x[:, :1]], axis=1)
    ),
    "cut into axes (item, query, head, key) as if it were in that order, then times 2, at odd heads only": cut_twice,
    "with its key axis in reverse order, times 1 / sqrt(head_dim)": lambda x, s: x[..., ::-1] / s.config.head_dim**0.5,
}

MADE = {**FUNCTIONS, **ORDERS, **MIXES, **PARTS, **TOGETHER}
"""What it is, in words -> the change."""


@pytest.mark.parametrize("words", MADE)
def test_a_change_is_found_again(words):
    assert first_found(MADE[words], thoroughly=words in TOGETHER).words == words


def test_a_merged_axis_read_with_heads_and_channels_exchanged():
    def made(x, s):
        return x.reshape(*x.shape[:-1], s.config.num_heads, -1).swapaxes(-1, -2).reshape(x.shape)

    found = first_found(made, ("item", "query", "merged channel"))
    assert found.words == "with its merged channel axis read as (rest, head_dim) and transposed"


def test_an_order_without_a_rule_is_claimed_for_the_lengths_at_which_it_was_seen():
    orders = {5: (3, 1, 4, 0, 2), 6: (1, 4, 3, 5, 2, 0), 8: (5, 0, 7, 2, 1, 4, 6, 3), 9: (2, 7, 0, 5, 1, 8, 6, 3, 4)}
    samples = samples_of(on(3, lambda n: np.array(orders[n])))
    (found,) = fit(samples, thoroughly=True)
    assert "3, 1, 4, 0, 2" in found.words
    assert "seen at these lengths alone" in found.words
    with pytest.raises(DoesNotApply):
        found.apply(np.zeros((1, 1, 1, 7)), samples[0].axes, samples[0].setting)


def test_an_axis_of_merged_heads_is_split():
    def made(x, s):
        heads = x.reshape(*x.shape[:2], s.config.num_heads, s.config.head_dim)
        return (heads * np.arange(1.0, s.config.num_heads + 1.0)[:, None]).reshape(x.shape)

    found = first_found(made, ("item", "query", "merged channel"), thoroughly=True)
    assert found.words in ("times (head index + 1)", "times (query head index + 1)")


def test_factors_without_a_rule_are_said_for_the_indices_that_were_seen():
    factors = np.array([0.3, 0.8, 1.2, 0.7, 0.1, 0.6])
    samples = samples_of(lambda x, s: x * factors[: x.shape[1]].reshape(1, -1, 1, 1))
    (found,) = fit(samples, thoroughly=True)
    assert found.words == "times 0.3, 0.8, 1.2, 0.7, 0.1, 0.6 for each head in turn"
    with pytest.raises(DoesNotApply):
        found.apply(np.zeros((1, 7, 2, 2)), samples[0].axes, samples[0].setting)


def test_a_matrix_that_mixes_an_axis_is_read_for_the_indices_that_were_seen():
    matrix = np.eye(6) + 0.3 * np.cos(1.0 + np.arange(6)[:, None] + 2.0 * np.arange(6))

    def mixed(x, s):
        n = x.shape[1]
        return np.einsum("gh,bhij->bgij", matrix[:n, :n], x)

    samples = samples_of(mixed)
    (found,) = fit(samples, thoroughly=True)
    assert found.words.startswith(
        "mixed along the head axis by a matrix (6, 6), of which the first row is 1.16209, -0.29"
    )
    assert fit(samples) == []
    with pytest.raises(DoesNotApply):
        found.apply(np.zeros((1, 7, 2, 2)), samples[0].axes, samples[0].setting)


def test_where_there_are_no_keys_a_mix_changes_nothing():
    problem = generic(CONFIGS[0], key_len=0)
    least = Change("least", "its smallest", lambda x, axes, setting: x - x.min(axis=3, keepdims=True))
    weights = np.zeros((1, CONFIGS[0].num_heads, 3, 0))
    assert least.apply(weights, ("item", "head", "query", "key"), Setting(CONFIGS[0], problem.sizes)) is weights


def test_nothing_is_found_in_a_right_array():
    assert fit(samples_of(lambda x, s: x)) == []


def test_nothing_is_found_in_an_array_that_has_nothing_to_do_with_the_expected_one():
    assert fit(samples_of(lambda x, s: np.random.default_rng(5).normal(size=x.shape))) == []


def test_places_that_were_not_measured_do_not_count():
    def made(x, s):
        array = 0.5 * x
        array[..., 1] = np.nan
        return array

    assert fit(samples_of(made))[0].words == "times 0.5"


def test_calls_that_differ_are_told_from_those_that_do_not():
    made = at(lambda x, s: 1.25 * x, lambda b, h, i, j, n, s: np.full(b.shape, n[3] % 3 == 0))
    words = [change.words for change in fit(samples_of(made))]
    assert "times 1.25, at calls where the key length is a multiple of 3 only" in words


def test_a_part_that_has_nothing_to_do_with_the_expected_one_is_not_explained():
    rng = np.random.default_rng(0)
    made = at(lambda x, s: rng.normal(size=x.shape), lambda b, h, i, j, n, s: h == 1)
    assert fit(samples_of(made)) == []


def test_what_is_found_makes_sentences_and_names():
    made = at(lambda x, s: x / s.config.query_dim**0.5, lambda b, h, i, j, n, s: (j % 3 == 0) & (h > 0))
    found = fit(samples_of(made))
    assert found[0].words == (
        "times 1 / sqrt(query_dim), at all heads but 0 and keys whose index is a multiple of 3 only"
    )
    assert len({change.slug for change in found}) == len(found)
    assert not any(" " in change.slug for change in found)
