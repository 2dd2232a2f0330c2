"""Explanations of recordings by two causes at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from conformance.zoo.registry import select
from mha.projections.said import MEANT, read_otherwise
from mha.recordings.explain import explain, explain_layers
from mha_core import AttentionMask
from tests.mha.recordings.test_explain import named
from tests.mha.recordings.wrong_ports import MASKS, layer_of, recording_of

pytestmark = [
    pytest.mark.same_on_newest,  # it reasons in NumPy alone
    pytest.mark.nightly("a recording's cause is named"),
]


def test_of_pairs_that_give_the_same_the_smaller_change_is_said():
    """A causal mask that is inverted and transposed lacks its diagonal; the row that this empties shows the fill."""
    pair = ("causal-without-diagonal", "fill-1e9-averaged")
    (found,) = explain(recording_of(layer_of(), *select(pair), masks=MASKS[2:]))
    pairs = [{bug.id for bug in one.bugs} for one in found.explanations]
    assert set(pair) in pairs
    assert not {"mask-inverted", "mask-inverted-filled", "mask-transposed"} & set().union(*pairs)


def test_how_a_layer_reads_its_mask_is_no_cause_beside_another_one_unless_it_was_said():
    """Nothing tells it where no reading gives what was recorded; what somebody said counts."""
    layer = layer_of()
    allowed = np.random.default_rng(5).random((2, 1, 3, 5)) < 0.5
    wrong = recording_of(layer, *select(("merge-without-transpose",)), masks=(AttentionMask(allowed=allowed),))
    calls = []
    for call in wrong.calls:
        mask = call.inputs.mask
        if mask.allowed is not None:
            mask = replace(mask, allowed=~mask.allowed)
        calls.append(replace(call, inputs=replace(call.inputs, mask=mask)))
    read = replace(wrong, calls=tuple(calls))
    assumed = f"batch_first=True, keep {MEANT[False]}"
    guessed = replace(read, calls=tuple(replace(call, assumed=assumed) for call in calls))
    assert [one.otherwise for one in explain_layers(guessed)] == [{"": read_otherwise}]
    assert named(guessed) == ["merge-without-transpose"]
    for others in (calls, [replace(call, assumed="batch_first=True") for call in calls]):
        found = named(replace(read, calls=tuple(others)))
        assert "mask-inverted + merge-without-transpose" in found
        assert "merge-without-transpose" not in found
