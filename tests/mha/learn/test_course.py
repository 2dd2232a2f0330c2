"""The course: what its exercises ask is taught by then, and what comes next leads through it to its end."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from mha.cli.main import main
from mha.learn.exercises import OF_LESSONS, exercise
from mha.learn.handout.folder import answered, text_of
from mha.learn.tracks.course import EXTRA, LESSONS, row_of

pytestmark = pytest.mark.same_on_newest  # NumPy alone

TAUGHT = {
    r"scale|sqrt": "scaling",
    r"softmax": "softmax",
    r"masks?|allowed|excluded|padding|may attend|no key": "masks",
    r"projections?|W\^T": "projections",
    r"heads?": "heads",
    r"grouped|groups?|G": "layer",
    r"rotary|turns?|rotation|positional": "positions",
    r"norm|normed|rms": "block",
    r"offsets?|query_offset|windows?|cache|past": "positions",
    r"softcap|dropout": "",
}
"""Words of a task -> the lesson from which on they may be used; "" where none teaches them."""


def learn(*arguments):
    return CliRunner().invoke(main, ["learn", *map(str, arguments)])


def said(name):
    """What the file of an exercise says, without its example and its code; "..." of what it does without."""
    one = exercise(name)
    text = text_of(one).partition("\nExample")[0].partition("\n\nJudge it:")[0]
    return re.sub(r"^.*?\n\n|No scale here", "", text, count=1, flags=re.S)


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_exercise_asks_for_nothing_that_is_taught_only_later(lesson):
    taught = list(LESSONS)[: list(LESSONS).index(lesson) + 1]
    for name in (*LESSONS[lesson], *EXTRA.get(lesson, ())):
        later = {
            word: found[0]
            for word, by in TAUGHT.items()
            if by not in taught and (found := re.search(rf"(?<![\w-])({word})(?![\w-])", said(name)))
        }
        assert not later, name


def test_an_exercise_stands_in_one_lesson():
    named = [name for names in (*LESSONS.values(), *EXTRA.values()) for name in names]
    assert len(set(named)) == len(named)
    assert [exercise(name).name for name in named] == named
    assert set(EXTRA) <= set(LESSONS)


def test_the_course_is_solved_in_its_order_to_its_end(tmp_path, monkeypatch):
    """From an empty folder: what comes next is always the next exercise of the lessons."""
    monkeypatch.chdir(tmp_path)
    assert f"{len(OF_LESSONS)} exercises written to ." in learn("start", ".", "--only", "course").output
    first = learn("--only", "course").output
    minutes = sum(row_of(exercise(name)).minutes for name in OF_LESSONS)
    assert f"0 of {len(OF_LESSONS)} right, about {minutes} minutes left: course 0/{len(OF_LESSONS)}, write" in first
    following = re.search(r"Next: ([\w-]+),", first)
    for name in OF_LESSONS:
        assert following is not None
        assert following[1] == name
        one = exercise(name)
        (tmp_path / one.file).write_text(answered(one))
        last = learn("check", name).output
        assert f"{name:<26}right" in last
        following = re.search(r"Next: ([\w-]+),", last)
    assert following is None
    assert "The course is done." in learn().output


def test_next_stays_in_the_course_where_all_exercises_are(tmp_path):
    learn("start", tmp_path)
    for name in ("weighted-sum", "scores"):  # one is left out
        one = exercise(name)
        (tmp_path / one.file).write_text(answered(one))
    shown = learn("check", "scores", "--folder", tmp_path).output
    assert "Next: softmax," in shown
    for name in list(OF_LESSONS)[2:]:
        one = exercise(name)
        (tmp_path / one.file).write_text(answered(one))
    assert "Next: dot-products," in learn("check", "scores", "--folder", tmp_path).output
    (tmp_path / "write" / "dot_products.py").write_text(answered(exercise("dot-products")))
    assert "Next: softcap," in learn("check", "dot-products", "--folder", tmp_path).output
