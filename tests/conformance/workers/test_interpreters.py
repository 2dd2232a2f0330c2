"""Which interpreter runs what: said by options and files, and refused in one line where it can't be."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.workers.interpreters import Home, Settings, interpreters
from conformance.workers.process import WorkerProcess
from conformance.workers.protocol import CannotStart
from mha_core import SpecError

pytestmark = pytest.mark.same_on_newest  # it is about processes


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MHA_WORKERS", "1")


def program(folder: Path, text: str) -> str:
    """An executable that prints and ends, as an interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def yes(question: str) -> bool:
    return True


def test_a_file_is_asked_for_once_and_said_each_time(tmp_path, monkeypatch, capsys):
    """Also if it is in pyproject.toml; another content, or another place, is asked for again."""
    monkeypatch.setenv("MHA_COMPILE_CACHE", str(tmp_path / "kept"))
    text = f'[python]\ntorch = "{sys.executable}"\njax = "./gone"\n'
    Path("mha.toml").write_text(text)
    said, line = [], f"{tmp_path / 'mha.toml'}: runs torch with {sys.executable}\n"
    with pytest.raises(SpecError, match="nobody has agreed to that here.*--python torch="):
        interpreters([], ["torch"])
    assert interpreters([], ["torch"], lambda question: said.append(question) or True) == {"torch": sys.executable}
    assert f"torch: {sys.executable}" in said[0]
    assert interpreters([], ["torch"]) == {"torch": sys.executable}  # as agreed
    assert capsys.readouterr().err == 2 * line
    Path("mha.toml").write_text(text + "# changed\n")
    with pytest.raises(SpecError, match="nobody has agreed"):
        interpreters([], ["torch"])
    assert interpreters([], ["mxnet"]) == {}  # it says nothing of that


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such owners")
def test_a_file_of_another_user_is_refused(monkeypatch):
    Path("mha.toml").write_text(f'[python]\ntorch = "{sys.executable}"\n')
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with pytest.raises(SpecError, match="is another user's, so the programs that it names are not run; use --python"):
        interpreters([], ["torch"], yes)


def test_options_come_before_the_file(tmp_path):
    other = program(tmp_path, "exit 1")
    Path("mha.toml").write_text(f'[python]\ntorch = "./python"\njax = "{sys.executable}"\n')
    found = interpreters([f"torch={sys.executable}"], ["torch", "jax"], yes)
    assert found == {"torch": sys.executable, "jax": sys.executable}
    assert interpreters([], ["torch", "jax"], yes)["torch"] == other


def test_pyproject_says_it_too(tmp_path):
    Path("pyproject.toml").write_text(f'[tool.mha.python]\nmxnet = "{sys.executable}"\n')
    settings = Settings(interpreters([], ["mxnet"], yes))
    assert settings.interpreter(Home("mxnet")) == sys.executable
    assert settings.interpreter(Home("torch")) is None


def test_a_module_stands_for_its_subjects():
    settings = Settings(interpreters([f"mine={sys.executable}"], ["torch", "mine:layer"]))
    assert settings.interpreter(Home("mine:layer")) == sys.executable


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["torch"], "--python 'torch' must read NAME=PATH, such as torch=.venv/bin/python"),
        (["trch=/bin/sh"], "--python trch=/bin/sh: 'trch' is not known here (known: torch)"),
        (["torch=no/such"], "--python torch=no/such: there is no program no/such that can be run"),
        ([f"torch={sys.executable}", "torch=/bin/sh"], f"'torch' has an interpreter already: {sys.executable}"),
    ],
)
def test_a_wrong_option_is_refused(options, message):
    with pytest.raises(SpecError) as error:
        interpreters(options, ["torch"])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("mha.toml", "[python", "mha.toml can't be read as TOML"),
        ("mha.toml", "[python]\ntorch = 3\n", 'mha.toml [python] must hold lines NAME = "PATH". Got'),
        (
            "pyproject.toml",
            '[tool.mha.python]\ntorch = "x"\n',
            "pyproject.toml [tool.mha.python] torch: there is no program",
        ),
    ],
)
def test_a_wrong_file_is_refused(file, text, message):
    Path(file).write_text(text)
    with pytest.raises(SpecError) as error:
        interpreters([], ["torch"])
    assert message in str(error.value)


def test_somebody_elses_broken_pyproject_is_not_read():
    Path("pyproject.toml").write_text("[tool")
    assert interpreters([], ["torch"]) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "echo No module named conformance >&2; exit 1",
            "does not run mha-parity: No module named conformance; install ",
        ),
        ("exit 0", "does not run mha-parity: its process ended itself with status 0"),
        ("kill -9 $$", "does not run mha-parity: its process was ended by SIGKILL"),
    ],
)
def test_a_program_that_lacks_the_project_is_one_line(tmp_path, text, message):
    with pytest.raises(CannotStart) as error:
        WorkerProcess(Home("torch"), program(tmp_path, text))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_program_that_says_nothing_is_ended_at_the_limit(tmp_path):
    with pytest.raises(CannotStart) as error:
        WorkerProcess(Home("torch"), program(tmp_path, "exec sleep 1000"), start_limit=0.3)
    assert str(error.value).endswith(" of torch does not run mha-parity: it said nothing within 0.3 s (--import-limit)")


def test_a_first_message_of_lists_nested_deep_is_one_line(tmp_path):
    """4,000 of them fit into the longest first message, and are more than Python follows."""
    text = f"""{sys.executable} -c '
import socket, struct, sys
channel = socket.socket(fileno=int(sys.argv[1]))
channel.sendall(struct.pack("!Qc", 4000, b"H") + b"[" * 4000)
' "$4"
"""
    with pytest.raises(CannotStart) as error:
        WorkerProcess(Home("torch"), program(tmp_path, text))
    assert "of torch does not run mha-parity: maximum recursion depth exceeded" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [("project_version", lambda: "0.0.9", "; this is 0.0.9"), ("code_hash", lambda: "other", "with other code")],
)
def test_another_version_of_the_project_is_refused(monkeypatch, attribute, value, message):
    monkeypatch.setattr(f"conformance.workers.protocol.{attribute}", value)
    with pytest.raises(CannotStart) as error:
        WorkerProcess(Home("torch"), sys.executable)
    assert message in str(error.value)


COMMAND = """
import sys
from mha.cli.main import main
try:
    main(sys.argv[1:], standalone_mode=False)
except SystemExit as end:
    print("STATUS", end.code)
print("MODULES", *sorted({name.split(".")[0] for name in sys.modules}))
"""


@pytest.mark.nightly("another interpreter runs each backend", but=("jax",))
def test_another_interpreter_runs_a_backend_and_one_that_is_broken_is_left_out(tmp_path, backend_name):
    """Another program, which is the same Python: the worker is not started as this one is. The process of the command
    itself imports no framework."""
    (tmp_path / "other").mkdir()
    other = program(tmp_path / "other", f'echo started >> "{tmp_path}/starts"\nexec "{sys.executable}" "$@"')
    broken, lost = program(tmp_path, "exit 1"), "mxnet" if backend_name != "mxnet" else "torch"
    options = ["-b", backend_name, "-b", lost, "--python", f"{backend_name}={other}", "--python", f"{lost}={broken}"]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "check", "-c", "prime", "-d", "float64", "--json", "report.json", *options],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"left out: the interpreter {broken} of {lost} does not run mha-parity" in done.stderr
    assert "2 results are equal to the reference" in done.stdout
    assert "STATUS 2" in done.stdout
    assert len(json.loads(Path("report.json").read_text())["results"]) == 2
    assert Path("starts").read_text() == "started\n"
    assert not {"torch", "tensorflow", "keras", "jax", "flax", "mxnet"} & set(done.stdout.split("MODULES")[1].split())


def test_on_windows_no_process_is_started_and_one_line_says_what_to_use(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(
        CannotStart, match=r"^the processes of frameworks and subjects need Linux or macOS; .* use WSL$"
    ):
        WorkerProcess(Home("torch"))
