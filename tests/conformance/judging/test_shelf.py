"""Answers that are kept: the same bits as computed anew, and computed anew where anything is wrong with them."""

from dataclasses import replace

import pytest

from conformance.bounds.precision import Precision
from conformance.cases.table import select
from conformance.judging import expected as module
from conformance.judging.expected import Shelf, answer, expected, keep_answers
from mha_core.files.kept import Kept, pieces

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

CASES = select(("scores-shifted", "every-source", "trained-first-layer", "causal-bottom-right"))
PRECISION = Precision.of("float32")


@pytest.fixture
def shelf(tmp_path):
    yield Shelf(Kept(tmp_path))
    keep_answers(None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_kept_answer_has_the_same_bits(case, shelf):
    problem = case.build()
    wanted = answer(problem, PRECISION)
    assert shelf.get(problem, PRECISION) is None
    put = shelf.put(problem, PRECISION, wanted)
    found = shelf.get(problem, PRECISION)
    for mine, theirs in (
        (put.allowed_error, wanted.allowed_error),
        (found.trace.arrays(), wanted.trace.arrays()),
        (found.allowed_error, wanted.allowed_error),
        ({"where": found.where}, {"where": wanted.where}),
        ({"queries": found.problem.inputs.queries}, {"queries": wanted.problem.inputs.queries}),
    ):
        assert list(mine) == list(theirs)
        for name, array in theirs.items():
            assert (mine[name].dtype, mine[name].shape) == (array.dtype, array.shape), name
            assert mine[name].tobytes() == array.tobytes(), name


def test_another_problem_or_precision_is_not_found(shelf):
    problem = CASES[0].build()
    shelf.put(problem, PRECISION, answer(problem, PRECISION))
    scaled = replace(problem, inputs=replace(problem.inputs, values=2.0 * problem.inputs.values))
    assert shelf.get(scaled, PRECISION) is None
    assert shelf.get(problem, Precision.of("float64")) is None
    assert shelf.get(problem, PRECISION) is not None


def test_a_damaged_answer_is_computed_anew(shelf, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "answer", lambda *given: asked.append(given) or answer(*given))
    keep_answers(shelf)
    for damaged in (False, False, True):
        if damaged:
            ((path, _),) = pieces(tmp_path)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        expected.cache_clear()
        expected(CASES[0], PRECISION)
    assert len(asked) == 2
    expected.cache_clear()


def test_bounds_of_gradients_are_computed_and_kept_once_they_are_looked_at(shelf, tmp_path):
    problem = CASES[1].build()
    wanted = answer(problem, PRECISION)
    found = shelf.put(problem, PRECISION, wanted)
    assert found.allowed_error["output"].tobytes() == wanted.allowed_error["output"].tobytes()
    assert len(list(pieces(tmp_path))) == 1
    assert shelf.get(problem, PRECISION).allowed_error["gradients.keys"].any()
    assert len(list(pieces(tmp_path))) == 2
    with pytest.raises(KeyError):
        found.allowed_error["gradients.nothing"]
