"""A subject whose answers, errors, words or names are out to end the run: it fails its own case, and no other."""

import io
import sys

import pytest
from rich.console import Console

from conformance.cases.table import select
from conformance.reports.text import print_results
from conformance.subjects.backend import ReferenceSubject
from conformance.subjects.load import load_subject
from mha_core import SpecError
from tests.conformance.running import run_all

pytestmark = pytest.mark.same_on_newest  # it reasons in NumPy alone

PRIME = select(("prime",))[0]

HEAD = """
import numpy as np
from mha_core import AttentionInputs, AttentionMask, reference

"""

HOSTILE = {
    "empties its weights": (
        """
def attention(weights, queries, keys, values, mask, *, config):
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))
    answer = reference.run(config, weights, inputs)
    weights.clear()
    return answer.output
""",
        "equal",
        "",
    ),
    "an array of 8 TB": (
        """
def attention(weights, queries, keys, values, mask, *, config):
    return np.broadcast_to(0.0, (2, 5, 10**11))
""",
        "failed",
        "output has shape (2, 5, 100000000000), which takes 8e+03 GB; it must be (2, 5, 29)",
    ),
    "an error that can't say what it is": (
        """
class Silent(Exception):
    def __str__(self):
        raise RuntimeError("no")

def attention(weights, queries, keys, values, mask, *, config):
    raise Silent()
""",
        "failed",
        "Silent: (it can't say what it is: its __str__ raised RuntimeError) (mine.py:11 in attention)",
    ),
    "a reason that can't be said": (
        """
class Mute(str):
    __str__ = __format__ = __repr__ = lambda self, *given: 1 / 0

class Attention:
    def supports(self, config, inputs):
        return Mute("nothing at all")
    def prepare(self, config, weights): ...

attention = Attention()
""",
        "unsupported",
        "cannot express: nothing at all",
    ),
    "an interrupt of its own": (
        """
def attention(weights, queries, keys, values, mask, *, config):
    raise KeyboardInterrupt
""",
        "failed",
        "KeyboardInterrupt (mine.py:7 in attention)",
    ),
    "an error that ends the process where it is asked for words": (
        """
class Deadly(BaseException):
    def __str__(self):
        raise SystemExit(1)

def attention(weights, queries, keys, values, mask, *, config):
    raise Deadly()
""",
        "failed",
        "Deadly: (it can't say what it is: its __str__ raised SystemExit) (mine.py:11 in attention)",
    ),
    "an error that interrupts where it is asked for words": (
        """
class Deadly(Exception):
    def __str__(self):
        raise KeyboardInterrupt

def attention(weights, queries, keys, values, mask, *, config):
    raise Deadly()
""",
        "failed",
        "raised an error that can't say what it is",
    ),
    "a class without a name": (
        """
class Nameless(type):
    __name__ = property(lambda cls: 1 / 0)

class Odd(Exception, metaclass=Nameless): ...

def attention(weights, queries, keys, values, mask, *, config):
    raise Odd("here")
""",
        "failed",
        "Odd: here (mine.py:12 in attention)",
    ),
    "an iterator at its end": (
        """
def attention(weights, queries, keys, values, mask, *, config):
    return next(iter(()))
""",
        "failed",
        "StopIteration (mine.py:7 in attention)",
    ),
    "an error in a file whose name clears the terminal": (
        """
def attention(weights, queries, keys, values, mask, *, config):
    exec(compile("1 / 0", "evil\\x1b[2J.py", "exec"))
""",
        "failed",
        r"ZeroDivisionError: division by zero (evil\x1b[2J.py:1 in <module>)",
    ),
    "names that run code when they are looked up": (
        """
class Name(str):
    __hash__ = str.__hash__
    def __eq__(self, other):
        raise SystemExit(1)
    def __format__(self, how):
        raise SystemExit(1)

def attention(weights, queries, keys, values, mask, *, config):
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))
    return {Name("output"): reference.run(config, weights, inputs).output, "gradients": None}
""",
        "equal",
        "",
    ),
    "calls that may not go deep any more": (
        """
import sys

def attention(weights, queries, keys, values, mask, *, config):
    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))
    answer = reference.run(config, weights, inputs).output
    sys.setrecursionlimit(60)
    return answer
""",
        "equal",
        "",
    ),
    "output that goes elsewhere": (
        """
import io, sys

def attention(weights, queries, keys, values, mask, *, config):
    sys.stdout = sys.stderr = io.StringIO()
    return queries[0]
""",
        "different",
        "",
    ),
    "gradients that fail when they are looked at": (
        """
class Bad(dict):
    def items(self):
        raise OSError("gone")

def attention(weights, queries, keys, values, mask, *, config):
    return {"output": queries, "gradients": Bad(queries=queries)}
""",
        "failed",
        "OSError: gone (mine.py:8 in items)",
    ),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Write a module `mine` into the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    def write(text):
        sys.modules.pop("mine", None)
        (tmp_path / "mine.py").write_text(HEAD + text)

    yield write
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_subject_cannot_end_the_run(what, module):
    code, status, message = HOSTILE[what]
    module(code)
    before = sys.stdout, sys.stderr, sys.getrecursionlimit()
    first, other = run_all([PRIME], [load_subject("mine:attention", "float64"), ReferenceSubject()])
    assert (first.status, first.message) == (status, message)
    assert other.status == "equal"
    assert (sys.stdout, sys.stderr, sys.getrecursionlimit()) == before


@pytest.mark.parametrize("error", ["OSError: gone", "SystemExit: 1"])
def test_what_a_subject_says_of_itself_may_fail(module, error):
    name, _, said = error.partition(": ")
    module(
        f"""
class Own:
    @property
    def name(self):
        raise {name}({said!r})
    def prepare(self, config, weights): ...

own = Own()
"""
    )
    with pytest.raises(SpecError, match=f"'mine:own': what it says of itself raised {error}"):
        load_subject("mine:own", "float64")


def test_names_of_a_type_are_bounded(module):
    module(
        """
def attention(weights, queries, keys, values, mask, *, config):
    return np.zeros((2, 5, 29), [("a\x1b[2J" + "b" * 100000, "f8")])
"""
    )
    [result] = run_all([PRIME], [load_subject("mine:attention", "float64")])
    assert len(result.mismatches[0].message) < 300
    assert result.mismatches[0].message.isprintable()


def test_markup_and_escapes_in_a_name_are_shown_as_they_are(module):
    module(
        """
class Own:
    name = "[/red]\\x1b[2Jmine"
    def prepare(self, config, weights): ...

own = Own()
"""
    )
    console = Console(width=120, record=True, file=io.StringIO())
    print_results(console, list(run_all([PRIME], [load_subject("mine:own", "float64")])))
    assert r"[/red]\x1b[2Jmine float64" in console.export_text()
