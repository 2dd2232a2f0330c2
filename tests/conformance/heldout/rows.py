"""The held-out layers: one row for each, gathered from the files of `themes`.

A row differs from the definition by one attention variant or porting mistake that somebody else made; a pair by two.
Whoever changes the diagnosis must not look into the hidden half, nor at what is said of it.
"""

import zlib
from dataclasses import dataclass
from importlib import import_module

from conformance.bounds.precision import Precision
from conformance.subjects.ask import CannotExpress

THEMES = (
    *("scores", "masks", "softmaxes", "heads", "parameters", "positions", "calls"),
    *("threads", "ports", "papers", "proposals", "porters", "repositories", "checkpoints", "kernels"),
    *("variants", "variants_2", "variants_3"),
)

LOOKED_AT = frozenset(("variants", "variants_2", "variants_3"))
"""Themes whose rows were all looked at: none of them is hidden."""

_ROWS = {}


@dataclass(frozen=True)
class Row:
    """One held-out layer.

    Args:
        id: its name.
        wrong: what it does in place of the definition, in a sentence.
        source: where that was seen: a paper, a file of a repository, or a thread.
        stages: the stage at which it first shows, by the definition; several where the same formula may stand at
            either, such as a factor of the queries or of their scores.
        layer: the subclass of Layer.
    """

    id: str
    wrong: str
    source: str
    stages: tuple[str, ...]
    layer: type

    @property
    def is_hidden(self):
        """About half of the rows of the other themes, by a rule that looks at the id alone."""
        return self.layer.__module__.rpartition(".")[2] not in LOOKED_AT and zlib.crc32(self.id.encode()) % 2 == 0

    def subject(self):
        return HeldOut(self.id, self.layer)


@dataclass(frozen=True)
class HeldOut:
    """A row as `mha diagnose --subject` takes it: an object with `prepare`; it shows its output alone."""

    name: str
    layer: type
    dtype = "float64"
    dtypes = ("float64",)
    device = "cpu"
    precision = Precision.of("float64")

    def supports(self, config, inputs):
        return self.layer.supports(config, inputs)

    def prepare(self, config, weights):
        if config.parts:
            raise CannotExpress(f"no {config.parts[0]}")
        return lambda inputs: {"output": self.layer(config, weights, inputs).output()}


def held_out(id, wrong, *, source, stages):
    """Make the class below a row."""

    def register(layer):
        assert id not in _ROWS, id
        _ROWS[id] = Row(id, wrong, source, tuple(stages.split()), layer)
        return layer

    return register


def single_rows():
    """Id -> each row with one fault."""
    for theme in THEMES:
        import_module(f"tests.conformance.heldout.themes.{theme}")
    return dict(_ROWS)


def pair_rows():
    """Id -> each row with two faults."""
    from tests.conformance.heldout.pairs import pairs

    return {row.id: row for row in pairs()}


def half(rows, which):
    """Of rows by id, those that are "open", "hidden", or "all"."""
    return {id: row for id, row in rows.items() if which in ("all", "hidden" if row.is_hidden else "open")}
