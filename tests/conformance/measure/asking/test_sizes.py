"""Subjects that take calls of some sizes alone: which these are, and the nearest problems of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.cases.table import all_cases
from conformance.diagnosis.diagnose import diagnose
from conformance.measure.designs import CONFIGS, NO_BIASES, generic, resized
from conformance.measure.asker import Asker
from conformance.measure.faults import on_step
from conformance.measure.probes import select_probes
from conformance.measure.search.measure import measure
from conformance.measure.text import experiments_text
from conformance.measure.evidence import Evidence
from conformance.subjects.ask import CannotExpress
from conformance.zoo.bug import BuggySubject
from conformance.zoo.variants import Variants
from mha_core import AttentionMask, Trace

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CASES = [case for case in all_cases() if not case.expensive]

MIXED = on_step(
    "output",
    "mine",
    lambda state, output: output + 0.5 * np.roll(output, -1, axis=1),
    "Each query is mixed with the next one.",
    "Leave them apart.",
)


class OfSizes(BuggySubject):
    """A layer with bugs that takes only some sizes, and shows its output."""

    def __init__(self, *bugs, batches=(), query_lens=(), key_lens=()):
        super().__init__(*bugs)
        self.takes = (batches, query_lens, key_lens)

    def prepare(self, config, weights):
        run = super().prepare(config, weights)

        def shown(inputs):
            sizes = (*inputs.queries.shape[:2], inputs.keys.shape[1])
            if inputs.is_split or any(
                taken and size not in taken for size, taken in zip(sizes, self.takes, strict=True)
            ):
                raise CannotExpress("other sizes")
            return Trace(output=run(replace(inputs, cotangent=None)).output)

        return shown


def test_what_a_problem_is_made_for_stays_in_other_sizes():
    channels = np.broadcast_to(np.arange(1.0, 6.0)[None, :, None], (1, 5, CONFIGS[0].key_dim))
    problem = generic(CONFIGS[0], keys=channels, values=0.0, queries=np.ones((1, 3, CONFIGS[0].query_dim)))
    given = resized(problem, 2, 4, 7).inputs
    np.testing.assert_allclose(given.keys[1, :, 0], [1.0, 2.0, 3.0, 4.0, 5.0, -0.7, -1.4])
    assert np.ptp(given.keys, axis=-1).max() == 0.0
    assert given.values.shape == (2, 7, CONFIGS[0].value_dim)
    assert not given.values.any()
    assert (given.queries == 1.0).all()


def test_masks_and_dropout_have_the_other_sizes_too():
    mask = AttentionMask(
        valid_lens=np.array([5, 2]),
        allowed=np.eye(3, 5, dtype=bool)[None, None],
        bias=np.arange(5.0),
        causal=True,
        query_offset=np.array([0, 3]),
    )
    problem = generic(CONFIGS[0], batch=2, mask=mask, dropout_keep=np.ones((2, 4, 3, 5), bool))
    given = resized(problem, 3, 2, 4).inputs
    np.testing.assert_array_equal(given.mask.valid_lens, [4, 2, 4])
    np.testing.assert_array_equal(given.mask.allowed, np.eye(2, 4, dtype=bool)[None, None])
    np.testing.assert_array_equal(given.mask.bias, np.arange(4.0))
    np.testing.assert_array_equal(given.mask.query_offset, [0, 3, 0])
    assert given.dropout_keep.shape == (3, 4, 2, 4)


def test_what_has_the_sizes_or_nothing_of_them_is_left_as_it_is():
    problem, none = generic(CONFIGS[0]), generic(CONFIGS[0], key_len=0)
    assert resized(problem, 1, 3, 5) is problem
    assert resized(none, 2, 3, 7) is none


@pytest.mark.parametrize(
    ("taken", "sizes"),
    [
        ({"batches": (2,), "key_lens": (7,)}, (2, None, 7)),
        ({"batches": (2,), "query_lens": (5,), "key_lens": (7,)}, (2, 5, 7)),
    ],
)
def test_which_sizes_a_subject_takes_is_learnt_from_the_calls_that_it_answered(taken, sizes):
    lab = Asker(OfSizes(**taken))
    assert not lab.configs
    lab.learn([generic(CONFIGS[0], batch=2, query_len=5, key_len=7)])
    assert lab.sizes == sizes
    assert lab.configs == CONFIGS[:4]
    assert lab.output(lab.generic(CONFIGS[1], batch=3, key_len=4)) is not None


def test_a_subject_that_takes_the_usual_sizes_is_asked_as_ever():
    lab = Asker(OfSizes())
    asked = lab.questions
    lab.learn([generic(CONFIGS[0], batch=2, query_len=5, key_len=7)])
    problem = generic(CONFIGS[0])
    assert lab.sizes == (None, None, None)
    assert lab.questions == asked
    assert lab.nearest([problem, problem]) == [problem, problem]


def test_of_a_subject_that_takes_one_size_a_fault_on_no_file_is_measured():
    subject = OfSizes(MIXED, batches=(2,), query_lens=(5,), key_lens=(7,))
    lab = Asker(subject)
    lab.learn([generic(CONFIGS[0], batch=2, query_len=5, key_len=7)])
    found = measure(subject, lab=lab, zoo=(), probes=select_probes(("chosen-keys",), alone=True))
    assert all(outcome.differing and outcome.explained for outcome in found.outcomes)
    other = lab.generic(CONFIGS[4], seed=3, weights=NO_BIASES)  # nothing was read off one of this layer
    assert not list(Evidence(lab, Variants(), found.models[0], (other,)).differing())
    assert list(Evidence(lab, Variants(), (), (other,)).differing())
    assert "Of what it was asked it took B=2 Lq=5 Lk=7 alone" in "\n".join(experiments_text(found))


def test_of_a_right_subject_that_takes_one_size_nothing_is_found():
    subject = OfSizes(batches=(2,), query_lens=(5,), key_lens=(7,))
    found = diagnose(subject, CASES, experiments=True)
    assert not found.differs
    assert found.measured.lab.sizes == (2, 5, 7)
