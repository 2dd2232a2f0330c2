"""Workers that end early, and contestants that memory has no room for: who is named, and that the rest goes on."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mha.bench import machine
from mha.bench.contestants.contestant import Contestants, Task, load, names
from mha.bench.results import failures, read, to_results, without_room
from mha.bench.run import is_too_large, run_framework
from mha.bench.settings import Setting
from mha.bench.worker import Request, measure_row
from mha.bench.workload import make_workload
from tests.mha.bench.made_up import TINY, numpy_contestant

GB = 10**9

SMALL = Setting("small", 1, 3, 4, 2)

CONTESTANTS = """
import os, signal
import numpy as np
from dataclasses import replace
from mha.bench.contestants.contestant import Prepared, Scores
from tests.mha.bench.made_up import numpy_contestant

set_threads = lambda count: "as told"
versions = lambda: {"made-up": "1"}
devices = lambda: ("cpu",)
dtypes = lambda device: ("float32",)
product = lambda size, dtype, device: lambda: None

def ending(name, end, call, where=lambda task: True):
    # The call with this number ends the process.
    whole = numpy_contestant(name)
    def make(task):
        prepared, calls = whole.make(task), iter(range(100))
        def called():
            if next(calls) == call and where(task):
                end()
            return prepared.call()
        return replace(prepared, call=called)
    return replace(whole, make=make)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

CONTESTANTS = (
    replace(numpy_contestant("ours", "ours"), scores=Scores(0, 0)),
    ending("killed at once", kill, 0, lambda task: task.workload.setting.name == "small"),
    ending("killed in the rounds", kill, 3, lambda task: task.workload.setting.name == "small"),
    ending("ends", lambda: os._exit(3), 0),
    replace(numpy_contestant("huge"), scores=Scores(10**12, 10**12)),
    numpy_contestant("peer"),
)
"""


@pytest.fixture
def made_up(tmp_path, monkeypatch, request):
    """A framework whose contestants end their process, or are too large for any machine."""
    (tmp_path / "made_up_contestants.py").write_text(CONTESTANTS)
    found = Contestants("made_up_contestants", ())
    monkeypatch.setattr("mha.bench.run.contestants_of", lambda name: found)
    monkeypatch.setattr(machine, "kills", lambda: 0)
    info = tmp_path / "made_up-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[mha.bench]\nmade-up = made_up_declared:MADE_UP\n")
    declared = "from mha.bench.contestants.contestant import Contestants\n"
    (tmp_path / "made_up_declared.py").write_text(f'{declared}MADE_UP = Contestants("made_up_contestants", ())\n')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{request.config.rootpath}")
    return found


def of(row):
    return {entry["name"]: entry for entry in row["contestants"]}


def test_who_ends_the_process_is_named_and_the_rest_goes_on(made_up):
    seen = []
    measured = run_framework(Request("made-up", (SMALL, TINY), ("forward",), seconds=1e-6), seen.append)
    assert measured.problem is None
    small, tiny = map(of, measured.rows)
    assert [row["setting"]["name"] for row in seen] == ["small", "tiny"]
    for name in ("killed at once", "killed in the rounds"):
        assert (small[name]["left_out"], small[name]["failed"]) == ("was killed (SIGKILL)", True)
        assert tiny[name]["time"] is not None
    for found in (small, tiny):
        assert found["ends"]["left_out"] == "ended its process with status 3"
        assert found["ours"]["time"] is not None
        assert found["peer"]["time"] is not None
        assert list(found) == list(small)
    results = to_results([measured], threads=1, seconds=1e-6, date="2025-03-04")
    assert "made-up, small, forward: killed in the rounds was killed (SIGKILL)" in failures(results)
    assert len(failures(results)) == 4


def test_who_is_too_large_is_left_out_with_the_reason(made_up):
    measured = run_framework(Request("made-up", (TINY,), ("forward",), seconds=1e-6))
    (row,) = measured.rows
    huge = of(row)["huge"]
    if huge["free"] is None:
        pytest.skip("the system does not say what is free")
    assert (huge["time"], huge["failed"], huge["alone"]) == (None, False, False)
    assert huge["left_out"].startswith("too large: it needs about ")
    lines = without_room(to_results([measured], threads=1, seconds=1e-6, date="2025-03-04"))
    assert lines == [f"made-up, tiny, forward: huge {huge['left_out']}"]


def test_who_has_no_room_beside_the_others_is_measured_alone(made_up, monkeypatch):
    # The first process finds too little room for "peer" too; the next one, by itself, finds what there is.
    started = []

    def process(request, environment, measured, advance):
        started.append(request)
        rows = {"contestants": [_entry("ours", GB), _entry("peer", 9 * GB)], "setting": {"name": "tiny"}}
        if request.only is not None:
            rows["contestants"] = [{**_entry(request.only, GB), "time": {"median": 3.0}}]
        measured.rows.append(rows)

    monkeypatch.setattr("mha.bench.run._run_process", process)
    monkeypatch.setattr(machine, "free_memory", lambda: 11 * GB)
    (row,) = run_framework(Request("made-up", (TINY,), ("both",))).rows
    assert [(each.first, each.count, each.only) for each in started] == [(0, None, None), (0, 1, "peer")]
    assert of(row)["peer"]["alone"]
    assert of(row)["peer"]["time"] == {"median": 3.0}
    started.clear()
    monkeypatch.setattr(machine, "free_memory", lambda: 9 * GB)
    (row,) = run_framework(Request("made-up", (TINY,), ("both",))).rows
    assert len(started) == 1
    assert is_too_large(of(row)["peer"])


def _entry(name, need):
    return {"name": name, "time": None, "extra_memory": None, "need": need, "free": 8 * GB, "alone": False}


def test_room_is_looked_for_before_each_contestant_is_called(monkeypatch):
    task = Task(make_workload(TINY, "float32"), "both", "float32", "cpu")
    calls = []
    contestants = tuple(numpy_contestant(name, calls=calls) for name in ("first", "second", "third"))
    need = contestants[0].need(task)
    free = iter([2 * need, need, 2 * need])
    monkeypatch.setattr(machine, "free_memory", lambda: next(free))
    first, second, third = measure_row(contestants, task, seconds=1e-6)
    assert (second.left_out, second.free) == (machine.too_large(need, need), need)
    assert second.timing is None
    assert "second" not in calls
    assert first.timing is not None
    assert third.timing is not None


def test_a_kill_that_the_kernel_counts_is_of_memory(made_up, monkeypatch):
    counts = itertools.count()
    monkeypatch.setattr(machine, "kills", lambda: next(counts))
    (row,) = run_framework(Request("made-up", (SMALL,), ("forward",), seconds=1e-6)).rows
    assert of(row)["killed at once"]["left_out"] == "was killed: memory ran out (SIGKILL)"


def test_what_ends_a_process_outside_of_any_contestant_is_a_problem(made_up, tmp_path):
    (tmp_path / "made_up_contestants.py").write_text(f"{CONTESTANTS}\nproduct = lambda *_: lambda: os._exit(5)\n")
    measured = run_framework(Request("made-up", (TINY,), ("forward",), seconds=1e-6))
    assert measured.problem.startswith("the measuring of made-up ended its process with status 5")
    assert measured.rows == []


# What is needed, and what is free --------------------------------------------------------------------------


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
def test_the_need_covers_what_was_measured(request, backend_name):
    assert backend_name in names()
    contestants = {each.name: each for each in load(backend_name).CONTESTANTS}
    results = read(Path(request.config.rootpath, "docs", "benchmarks", "cpu.json"))
    seen = 0
    for row in results["rows"]:
        if row["framework"] != backend_name:
            continue
        task = Task(make_workload(Setting.from_dict(row["setting"]), "float32"), row["direction"], row["dtype"], "cpu")
        for entry in row["contestants"]:
            if entry["extra_memory"] is not None:
                need = contestants[entry["name"]].need(task)
                assert entry["extra_memory"] <= need <= 1.6 * entry["extra_memory"] + 2 * GB, (row["setting"], entry)
                seen += 1
    assert seen > 40


@pytest.mark.parametrize(
    ("version", "files", "free"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/b/memory.current": "5", "memory.max": "9000"}, 70 * 1024),
        ("0::/a/b", {"a/memory.max": "9000", "a/memory.current": "6000", "a/memory.stat": "inactive_file 500"}, 3500),
        ("0::/../x", {"memory.max": "900", "memory.current": "1000"}, 0),
        (
            "9:cpu:/a\n4:memory,hugetlb:/a",
            {"memory/a/memory.limit_in_bytes": "8000", "memory/a/memory.usage_in_bytes": "1000"},
            7000,
        ),
        ("4:memory:/elsewhere", {"memory/memory.limit_in_bytes": "80", "memory/memory.usage_in_bytes": "9"}, 71),
    ],
)
def test_free_memory_is_that_of_the_tightest_limit(tmp_path, monkeypatch, version, files, free):
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:      70 kB\n")
    (proc / "vmstat").write_text("pgfault 3\noom_kill 4\n")
    (proc / "self" / "cgroup").write_text(version + "\n")
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text + "\n")
    monkeypatch.setattr(machine, "PROC", proc)
    monkeypatch.setattr(machine, "CGROUPS", groups)
    assert machine.free_memory() == free
    assert machine.kills() == 4
    machine.go_first()
    assert (proc / "self" / "oom_score_adj").read_text() == "1000"


def test_where_the_system_says_nothing_everyone_is_called(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PROC", tmp_path / "none")
    assert (machine.free_memory(), machine.kills()) == (None, None)
    machine.go_first()
    assert machine.fits(10**18, machine.free_memory())
