"""Units on workers: every item has one answer, whatever happens to the processes."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Queue
from random import Random

import pytest

from conformance.case_unit import CaseUnit
from conformance.subjects.backend import BackendSubject
from conformance.workers import Local, Settings, execute, guard, run_units
from conformance.workers.execute import take
from conformance.workers.interpreters import Home
from conformance.workers.process import WorkerProcess
from conformance.workers.process import _all as running
from mha_core.backend import Backend
from tests.conformance.workers.numbers import Squares

pytestmark = pytest.mark.same_on_newest  # it is about processes

UNITS = [Squares((2, 3, 5)), Squares((7, 11)), Squares((13,))]


def gathered(units, executor):
    found = {(unit, item): answer for unit, item, answer in run_units(units, executor, Settings())}
    assert set(found) == {(number, item) for number, unit in enumerate(units) for item in range(len(unit))}
    return found


def squares(found):
    return {place: answer[0] for place, answer in found.items() if not isinstance(answer, str)}


WANTED = {(n, i): number**2 for n, unit in enumerate(UNITS) for i, number in enumerate(unit.numbers)}


@pytest.mark.nightly("every item has one answer", but=("local",))
@pytest.mark.parametrize("make", [lambda: Local(2), lambda: ThreadPoolExecutor(2)], ids=["local", "any executor"])
def test_every_item_has_its_answer(make):
    with make() as executor:
        found = gathered(UNITS, executor)
    assert squares(found) == WANTED
    assert os.getpid() not in {pid for _, pid in found.values()}


def test_a_process_is_used_again():
    with Local(1) as executor:
        assert len({pid for _, pid in gathered(UNITS, executor).values()}) == 1


def test_a_death_costs_the_item_at_hand():
    with Local(1) as executor:
        found = gathered([Squares((2, -1, 5)), Squares((-1,)), Squares((3,))], executor)
    assert squares(found) == {(0, 0): 4, (0, 2): 25, (2, 0): 9}
    assert found[0, 1] == found[1, 0] == "-1: its process ended itself with status 7"


def test_workers_killed_at_random_times_cost_the_items_at_hand():
    """Each kill costs one item at most, and every other answer is right."""
    random, stop, kills = Random(5), threading.Event(), Counter()

    def kill():
        while not stop.wait(0.3 + 0.4 * random.random()):
            if alive := sorted(process._process.pid for process in list(running) if process.is_ready):
                os.kill(random.choice(alive), signal.SIGKILL)
                kills["all"] += 1

    killer = threading.Thread(target=kill)
    killer.start()
    units = [Squares(tuple(range(10 * n, 10 * n + 10)), seconds=0.05) for n in range(4)]
    with Local(2) as executor:
        found = gathered(units, executor)
    stop.set()
    killer.join()
    lost = [answer for answer in found.values() if isinstance(answer, str)]
    assert 0 < len(lost) <= kills["all"]
    assert all("its process was ended by SIGKILL" in answer for answer in lost)
    assert all(answer == units[n].numbers[i] ** 2 for (n, i), answer in squares(found).items())


def test_a_unit_that_an_executor_gives_up_says_why():
    class Gone(Executor):
        def submit(self, function, /, *arguments):
            future = Future()
            if arguments[0] is UNITS[1]:
                future.set_exception(ConnectionError("the scheduler is gone"))
            else:
                future.set_result(function(*arguments))
            return future

    found = gathered(UNITS, Gone())
    assert found[1, 0] == "7: ConnectionError: the scheduler is gone"
    assert squares(found) == {place: value for place, value in WANTED.items() if place[0] != 1}


def test_an_interrupt_leaves_no_process_and_keeps_what_is_there():
    answers = run_units([Squares((2, 3), seconds=0.1), Squares((5,), seconds=60)], Local(2), Settings())
    found = [next(answers), next(answers)]
    pids = [process._process.pid for process in list(running)]
    answers.close()
    assert [answer[0] for _, _, answer in found] == [4, 9]
    deadline = time.monotonic() + 5
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert pids
    assert not any(map(is_running, pids))


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process group is all that is known")
@pytest.mark.parametrize("lists", [guard.LISTS, "/nowhere"])
def test_descendants_are_those_that_run_whichever_thread_started_them(monkeypatch, lists):
    """By the lists of each thread, and without: a child that ended and was not waited for is none."""
    monkeypatch.setattr(guard, "LISTS", lists)
    go_on, started = threading.Event(), Queue()

    def start():
        started.put(subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True))
        go_on.wait(30)

    threading.Thread(target=start).start()
    shell = started.get(timeout=30)
    numbers = {shell.pid, int(shell.stdout.readline())}
    try:
        assert numbers <= set(guard.descendants(os.getpid()))
        assert os.getpid() not in guard.descendants(os.getpid())
        shell.kill()
        os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOWAIT)
        assert not numbers & set(guard.descendants(os.getpid()))
    finally:
        go_on.set()
        os.kill(max(numbers - {shell.pid}), signal.SIGKILL)
        shell.communicate()


def test_a_worker_whose_parent_is_gone_ends():
    process = take(Home("numpy", 30.0), Settings())
    process._channel.close()
    process._process.wait(10)
    process.end()


def test_a_thread_goes_on_with_its_home_and_the_first_begins_with_the_most_expensive():
    order, begun, go_on = [], threading.Event(), threading.Event()

    def note(unit):
        begun.set()
        go_on.wait(30)
        order.append(unit.name)

    executor = Local(1)
    executor.submit(note, Squares((0,), name="first"))
    assert begun.wait(30)
    for numbers, name in (((1,), "a"), ((1, 2, 3), "b"), ((4,), "a"), ((5,), "b")):
        executor.submit(note, Squares(numbers, name=name))
    go_on.set()
    executor.shutdown()
    assert order == ["first", "b", "b", "a", "a"]


def test_executing_here_needs_no_executor():
    assert [answer[0] for answer in execute(Squares((2, 3)), Settings())] == [4, 9]


def test_a_process_that_dies_while_it_waits_costs_nothing():
    with Local(1) as executor:
        ((_, pid),) = gathered([Squares((2,))], executor).values()
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # on Linux its parent is its guard
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        while sys.platform == "linux" and Path(f"/proc/{pid}").exists():
            time.sleep(0.001)
        assert squares(gathered([Squares((3, 5))], executor)) == {(0, 0): 9, (0, 1): 25}


def test_a_process_that_waits_says_nothing():
    process = take(Home("numpy", 30.0), Settings())
    assert process.call(os.getpid) == process.hello.pid
    connection = process._channel._socket
    while select.select([connection], [], [], 0.2)[0]:  # a sign of life that was on its way
        process._channel.receive()
    assert not select.select([connection], [], [], 1.5)[0]
    process.end()


def test_frameworks_have_one_thread_unless_the_environment_says_it(monkeypatch):
    for setting, threads, wanted in ((None, 1, "1"), (None, None, None), ("3", 1, "3")):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if setting is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", setting)
        process = WorkerProcess(Home("numpy"), threads=threads)
        try:
            assert process.call(os.getenv, "OMP_NUM_THREADS") == wanted
        finally:
            process.end()


def test_a_unit_of_a_slower_backend_costs_more():
    class Slow(Backend):
        name, relative_cost = "slow", 3.0

    Slow.__abstractmethods__ = frozenset()
    units = [CaseUnit(subject, ("prime", "causal")) for subject in (BackendSubject(Slow(), "float32", "cpu"), object())]
    assert [unit.cost for unit in units] == [6.0, 2.0]
