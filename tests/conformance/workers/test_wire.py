"""What strangers send: values come back as they were, and nothing that is sent makes anything but values."""

import json
import math
import pickle

import numpy as np
import pytest
import safetensors.numpy

from conformance.cases.table import select
from conformance.subjects.ask import CannotExpress
from conformance.subjects.handout import input_arrays
from conformance.workers.wire import Together, Unreadable, dumps, loads
from mha_core import AttentionConfig, AttentionInputs, SpecError

pytestmark = pytest.mark.same_on_newest  # it is about bytes


def sent(value):
    return loads(dumps(value), layouts=True)


def described(array):
    return array.shape, array.dtype, array.strides if array.size else None, array.tobytes()


@pytest.mark.parametrize(
    "case",
    [
        *("prime", "views", "every-source", "past", "dropout", "additive-grouped", "no-keys"),
        *("rotary-tables", "rotary-yarn", "rotary-longrope", "query-key-norm-after"),
    ],
)
def test_a_problem_comes_back_with_its_bits_and_strides(case):
    problem = select((case,))[0].build()
    found = sent(problem)
    assert found.config == problem.config
    for one, other in (
        (problem.weights, found.weights),
        (input_arrays(problem.inputs), input_arrays(found.inputs)),
    ):
        assert {name: described(array) for name, array in one.items()} == {
            name: described(array) for name, array in other.items()
        }
    mask, came = vars(problem.inputs.mask), vars(found.inputs.mask)
    assert {name: type(value) for name, value in mask.items()} == {name: type(value) for name, value in came.items()}


def test_values_come_back_as_they_were():
    value = {"a": (1, -0.0, None, "é\ud800"), 2: [True, math.inf], ("t", 3): {}, "big": 10**30}
    found = sent(value)
    assert found == value
    assert math.copysign(1.0, found["a"][1]) < 0
    assert math.isnan(sent(np.float64("nan")))
    odd = [np.array(3.5), np.zeros((0, 4), np.float16), np.array(["x"]), np.arange(3, dtype=">i4"), np.array([1j])]
    for one, other in zip(odd, sent(odd), strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    for error in (SpecError("two\nlines"), CannotExpress("no")):
        assert (type(sent(error)), str(sent(error))) == (type(error), str(error))


def test_one_array_in_two_places_is_one_array_and_equal_ones_are_two():
    x, y = np.arange(5.0), np.arange(5.0)
    found = sent([x, x, y])
    assert found[0] is found[1]
    assert found[0] is not found[2]
    together = loads(dumps(Together([x, y, y.astype(np.float32)])))
    assert together[0] is together[1]
    assert together[2].dtype == np.float32


@pytest.mark.parametrize("value", [object(), print, {1, 2}, np.array([None]), 1j, b"bytes", AttentionConfig])
def test_what_can_not_be_sent_is_said(value):
    with pytest.raises(TypeError, match="can't be sent"):
        dumps(value)


def message(value, forms=(), data=b""):
    array = np.frombuffer(data, np.uint8)
    return safetensors.numpy.save({"bytes": array}, metadata={"message": json.dumps([value, forms])})


ran = []


class Runs:
    def __reduce__(self):
        return ran.append, ("it ran",)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 64,
        pickle.dumps(Runs()),
        dumps([1, np.ones(3)])[:-1],
        message({"class": ["Popen", {"args": "true"}]}),
        message({"class": ["SpecError", {"message": "no dataclass"}]}),
        message({"error": ["AttentionConfig", "no error"]}),
        message({"class": ["AttentionConfig", {"embed_dim": -1, "num_heads": 2}]}),
        message({"class": ["AttentionConfig", {"nothing": 1}]}),
        message({"array": 0}),
        message({"array": 0}, [["|O", [1], None, 0]], bytes(8)),
        message({"array": 0}, [["<f8", [2], None, 0]], bytes(8)),
        message({"array": 0}, [["<f8", [1], None, -8]], bytes(8)),
        message({"array": 0}, [["<f8", [10**12], None, 0]], bytes(8)),
        message({"tuple": [], "list": []}),
        message({"function": ["print", []]}),
        message({"dict": [[{"dict": []}, 1]]}),
        message([]).replace(b"[[], []]", b"[" * 4 + b"]" * 4),
        b'\x10\0\0\0\0\0\0\0{"__metadata__":1}',
    ],
)
def test_bytes_that_are_no_message_are_unreadable(data):
    with pytest.raises(Unreadable) as error:
        loads(data)
    assert "\n" not in str(error.value)
    assert ran == []


def test_deep_nesting_is_unreadable():
    text = '{"tuple": [' * 50_000 + "]}" * 50_000
    data = safetensors.numpy.save({"bytes": np.zeros(0, np.uint8)}, metadata={"message": f"[{text}, []]"})
    with pytest.raises(Unreadable):
        loads(data)


def test_strides_are_taken_from_nobody_who_is_not_trusted():
    """They can make an array of any size of a few bytes."""
    data = message({"array": 0}, [["<f8", [2], [10**12], 0]], bytes(16))
    assert loads(data).strides == (8,)


def test_inputs_are_checked_when_they_come():
    inputs = AttentionInputs(*(np.ones((2, length, 6)) for length in (3, 5, 5)))
    data = dumps(inputs).replace(b"AttentionInputs", b"AttentionConfig")
    with pytest.raises(Unreadable):
        loads(data)
