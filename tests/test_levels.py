"""What runs by day and what is nightly, as `conftest.py` decides it for a file of tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copy

import pytest

pytestmark = pytest.mark.same_on_newest  # it is about pytest

TESTS = """
import pytest

@pytest.mark.nightly("numbers are small", but=("a", "NAME"))
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_number(name):
    assert name != "c"
"""


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("b", (), "2 passed, 1 deselected"),
        ("b", ("-m", "nightly"), "numbers are small"),
        ("d", (), "test_of_names.py::test_number: 'd', which is to run by day, is no id of its tests"),
    ],
)
def test_an_id_runs_by_day_the_others_say_what_they_protect(tmp_path, name, options, said):
    copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "backends" / "mine").mkdir(parents=True)
    (tmp_path / "backends" / "mine" / "backend.py").touch()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nightly: later\n")
    (tmp_path / "test_of_names.py").write_text(TESTS.replace("NAME", name))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said in done.stdout + done.stderr
