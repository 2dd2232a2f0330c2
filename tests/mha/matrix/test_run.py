"""A set from its requirements to its record, in processes of its own; nothing is installed."""

from __future__ import annotations

import json

import pytest

from mha.matrix.environments import source
from mha.matrix.environments.cache import Cache
from mha.matrix.request import Request
from mha.matrix.run import Options, run_set
from tests.mha.matrix.made_up import interpreter, release_set

REQUEST = Request((), ("one-key",), ("float32",))


@pytest.fixture
def cache(tmp_path):
    cache = Cache(tmp_path / "cache")
    cache.prepare()
    return cache


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """One for all tests, as for all sets: what Python compiles of it is kept."""
    own = Cache(tmp_path_factory.mktemp("copy"))
    own.prepare()
    return source.copied(own)


def run(one, cache, copy, **options):
    return list(run_set(one, REQUEST, Options("pip", **options), cache, copy))


# The releases of PyTorch and TensorFlow are the same there.
@pytest.mark.same_on_newest_of("torch", "tf")
def test_a_set_is_measured_once_in_its_own_interpreter(backend_name, cache, copy, tmp_path):
    one = release_set(interpreter(tmp_path, venv=f"echo made >> {tmp_path}/log"), backends=(backend_name,))
    (row,) = run(one, cache, copy, remove=True)
    record = row.record
    assert row.problem == ""
    assert (record.problems, record.lacking) == ([], [])
    assert record.release
    assert record.packages["mha-parity"]
    subjects = {line["result"]["subject"] for line in record.results}
    assert {backend_name, f"{backend_name} fast"} <= subjects
    assert any(line["spec"].startswith(f"backends.{backend_name}.native.") for line in record.results)
    assert {line["result"]["case"] for line in record.results} == {"one-key"}
    assert record.probes
    assert {probe["outcome"] for probe in record.probes} <= {"happens", "gone"}

    # Its environment is gone, and its result is kept: not a single program is started for it again.
    assert list(cache.environments.iterdir()) == []
    (again,) = run(one, cache, copy)
    assert again.record == record
    assert (tmp_path / "log").read_text() == "made\n"


EVENTS = [
    {"event": "versions", "python": "3.11.7", "packages": {"torch": "2.5.1"}},
    {"event": "framework", "versions": {"torch": "2.5.1"}},
]


def says(*events, then=":"):
    """A shell command that prints events, and then runs another."""
    return "\n".join([*(f"echo '{json.dumps(event)}'" for event in events), then])


def test_a_crash_costs_only_the_layer_in_which_it_happens(cache, copy, tmp_path):
    # The part is read from the task: natives first come to a layer that ends the process, then to the next.
    worker = f"""
    task=$(cat)
    case "$task" in
        *'"backend", "backend"'*) {says(*EVENTS)} ;;
        *'"part": "backend"'*) {says(*EVENTS)} ;;
        *'"part": "natives"'*'["a:Bad"]'*) {says({"event": "subject", "spec": "a:Good"})} ;;
        *'"part": "natives"'*) {says({"event": "subject", "spec": "a:Bad"}, then="kill -SEGV $$")} ;;
    esac"""
    one = release_set(interpreter(tmp_path, worker=worker))
    (row,) = run(one, cache, copy)
    assert row.record.problems == ["a:Bad: it was ended by SIGSEGV"]
    assert row.record.versions == {"torch": "2.5.1"}


def test_a_backend_that_cannot_be_imported_costs_its_set_and_is_tried_again(cache, copy, tmp_path):
    worker = says(EVENTS[0], {"event": "broken", "message": "ImportError: no libcudart.so"})
    one = release_set(interpreter(tmp_path, worker=worker))
    for _ in range(2):
        (row,) = run(one, cache, copy)
        assert row.record is None
        assert row.problem == "torch can't be used: ImportError: no libcudart.so"
    assert list(cache.results.iterdir()) == []


def test_a_process_that_hangs_before_it_says_anything_costs_its_set(cache, copy, tmp_path):
    (row,) = run(release_set(interpreter(tmp_path, worker="sleep 600")), cache, copy, silence=1.0)
    assert row.problem == "torch can't be used: it said nothing for 1 s"


def test_requirements_that_cannot_be_installed_cost_every_backend_of_the_set(cache, copy, tmp_path):
    one = release_set(interpreter(tmp_path), "nowhere==1", backends=("torch", "jax"))
    rows = run(one, cache, copy)
    assert [row.backend for row in rows] == ["torch", "jax"]
    assert all("No matching distribution found for nowhere" in row.problem for row in rows)


def test_again_measures_again(cache, copy, tmp_path):
    one = release_set(interpreter(tmp_path, worker=f"echo run >> {tmp_path}/log\n{says(*EVENTS)}"))
    for again in (False, False, True):
        run(one, cache, copy, again=again)
    assert (tmp_path / "log").read_text().count("run") == 2 * 3  # three parts each time


def test_the_copy_has_the_packages_and_the_metadata_and_its_state_is_that_of_the_code(cache):
    copy = source.copied(cache)
    assert (copy / "mha_core" / "__init__.py").is_file()
    assert "mha.backends" in next(copy.glob("*.dist-info/entry_points.txt")).read_text()
    assert source.copied(cache) == copy
    before = source.fingerprint(copy, "torch")
    table = copy / "backends" / "torch" / "native" / "deviations.toml"
    table.write_text("")
    (copy / "backends" / "jax" / "layers.py").write_text("")
    assert source.fingerprint(copy, "torch") == before
    (copy / "backends" / "torch" / "layers.py").write_text("")
    assert source.fingerprint(copy, "torch") != before
