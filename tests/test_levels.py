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


def ran(folder, files, *options):
    """What pytest says of these files beside our conftest.py."""
    copy(Path(__file__).parents[1] / "conftest.py", folder)
    inifile = "[pytest]\nmarkers = nightly: later\naddopts = --doctest-modules -p no:cacheprovider -p no:xdist\n"
    for name, text in {"backends/mine/backend.py": "", "pytest.ini": inifile, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("b", (), "2 passed, 1 deselected"),
        ("b", ("-m", "nightly"), "numbers are small"),
        ("d", (), "test_of_names.py::test_number: 'd', which is to run by day, is no id of its tests"),
    ],
)
def test_an_id_runs_by_day_the_others_say_what_they_protect(tmp_path, name, options, said):
    assert said in ran(tmp_path, {"test_of_names.py": TESTS.replace("NAME", name)}, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [((), "1 passed"), (("tests/fuzz/test_a.py",), "nowhere"), (("-m", "nightly"), "nowhere")],
)
def test_what_is_not_asked_is_not_imported(tmp_path, options, said):
    """Neither what is nightly as a whole, nor a module without an example."""
    files = dict.fromkeys(("tests/fuzz/test_a.py", "tests/helper.py"), "import nowhere\n")
    assert said in ran(tmp_path, {**files, "one.py": '"""\n>>> 1 + 1\n2\n"""\n'}, *options)
