"""What runs by day and what is nightly, as `conftest.py` decides it for a file of tests."""

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


# Two files are not to be imported by day: one that is nightly as a whole, and one without tests or an example.
FILES = {
    "backends/mine/backend.py": "",
    "one.py": '"""\n>>> 1 + 1\n2\n"""\n',
    "pytest.ini": "[pytest]\nmarkers = nightly: later\naddopts = --doctest-modules -p no:cacheprovider -p no:xdist\n",
    **dict.fromkeys(("tests/fuzz/test_a.py", "tests/helper.py"), "import nowhere\n"),
}


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("b", (), ("3 passed, 1 deselected",)),
        ("b", ("-m", "nightly", "--continue-on-collection-errors"), ("numbers are small", "named 'nowhere'")),
        ("b", ("tests/fuzz/test_a.py",), ("named 'nowhere'",)),
        ("d", (), ("test_of_names.py::test_number: 'd', which is to run by day, is no id of its tests",)),
    ],
)
def test_an_id_runs_by_day_and_what_is_nightly_says_what_it_protects(tmp_path, name, options, said):
    copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    for path, text in {**FILES, "test_of_names.py": TESTS.replace("NAME", name)}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert not [words for words in said if words not in done.stdout + done.stderr], done.stdout
