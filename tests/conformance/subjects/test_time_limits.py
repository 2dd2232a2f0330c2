"""A subject that hangs or is interrupted ends its own case, and the rest runs."""

import _thread
import re
import sys
import threading
import time

from conformance.cases.table import select
from conformance.runner import until_interrupted
from conformance.subjects.backend import ReferenceSubject
from conformance.subjects.load import load_subject
from tests.conformance.running import run_all
from tests.conformance.subjects.own_layer import FUNCTION, PRIME, judge

SLOW = (
    "import time, threading\nthreads = []\n"
    "class subject(Right):\n"
    "    def prepare(self, config, weights):\n"
    "        threads.append(threading.current_thread())\n"
    "        def run(inputs):\n"
    "            threads.append(threading.current_thread())\n"
    "            if inputs.mask.causal: time.sleep(20)\n"
    "            return reference.run(config, weights, inputs)\n"
    "        return run"
)


def test_a_subject_that_hangs_gives_one_line_and_the_rest_runs(module):
    module(SLOW)
    start = time.perf_counter()
    cases = [PRIME, *select(("causal", "allowed"))]
    results = list(run_all(cases, [load_subject("mine:subject", "float64", time_limit=0.5), ReferenceSubject()]))
    assert [result.status for result in results[:3]] == ["equal", "failed", "equal"]
    assert re.fullmatch(r"no answer within 0.5 s: it is at mine.py:\d+ in \w+", results[1].message)
    assert results[1].rerun.startswith("mha check --subject mine:subject --time-limit 5 --case causal --dtype")
    assert all(result.status == "equal" for result in results[3:])
    assert time.perf_counter() - start < 10
    threads = sys.modules["mine"].threads
    # Prepared and asked four times, then prepared and hanging; then a new thread, for what is asked after it too.
    assert [threads[0] is thread for thread in threads] == [True] * 7 + [False] * 6
    assert threads[4] is threads[5]
    assert all(thread.daemon for thread in threads)


def test_an_interrupt_while_a_subject_runs_keeps_what_is_finished(module):
    module(SLOW)
    cases = [PRIME, *select(("causal", "allowed"))]
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    start = time.perf_counter()
    finished, interrupted = until_interrupted(run_all(cases, [load_subject("mine:subject", "float64")]))
    timer.join()
    assert interrupted
    assert [result.case for result in finished] == ["prime"]
    assert time.perf_counter() - start < 10


def test_an_interrupt_raised_by_the_subject_is_its_own(module):
    """The user's interrupt comes to the thread that waits, never to the subject's."""
    result = judge(FUNCTION + "raise KeyboardInterrupt", module)
    assert result.status == "failed"
    assert result.message.startswith("KeyboardInterrupt (mine.py:")
