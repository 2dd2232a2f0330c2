"""Damaged files of every kind, read in a process of their own: what must come is a refusal, or the same layer."""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.damage import Damaged, damaged
from tests.fuzz.judging import FINDINGS, Outcome, bases_of, judge

SECONDS = 10.0
"""Longer than that is a hang."""

MEMORY = 1 << 30
"""More than that above what the process began with is too much."""

LAST_RESORT = 8 << 30
"""The process may not take more than that at all."""


@dataclass
class Tally:
    """What came of all files."""

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[tuple[str, Damaged, Outcome]] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0
    seconds: float = 0.0

    def table(self) -> str:
        """In lines."""
        names = ("refused", "same", "renamed", "damaged numbers", "other", *FINDINGS)
        lines = [f"{'kind':12} {'files':>6} " + " ".join(f"{name:>15}" for name in names)]
        total: Counter[str] = Counter()
        for kind, counts in self.verdicts.items():
            total += counts
            lines.append(f"{kind:12} {sum(counts.values()):6} " + " ".join(f"{counts[name]:15}" for name in names))
        lines.append(f"{'all':12} {sum(total.values()):6} " + " ".join(f"{total[name]:15}" for name in names))
        rate = sum(total.values()) / max(self.seconds, 1e-9)
        lines.append(
            f"{self.seconds:.0f} s, {rate:.0f} files a second; the slowest took {self.slowest:.2f} s, the largest "
            f"{self.largest / 1e6:.0f} MB"
        )
        for kind, one, outcome in self.findings[:40]:
            lines.append(f"{outcome.verdict}: {kind}, {one.what}: {outcome.text[-700:]}")
        return "\n".join(lines)


# Reading, in the other process ---------------------------------------------------------------------------


def _work(kind: str, pipe: Connection, folder: str) -> None:
    """The other process: judge what comes, until nothing more does."""
    bases = bases_of(kind, Path(folder))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (LAST_RESORT, LAST_RESORT))
    before = _peak(reset=True)
    pipe.send("ready")
    while True:
        message = pipe.recv()
        if message is None:
            return
        index, one = message
        _peak(reset=True)
        start = time.perf_counter()
        outcome = judge(kind, bases[index], one, Path(folder))
        seconds, memory = time.perf_counter() - start, max(0, _peak() - before)
        verdict = "memory" if memory > MEMORY else outcome.verdict
        pipe.send(Outcome(verdict, outcome.text, seconds, memory))


def _peak(*, reset: bool = False) -> int:
    """The most memory that this process has had since the last reset, in bytes."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


# Asking, in this process ----------------------------------------------------------------------------------


class Reader:
    """The other process, started again where it hung or fell."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(self.kind, theirs, str(self.folder)), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    def ask(self, index: int, one: Damaged) -> Outcome:
        """What comes of one file."""
        self.pipe.send((index, one))
        if not self.pipe.poll(SECONDS):
            self.process.kill()
            self.process.join()
            self._start()
            return Outcome("hang", f"no answer in {SECONDS:g} s", SECONDS)
        try:
            answer: Outcome = self.pipe.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            self._start()
            return Outcome("crash", f"the process ended with {code}")
        return answer

    def close(self) -> None:
        """End it."""
        self.pipe.send(None)
        self.process.join()


class Here:
    """This process in its place, for a sample in the tests: nothing ends a hang then, and memory is not measured."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.bases = kind, folder, bases_of(kind, folder)

    def ask(self, index: int, one: Damaged) -> Outcome:
        """What comes of one file."""
        return judge(self.kind, self.bases[index], one, self.folder)

    def close(self) -> None:
        """Nothing to end."""


def run(
    examples: int,
    kinds: tuple[str, ...],
    start: int,
    keep: Path | None = None,
    reader: type[Reader] | type[Here] = Reader,
) -> Tally:
    """So many files of all kinds together; the same ones for the same arguments."""
    tally, begun = Tally(), time.perf_counter()
    for number, kind in enumerate(kinds):
        count = examples // len(kinds) + (number < examples % len(kinds))
        if count:
            _run_kind(kind, count, start, tally, keep, reader)
    tally.seconds = time.perf_counter() - begun
    return tally


def _run_kind(
    kind: str, count: int, start: int, tally: Tally, keep: Path | None, reader_of: type[Reader] | type[Here]
) -> None:
    counts = tally.verdicts.setdefault(kind, Counter())
    with tempfile.TemporaryDirectory() as name:
        bases = bases_of(kind, Path(name))
        reader = reader_of(kind, Path(name))

        @seed(start)
        @settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(st.data())
        def each(data: Any) -> None:
            if sum(counts.values()) >= count:
                return
            index = data.draw(st.integers(0, len(bases) - 1))
            one = data.draw(damaged(bases[index].whole.data, bases[index].numbers))
            outcome = reader.ask(index, one)
            counts[outcome.verdict] += 1
            tally.slowest, tally.largest = max(tally.slowest, outcome.seconds), max(tally.largest, outcome.memory)
            if outcome.is_finding:
                tally.findings.append((kind, one, outcome))
                if keep is not None:
                    _keep(keep, kind, index, one, outcome, len(tally.findings))

        try:
            each()
        finally:
            reader.close()


def _keep(folder: Path, kind: str, index: int, one: Damaged, outcome: Outcome, number: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{number:04}-{kind}.bin"
    file.write_bytes(one.data)
    about = {"kind": kind, "index": index, "what": one.what, "on_purpose": one.on_purpose}
    file.with_suffix(".json").write_text(json.dumps({**about, "verdict": outcome.verdict, "text": outcome.text}))


def run_again(file: Path) -> Outcome:
    """Judge a kept file again, in this process."""
    about = json.loads(file.with_suffix(".json").read_text())
    one = Damaged(file.with_suffix(".bin").read_bytes(), about["what"], about["on_purpose"])
    with tempfile.TemporaryDirectory() as name:
        base = bases_of(about["kind"], Path(name))[about["index"]]
        return judge(about["kind"], base, one, Path(name))
