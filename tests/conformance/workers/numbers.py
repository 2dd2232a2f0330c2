"""Work that needs no framework: units of plain numbers, a subject."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.workers.execute import Unit
from conformance.workers.interpreters import NUMPY, Home
from mha_core.dtypes import round_to
from mha_core.reference import pipeline as reference


@dataclass(frozen=True)
class Squares(Unit):
    """The squares of `numbers`, each after `seconds`; -1 ends the process."""

    numbers: tuple[int, ...]
    seconds: float = 0.0
    name: str = NUMPY

    @property
    def home(self) -> Home:
        return Home(self.name, 30.0)

    def __len__(self) -> int:
        return len(self.numbers)

    def run(self, start: int) -> Iterator[tuple[int, int]]:
        for number in self.numbers[start:]:
            time.sleep(self.seconds)
            if number == -1:
                os._exit(7)
            yield number**2, os.getpid()

    def lost(self, item: int, reason: str) -> str:
        return f"{self.numbers[item]}: {reason}"


class Right:
    """The reference, as somebody's own subject."""

    name = "right"
    dtypes = ("float32", "float64")

    def __init__(self, dtype):
        self.dtype = dtype

    def prepare(self, config, weights):
        return lambda inputs: {"output": round_to(reference.run(config, weights, inputs).output, self.dtype)}
