"""Do the tests notice a wrong line? Random mutants of the code, and which test kills each.

    nice -n 15 python -m tests.mutants --seed 1 --count 60
    python -m tests.mutants --seed 1 --count 60 --tests 4b67851     # that commit's tests, for the mutants that survived

A server imports what tests need once, and forks; each fork runs pytest on one stage of tests (see `near.py`) in a copy
of the repository with one change. A mutant is killed by a test that fails, by the end of its process, or by taking
more than `LIMIT` seconds of processor time. `results.json` beside this file says what became of each; what is in it
is not run again.
"""

import argparse
import fcntl
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
import warnings
from itertools import count
from pathlib import Path
from typing import Any

from tests.mutants.draw import Mutant, draw
from tests.mutants.near import stages

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.json")
ALWAYS = ("pytest", "rich.console", "click", "safetensors.numpy")
FRAMEWORKS = {
    "backends/torch": ("torch",),
    "backends/mxnet": ("mxnet",),
    "backends/jax": ("flax.linen", "flax.nnx"),
    "backends/tf": ("tensorflow", "keras"),
    "backends/": ("torch", "mxnet", "flax.linen", "flax.nnx", "tensorflow", "keras"),
    "mha/": ("torch", "mxnet", "flax.linen", "flax.nnx", "tensorflow", "keras", "h5py", "ml_dtypes"),
}
"""Where a module's path begins -> what its tests import; the first beginning that fits counts."""

LIMIT = 600
"""Seconds of processor time that one stage may take."""

BROKEN = 99
"""How a fork ends that could not run pytest."""

NOW = "now"
SURVIVED = "survived"

_times = count(10**9, 10)
"""When files were changed: Python compiles a file again if that differs."""


def needed(path: str) -> tuple[str, ...]:
    """What the tests of a module import."""
    return next((names for begins, names in FRAMEWORKS.items() if path.startswith(begins)), ())


def import_first(names: tuple[str, ...]) -> None:
    """Import what every fork needs and no mutant changes."""
    import numpy as np

    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", OMP_WAIT_POLICY="PASSIVE", MHA_COMPILE_CACHE="off")
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if "bool" not in vars(np):
        np.bool = np.bool_  # type: ignore[attr-defined]  # as backends.mxnet does
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            importlib.import_module(name)


class Copy:
    """A copy of the repository, in which one file at a time is changed, and in which forks run pytest.

    Args:
        folder: a new folder for it.
        tests: the commit whose tests it has; None for those of the checkout.
    """

    def __init__(self, folder: Path, tests: str | None) -> None:
        self.folder = folder
        self._faulty: dict[str, bool] = {}
        shell = f"mkdir -p {folder} && git ls-files -z | xargs -0 cp --parents -t {folder}"
        if tests is not None:
            shell += f" && rm -r {folder}/tests && git archive {tests} tests conftest.py | tar -x -C {folder}"
        subprocess.run(["bash", "-euo", "pipefail", "-c", shell], cwd=ROOT, check=True)

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """Which test kills a mutant, or that none does; and what that took."""
        file = self.folder / mutant.path
        text = file.read_text()
        seconds = 0.0
        self._write(file, mutant.of(text))
        try:
            for stage in stages(self.folder, mutant.path):
                left_out: list[str] = []
                while True:
                    by, took = self._pytest([*stage, *(f"--deselect={test}" for test in left_out)])
                    seconds += took
                    if by is None or not self._fails_anyway(by, file, text, mutant):
                        break
                    left_out.append(by)
                if by is not None:
                    return {"by": by, "seconds": round(seconds)}
        finally:
            self._write(file, text)
        return {"by": SURVIVED, "seconds": round(seconds)}

    def _fails_anyway(self, test: str, file: Path, text: str, mutant: Mutant) -> bool:
        """Whether a test fails without the change too."""
        if "::" not in test:
            return False
        if test not in self._faulty:
            self._write(file, text)
            self._faulty[test] = self._pytest([test])[0] is not None
            self._write(file, mutant.of(text))
        return self._faulty[test]

    def _write(self, file: Path, text: str) -> None:
        file.write_text(text)
        os.utime(file, (changed := next(_times), changed))

    def _pytest(self, arguments: list[str]) -> tuple[str | None, float]:
        """The first test that fails, or how the process ended; None if none fails. And seconds of processor time."""
        said = self.folder / "failed.txt"
        said.write_text("")
        before = os.times()
        child = os.fork()
        if child == 0:
            _run_pytest(self.folder, arguments, said)
        status = os.waitpid(child, 0)[1]
        after = os.times()
        took = after.children_user + after.children_system - before.children_user - before.children_system
        failed = said.read_text().splitlines()
        if failed:
            return failed[0], took
        code = os.waitstatus_to_exitcode(status)
        if code in (BROKEN, 3, 4):  # an error of pytest, or in how it is called
            raise RuntimeError((self.folder / "log.txt").read_text())
        return (None if code in (0, 5) else f"the process ended with {code}"), took


def _run_pytest(folder: Path, arguments: list[str], said: Path) -> None:
    """In a fork: run pytest on the copy, write down what fails first, and end."""
    code = BROKEN
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 5))
        log = os.open(folder / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = str(folder)
        import pytest

        class Failures:
            def pytest_runtest_logreport(self, report: Any) -> None:
                self._note(report)

            def pytest_collectreport(self, report: Any) -> None:
                self._note(report)

            @staticmethod
            def _note(report: Any) -> None:
                if report.failed:
                    with said.open("a") as file:
                        file.write(f"{report.nodeid}\n")

        always = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--timeout", "3000", "--tb", "line"]
        code = int(pytest.main([*always, *arguments], plugins=[Failures()]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _results() -> dict[str, dict[str, Any]]:
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _add(mutant: str, key: str, found: dict[str, Any]) -> None:
    """Write down what became of a mutant; other processes may do so at the same time."""
    lock = os.open(RESULTS.parent, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = _results()
        results.setdefault(mutant, {})[key] = found
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    finally:
        os.close(lock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60, help="mutants (default: %(default)s)")
    parser.add_argument("--tests", metavar="COMMIT", help="run the tests of this commit (default: the checkout's)")
    parser.add_argument("--part", default="0/1", help="K/N: the Kth of every N mutants, for N processes at once")
    parser.add_argument("--room", default="", help="those of one room alone, such as mha_core")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    key = NOW if options.tests is None else options.tests
    drawn = [one for one in draw(ROOT, options.seed, options.count) if one.path.startswith(options.room)]
    mutants = sorted(drawn, key=lambda mutant: len(needed(mutant.path)))[part::parts]
    # Forks find this project, its tests among it, in the copy alone.
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != ROOT]
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy(Path(folder) / "copy", options.tests)
        for mutant in mutants:
            known = _results().get(mutant.name, {})
            if key in known or (key != NOW and known.get(NOW, {}).get("by") != SURVIVED):
                continue
            import_first(ALWAYS + needed(mutant.path))
            found = copy.judge(mutant)
            _add(mutant.name, key, found)
            print(f"{found['by']} ({found['seconds']} s): {mutant.name}", flush=True)


if __name__ == "__main__":
    main()
