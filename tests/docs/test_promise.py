"""The first page's numbers are what each backend gives."""

from __future__ import annotations

import json

from _data import promise

COMMITTED = json.loads((promise.HERE / "promise.json").read_text())


def test_the_numbers_of_the_first_page(backend_name):
    """To the last digit shown, or one off in it: processors round differently."""
    found = promise.measured(backend_name)
    last = 10.0**-promise.NUMBERS
    for shown, now in zip(COMMITTED[backend_name]["row"], found["row"], strict=True):
        assert abs(float(shown) - float(now)) <= 1.01 * last
    assert found["distance"] < last


def test_all_backends_and_the_reference_show_the_same_numbers():
    assert len({tuple(found["row"]) for found in COMMITTED.values()}) == 1
    assert promise.measured("reference") == COMMITTED["reference"]
