"""Time and memory: the order of calls, how many, and a known allocation."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

from mha.bench import measure as measuring
from mha.bench.measure import FEWEST_ROUNDS, MOST_ROUNDS, Timing, extra_peak, measure, rounds_for

pytestmark = pytest.mark.same_on_newest  # it is about the clock and the kernel


class Clock:
    """Time that passes in calls alone."""

    def __init__(self):
        self.now = 0.0
        self.called = []

    def __call__(self):
        return self.now

    def call(self, name, *seconds):
        taken = itertools.cycle(seconds)

        def run():
            self.called.append(name)
            self.now += next(taken)

        return run


def test_contestants_take_turns_and_no_one_always_comes_first():
    clock = Clock()
    calls = {name: clock.call(name, 1.0) for name in "abc"}
    measure(calls, {name: [1.0] for name in "abc"}, seconds=4.0, clock=clock)
    assert "".join(clock.called) == "abc" + "bca" + "cab" + "abc"


def test_median_and_quartiles_are_of_what_was_timed_not_of_the_estimates():
    clock = Clock()
    timings = measure({"a": clock.call("a", 1.0, 3.0, 2.0)}, {"a": [1.5]}, seconds=0.1, clock=clock)
    assert timings == {"a": Timing(median=2.0, lower=1.5, upper=2.5, samples=3)}


def test_a_slow_one_gets_two_samples_the_others_their_rounds():
    clock = Clock()
    calls = {"slow": clock.call("slow", 9.0), "quick": clock.call("quick", 1.0)}
    timings = measure(calls, {"slow": [7.0], "quick": [1.0]}, seconds=5.0, clock=clock)
    assert timings["slow"] == Timing.of([7.0, 9.0])
    assert timings["quick"].samples == 5
    clock.called.clear()
    measure(calls, {"slow": [7.0, 8.0], "quick": [1.0]}, seconds=5.0, clock=clock)
    assert "slow" not in clock.called


def test_rounds_have_a_least_and_a_most():
    assert rounds_for({"a": 1.0}, seconds=0.01) == FEWEST_ROUNDS
    assert rounds_for({"a": 1e-6}, seconds=1.0) == MOST_ROUNDS
    assert rounds_for({"fastest": 100.0}, seconds=1.0) == FEWEST_ROUNDS
    assert rounds_for({}, seconds=1.0) == FEWEST_ROUNDS


def test_garbage_waits_until_the_end():
    seen = []
    measure({"a": lambda: seen.append(gc.isenabled())}, {"a": [0.1]}, seconds=0.1)
    assert not any(seen)
    assert gc.isenabled()


def test_one_sample_has_no_spread():
    assert Timing.of([2.0]) == Timing(2.0, 2.0, 2.0, 1)


# Memory -----------------------------------------------------------------------------------------------------

MEBIBYTE = 2**20

needs_linux = pytest.mark.skipif(not measuring.CLEAR.exists(), reason="the kernel does not keep the peak")


def ones(size):
    return np.ones(size * MEBIBYTE, np.uint8)


@needs_linux
def test_a_known_allocation_is_measured_also_the_second_time():
    for _ in range(2):
        assert extra_peak(lambda: ones(48)) == pytest.approx(48 * MEBIBYTE, abs=2 * MEBIBYTE)


@needs_linux
def test_what_is_freed_within_the_call_counts_and_what_was_there_before_does_not():
    before = ones(40)

    def call():
        ones(64)
        return ones(16)

    assert extra_peak(call) == pytest.approx(64 * MEBIBYTE, abs=2 * MEBIBYTE)
    assert before.sum() == 40 * MEBIBYTE


@needs_linux
def test_an_earlier_peak_is_forgotten():
    ones(96)
    assert extra_peak(lambda: ones(24)) == pytest.approx(24 * MEBIBYTE, abs=2 * MEBIBYTE)


def test_without_such_a_kernel_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "CLEAR", tmp_path / "none" / "clear_refs")
    called = []
    assert extra_peak(lambda: called.append(1)) is None
    assert not called
