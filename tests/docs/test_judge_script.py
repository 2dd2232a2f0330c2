"""A page has the script that judges once, and a second load of it changes nothing."""

import re

import pytest

from _ext import run
from _ext.lessons import judged
from tests.docs.conftest import ROOT

pytestmark = pytest.mark.same_on_newest  # it puts text together


@pytest.mark.parametrize("lesson", ["kernel", "scaling", "layer", "block"])
def test_a_page_loads_the_judge_once_for_all_its_tables(lesson, tmp_path, monkeypatch):
    """One table, two, two with trained weights, and extra exercises alone. Each load makes an editor of each fold."""
    monkeypatch.setattr(judged, "TARGET", tmp_path)
    monkeypatch.setattr(judged, "made_here", lambda: dict.fromkeys(judged.ARCHIVES, b""))
    page = run.markdown(lesson)
    assert (page.count("_static/judge.js"), page.count('<details class="exercise"') > 0) == (1, True)


def test_exercises_of_a_framework_alone_load_no_judge(tmp_path, monkeypatch):
    monkeypatch.setattr(judged, "TARGET", tmp_path)
    assert judged.script(["class-in-torch"]) == judged.script([]) == ""


def test_a_second_load_finds_no_fold_that_is_no_editor_yet():
    code = (ROOT / "docs/_static/judge.js").read_text("utf-8")
    assert 'fold.classList.add("editable")' in code
    assert re.findall(r'querySelectorAll\("(details[^"]*)"\)', code) == ["details.exercise:not(.editable)"]
