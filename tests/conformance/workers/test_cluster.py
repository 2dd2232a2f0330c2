"""Units on a Dask cluster: every item has one answer, whatever happens to its workers and its scheduler."""

import json
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter

import pytest
from click.testing import CliRunner

from conformance.workers import Settings, cluster, run_units
from conformance.workers.cluster import Cluster
from conformance.workers.process import running
from mha.cli.main import main
from mha_core import SpecError
from mha_core.errors import install_command
from tests.conformance.workers.numbers import Squares

distributed = pytest.importorskip("distributed")

pytestmark = pytest.mark.same_on_newest  # it is about processes

UNITS = [Squares(tuple(range(5 * n, 5 * n + 5)), seconds=0.05) for n in range(8)]
WANTED = {(n, i): number**2 for n, unit in enumerate(UNITS) for i, number in enumerate(unit.numbers)}


@pytest.fixture(autouse=True)
def _worker_processes(monkeypatch):
    monkeypatch.setenv("MHA_WORKERS", "1")


def started(workers):
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.CRITICAL,
    )


@pytest.fixture(scope="module")
def dask():
    """A cluster of two workers on this machine, each in a process of its own."""
    with started(2) as found:
        yield found


@pytest.fixture
def dask_to_harm():
    with started(2) as found:
        yield found


def gathered(executor, units=UNITS, after=None):
    """The answers; `after` is called when some are there. None comes twice."""
    found = {}
    for unit, item, answer in run_units(units, executor, Settings()):
        assert (unit, item) not in found
        found[unit, item] = answer
        if after is not None and len(found) == 6:
            after()
    return found


def squares(found):
    return {place: answer[0] for place, answer in found.items() if not isinstance(answer, str)}


def parents(found):
    """Process number -> the answers that it gave."""
    return Counter(pid for _, pid in found.values())


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def all_end(pids, seconds=10.0):
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def test_every_item_has_its_answer_and_no_process_is_left(dask):
    lines = []
    executor = Cluster(dask.scheduler_address, 1, lines.append)
    found = gathered(executor)
    assert squares(found) == WANTED
    assert lines == []
    assert not running()  # nothing was done by this machine
    pids = set(parents(found))
    assert len(pids) == 2
    executor.shutdown()
    assert all_end(pids)


def test_a_death_costs_the_item_at_hand_there_too(dask):
    with Cluster(dask.scheduler_address) as executor:
        found = gathered(executor, [Squares((2, -1, 5)), Squares((3,))])
    assert squares(found) == {(0, 0): 4, (0, 2): 25, (1, 0): 9}
    assert found[0, 1] == "-1: its process ended itself with status 7"


def test_a_killed_worker_loses_nothing(dask_to_harm):
    lines = []

    def kill():
        os.kill(next(iter(dask_to_harm.workers.values())).pid, signal.SIGKILL)

    with Cluster(dask_to_harm.scheduler_address, 1, lines.append) as executor:
        found = gathered(executor, after=kill)
    assert squares(found) == WANTED
    assert lines == []
    assert not running()  # nothing was done by this machine
    assert all_end(set(parents(found)))


def test_the_rest_is_done_here_where_the_scheduler_goes_away():
    lines = []
    with started(1) as harmed, Cluster(harmed.scheduler_address, 1, lines.append) as executor:
        found = gathered(executor, after=harmed.close)
        here = {process.hello.pid for process in running()}
    assert squares(found) == WANTED
    assert lines == [f"the Dask cluster at {harmed.scheduler_address} is gone: this machine does what it leaves undone"]
    assert len(here) == 1
    assert 0 < sum(count for pid, count in parents(found).items() if pid in here) < len(WANTED)


@pytest.mark.nightly("a cluster's workers cost nothing")
def test_the_rest_is_done_here_where_no_worker_is_left(dask_to_harm, monkeypatch):
    monkeypatch.setattr(cluster, "WITHOUT_WORKERS_SECONDS", 1.0)
    monkeypatch.setattr(cluster, "LOOK_SECONDS", 0.2)
    lines = []
    with Cluster(dask_to_harm.scheduler_address, 1, lines.append) as executor:
        found = gathered(executor, after=lambda: dask_to_harm.scale(0))
    assert squares(found) == WANTED
    # Whether it gives up single units before there is no worker at all depends on when each worker ends.
    assert len(lines) == 1
    assert lines[0].endswith(": this machine does what it leaves undone")
    assert " is gone" not in lines[0]


def test_who_stops_asking_leaves_no_process(dask):
    executor = Cluster(dask.scheduler_address, 1)
    answers = run_units([Squares((2,)), Squares((3,)), Squares((5,), seconds=60)], executor, Settings())
    found = [next(answers), next(answers)]
    client = distributed.Client(dask.scheduler_address, set_as_default=False)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pids = [pid for found_there in client.run(pids_of_workers).values() for pid in found_there]
        if pids and client.run(units_at_work) and any(client.run(units_at_work).values()):
            break
    answers.close()
    assert sorted(answer[0] for _, _, answer in found) == [4, 9]
    assert pids
    assert all_end(pids)
    assert not any(client.run(pids_of_workers).values())
    client.close()


def pids_of_workers():
    return [process.hello.pid for process in running()]


def units_at_work():
    return sum(map(len, cluster._units.values()))


def test_results_are_those_of_this_machine(dask, tmp_path):
    results = {}
    for name, options in (("there", ["--scheduler", dask.scheduler_address]), ("here", ["--workers", "2"])):
        path = tmp_path / f"{name}.json"
        subject = "tests.conformance.workers.numbers:Right"
        arguments = ["check", "-s", subject, "-c", "prime", "-c", "window*", "--json", str(path), *options]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        report = json.loads(path.read_text())
        for row in report["results"]:
            row.pop("seconds")
        results[name] = report["results"]
    assert results["there"] == results["here"]
    assert len(results["there"]) > 4


def refused(*options):
    result = CliRunner().invoke(main, ["check", "-b", "torch", "-c", "prime", *options])
    assert result.exit_code == 2, result.output
    (line,) = result.output.strip().splitlines()
    return line


def unused_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nonsense", "missing port number in address 'nonsense'"),
        ("", "missing port number in address ''"),
        ("foo://127.0.0.1:1", "unknown address scheme 'foo'"),
        ("127.0.0.1:99999", "a port is a number from 1 to 65535"),
    ],
)
def test_a_malformed_address_is_refused(address, reason):
    line = refused("--scheduler", address)
    assert line.startswith(f"Error: --scheduler {address} is no address, such as tcp://127.0.0.1:8786: ")
    assert reason in line


def test_a_scheduler_that_is_not_there_or_says_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 1.0)
    assert refused("--scheduler", f"127.0.0.1:{unused_port()}").endswith(": no answer within 1 s")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert refused("--scheduler", f"127.0.0.1:{silent.getsockname()[1]}").endswith(": no answer within 1 s")


def test_a_cluster_without_workers_is_refused():
    with started(0) as empty:
        line = refused("--scheduler", empty.scheduler_address)
    assert line == f"Error: --scheduler {empty.scheduler_address}: it has no workers"


def test_no_scheduler_goes_with_one_process():
    assert refused("--scheduler", "127.0.0.1:1", "--workers", "0").endswith("worker processes: not --workers 0")


def test_without_distributed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert install_command("dask") in refused("--scheduler", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("project_version", lambda: "0.0.9", "; this is 0.0.9"),
        ("code_hash", lambda: "other", "with other code"),
    ],
)
def test_workers_with_another_version_are_refused(dask, monkeypatch, attribute, value, message):
    monkeypatch.setattr(f"conformance.workers.protocol.{attribute}", value)
    with pytest.raises(SpecError) as error:
        Cluster(dask.scheduler_address)
    assert message in str(error.value)


@pytest.mark.nightly("a cluster's workers cost nothing")
def test_workers_without_the_project_are_refused(dask, monkeypatch):
    monkeypatch.setattr(cluster, "HELLO", cluster.HELLO.replace("conformance", "conformance_of_old"))
    with pytest.raises(SpecError) as error:
        Cluster(dask.scheduler_address)
    assert "does not run this mha-parity: ModuleNotFoundError: No module named 'conformance_of_old'" in str(error.value)


@pytest.mark.nightly("a cluster's workers cost nothing")
def test_a_worker_that_came_later_with_other_code_does_nothing(dask, monkeypatch):
    lines = []
    with Cluster(dask.scheduler_address, 1, lines.append) as executor:
        monkeypatch.setattr(cluster, "code_hash", lambda: "other")
        found = gathered(executor, UNITS[:2])
    assert squares(found) == {place: value for place, value in WANTED.items() if place[0] < 2}
    assert len(lines) == 1
    assert "came later has mha-parity with other code" in lines[0]
