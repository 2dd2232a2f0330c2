"""What stands on the pages of the lessons, and in the notebooks, is made from the lessons."""

from __future__ import annotations

import re

import nbformat
import pytest
from sphinx.errors import ExtensionError

from _ext import run
from _ext.figures.plots import PLOTS, plot
from _ext.lessons.course import COURSE, above, below, named
from _ext.lessons.notebooks import notebook
from lessons import runner

pytestmark = pytest.mark.same_on_newest  # it puts text together


def test_a_lesson_or_a_cell_that_is_not_there_stops_the_build():
    with pytest.raises(ExtensionError, match="there is no lesson 'angel' \\(there are: angle, block"):
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


def test_every_lesson_has_a_figure():
    assert list(PLOTS) == [lesson.name for lesson in COURSE]


@pytest.mark.parametrize("lesson", PLOTS)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the textbook's 0 / 0, which is a lesson
def test_a_figure_has_text_and_the_same_bytes_each_time(lesson):
    arrays = runner.run(lesson, "numpy")[1]
    drawn = plot(lesson, arrays)
    assert drawn == plot(lesson, arrays)
    assert drawn.count("</text>") > 3
    assert drawn.count("currentColor") > 10
    assert "#000000" not in drawn
    assert "<td>" in drawn  # the table beside it


def test_a_figure_shows_the_arrays():
    """Other arrays, another figure: here the order of two heads."""
    arrays = runner.run("own", "numpy")[1]
    turned = {**arrays, "whole/importance": arrays["whole/importance"][::-1]}
    assert plot("own", arrays) != plot("own", turned)


def test_a_lesson_begins_with_its_place_and_ends_with_its_exercises_and_the_next():
    first, last = COURSE[0], COURSE[-1]
    assert (
        above(first) == f"*Lesson 1 of {len(COURSE)}, {first.minutes} minutes;* [exercise](#exercise) `weighted-sum`\n"
    )
    assert "`mha learn check weighted-sum` | Sum the values of all keys" in below(first)
    assert f"Next: [{COURSE[1].title}]({COURSE[1].page}.md)" in below(first)
    assert "Next:" not in below(last)


@pytest.mark.parametrize("framework", run.DIALECTS)
def test_a_notebook_is_valid_and_the_same_each_time(framework):
    for lesson in COURSE:
        code = run.cells(lesson.name, framework)
        printed = run.recorded()["printed"][framework][lesson.name]
        given = (lesson, run.text(lesson.name), code, printed, "<svg/>", framework)
        made = notebook(*given)
        assert made == notebook(*given)
        book = nbformat.reads(made, as_version=4)
        install, *cells = [cell for cell in book.cells if cell.cell_type == "code"]
        assert install.source.startswith("%pip install ")
        assert [cell.source for cell in cells] == list(code.values())
        shown = ["".join(output.text for output in cell.outputs) for cell in cells]
        assert shown == [printed[name] for name in code]
        assert "figure.svg" in next(cell for cell in book.cells if cell.id == "figure").attachments
        for rest in ("```{", ":::", ".md)"):
            assert rest not in made


def test_a_formula_and_a_prediction_are_those_of_notebooks():
    text = "```{math}\nx^2\n```\n\n:::{dropdown} Predict: x?\nIt is [1](masks.md).\n:::\n\n```{gallery} all\n```\n"
    [cell] = nbformat.reads(notebook(named("angle"), text, {}, {}, "", "numpy"), as_version=4).cells[2:]
    assert cell.source == "$$x^2$$\n\n<details><summary>Predict: x?</summary>\n\nIt is 1.\n\n</details>"
