"""Words of measured faults: the wrong and the right thing have one form, so that only what differs differs."""

import numpy as np
import pytest

from conformance.kinds.change import KINDS, SIZES
from conformance.kinds.expressions import Expression
from conformance.kinds.made import only_in
from conformance.kinds.oddities import facts
from conformance.kinds.places import PLACES, fault
from conformance.measure.changes import times

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

TO_EIGHT = "(head_dim rounded up to a multiple of 8)"


def factor(place, words):
    number = Expression(words, SIZES["head_dim"], words)
    return fault(PLACES[place], times(number))


def test_the_remedy_of_scores_that_are_no_products_is_the_product():
    """Of cosines that stood in place of the scaled product it was "Remove this."."""
    bug = factor("cosines", "6")
    assert (
        bug.sentence == "Scores are the cosines of queries and keys, multiplied by 6, in place of their scaled product."
    )
    assert bug.fix == "Take the scaled products of queries and keys."


def test_a_scale_that_is_its_own_root_is_said_to_be():
    assert factor("scale", "1 / sqrt(scale)").sentence == "The scale of the scores is replaced by its square root."


@pytest.mark.parametrize(
    ("slug", "said"),
    [
        ("without-scale", f"scores are multiplied by 1 / sqrt({TO_EIGHT}), not by 1 / sqrt(head_dim)."),
        ("without-past", f"the scale of the scores is multiplied by sqrt(head_dim / {TO_EIGHT})."),
    ],
)
def test_the_default_scale_is_said_as_a_whole_where_no_other_is_given(slug, said):
    where = next(kind for kind in KINDS if kind.slug == slug)
    sentence = only_in(factor("scale", f"sqrt(head_dim / {TO_EIGHT})"), where).sentence
    assert sentence == f"Only in {where.words}: {said}"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([0, 1, 2, 3], "the first 4 of 6 queries"),
        ([4, 5], "the last 2 of 6 queries"),
        ([1, 2, 3, 4, 5], "all 6 queries but the first"),
        ([0, 1, 2, 3, 4], "all 6 queries but the last"),
        ([0, 2], "queries 0, 2 (of 6, counted from 0)"),
        ([3], "queries 3 (of 6, counted from 0)"),
    ],
)
def test_which_queries_are_wrong_is_said_by_where_they_are(wrong, said):
    right = np.random.default_rng(0).normal(size=(1, 6, 3))
    off = np.isin(np.arange(6), wrong)[None, :, None] & np.ones(right.shape, bool)
    assert next(facts(right + off, right, off)) == f"In the output {{}} {said} are wrong, and the others right."
