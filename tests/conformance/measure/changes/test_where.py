"""Changes of a part are found again, with the part as a rule for other sizes."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.measure.read.fit import fit
from tests.conformance.measure.changes.worlds import first_found, samples_of

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone


def at(change, part):
    """The change where part(item, head, query, key, shape, setting) holds."""

    def made(x, s):
        return np.where(part(*np.indices(x.shape), x.shape, s), change(x, s), x)

    return made


def half(x, s):
    return 0.5 * x


MADE = {
    "times 0.5, at head 0 only": at(half, lambda b, h, i, j, n, s: h == 0),
    "times 0.5, at key 2 only": at(half, lambda b, h, i, j, n, s: j == 2),
    "replaced by 0, at the last key only": at(lambda x, s: 0.0 * x, lambda b, h, i, j, n, s: j == n[3] - 1),
    "times 0.5, at the 3rd last key only": at(half, lambda b, h, i, j, n, s: j == n[3] - 3),
    "times -0.5, at odd heads only": at(lambda x, s: -x / 2, lambda b, h, i, j, n, s: h % 2 == 1),
    "through tanh, at even queries only": at(lambda x, s: np.tanh(x), lambda b, h, i, j, n, s: i % 2 == 0),
    "times 0.5, at keys from 6 on only": at(half, lambda b, h, i, j, n, s: j >= 6),
    "times 0.5, at key = query only": at(half, lambda b, h, i, j, n, s: i == j),
    "plus 0.3, at key after query only": at(lambda x, s: x + 0.3, lambda b, h, i, j, n, s: j > i),
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


@pytest.mark.parametrize("words", MADE)
def test_a_change_of_a_part_is_found_again(words):
    assert first_found(MADE[words]).words == words


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
