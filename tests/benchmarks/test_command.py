"""`python -m benchmarks`: what it refuses before it works, one small measurement, and an interrupted one."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import worker
from benchmarks.measure import FEWEST_ROUNDS
from benchmarks.peers import PACKAGES
from benchmarks.settings import COMPILED, DIRECTIONS, IN_PLACE
from tests.benchmarks import made_up

pytestmark = pytest.mark.same_on_newest  # PyTorch's release is the same there


def run(*arguments):
    return CliRunner().invoke(command.benchmarks, list(map(str, arguments)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "pytroch"], "'pytroch' is not one of 'jax', 'mxnet', 'tf', 'torch'"),
        (["--engine", "openvino"], "'openvino' is not one of 'mlx', 'onnxruntime'"),
        (["--setting", "big"], "'big' is not one of 'short', 'wide'"),
        (["--length", "0"], "--length must be a whole number from 1. Got 0."),
        (["--dtype", "float8"], "'float8' is not one of 'float64', 'float32'"),
        (["--direction", "back"], "'back' is not one of 'forward', 'gradients'"),
        (["--seconds", "0"], "--seconds must be a number above 0, such as 0.4. Got 0.0."),
        (["--threads", "100000"], "--threads must be a whole number from 1 to "),
        (["--json", "no/such/folder.json"], "--json needs an existing folder"),
    ],
)
def test_mistakes_are_told_before_anything_runs(monkeypatch, arguments, message):
    monkeypatch.setattr(command, "Worker", lambda *_: pytest.fail("it measured"))
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_backend_that_is_asked_for_must_be_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flax" else object())
    assert command.installed((), ()) == ["mxnet", "tf", "torch"]
    result = run("--backend", "torch", "--backend", "jax")
    assert result.exit_code == 2
    assert "backend 'jax' is not installed. Install it with: pip install '" in result.output
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "is not installed. " in run().output


def test_an_engine_is_measured_where_it_is_asked_for_and_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mlx" else object())
    assert command.installed((), ()) == [*PACKAGES]
    assert command.installed((), ("onnxruntime",)) == ["onnxruntime"]
    assert command.installed(("torch",), ("onnxruntime",)) == ["torch", "onnxruntime"]
    result = run("--engine", "onnxruntime", "--engine", "mlx")
    assert result.exit_code == 2
    assert "engine 'mlx' is not installed. Install it with: pip install '" in result.output
    assert "[torch,mlx]'" in result.output


def test_an_engine_is_measured_in_what_it_can_do_and_is_no_peer(monkeypatch):
    task, entry = command.Task(made_up.TINY), {"extra_memory": 2_000_000}
    assert not command.able("mlx", task, [("window",), ("rotary positions", "gradients")])
    assert command.able("mlx", task, [("window",), ("gradients",)])
    assert command.able("torch", task, [("window",)])
    entries = [{**entry, "name": name, "seconds": [seconds]} for name, seconds in (("ours", 1.0), ("sdpa", 4.0))]
    row = command.compared("onnxruntime", task, entries)
    assert (row["best_peer"], row["other_engine"], row["ratio"]) == (None, "sdpa", 0.25)
    cells = [cell.strip() for cell in command.line(row).split("|")[1:-1]]
    assert cells[:2] + cells[5:] == ["onnxruntime", "tiny", "1000", "0.25", "other engine: sdpa", "2, 2"]


@pytest.fixture
def of_numpy(monkeypatch):
    """The command, with a framework in NumPy alone whose contestants end their process; how each was started."""
    monkeypatch.setattr(worker, "serve", made_up.serve)
    monkeypatch.setattr(command.peers, "PACKAGES", {"made-up": ("numpy",)})
    monkeypatch.setattr(command, "SETTINGS", (made_up.TINY,))
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_what_failed_is_named_and_makes_the_status_2(of_numpy, tmp_path):
    path = tmp_path / "results.json"
    result = run("--seconds", 1e-6, "--json", path, "--dtype", "float32", "--dtype", "float16")
    assert result.exit_code == 2
    head, rule, *rows = result.stdout.splitlines()
    assert {len(line) for line in (head, rule, *rows)} == {len(head)}
    assert [row.split()[1:9] for row in rows] == [
        ["made-up", "|", "tiny", "|", "(3,", "11,", "16,", "2/1)"],
    ] * 2
    assert [" forward " in row for row in rows] == [True, False]
    found = json.loads(path.read_text())
    assert found["interrupted"] is False
    assert found["frameworks"] == {"made-up": {"made-up": "1.5"}}
    first, *others = found["problems"]
    assert first == "made-up does not compute in float16 (known: float32)"
    assert len(others) == 6  # three contestants in two directions
    assert others[0].endswith("forward: killed at once the process of made-up was killed (SIGKILL)")
    assert all(problem in result.stderr for problem in found["problems"])
    for row in found["rows"]:
        entries = {entry["name"]: entry for entry in row["contestants"]}
        assert row["best_peer"] == "peer"
        assert row["ratio"] > 0
        assert entries["ours"]["seconds"]["samples"] == FEWEST_ROUNDS
        assert entries["ends"]["seconds"] == {}


def test_time_and_memory_are_measured_apart_where_a_pool_hides_memory(of_numpy, monkeypatch):
    started = []

    class Recorded(command.Worker):
        def __init__(self, *given, **environment):
            started.append((given[2], environment))
            super().__init__(*given, **environment)

    monkeypatch.setattr(command, "Worker", Recorded)
    monkeypatch.setattr(command.peers, "MEMORY_ENVIRONMENT", {"made-up": {"NO_POOL": "1"}})
    result = run("--seconds", 1e-6, "--direction", "forward")
    assert started == [(1e-6, {}), (0, {"NO_POOL": "1"})]
    assert len(result.stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "own"),
    [("jax", [(IN_PLACE, "forward")]), ("torch", [(COMPILED, each) for each in DIRECTIONS]), ("tf", [])],
)
def test_a_framework_has_the_settings_of_its_form_alone(monkeypatch, name, own):
    settings = [replace(made_up.TINY, form=form) for form in (None, COMPILED, IN_PLACE)]
    monkeypatch.setattr(command, "SETTINGS", settings)
    asked = SimpleNamespace(settings=(), lengths=(), dtypes=(), directions=())
    tasks = [(task.setting.form, task.direction) for task in command.tasks_of(name, asked, ("float32",))]
    assert tasks == [*((None, each) for each in DIRECTIONS), *own]


def test_ratios_are_of_rounds_in_which_both_ran():
    task = command.Task(made_up.TINY)
    entries = [
        {"name": "ours", "seconds": [1.0, 4.0, 3.0], "extra_memory": 3_000_000},
        {"name": "slow", "seconds": [9.0], "extra_memory": 2_000_000},
        {"name": "best", "seconds": [2.0, 2.0, 2.0], "extra_memory": None},
        {"name": "none", "seconds": [], "extra_memory": None},
    ]
    row = command.compared("swift", task, entries)
    assert (row["best_peer"], row["ratio"]) == ("best", 1.5)
    cells = [cell.strip() for cell in command.line(row).split("|")[1:-1]]
    assert cells == ["swift", "tiny", "(3, 11, 16, 2/1)", "float32", "forward", "3000", "1.50", "best", "3, 2"]
    alone = command.line(command.compared("alone", task, entries[:1]))
    assert [cell.strip() for cell in alone.split("|")[6:-1]] == ["3000", "-", "-", "3, -"]


@pytest.mark.nightly("an interrupt costs no finished row", every=3)
@pytest.mark.parametrize(
    "requests_to_end", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM]], ids=str
)
def test_finished_rows_survive_an_interrupt(requests_to_end, backend_names, tmp_path, request):
    path = tmp_path / "results.json"
    backend = next(
        name for name in ("mxnet", "torch", "tf", "jax") if name in backend_names
    )  # the first compiles nothing
    lengths = [text for length in range(8, 400) for text in ("--length", str(length))]
    arguments = ["--backend", backend, *lengths, "--seconds", "1e-6", "--threads", "1", "--json", str(path)]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=request.config.rootpath,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(4)]  # the head, and two rows
        for request_to_end in requests_to_end:
            process.send_signal(request_to_end)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    rows = [*printed, *rest.splitlines()][2:]
    found = json.loads(path.read_text())
    assert found["interrupted"] is True
    assert len(found["rows"]) == len(rows) >= 2
    assert [row.split("|")[2].strip() for row in rows] == [row["setting"]["name"] for row in found["rows"]]
    if len(requests_to_end) == 1:
        said = [line for line in errors.splitlines() if line]
        assert said == [f"{len(rows)} rows were finished, and are above and in {path}", "interrupted"]
    assert "Traceback" not in errors
    assert os.listdir(tmp_path) == [path.name]
    deadline = time.monotonic() + 30
    while alive(process.pid):
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.05)


def alive(group):
    """Processes of a group that have not ended; none where the system does not list them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of_group, *_ = path.read_text().rpartition(")")[2].split()
            found += [path.parent.name] if int(of_group) == group and state != "Z" else []
    return found
