"""How often `mha.where` names just the wrong modules of a port of MiniLM.

`python -m tests.mha.substitution.minilm.measure linen`. The faults are divided into two halves by a seeded shuffle.
Details are printed of the first alone: who improves `mha.where` may look at these, and only counts the second.
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
from mha.port.encoder import load_encoder

TEXTS = ("A cat sat.", "The second text is somewhat longer than the first.", "Two birds of one flock.")
PAIRS = 8
EXACT, AROUND, CONTAINS, MISSES = "exact", "exact but for unjudged", "contains", "misses"
CLASSES = (EXACT, AROUND, CONTAINS, MISSES)

Names = frozenset[str]


@dataclass(frozen=True)
class Original:
    model: Any
    inputs: dict[str, NDArray[np.int64]]
    state: dict[str, NDArray[np.float32]]

    @classmethod
    def load(cls) -> Original:
        encoder = load_encoder("minilm")
        batch = {name: value.numpy() for name, value in encoder.batch(TEXTS).items()}
        batch["token_type_ids"][1, 5:] = 1
        state = {name: value.numpy() for name, value in encoder.model.state_dict().items()}
        return cls(encoder.model, batch, state)


class Measured:
    """One port and the original."""

    def __init__(self, framework: str) -> None:
        self.framework = framework
        self.module = importlib.import_module(f"tests.mha.substitution.minilm.{framework}_port")
        self.original = Original.load()

    def report(self, fault: str = "") -> mha.WhereReport:
        port = self.module.build(self.original.state, fault)
        arrays = [self.original.inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")]
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "port.safetensors"
            with mha.capture(port, path, modules=True):
                port(*(_to(self.framework, value) for value in arrays))
            return mha.where(self.original.model, path, inputs=self.original.inputs)

    def answers(self, fault: str) -> list[Names]:
        """What may be named: for each fault what FAULTS says, or, of a few, something else that is right too."""
        found: list[Names] = [frozenset()]
        for name in fault.split(" + "):
            ways = [self.module.FAULTS[name], *self.module.ALSO.get(name, ())]
            found = [have | frozenset(way) for have in found for way in ways]
        return found

    def classify(self, fault: str, report: mha.WhereReport) -> str:
        """The worst that is true is not asked for: the best of the right answers counts."""
        wrong, unjudged = frozenset(map(_short, report.wrong)), frozenset(map(_short, report.unjudged))
        ranks = [MISSES]
        for right in self.answers(fault):
            around = frozenset(_judged_around(name, unjudged) for name in right)
            for names, rank in ((right, EXACT), (around, AROUND)):
                if wrong == names:
                    ranks.append(rank)
                elif names <= wrong:
                    ranks.append(CONTAINS)
        return min(ranks, key=CLASSES.index)


def _to(framework: str, value: NDArray[np.int64]) -> Any:
    if framework == "linen":
        import jax.numpy as jnp

        return jnp.asarray(value.astype(np.int32))
    from keras import ops

    return ops.convert_to_tensor(value.astype(np.int32))


def _short(name: str) -> str:
    """Without the name of the model, which stands before those of its parts in Keras."""
    return name.removeprefix("sentences/")


def _judged_around(name: str, unjudged: Names) -> str:
    """The module itself, or the next one around it that is judged, as docs/where.md has it."""
    while name and name in unjudged:
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
    for result in report.results:
        if result.name in report.wrong or _short(result.name) in truth:
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


def measure(framework: str, only: int | None) -> Iterator[str]:
    torch.set_num_threads(1)
    measured = Measured(framework)
    report = measured.report()
    yield f"{framework}, the right port: {_right(report)}"
    for result in report.results:
        if result.name in set(report.unjudged):
            yield f"  unjudged: {result.name}: {result.reason}"
    for variant in measured.module.RIGHT:
        yield f"{framework}, right too, {variant}: {_right(measured.report(variant))}"
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
            yield f"{framework}, half {half}, {len(cases)} {title}: {counts}; {spent:.1f} s each"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("framework", choices=("linen", "keras"))
    parser.add_argument("--half", type=int, choices=(1, 2))
    arguments = parser.parse_args()
    for line in measure(arguments.framework, arguments.half):
        print(line, flush=True)
