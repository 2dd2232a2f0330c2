"""The commands: what they print, their exit statuses, and what they refuse."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance.workers.execute import end_idle
from mha.cli.learning import learners
from mha.cli.learning.learn import FRAMEWORKS
from mha.learn.exercises import TRACKS, all_exercises, chosen, exercise
from mha.learn.handout.folder import code_of, text_of
from mha.learn.running.dialects import DIALECTS
from mha.learn.tracks.course import COURSE, row_of
from mha.learn.tracks.translate import into
from tests.mha.learn.calling import ROOT, learn

pytestmark = pytest.mark.same_on_newest  # it is about the command line

RIGHT = "from mha_core.reference.forward import softmax as masked_softmax\n"
WRONG = "import numpy as np\ndef masked_softmax(scores, allowed): return np.where(allowed, scores, 0.0)\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "write").mkdir()
    (tmp_path / "write" / "masked_softmax.py").write_text(RIGHT)
    yield tmp_path
    end_idle()


def test_start_writes_and_says_where_to_begin(tmp_path):
    result = learn("start", tmp_path / "ex")
    assert result.exit_code == 0
    assert f"{len(all_exercises(('numpy',)))} exercises written to" in result.output
    assert (tmp_path / "ex" / "write" / "masked_softmax.py").is_file()
    again = learn("start", tmp_path / "ex", "--framework", "jax")
    assert f"{len(into('jax')) + 1} exercises written to" in again.output
    fresh = learn("check", "causal", "--folder", tmp_path / "ex")
    assert fresh.exit_code == 1
    assert "to do" in fresh.output


def test_exit_statuses(folder):
    done = learn("check", "masked-softmax", "--folder", folder)
    assert (done.exit_code, "equal within the float64 bound in 6 cases" in done.output) == (0, True)
    (folder / "write" / "split.py").write_text("")
    no_answer = learn("check", "--folder", folder)
    assert no_answer.exit_code == 2
    assert "split                     no answer  the file is empty" in no_answer.output
    left = "1 of 2 right, about 4 minutes left: write 1/2.\nGo on with: split, no answer: the file is empty"
    assert left in no_answer.output
    (folder / "write" / "masked_softmax.py").write_text(WRONG)
    wrong = learn("check", "--folder", folder)
    assert wrong.exit_code == 1
    assert "weights[" in wrong.output


def test_the_answer_and_the_list():
    shown = learn("show", "masked-softmax", "--framework", "jax")
    assert "def masked_softmax(scores, allowed):\n    scores = np.where(allowed" in shown.output
    assert "return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf), axis=-1)" in shown.output
    listed = learn("list", "--framework", "torch").output
    assert {"cap-in-torch", "gradient-of-softmax"} <= set(listed.split())


def test_without_a_name_it_says_what_comes_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nothing = learn()
    assert (nothing.exit_code, "mha learn start exercises" in nothing.output) == (0, True)
    learn("start", ".", "--only", "write", "--only", "backwards")
    first = learn()
    assert first.exit_code == 0
    assert "0 of 26 right, about 129 minutes left: write 0/22, backwards 0/4.\nNext: weighted-sum, " in first.output
    file = tmp_path / "write" / "weighted_sum.py"
    file.write_text("def weighted_sum(weights, values): return weights @ values\n")
    learn("check", "weighted-sum")
    assert "1 of 26 right, about 128 minutes left: write 1/22, backwards 0/4.\nNext: dot-products" in learn().output
    (tmp_path / "backwards" / "gradient_of_softmax.py").write_text("")
    assert "Go on with: gradient-of-softmax, no answer: the file is empty" in learn().output
    assert "gradient" not in learn("check", "--only", "write").output
    end_idle()


def test_a_class_is_a_table_and_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spoiler = "import numpy as np\nnp.ndarray.__matmul__\nnp.where = None\n" + WRONG
    for name, text in (("ann", RIGHT), ("bob", WRONG), ("[red]", spoiler)):
        learn("start", name, "--only", "write")
        Path(name, "write", "masked_softmax.py").write_text(text)
    Path("dan").mkdir()
    result = learn("class", "[red]", "ann", "bob", "dan", "--only", "write", "--json", "class.json")
    assert result.exit_code == 2, "dan has none"
    table, _, _ = result.stdout.partition("\n\nMistakes, by how many make them:\n")
    assert [line.split() for line in table.splitlines()[1:]] == [
        ["[red]", "0/22", "0/22", "masked-softmax"],
        ["ann", "1/22", "1/22"],
        ["bob", "0/22", "0/22", "masked-softmax"],
        ["dan", "0/0", "no", "exercises"],
    ]
    found = json.loads(Path("class.json").read_text())
    right = {"[red]": 0, "ann": 1, "bob": 0, "dan": 0}
    assert {one["folder"]: one["right"] for one in found["folders"]} == right
    said = "softmax-missing: Scores are used as weights, without a softmax."
    assert found["mistakes"] == [{"exercise": "masked-softmax", "mistake": said, "folders": ["bob"]}]
    assert learn("class", "ann", "bob").exit_code == 0, "whatever is right"


def test_tracks_and_frameworks_of_the_commands_are_those_of_the_table():
    assert tuple(TRACKS) == learners.TRACKS
    assert learners.COURSE == COURSE
    assert tuple(DIALECTS) == FRAMEWORKS


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["class"], "FOLDERS is missing: mha learn class FOLDERS"),
        (["class", "nowhere"], "Directory 'nowhere' does not exist"),
        (["start", "x", "--only", "writing"], "'writing' is not one of"),
        (["check"], "there are no exercises in"),
        (["check", "masked-softmax"], "there are no exercises in"),
        (["check", "sofmax"], "exercise 'sofmax' is not known; did you mean 'softmax'? `mha learn list` lists them"),
        (["hint", "masked-softmax"], "there are no exercises in"),
        (["hint", "zzz"], "exercise 'zzz' is not known; `mha learn list` lists them"),
        (["show", "zzz"], "exercise 'zzz' is not known"),
        (["hint", "masked-softmax", "--level", "5"], "--level must be a whole number from 1 to 4, such as 2. Got 5."),
        (["check", "--time-limit", "0"], "--time-limit must be a number from 0.1 to 1e+06, such as 10. Got 0.0."),
        (["start", "x", "--framework", "caffe"], "'caffe' is not one of"),
        (["start", "mine"], "is a file; give a folder for the exercises"),
        (["check", "causal", "--folder", "begun"], "there is no write/causal.py in"),
    ],
)
def test_what_is_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").touch()
    Path("begun", "write").mkdir(parents=True)
    Path("begun", "write", "masked_softmax.py").write_text(RIGHT)
    result = learn(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_watch_judges_what_is_saved(folder):
    command = "from mha.cli.main import run; run()"
    program = [sys.executable, "-c", command, "learn", "check", "masked-softmax", "--watch"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("Watching" in line for line in lines)
        time.sleep(0.05)
        (folder / "write" / "masked_softmax.py").write_text(WRONG)
        assert any("wrong" in line for line in lines)
        (folder / "write" / "masked_softmax.py").write_text(RIGHT)
        assert any("right" in line for line in lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0  # what it was saved as last is right


def test_with_numpy_alone_nothing_else_is_imported(folder):
    learn("start", folder)
    code = (
        "import sys\n"
        "from tests.mha.learn.calling import learn\n"
        "assert [learn(*more).exit_code for more in ([], ['check', 'masked-softmax'])] == [0, 0]\n"
        "assert not {'torch', 'tensorflow', 'jax', 'mxnet'} & set(sys.modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, env=environment, stdout=subprocess.DEVNULL)


def test_the_exercises_that_a_stage_names_are_there():
    lines = re.findall(r"^\[Exercises\]\(learn.md\): (.*)\.$", (ROOT / "docs" / "stages.md").read_text(), re.M)
    named = {name for line in lines for name in re.findall(r"`(.*?)`", line)}
    wanted = {one.name for one in all_exercises(("numpy",)) if one.track in ("write", "backwards")}
    assert named == wanted


def blocks(text):
    """(kind, text) of the blocks of a page that are run."""
    return re.findall(r"^```(python|console)\n(.*?)^```$", text, re.M | re.S)


def learn_page():
    """The page for a learner, and its section for a class."""
    one, _, many = (ROOT / "docs" / "learn.md").read_text().partition("\n## A class\n")
    return one, many


def run_block(text):
    """A command of a page prints what is shown below it."""
    command, _, expected = text.partition("\n")
    assert learn(*command.removeprefix("$ mha learn").split()).stdout == expected, command


def test_the_transcript_of_the_page_is_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert learn("start", ".").exit_code == 0
    kinds = [kind for kind, _ in blocks(learn_page()[0])]
    assert kinds == ["console", "python", "console", "python", *(["console"] * 2), *(["python", "console"] * 2)]
    for kind, text in blocks(learn_page()[0]):
        if kind == "python":
            one = exercise(re.match(r"def (\w+)", text)[1])
            (tmp_path / one.file).write_text(text_of(one).replace(code_of(one), text.strip()))
        else:
            run_block(text)
    end_idle()


def test_the_section_for_a_class_is_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (kind, begin), (_, table) = blocks(learn_page()[1])
    assert kind == "console"
    run_block(begin)
    for name in ("ann", "bob", "dan"):
        learn("start", name, "--only", "write")
    Path("ann", "write", "masked_softmax.py").write_text(RIGHT)
    Path("ann", "write", "weighted_sum.py").write_text("def weighted_sum(weights, values): return weights @ values\n")
    Path("bob", "write", "masked_softmax.py").write_text(WRONG)
    run_block(table)
    shown = dict(re.findall(r"`--only (\w+).*?` \| (\d+) minutes", learn_page()[1]))
    for track, minutes in shown.items():
        assert int(minutes) == sum(row_of(one).minutes for one in chosen(all_exercises(("numpy",)), (track,)))
    assert set(shown) == {COURSE, *TRACKS}


LEAVES = """
import os, subprocess, sys, time
MARK = {mark!r}
SLEEP = "import sys, time; time.sleep(600)"
subprocess.Popen([sys.executable, "-c", SLEEP, MARK])
subprocess.Popen([sys.executable, "-c", SLEEP, MARK], start_new_session=True)
TWICE = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)"
subprocess.run([sys.executable, "-c", TWICE, SLEEP, MARK], start_new_session=True)
"""
"""A file that starts three processes, two of which leave the group, and one its parent."""

KILLED = "from mha.learn.judge import judge; from mha.learn.exercises import exercise; import pathlib, sys\n"
KILLED += "judge(exercise('masked-softmax'), pathlib.Path(sys.argv[1]), time_limit=500)"


def marked(mark, at_least=0, at_most=99):
    """How many processes have this word among their arguments, as soon as that is within limits, or after 20 s."""
    for _ in range(400):
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.parent.is_dir()]
        count = sum(mark.encode() in line.split(b"\0") for line in lines)
        if at_least <= count <= at_most:
            break
        time.sleep(0.05)
    return count


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no subreaper (docs/learn.md)")
def test_every_process_that_a_file_starts_ends_with_the_call_and_with_the_program(tmp_path, folder):
    mark = f"mha-{os.getpid()}-{tmp_path.name}"
    file = folder / "write" / "masked_softmax.py"
    leaves = LEAVES.format(mark=mark)
    killed = "import signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    for text, status in ((RIGHT, 0), (WRONG, 1), ("os._exit(3)\n", 2), (killed, 2), ("time.sleep(600)\n", 2)):
        file.write_text(leaves + text)
        result = learn("check", "masked-softmax", "--folder", folder, "--time-limit", 3)
        assert result.exit_code == status, result.output
        assert marked(mark, at_most=0) == 0, f"left by {text.splitlines()[-1]}"
    file.write_text(leaves + "while True: pass\n")
    program = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], cwd=ROOT)
    try:  # four for a moment: who starts the third has the word among its own arguments, and ends after that
        assert marked(mark, at_least=3, at_most=3) == 3
    finally:
        program.kill()
        program.wait()
    assert marked(mark, at_most=0) == 0, "left when the program was killed"
