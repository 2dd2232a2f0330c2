"""Time and memory: the order of calls, how many, and a known allocation."""

import gc
import itertools
import subprocess
import sys

import pytest

from benchmarks import measure
from benchmarks.measure import FEWEST_ROUNDS, MOST_ROUNDS, extra_peak, in_turn, summary

pytestmark = pytest.mark.same_on_newest  # it is about the clock and the kernel


@pytest.fixture(autouse=True)
def frozen() -> None:
    """Python collects garbage before each thing that is measured: not among the objects of frameworks, which stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def clock(monkeypatch):
    """Time that passes in calls alone."""
    clock = Clock()
    monkeypatch.setattr(measure, "perf_counter", lambda: clock.now)
    return clock


class Clock:
    def __init__(self):
        self.now = 0.0
        self.called = []

    def call(self, name, *seconds):
        taken = itertools.cycle(seconds)

        def run():
            self.called.append(name)
            self.now += next(taken)

        return run


def test_contestants_take_turns_and_no_one_always_comes_first(clock):
    calls = {number: clock.call(name, 1.0) for number, name in enumerate("abc")}
    told = []
    in_turn(calls, dict.fromkeys(calls, 1.0), 10.0, lambda number: told.append("abc"[number]))
    assert "".join(clock.called) == "".join(told) == 3 * ("abc" + "bca" + "cab") + "abc"


def test_what_is_timed_is_returned_and_not_the_estimate(clock):
    assert in_turn({7: clock.call("a", 1.0, 3.0, 2.0)}, {7: 1.5}, 0.1, id) == {7: 3 * [1.0, 3.0, 2.0]}


def test_who_is_far_slower_runs_once_and_the_others_their_rounds(clock):
    calls = {0: clock.call("slow", 9.0), 1: clock.call("quick", 1.0)}
    found = in_turn(calls, {0: 7.0, 1: 1.0}, 15.0, id)
    assert (found[0], len(found[1])) == ([9.0], 15)
    found = in_turn(calls, {0: 1.9, 1: 1.0}, 4.35, id)
    assert [len(samples) for samples in found.values()] == [FEWEST_ROUNDS] * 2


@pytest.mark.parametrize(
    ("estimate", "seconds", "rounds"),
    [(1.0, 0.01, FEWEST_ROUNDS), (1e-6, 1.0, MOST_ROUNDS), (100.0, 1.0, FEWEST_ROUNDS), (0.1, 1.25, 12)],
)
def test_rounds_have_a_least_and_a_most(clock, estimate, seconds, rounds):
    assert len(in_turn({0: clock.call("a", estimate)}, {0: estimate}, seconds, id)[0]) == rounds
    assert in_turn({}, {}, seconds, id) == {}


def test_garbage_waits_until_the_end():
    seen = []
    in_turn({0: lambda: seen.append(gc.isenabled())}, {0: 0.1}, 0.1, id)
    assert not any(seen)
    assert gc.isenabled()


def test_median_and_quartiles():
    assert summary([4.0, 1.0, 2.0, 3.0, 5.0]) == {"median": 3.0, "lower": 2.0, "upper": 4.0, "samples": 5}
    assert summary([2.0]) == {"median": 2.0, "lower": 2.0, "upper": 2.0, "samples": 1}
    assert summary([]) == {}


# Memory -----------------------------------------------------------------------------------------------------

MEBIBYTE = 2**20

needs_linux = pytest.mark.skipif(
    not measure.field_of("self/status", "VmHWM"), reason="the kernel does not keep the peak"
)

ONES = """
import numpy as np
from benchmarks.measure import extra_peak


def ones(size):
    return np.ones(size * 2**20, np.uint8)


def call():
    ones(64)
    return ones(16)


ones(1)
"""


def peaks(code):
    """What a program prints, in a process of its own: among frameworks' threads the kernel counts pages roughly."""
    done = subprocess.run([sys.executable, "-c", ONES + code], capture_output=True, text=True, check=True)
    return [pytest.approx(int(line), abs=2 * MEBIBYTE) for line in done.stdout.split()]


@needs_linux
def test_a_known_allocation_is_measured_also_the_second_time():
    assert peaks("for _ in range(2): print(extra_peak(lambda: ones(48)))") == [48 * MEBIBYTE] * 2


@needs_linux
def test_what_is_freed_within_the_call_counts_and_what_was_there_before_does_not():
    assert peaks("before = ones(40); print(extra_peak(call)); print(before.sum())") == [64 * MEBIBYTE, 40 * MEBIBYTE]


@needs_linux
def test_an_earlier_peak_is_forgotten():
    assert peaks("ones(96); print(extra_peak(lambda: ones(24)))") == [24 * MEBIBYTE]


def test_without_such_a_kernel_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "PROC", tmp_path / "none")
    called = []
    assert extra_peak(lambda: called.append(1)) is None
    assert not called
    measure.limit_memory()


@needs_linux
def test_who_asks_for_more_memory_than_is_free_gets_an_error():
    code = """
import numpy as np
from benchmarks import measure
measure.limit_memory()
free = 1024 * int(measure.field_of("meminfo", "MemAvailable").split()[0])
np.empty(free // 50, np.uint8)
try:
    np.empty(free, np.uint8)
except MemoryError:
    print((measure.PROC / "self" / "oom_score_adj").read_text())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1000"
