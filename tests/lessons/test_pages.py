"""What stands on the pages of the lessons, and in the notebooks, is made from the lessons."""

from __future__ import annotations

import re

import nbformat
import pytest
from sphinx.errors import ExtensionError

from _ext import run
from _ext.lessons.notebooks import TITLES, notebook
from _ext.lessons.plots import PLOTS, plot
from lessons import runner

pytestmark = pytest.mark.same_on_newest  # it puts text together


def test_a_lesson_or_a_cell_that_is_not_there_stops_the_build():
    with pytest.raises(ExtensionError, match="there is no lesson 'angel' \\(there are: angle, heads"):
        run.markdown("angel")
    with pytest.raises(ExtensionError, match="lesson 'angle' has no cell 'nowhere' in NumPy"):
        run.tabs("angle", "nowhere")


def test_a_framework_that_was_not_there_is_said_not_to_have_run(monkeypatch):
    lacking = {**run.recorded(), "printed": {k: v for k, v in run.recorded()["printed"].items() if k != "mxnet"}}
    monkeypatch.setattr(run, "recorded", lambda: lacking)
    shown = run.tabs("angle", "attend")
    assert "Not run: MXNet was not installed where the lessons were recorded." in shown
    assert shown.count("```none") == 4  # what the others printed


def test_every_cell_stands_in_five_tabs_with_numpy_first():
    page = run.markdown("heads")
    cells = len(run.cells("heads", "numpy"))
    assert page.count("::::{tab-set}") == cells
    assert re.findall(r"^:sync: (\w+)$", page, re.MULTILINE) == list(run.DIALECTS) * cells
    assert next(iter(run.DIALECTS)) == "numpy"


@pytest.mark.parametrize("lesson", PLOTS)
def test_a_plot_has_text_and_the_same_bytes_each_time(lesson):
    arrays = runner.run(lesson, "numpy")[1]
    drawn = plot(lesson, arrays)
    assert drawn == plot(lesson, arrays)
    assert ">weight</text>" in drawn
    assert drawn.count("currentColor") > 10
    assert "#000000" not in drawn
    assert "<td>" in drawn  # the table beside it


@pytest.mark.parametrize("framework", run.DIALECTS)
def test_a_notebook_is_valid_and_the_same_each_time(framework):
    texts = {lesson: run.text(lesson) for lesson in TITLES}
    code = {lesson: run.cells(lesson, framework) for lesson in TITLES}
    made = notebook(texts, code, "It")
    assert made == notebook(texts, code, "It")
    book = nbformat.reads(made, as_version=4)
    assert [cell.source for cell in book.cells if cell.cell_type == "code"] == [
        source for cells in code.values() for source in cells.values()
    ]
    assert "```{" not in made
    assert ".md)" not in made
