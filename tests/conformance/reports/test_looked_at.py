"""The verdict says what its calls looked at: computed from the cases that had an answer."""

from dataclasses import replace

import pytest

from conformance.cases.table import select_asked
from conformance.judging.result import Result
from conformance.reports.looked_at import KINDS, SEQUENCES, looked_at
from conformance.subjects.backend import ReferenceSubject

pytestmark = pytest.mark.same_on_newest


def of(*patterns, dtype="float32", **changes):
    asked = select_asked(patterns)
    results = [Result(one.id, "mine", dtype, "cpu", "equal") for one in asked]
    return looked_at(asked, [replace(result, **changes) for result in results], [ReferenceSubject()])


def test_what_no_call_was_is_said():
    found = of("prime", "causal")
    assert found.sizes == {"batches": 2, "queries": 5, "keys": 7, "heads": 3, "head_dim": 11}
    assert "a causal mask" in found.kinds
    assert {"float64", "a GPU", "a softcap", "past keys and values", SEQUENCES} <= set(found.never)
    assert not {"float32", "a causal mask"} & set(found.never)


def test_cases_without_an_answer_do_not_count():
    assert of("causal", status="unsupported") is None
    assert of("causal", status="failed") is None


def test_the_table_lacks_nothing_but_what_is_run_otherwise():
    found = of("*")
    assert set(found.kinds) == {*KINDS, SEQUENCES}
    assert found.never == ("float64", "float16", "bfloat16", "a GPU")
    assert found.sizes["batches"] > 8
    assert found.sizes["heads"] >= 12
    assert found.sizes["keys"] >= 1100
    assert found.sizes["head_dim"] >= 128


def test_what_layers_with_a_part_were_asked_is_said_apart():
    """What a layer without the part was asked does not count."""
    found = of("prime", "causal", "window", "rotary-interleaved", "query-key-norm", "sequence-shapes")
    assert set(found.parts) == {"rotary positions", "query-key norm"}
    turned = found.parts["rotary positions"]
    assert turned.sizes == {"batches": 2, "queries": 5, "keys": 7, "heads": 3, "head_dim": 11}
    assert found.sizes["keys"] > 7
    assert {"a causal mask", "a window", "a softcap", SEQUENCES} <= set(turned.never)
    assert not {"rotary positions", "query-key norm", "no mask", "gradients"} & set(turned.never)
    assert "a causal mask" not in found.never
    assert "a softcap" not in found.parts["query-key norm"].never
    assert " With rotary positions: batches to 2, queries to 5, keys to 7, " in found.line
    assert found.to_dict()["parts"]["rotary positions"]["sizes"] == turned.sizes
    assert of("prime").parts == {}


def test_calls_of_a_sequence_that_could_not_be_expressed_do_not_count():
    (sequence,) = select_asked(("sequence-settings",))
    softcapped = tuple(step.words for step in sequence.steps() if step.case.config.softcap)
    parted = tuple(step.words for step in sequence.steps() if step.case.config.rotary)
    found = of("sequence-settings", left_out={"no softcap": softcapped, "no rotary positions": parted})
    assert set(found.parts) == {"query-key norm"}
    assert "a softcap" in found.never
    assert "a softcap" in of("sequence-settings").kinds
