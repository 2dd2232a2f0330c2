"""The lessons run in every framework, print what the pages show, and give the reference's numbers."""

import importlib.util
import json
import re
from functools import cache

import numpy as np
import pytest

from _data import lessons as record
from _ext.lessons.course import COURSE
from _ext.lessons.notebooks import BLOCK
from conformance.judging.compare import ParityError
from lessons import runner
from mha.learn.exercises import exercise
from mha_core.errors import SpecError
from tests.lessons.judged import apart, calls, judged

pytestmark = pytest.mark.same_on_newest  # the frameworks' functions that lessons use are old, and print differently

NAMES = [lesson.name for lesson in COURSE]

COMMITTED = json.loads((record.HERE / "lessons.json").read_text())

TOLD = (
    "RuntimeWarning: invalid value encountered",  # NumPy, of the textbook's 0 / 0, which is the lesson
    "All log messages before absl::InitializeLog() is called are written to STDERR",
    "oneDNN custom operations are on.",
    "Could not find cuda drivers on your machine, GPU will not be used.",
    "This TensorFlow binary is optimized to use available CPU instructions",
    "To enable the following instructions:",
)
"""What frameworks may say on stderr."""


@cache
def ran(framework):
    """All lessons in one process, as most of the time goes into importing a framework."""
    package = record.PACKAGES[framework]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return record.run(framework)


def numbers(text):
    """The text without numbers, and the numbers, whose last digit may be another one on another processor."""
    number = r"-?\b\d+\.?\d*(?:e[+-]?\d+)?"
    return " ".join(re.sub(number, "#", text).split()), [float(found) for found in re.findall(number, text)]


@pytest.mark.parametrize("framework", record.FRAMEWORKS)
def test_what_is_printed_is_what_the_pages_show(framework):
    printed, _, _ = ran(framework)
    assert printed.keys() == COMMITTED["printed"][framework].keys() == set(NAMES)
    for lesson, cells in COMMITTED["printed"][framework].items():
        assert printed[lesson].keys() == cells.keys()
        for cell, text in cells.items():
            (words, given), (shown_words, shown) = numbers(printed[lesson][cell]), numbers(text)
            assert words == shown_words, (lesson, cell)
            np.testing.assert_allclose(given, shown, rtol=1e-4, atol=1e-4, err_msg=f"{lesson} {cell}")


@pytest.mark.parametrize("framework", record.FRAMEWORKS)
def test_every_call_is_within_its_bound(framework):
    """Raises ParityError if it is not."""
    _, arrays, _ = ran(framework)
    found = {name: judged(call) for name, call in calls(arrays).items()}
    assert set(found) == {f"{lesson}/{call}" for lesson, all_calls in runner.RESULTS.items() for call in all_calls}
    assert all("output" in ratios and max(ratios.values()) <= 1.0 for ratios in found.values())


@pytest.mark.parametrize("framework", record.FRAMEWORKS[1:])
def test_outputs_are_those_of_numpy(framework):
    """The same inputs, whatever the framework: so what differs is rounding."""
    distances = apart(ran("numpy")[1], ran(framework)[1])
    assert set(distances) == set(calls(ran("numpy")[1]))
    assert max(distances.values()) < 1e-5


@pytest.mark.parametrize("framework", record.FRAMEWORKS)
def test_nothing_else_is_said_on_stderr(framework):
    lines = ran(framework)[2].splitlines()
    assert [line for line in lines if not any(known in line for known in TOLD)] == []


def test_the_textbooks_digits_are_there():
    assert "[0.31564538 0.31564537]" in ran("numpy")[0]["angle"]["attend"]


def test_the_widths_of_the_first_prediction_do_what_its_answer_says():
    arrays = {name: ran("numpy")[1][f"kernel/kernel/{name}"] for name in ("queries", "keys", "values")}
    distances = arrays["queries"] - arrays["keys"].T

    def weights(width):
        powers = np.exp(-(distances**2) / (2 * width**2))
        return powers / powers.sum(axis=-1, keepdims=True)

    wide, narrow = weights(100 * 0.5), weights(0.5 / 10)
    np.testing.assert_allclose(wide @ arrays["values"], arrays["values"].mean(), atol=1e-3)
    assert (narrow.argmax(axis=-1) == np.abs(distances).argmin(axis=-1)).all()
    assert f"{narrow.max(axis=-1).mean():.2f} on average" in (runner.HERE / "kernel/lesson.md").read_text()


def test_the_seeds_mistakes_are_shown():
    printed = ran("numpy")[0]
    assert "nan nan nan" in printed["softmax"]["textbook"]
    assert "(1, 25, 512)" in printed["positions"]["broadcast"]
    assert "does not fit: (6, 16) and (64, 16)" in printed["layer"]["linear_o"]


@pytest.mark.parametrize("lesson", NAMES)
def test_the_five_files_have_the_same_cells_and_the_text_shows_them(lesson):
    cells = [list(runner.cells_of((runner.HERE / lesson / f"in_{name}.py").read_text())) for name in record.FRAMEWORKS]
    assert all(one == cells[0] for one in cells)
    text = (runner.HERE / lesson / "lesson.md").read_text()
    shown = [name for kind, name in BLOCK.findall(text) if kind == "cell"]
    assert shown == cells[0]


def test_every_lesson_has_its_page_in_the_order_of_the_course():
    """The list of pages is the way through: other pages may stand between lessons, none of them elsewhere."""
    assert sorted(NAMES) == list(runner.lessons())
    docs = record.HERE.parent
    for lesson in COURSE:
        assert f"```{{lesson}} {lesson.name}\n```" in (docs / f"{lesson.page}.md").read_text()
    listed = re.search(r"^:caption: Course\n:hidden:\n\n(.*?)^```", (docs / "index.md").read_text(), re.M | re.S)
    pages = [lesson.page for lesson in COURSE]
    assert [page for page in listed[1].split() if page in pages] == pages
    assert listed[1].split()[0] == "start"


@pytest.mark.parametrize("lesson", COURSE, ids=NAMES)
def test_a_lesson_has_all_its_parts(lesson):
    """A question, a formula, a figure, code, a prediction, a summary, minutes; and exercises that there are."""
    text = (runner.HERE / lesson.name / "lesson.md").read_text()
    assert lesson.title.endswith("?")
    assert "```{math}" in text
    assert text.count(f"```{{plot}} {lesson.name}\n") == 1
    assert text.count(":::{dropdown} Predict before you look: ") == 1
    assert "\n## In short\n\n- " in text
    assert 5 <= lesson.reading <= 15
    names = [*lesson.exercises, *lesson.classes, *lesson.extra]
    assert [exercise(name).name for name in names] == names


ANSWERED = {
    "kernel": "{plot} kernel",
    "angle": "{cell} long",
    "scaling": "{cell} dots",
    "softmax": "{cell} textbook",
    "masks": "{cell} empty",
    "projections": "{cell} projected",
    "heads": "{cell} one",
    "layer": "{cell} split",
    "positions": "{cell} order",
    "block": "{cell} alone",
    "own": "{cell} layer",
}
"""Lesson -> what on its page gives its prediction away."""


@pytest.mark.parametrize("lesson", NAMES)
def test_a_prediction_stands_before_its_answer(lesson):
    text = (runner.HERE / lesson / "lesson.md").read_text()
    assert 0 < text.index(":::{dropdown} Predict before you look: ") < text.index(ANSWERED[lesson])


def test_files_import_nothing_of_this_project():
    for path in runner.HERE.glob("*/in_*.py"):
        imported = re.findall(r"^(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
        assert {name.partition(".")[0] for name in imported} <= {*record.PACKAGES.values(), "flax"}, path


def broken(tmp_path, code):
    """A runner with one lesson of its own."""
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/lesson.md").write_text("")
    (tmp_path / "bad/in_numpy.py").write_text(code)
    (tmp_path / "runner.py").write_text((runner.HERE / "runner.py").read_text())
    return tmp_path / "runner.py"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("# %% one\nx = 1 / 0\n", "bad, numpy, cell 'one': ZeroDivisionError: division by zero"),
        ("# %% one\nimport nowhere\n", "bad, numpy, cell 'one': ModuleNotFoundError: No module named 'nowhere'"),
        ("# %% one\nx = (\n", "bad, numpy, cell 'one': SyntaxError"),
        ("# %% one\nraise SystemExit(0)\n", "bad, numpy, cell 'one': SystemExit"),
        ("# %% one\nx = 1\n", "bad, numpy: RESULTS does not say what it hands out"),
        ("x = 1\n# %% one\n", "bad, numpy: code before the first cell: 'x = 1'"),
        ("# %% one\n# %% one\n", "bad, numpy: cells need names of their own. Got 'one' 2 times."),
    ],
)
def test_a_broken_lesson_fails_in_one_line(code, message, tmp_path):
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}"):
        record.run("numpy", runner=broken(tmp_path, code))


def test_a_wrong_number_fails():
    _, arrays, _ = ran("numpy")
    call = calls(arrays)["heads/fused"]
    judged(call)
    with pytest.raises(ParityError, match="output differs in 1 of 60 elements"):
        judged({**call, "output": call["output"] + 1e-9 * (np.arange(60).reshape(5, 12) == 7)})
    with pytest.raises(ParityError, match="output has shape"):
        judged({**call, "output": call["output"][:, :6]})


@pytest.mark.parametrize(
    ("call", "name", "wrong"),
    [
        ("kernel/attention", "bias", lambda bias: bias[:, ::-1]),
        ("angle/additive", "score.vector", lambda vector: vector[::-1]),
        ("masks/causal", "allowed", lambda allowed: allowed.T),
        ("own/cut", "k_proj.weight", lambda weight: weight[::-1]),
        ("layer/grouped", "num_kv_heads", lambda count: count * 2),
    ],
)
def test_what_belongs_to_a_call_is_judged_with_it(call, name, wrong):
    """A bias, additive scores, a mask, cut heads and grouped ones: with another, the output is another."""
    given = calls(ran("numpy")[1])[call]
    judged(given)
    with pytest.raises((ParityError, SpecError)):
        judged({**given, name: wrong(given[name])})


def test_what_the_texts_say_is_what_the_code_gives():
    """Numbers that stand in sentences."""
    printed, arrays, _ = ran("numpy")
    assert arrays["scaling/hundred/weights"].max(axis=-1).mean() == pytest.approx(0.83, abs=0.005)
    assert arrays["scaling/scaled/weights"].max(axis=-1).mean() == pytest.approx(0.29, abs=0.005)
    assert arrays["scaling/one/weights"].max(axis=-1).mean() == pytest.approx(0.25, abs=0.005)
    slope = {one: (w * (1 - w)).mean() for one in ("hundred", "scaled") for w in [arrays[f"scaling/{one}/weights"]]}
    assert 0.2 < slope["hundred"] / slope["scaled"] < 0.3  # about a quarter
    assert arrays["angle/long/weights"][0].argmax() == 3
    assert 0.45 < arrays["angle/long/weights"][0, 3] < 0.5
    np.testing.assert_allclose(arrays["projections/projected/weights"][1], 1 / 7)
    assert arrays["projections/projected/weights"][4].argmax() == 1
    assert arrays["projections/alone/weights"][4].argmax() == 4
    assert arrays["projections/projected/weights"][4, 1] > 0.9
    assert arrays["projections/learned/weights"][4, 1] > 0.9
    assert (arrays["masks/lengths/weights"][:, 3:] == 0).all()
    assert printed["masks"]["broken"] == "by row: [[nan nan nan]]\nby key: [[nan nan  0.]]\n"
    products = np.diff(arrays["positions/with/table"] @ arrays["positions/with/table"][0])
    assert (products < 0.1).all()  # on the whole they fall
    assert products.max() > 0
    importance, weights = arrays["own/whole/importance"], arrays["own/whole/weights"]
    assert importance.argmin() == weights.max(axis=-1).mean(axis=-1).argmax() == 1
    assert [head for head in range(4) if (weights[head].max(axis=-1) > 0.5).all()] == [1]
    assert "with positions: False" in printed["positions"]["seen"]
    assert "without positions: True" in printed["positions"]["order"]


def test_what_captions_say_is_what_figures_show():
    arrays = ran("numpy")[1]
    alone = arrays["projections/alone/weights"]
    assert (alone.argmax(axis=-1) == np.arange(7)).sum() == 6  # nearly every word
    assert not np.allclose(alone, alone.T)  # only scores are symmetric
    shares = arrays["softmax/factors/weights"]
    np.testing.assert_allclose(shares[0], 0.25)
    assert shares[-1].max() > 0.5
    loose = arrays["scaling/hundred/weights"]
    assert ((loose < 0.1) | (loose > 0.9)).mean() > 0.5
