"""The verdict says what its calls looked at: computed from the cases that had an answer."""

from __future__ import annotations

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
