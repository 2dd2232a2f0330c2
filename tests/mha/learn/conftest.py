"""What the tests of learners' files share."""

import textwrap

import pytest

from conformance.workers.execute import end_idle
from mha.learn.exercises import exercise


@pytest.fixture(scope="module", autouse=True)
def processes():
    yield
    end_idle()


@pytest.fixture
def write(tmp_path):
    """Writes the file of an exercise, and gives it with the folder."""

    def write(name: str, text: str):
        one = exercise(name)
        path = tmp_path / one.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return one, tmp_path

    return write
