"""How often `mha.where` names just the wrong modules of a port.

`python -m tests.mha.substitution.minilm.measure torch linen`. The faults are divided into two halves by a seeded
shuffle. Details are printed of the first alone: who improves `mha.where` may look at these, and only counts the second.
"""

from __future__ import annotations

import argparse
import importlib
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import mha
from mha.port.model import load_trained

TEXTS = ("A cat sat.", "The second text is somewhat longer than the first.", "Two birds of one flock.")
PAIRS = 8
EXACT, AROUND, LOST = "exact", "exact but for unjudged", "around, for the fault took the pair away"
CONTAINS, MISSES = "contains", "misses"
CLASSES = (EXACT, AROUND, LOST, CONTAINS, MISSES)
"""AROUND: the module has no original in the right port either. LOST: there it is judged, and with the fault not."""

HERE = "tests.mha.substitution"
PORTS = {name: f"{HERE}.minilm.{name}_port" for name in ("linen", "keras", "torch", "nnx", "gluon")}
PORTS |= {name.lower(): f"{HERE}.decoder.linen_port:{name}" for name in ("LLAMA", "LLAMA_LEFT", "GEMMA2")}
PORTS["from_keras"] = f"{HERE}.from_keras.torch_port"
PORTS |= {"qwen": f"{HERE}.qwen.nnx_port", "vision": f"{HERE}.vision.keras_port"}
"""Name -> the module with the port, or where in a module it is. The original is MiniLM if it names no other."""

Names = frozenset[str]


@dataclass(frozen=True)
class Original:
    model: Any
    inputs: dict[str, NDArray[np.int64]]
    state: dict[str, NDArray[np.float32]]

    @classmethod
    def load(cls) -> Original:
        encoder = load_trained("minilm")
        batch = {name: value.numpy() for name, value in encoder.batch(TEXTS).items()}
        batch["token_type_ids"][1, 5:] = 1
        state = {name: value.numpy() for name, value in encoder.model.state_dict().items()}
        return cls(encoder.model, batch, state)


class Measured:
    """One port and the original."""

    def __init__(self, name: str) -> None:
        module, _, attribute = PORTS[name].partition(":")
        self.module: Any = importlib.import_module(module)
        if attribute:
            self.module = getattr(self.module, attribute)
        own = getattr(self.module, "original", None)
        self.original = Original(*own()) if own else Original.load()
        self.right = self.report()
        self.judged = _judged(self.right)

    def report(self, fault: str = "") -> mha.WhereReport:
        port = self.module.build(self.original.state, fault)
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "port.safetensors"
            with mha.capture(port, path, modules=True):
                self.module.call(port, self.original.inputs)
            return mha.where(self.original.model, path, inputs=self.original.inputs)

    def answers(self, fault: str) -> list[Names]:
        """What may be named: for each fault what FAULTS says, or, of a few, something else that is right too."""
        found: list[Names] = [frozenset()]
        for name in fault.split(" + "):
            ways = [self.module.FAULTS.get(name, ()), *self.module.ALSO.get(name, ())]
            found = [have | frozenset(map(_short, way)) for have in found for way in ways]
        return found

    def classify(self, fault: str, report: mha.WhereReport) -> str:
        """The worst that is true is not asked for: the best of the right answers counts."""
        wrong, judged = frozenset(map(_short, report.wrong)), _judged(report)
        ranks = [MISSES]
        for right in self.answers(fault):
            around = frozenset(_judged_around(name, judged | self.judged) for name in right)
            lost = frozenset(_judged_around(name, judged) for name in right)
            for names, rank in ((right, EXACT), (around, AROUND), (lost, LOST)):
                if wrong == names:
                    ranks.append(rank)
                elif names <= wrong:
                    ranks.append(CONTAINS)
        return min(ranks, key=CLASSES.index)


def _short(name: str) -> str:
    """Without the name of the model, which stands before those of its parts in Keras; with one separator."""
    return name.removeprefix("sentences/").removeprefix("vision/").replace(".", "/")


def _judged(report: mha.WhereReport) -> Names:
    return frozenset(_short(result.name) for result in report.results if result.status != "not judged")


def _judged_around(name: str, judged: Names) -> str:
    """The module itself, or the next one around it that is judged, as docs/where.md has it."""
    while name and name not in judged:
        name = name.rpartition("/")[0]
    return name


def halves(names: list[str]) -> tuple[list[str], list[str]]:
    shuffled = sorted(names)
    random.Random(20261125).shuffle(shuffled)
    middle = (len(shuffled) + 1) // 2
    return shuffled[:middle], shuffled[middle:]


def pairs_of(names: list[str], faults: dict[str, tuple[str, ...]], seed: int) -> list[str]:
    """Random pairs of faults in other modules than each other's."""
    drawn = random.Random(seed)
    found: list[str] = []
    while len(found) < PAIRS // 2:
        first, second = drawn.sample(names, 2)
        apart = not set(faults[first]) & set(faults[second])
        if apart and f"{first} + {second}" not in found and f"{second} + {first}" not in found:
            found.append(f"{first} + {second}")
    return found


def _details(fault: str, rank: str, report: mha.WhereReport, measured: Measured) -> Iterator[str]:
    yield f"  {rank}: {fault}: said {list(report.wrong)}, right {[sorted(names) for names in measured.answers(fault)]}"
    if rank == EXACT:
        return
    truth = set().union(*measured.answers(fault))
    around = {"", *(name[:end] for name in truth for end in range(len(name)) if name[end] == "/")}
    for result in report.results:
        if result.name in report.wrong or _short(result.name) in truth | around:
            ratio = "-" if result.ratio is None else f"{result.ratio:.3g}"
            pair = f"{result.original} ({result.how})"
            notes = "; ".join([f"place {result.place!r}", *result.notes])
            yield f"      {result.name!r} {result.status} {ratio} {pair} {result.reason} {notes}"


def _right(report: mha.WhereReport) -> str:
    ratios = [result.ratio for result in report.results if result.ratio is not None]
    equal, wrong = sum(result.status == "equal" for result in report.results), len(report.wrong)
    return (
        f"{len(report.results)} modules: {len(ratios)} with a ratio, {equal} equal, "
        f"{wrong} wrong {list(report.wrong)}, "
        f"{len(set(report.unjudged))} unjudged; largest ratio {max(ratios, default=float('nan')):.3g}"
    )


def measure(port: str, only: int | None) -> Iterator[str]:
    torch.set_num_threads(1)
    measured = Measured(port)
    report = measured.right
    yield f"{port}, the right port: {_right(report)}"
    for result in report.results:
        if result.name in set(report.unjudged):
            yield f"  unjudged: {result.name}: {result.reason}"
    for variant in measured.module.RIGHT:
        yield f"{port}, right too, {variant}: {_right(measured.report(variant))}"
    faults = measured.module.FAULTS
    for half, names in enumerate(halves(list(faults)), start=1):
        if only not in (None, half):
            continue
        for title, cases in (("faults", names), ("pairs", pairs_of(names, faults, half))):
            ranks: Counter[str] = Counter()
            start = time.perf_counter()
            for case in cases:
                try:
                    report = measured.report(case)
                except Exception as error:
                    ranks["no report"] += 1
                    if half == 1:
                        yield f"  no report: {case}: {type(error).__name__}: {error}"
                    continue
                rank = measured.classify(case, report)
                ranks[rank] += 1
                if half == 1:
                    yield from _details(case, rank, report, measured)
            counts = ", ".join(f"{rank} {ranks[rank]}" for rank in (*CLASSES, "no report"))
            spent = (time.perf_counter() - start) / len(cases)
            yield f"{port}, half {half}, {len(cases)} {title}: {counts}; {spent:.1f} s each"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("ports", nargs="*", metavar="PORT", help=f"of {', '.join(PORTS)}; default: all")
    parser.add_argument("--half", type=int, choices=(1, 2))
    arguments = parser.parse_args()
    for name in arguments.ports or PORTS:
        for line in measure(name, arguments.half):
            print(line, flush=True)
