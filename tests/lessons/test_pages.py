"""What stands on the pages of the lessons, and in the notebooks, is made from the lessons."""

import linecache
import re
from functools import partial
from xml.etree import ElementTree

import nbformat
import numpy as np
import pytest
from sphinx.errors import ExtensionError

from _ext import run
from _ext.figures.base import DOWNLOAD, LICENCE, to_file
from _ext.figures.plots import PLOTS, plot
from _ext.lessons.course import COURSE, Lesson, above, below, extra, named
from _ext.lessons.course import markdown as table_of_course
from _ext.lessons.notebooks import notebook
from lessons import runner
from mha.learn import check_here
from mha_core.errors import SpecError

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
    drawn = run.figure_of(lesson)  # kept for the page
    assert drawn == plot(lesson, runner.run(lesson, "numpy")[1])
    assert drawn.count("</text>") > 3
    assert drawn.count("currentColor") > 10
    assert "#000000" not in drawn
    assert "<td>" in drawn  # the table beside it
    assert not re.search("darker|lighter", drawn)  # it is the other way round in the dark


def test_a_figure_is_a_file_with_its_licence():
    file = to_file(run.figure_of("kernel"))
    root = ElementTree.fromstring(file)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root[0].text == LICENCE == "mha-parity, Apache-2.0"
    assert "currentColor" not in file
    page = run.markdown("kernel")
    assert page.count('href="_downloads/kernel.svg" download>SVG</a> (mha-parity, Apache-2.0)') == 1
    assert DOWNLOAD not in page


def test_a_search_knows_the_lessons():
    """It has them before other pages that have the words in their text alone."""
    listed = (run.RECORDED.parents[1] / "_ext" / "scorer.js").read_text("utf-8").partition("]")[0]
    assert re.findall(r'"([\w-]+)"', listed) == [lesson.page for lesson in COURSE]


def test_a_figure_shows_the_arrays():
    """Other arrays, another figure: here the order of two heads."""
    arrays = runner.run("own", "numpy")[1]
    turned = {**arrays, "whole/importance": arrays["whole/importance"][::-1]}
    assert plot("own", arrays) != plot("own", turned)


def test_a_lesson_begins_with_its_place_and_ends_with_its_exercises_and_the_next():
    first, last = COURSE[0], COURSE[-1]
    begins = f"*Lesson 1 of {len(COURSE)}: {first.reading} minutes to read, 1 for its* [exercise](#exercises)"
    assert above(first) == f"{begins} `weighted-sum`\n"
    assert "| `write/weighted_sum.py` | Sum the values of all keys" in below(first)
    assert "| `mha learn check weighted-sum` | 1 |" in below(first)
    assert f"Next: [{COURSE[1].title}]({COURSE[1].page}.md)" in below(first)
    assert "Next:" not in below(last)


def test_a_lesson_without_exercises_asks_for_none_and_extra_ones_stand_apart():
    without, both = named("block"), named("layer")
    assert "for its" not in above(without)
    assert below(without) == f"Next: [{named('own').title}](own-heads.md)\n"
    assert extra(named("kernel")) == ""
    assert [re.findall(r"`mha learn check ([\w-]+)`", part(both)) for part in (below, extra)] == [
        [*both.exercises, *both.classes],
        list(both.extra),
    ]
    assert below(both).index("### The class in your framework") < below(both).index("class-in-torch")
    assert "The class in" not in below(named("masks"))


@pytest.mark.parametrize("lesson", COURSE, ids=[lesson.name for lesson in COURSE])
def test_what_lies_beyond_the_course_stands_after_the_way_on(lesson):
    """A reader of the course meets summary, exercises and the next lesson first; extra exercises come last."""
    headings = re.findall(r"^## (.*)$", run.markdown(lesson.name), re.MULTILINE)
    beyond = [heading for heading in headings if heading.startswith("Beyond the course: ")]
    last = ["Exercises"] * bool(lesson.exercises)
    rest = [*beyond, *["Extra exercises"] * bool(lesson.extra), "The same in all five"]
    assert headings[headings.index("In short") :] == ["In short", *last, *rest]


def test_the_course_takes_three_hours_at_most_by_its_own_minutes():
    """What the first page sums up: reading, and the exercises without the extra ones."""
    reading, solving = (sum(getattr(one, name) for one in COURSE) for name in ("reading", "solving"))
    hours, rest = divmod(reading + solving, 60)
    assert reading + solving <= 180
    assert f"**in sum: {hours} hours {rest} minutes** | {reading} | | {solving} |" in re.sub(
        " +", " ", table_of_course()
    )
    assert all(f"`{name}`" in table_of_course() for one in COURSE for name in one.exercises)
    assert not any(f"`{name}`" in table_of_course() for one in COURSE for name in one.extra)


def test_more_text_code_or_figures_take_more_minutes(tmp_path, monkeypatch):
    """150 words, ten lines, one figure: a minute each. No words: what is no prose. Nothing: what is beyond."""
    monkeypatch.setattr(runner, "HERE", tmp_path)

    def reading(words, lines, figures):
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        blocks = "\n```{plot} own\n```" * figures + "\n```{math}\nx = 1\n```\n```{cell} one\n```"
        beyond = "\n## Beyond the course: more\n" + "word " * 300 + "\n```{cell} two\n```\n```{plot} own\n```\n"
        (folder / "lesson.md").write_text("word " * words + blocks + beyond)
        (folder / "in_numpy.py").write_text("# %% one\n" + "x = 1\n\n" * lines + "# %% two\n" + "x = 1\n" * 40)
        return Lesson("own", "own-heads").reading

    assert [reading(150, 10, 1), reading(300, 10, 1), reading(150, 30, 1), reading(150, 10, 3)] == [3, 4, 5, 5]


@pytest.mark.parametrize("framework", run.DIALECTS)
def test_a_notebook_is_valid_and_the_same_each_time(framework):
    for lesson in COURSE:
        code = run.cells(lesson.name, framework)
        printed = run.recorded()["printed"][framework][lesson.name]
        given = partial(notebook, lesson, run.text(lesson.name), code, printed, figure="<svg/>", framework=framework)
        made = given()
        assert made == given()
        book = nbformat.reads(made, as_version=4)
        code_cells = [cell for cell in book.cells if cell.cell_type == "code" and not cell.id.startswith("task-")]
        install, *cells = code_cells
        assert install.source.startswith("%pip install -q '.")  # there is no release
        assert [cell.source for cell in cells] == list(code.values())
        shown = ["".join(output.text for output in cell.outputs) for cell in cells]
        assert shown == [printed[name] for name in code]
        assert "figure.svg" in next(cell for cell in book.cells if cell.id == "figure").attachments
        for rest in ("```{", ":::", ".md)", "{math}"):
            assert rest not in made


def test_a_formula_and_a_prediction_are_those_of_notebooks():
    text = (
        "```{math}\nx^2\n```\n\n:::{dropdown} Predict: x?\n{math}`x` is [1](masks.md).\n:::\n\n```{gallery} all\n```\n"
    )
    [cell] = nbformat.reads(notebook(named("angle"), text, {}, {}, figure="", framework="numpy"), as_version=4).cells[
        2:3
    ]
    assert cell.source == "$$x^2$$\n\n<details><summary>Predict: x?</summary>\n\n$x$ is 1.\n\n</details>"


def code_of(lesson):
    """Cell -> code of a notebook in NumPy, without the cell that installs."""
    code = run.cells(lesson.name, "numpy")
    made = notebook(lesson, run.text(lesson.name), code, {}, figure="<svg/>", framework="numpy")
    cells = nbformat.reads(made, as_version=4).cells
    return {cell.id: cell.source for cell in cells if cell.cell_type == "code" and cell.id != "install"}


def run_cell(name, source, space):
    """As a notebook runs it: its source can be looked up."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), space)


@pytest.mark.parametrize("lesson", COURSE, ids=[lesson.name for lesson in COURSE])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the textbook's 0 / 0, which is a lesson
def test_a_notebook_runs_from_its_first_cell_to_its_exercises(lesson, capsys):
    space = {"__name__": "__main__"}
    for name, source in code_of(lesson).items():
        capsys.readouterr()
        run_cell(f"<{lesson.name} {name}>", source, space)
        if name.startswith("task-"):
            assert capsys.readouterr().out.startswith(f"{name.removeprefix('task-')}: to do")


def test_an_exercise_is_judged_in_the_notebook(capsys):
    source = code_of(named("softmax"))["task-softmax"]
    head, _, check = source.partition("from mha.learn import check_here")
    right = (
        "def mine(scores):\n"
        "    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))\n"
        "    return powers / powers.sum(axis=-1, keepdims=True)\n"
    )
    wrong = right.replace("scores.max(axis=-1, keepdims=True)", "scores.max()")
    for answer, said in ((right, "softmax: right, "), (wrong, "softmax: wrong, ")):
        judged = f"{head}\n{answer}\nfrom mha.learn import check_here{check.replace(', softmax)', ', mine)')}"
        run_cell(f"<{said}>", judged, {})
        assert capsys.readouterr().out.startswith(said)
    assert "mask-after-softmax: The mask is applied after" in check_here("masked-softmax", _masks_too_late)


def _masks_too_late(scores, allowed):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.where(allowed, powers / powers.sum(axis=-1, keepdims=True), 0.0)


def test_what_has_no_source_is_refused():
    with pytest.raises(SpecError, match="must be written in a cell or a file. Its source is not there."):
        check_here("softmax", np.exp)
    with pytest.raises(SpecError, match="did you mean 'softmax'"):
        check_here("sofmax", _masks_too_late)
