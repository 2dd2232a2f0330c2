"""Families are what their sentences say: no two share an id, by which runs are kept, and each changes some call."""

from types import SimpleNamespace

import numpy as np
import pytest

from conformance.kinds.families import families
from conformance.kinds.made import TROUBLE, unwarned
from conformance.kinds.published import WEIGHTINGS
from conformance.measure import problems as p
from conformance.measure.designs import CONFIGS, MANY_HEADS, ONE_WIDTH, generic
from conformance.measure.probes import SCORED_BARE
from conformance.zoo.bug import DoesNotApply
from conformance.zoo.variants import Variants
from mha_core import AttentionConfig, AttentionMask

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

EVEN = AttentionConfig(16, 4, num_kv_heads=2, bias=True)

STAGES = ("weights", "scores", "heads", "output", "")
ASKER = SimpleNamespace(configs=(ONE_WIDTH, EVEN, *CONFIGS[:2], MANY_HEADS), fixed_weights=None)

RIGHT = (
    "j <= offset + i.",
    "j - past length <= offset + i - past length.",
    "offset + i - left <= j <= offset + i + right.",
    "offset + i - past length - left <= j - past length <= offset + i - past length + right.",
    "exp(s) of each score s, divided by their sum, in place of their softmax.",
    "exp(s) of each score s, divided by the sum of their absolute values, in place of their softmax.",
)
"""Ends of sentences that say what the definition says: each is one of a product of rules."""


def long_masks(asker):
    """Calls of more keys than the largest block of a rule has, with a mask, a past or as many queries."""
    bias = np.random.default_rng(0).normal(size=(1, ONE_WIDTH.num_heads, 24, 24))
    masks = ({"causal": True}, {"window": (1, 1)}, {"valid_lens": np.array([2])}, {"bias": bias})
    found = [generic(ONE_WIDTH, mask=AttentionMask(**mask), query_len=24, key_len=24) for mask in masks]
    return [*found, *(p.with_past(ONE_WIDTH, 18, 2, 1, AttentionMask(window=window)) for window in (None, (0, 0)))]


def equal_sizes(asker):
    """Calls of as many items and heads as queries and keys, with masks of every number of axes."""
    n = ONE_WIDTH.num_heads
    arrays = [np.random.default_rng(axes).normal(size=(n,) * axes) for axes in (2, 3, 4)]
    masks = [mask for x in arrays for mask in (AttentionMask(allowed=x > -1.0), AttentionMask(bias=x))]
    return [generic(ONE_WIDTH, mask=mask, batch=n, query_len=n, key_len=n) for mask in masks]


@pytest.fixture(scope="module")
def asked():
    masked = (p.masked(p.empty, 1, queries=1.0), p.masked(p.lengths), p.masked(p.two_sources))
    rows = (p.drawn, p.masks_of_items, p.biases_of_items, p.long, SCORED_BARE, long_masks, equal_sizes, *masked)
    return [problem for row in rows for problem in row(ASKER)]


@pytest.mark.parametrize("stage", STAGES)
def test_each_has_an_id_of_its_own_and_changes_some_call(stage, asked):
    ids = [bug.id for bug in families(stage)]
    assert len(set(ids)) == len(ids)
    variants, idle = Variants(), []
    with unwarned():
        for bug in families(stage):
            if not bug.sentence.endswith(RIGHT) and not any(changes(variants, problem, bug) for problem in asked):
                idle.append(bug.sentence)
    assert idle == []


def changes(variants, problem, bug):
    try:
        made = variants.run(problem, (bug,))
    except (DoesNotApply, *TROUBLE):
        return False
    return bool(made) and not np.allclose(made["output"], variants.kept(problem)["output"], rtol=0, atol=1e-12)


def weights_of(words, scores):
    scores = np.array(scores, float)[None, None, None]
    state = {"scores": scores, "allowed": np.ones_like(scores, bool)}
    weigh = next(weigh for name, weigh in WEIGHTINGS.items() if words in name)
    return weigh(state)[0, 0, 0]


def test_weightings_are_those_of_their_papers():
    assert weights_of("sparsemax", [1.0, 0.5, -1.0]) == pytest.approx([0.75, 0.25, 0.0])
    assert weights_of("entmax-1.5", [0.0, 0.0, -9.0]) == pytest.approx([0.5, 0.5, 0.0])
    assert weights_of("every earlier key", [0.0, 0.0, 0.0]) == pytest.approx([0.5, 0.25, 0.125])
    assert weights_of("every later key", [0.0, 0.0, 0.0]) == pytest.approx([0.125, 0.25, 0.5])
    assert weights_of("clip(1.1 * softmax(scores) - 0.1, 0, 1)", [5.0, 0.0, -9.0])[2] == 0.0
