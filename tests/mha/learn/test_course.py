"""The course: what its exercises ask is taught by then, and what comes next leads through it to its end."""

import re

import pytest

from mha.learn import judge as judging
from mha.learn.exercises import OF_LESSONS, exercise
from mha.learn.handout.folder import answered, is_untouched, start, text_of, there
from mha.learn.judge import Verdict
from mha.learn.progress import after
from mha.learn.tracks.course import CLASSES, EXTRA, LESSONS, row_of
from tests.mha.learn.calling import learn

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
    r"dropout": "layer",
    r"softcap": "",
}
"""Words of a task -> the lesson from which on they may be used; "" where none teaches them."""


def said(name):
    """What the file of an exercise says, without its example and its code; "..." of what it does without."""
    one = exercise(name)
    text = text_of(one).partition("\nExample")[0].partition("\n\nJudge it:")[0]
    return re.sub(r"^.*?\n\n|No scale here", "", text, count=1, flags=re.S)


@pytest.mark.parametrize("lesson", LESSONS)
def test_an_exercise_asks_for_nothing_that_is_taught_only_later(lesson):
    taught = list(LESSONS)[: list(LESSONS).index(lesson) + 1]
    for name in (*LESSONS[lesson], *CLASSES.get(lesson, ()), *EXTRA.get(lesson, ())):
        later = {
            word: found[0]
            for word, by in TAUGHT.items()
            if by not in taught and (found := re.search(rf"(?<![\w-])({word})(?![\w-])", said(name)))
        }
        assert not later, name


def test_an_exercise_stands_in_one_lesson():
    named = [name for names in (*LESSONS.values(), *CLASSES.values(), *EXTRA.values()) for name in names]
    assert len(set(named)) == len(named)
    assert [exercise(name).name for name in named] == named
    assert {*EXTRA, *CLASSES} <= {*LESSONS}


@pytest.fixture
def solve(tmp_path):
    """Writes a right answer, and gives the exercise that `mha learn check` would name next."""

    def solve(name):
        one = exercise(name)
        (tmp_path / one.file).write_text(answered(one))
        following = after(one, there(tmp_path), tmp_path)
        return following.name if following else None

    return solve


def test_the_course_is_solved_in_its_order_to_its_end(tmp_path, solve):
    names = list(OF_LESSONS)
    assert f"{len(names)} exercises written to" in learn("start", tmp_path, "--only", "course").output
    assert [solve(name) for name in names] == [*names[1:], None]
    done = learn("check", "--folder", tmp_path, "--only", "course")
    lines = [line.split()[:2] for line in done.output.strip().splitlines()]
    assert lines[: len(names)] == [[name, "right"] for name in names]
    assert done.output.strip().endswith("\nThe course is done.")
    assert f"{len(names)} of {len(names)} right: course {len(names)}/{len(names)}, write" in done.output


def test_the_first_line_has_the_minutes_of_what_is_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    learn("start", ".")
    minutes = sum(row_of(exercise(name)).minutes for name in OF_LESSONS)
    shown = learn("--only", "course").output
    assert f"0 of {len(OF_LESSONS)} right, about {minutes} minutes left: course 0/{len(OF_LESSONS)}, write" in shown
    assert "Next: weighted-sum," in shown
    everything = sum(row_of(one).minutes for one in there(tmp_path))
    first = f"0 of {len(there(tmp_path))} right, about {minutes} minutes of the course left, {everything} of everything"
    assert learn().output.strip().startswith(first)


def test_what_follows_the_course_is_called_so(tmp_path, solve, monkeypatch):

    def judged(exercises, folder, *, time_limit):
        return (Verdict(one, "to do" if is_untouched(one, folder) else "right", "") for one in exercises)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(judging, "judge_all", judged)
    learn("start", ".", "--only", "course", "--only", "backwards")
    for name in OF_LESSONS:
        solve(name)
    done = "\nThe course is done.\nBeyond it: gradient-of-scores,"
    assert done in learn("check", list(OF_LESSONS)[-1]).output
    assert done in learn("--only", "course", "--only", "backwards").output


def test_next_stays_in_the_course_where_all_exercises_are(tmp_path, solve):
    start(tmp_path, ("numpy",))
    names = list(OF_LESSONS)
    assert solve(names[0]) == names[1]
    assert solve(names[2]) == names[3]  # one is left out
    assert [solve(name) for name in names[3:]] == [*names[4:], names[1]]
    assert solve(names[1]) == "softcap"


def test_the_class_is_followed_by_the_next_lesson(tmp_path, solve):
    start(tmp_path, ("torch",))
    names = list(OF_LESSONS)
    for name in names[: names.index("causal-offsets")]:
        solve(name)
    assert solve("class-in-torch") == "causal-offsets"
    assert solve("module-with-state") == "decoding-step"  # an extra one goes on in its track
