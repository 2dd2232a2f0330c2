"""What a page on the site runs: the same judge and the same words, in one process, with NumPy alone."""

import json
import subprocess
import sys

import pytest

from conformance.judging.expected import expected
from conformance.subjects import in_time
from mha.learn.exercises import exercise
from mha.learn.handout.folder import answered, text_of
from mha.learn.hints import hint
from mha.learn.running.attempt import KEPT
from mha.learn.running.here import written
from mha.learn.running.in_browser import rehearsed, said
from tests.docs.conftest import ROOT

TEXTBOOK = """import numpy as np


def empty_row(scores, allowed):
    scores = np.where(allowed, scores, -np.inf)
    powers = np.exp(scores - scores.max())
    return powers / powers.sum(axis=-1, keepdims=True)
"""

ALONE = """
import importlib, json, sys

importlib.invalidate_caches = None

class NumPyAlone:
    def find_spec(self, name, path=None, target=None):
        own = {*sys.stdlib_module_names, "numpy", "mha", "mha_core", "conformance", "plain_function"}
        if name.partition(".")[0] not in own:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NumPyAlone())
from conformance.judging.expected import expected
from conformance.subjects import in_time
in_time.IS_ALONE = True
from mha.learn.running.in_browser import said

def answer(asked):
    return [*said(*asked), any(name.startswith("conformance.diagnosis") for name in sys.modules)]

print(json.dumps([answer(asked) for asked in json.load(sys.stdin)]))
"""


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """What the page is told: the limits, in seconds."""
    limits = []
    monkeypatch.chdir(tmp_path)  # a layer's folder becomes the current one, and is removed
    monkeypatch.setattr(in_time, "IS_ALONE", True)
    monkeypatch.setattr(in_time, "tell", limits.append)
    return limits


def test_numpy_alone_is_needed_and_the_words_are_those_of_the_command():
    """A verdict loads no diagnosis and reads no folder again, which takes seconds in a page."""
    names = ("softmax", "weights-by-angle", "plain-function")
    asked = [(name, answered(exercise(name)), 1) for name in names]
    asked += [("empty-row", TEXTBOOK, level) for level in (1, 2)]
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, input=json.dumps(asked), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *right, first, second = json.loads(done.stdout)
    assert [(status, deeper, loaded) for status, _, deeper, loaded in right] == [("right", 0, False)] * len(names)
    assert all("\nLearned: " in words for _, words, *_ in right)
    with written(exercise("empty-row"), TEXTBOOK) as folder:
        assert first[:3] == ["wrong", hint(exercise("empty-row"), folder, 1, "numpy").text, 2]
        assert second[:3] == ["", *hint(exercise("empty-row"), folder, 2, "numpy")]


def test_a_rehearsal_is_judged_in_pieces_and_a_verdict_works_out_nothing_anew(alone):
    expected.cache_clear()
    right, wrong = answered(exercise("plain-function")), "def attention(*arguments):\n    return None\n"
    pieces = rehearsed("plain-function")
    for _ in range(3):
        next(pieces)
    before = said("plain-function", wrong, 1)
    assert len(list(pieces)) > 100
    worked_out = expected.cache_info().misses
    assert (said("plain-function", right, 1)[0], said("plain-function", wrong, 1)) == ("right", before)
    assert expected.cache_info().misses == worked_out > 100


def test_the_page_is_told_how_long_a_file_may_take(alone):
    assert said("empty-row", TEXTBOOK, 1)[0] == "wrong"
    assert alone == [10.0, 0.0]
    alone.clear()
    assert said("empty-row", text_of(exercise("empty-row")), 1)[0] == "to do"
    assert alone == []  # nothing ran


def test_what_a_file_does_to_numpy_is_undone(alone):
    spoilt = "import numpy as np\nnp.exp = np.where = None\n" + TEXTBOOK
    assert said("empty-row", spoilt, 1)[:1] == ("no answer",)
    assert said("empty-row", answered(exercise("empty-row")), 1)[0] == "right"


def test_much_print_is_cut_and_said_so(alone):
    _, words, _ = said("empty-row", f"print('x' * 5_000_000)\n{TEXTBOOK}", 1)
    assert "it printed: xxx" in words
    assert f"and more: the first {KEPT} characters are kept" in words
    assert len(words) < KEPT
    _, words, _ = said("empty-row", f"print('here')\n{TEXTBOOK}", 1)
    assert words.endswith("it printed: here")
