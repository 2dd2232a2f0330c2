"""The cases that the path "fast" is asked in float64 by default take every branch that some case takes there."""

import contextlib
import sys
import threading
from pathlib import Path

import pytest

import backends
from conformance.cases.table import all_cases, select
from conformance.plan import FAST_IN_WIDE, WIDE

pytestmark = pytest.mark.same_on_newest  # the branches are this project's own


class Traced(BaseException):
    """Raised where a program would be compiled: its branches have been taken by then."""


@pytest.fixture
def only_traced(backend_name, monkeypatch, tmp_path, backend):
    """JAX takes a branch while it traces; nothing is compiled."""
    if backend_name != "jax":
        return

    def stop(self, arguments, signature):
        self._compiled.trace(*arguments)
        raise Traced

    monkeypatch.setattr("backends.jax.programs.KeptProgram._program", stop)
    backend.use_cache(tmp_path)


def branches(backend, folder, cases):
    """Case -> (file, line, next line) of each step that its call takes in the files of a folder."""
    found, taken, last = {}, set(), {}

    def in_file(frame, event, argument):
        if event == "line":
            before = last.get(id(frame), frame.f_code.co_firstlineno)
            taken.add((Path(frame.f_code.co_filename).name, before, frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        elif event == "return":
            last.pop(id(frame), None)
        return in_file

    def of_folder(frame, event, argument):
        return in_file if frame.f_code.co_filename.startswith(folder) else None

    before = sys.gettrace()
    for case in cases:
        problem = case.build()
        run = backend.prepare(problem.config, problem.weights, dtype=WIDE, path="fast")
        taken.clear()
        threading.settrace(of_folder)
        sys.settrace(of_folder)
        try:
            with contextlib.suppress(Traced):
                run(problem.inputs)
        finally:
            sys.settrace(before)
            threading.settrace(before)
        found[case.id] = frozenset(taken)
    return found


def test_no_branch_of_the_fast_path_is_left_out_in_float64(backend, backend_name, only_traced):
    assert {case.id for case in select(tuple(FAST_IN_WIDE))} == FAST_IN_WIDE
    folder = f"{Path(backends.__file__).parent / backend_name / 'fast'}/"
    taken = branches(backend, folder, all_cases())
    everywhere = frozenset().union(*taken.values())
    assert len(everywhere) > 80
    missed = everywhere - frozenset().union(*(taken[name] for name in FAST_IN_WIDE))
    assert {name for name, own in taken.items() if own & missed} == set(), sorted(missed)
