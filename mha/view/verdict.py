"""Verdict: whether what a page shows is what the layers used, in one line, and layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

from mha.view.data import RECORDED, Seen, Sources
from mha_core.errors import shown


@dataclass(frozen=True)
class Line:
    """A sentence about numbers (`text`), and whether they are within their bounds (`is_good`)."""

    is_good: bool
    text: str


@dataclass(frozen=True)
class LayerLine:
    """A row in the page's table of layers, for one Part (one layer in one forward pass).

    Attributes:
        cells: "recorded" or name of a backend -> (text of error / allowed error, whether the ratio is at most 1).
        apart: text of the largest difference / allowed difference of compared weights; "" if none are compared.
        notes: remarks, for example on fully masked rows.
    """

    layer: str
    kind: str
    sizes: str
    cells: dict[str, tuple[str, bool]]
    apart: str
    notes: tuple[str, ...]


MESSAGES = 3
"""Most sentences about what differs in one layer."""


def verdict(parts: Sequence[Seen], sources: Sources) -> Line:
    """Return the line on top of the page."""
    dtypes = " and ".join(dict.fromkeys(one.part.dtype for one in parts))
    wrong = [one for one in parts if not _good(one, RECORDED)]
    others = [backend.name for backend in sources.backends]
    differing = [name for name in others if not all(_good(one, name) for one in parts)]
    if wrong:
        worst = max(wrong, key=lambda one: one.nearness.ratios[RECORDED])
        text = (
            f"What you see is NOT what the layers used: in {_count(wrong, parts)} the recorded output is not "
            f"what these weights give. {shown(worst.part.layer)}: error / allowed {_times(worst, RECORDED)}."
        )
        return Line(False, text)
    worst = max(parts, key=lambda one: one.nearness.ratios[RECORDED])
    text = (
        f"What you see is what the layers used: in {_count(parts, parts)} the recorded output is the "
        f"definition's, off by at most {_times(worst, RECORDED)} of what rounding in {dtypes} allows"
    )
    if differing:
        name = differing[0]
        own = max(parts, key=lambda one: one.nearness.ratios[name])
        more = f"But {name} is NOT: {shown(own.part.layer)}: error / allowed {_times(own, name)}."
        return Line(False, f"{text}. {more}")
    for name in others:
        own = max(parts, key=lambda one: one.nearness.ratios[name])
        text += f"; every stage of {name} by at most {_times(own, name)}"
    return Line(True, f"{text}.")


def lines_of(parts: Sequence[Seen]) -> list[LayerLine]:
    """Return a row for every Part."""
    passes = max((one.part.number for one in parts), default=0) > 0
    return [_line(one, passes=passes) for one in parts]


def _line(one: Seen, *, passes: bool) -> LayerLine:
    part, nearness = one.part, one.nearness
    name = f"{part.layer} #{part.number + 1}" if passes else part.layer
    groups = "" if part.config.num_kv_heads == part.config.num_heads else f" on {part.config.num_kv_heads} key heads"
    steps = f", {len(part.calls)} calls" if len(part.calls) > 1 else ""
    sizes = f"{part.config.num_heads} heads{groups}, {part.query_len} x {part.key_len}{steps}"
    cells = {key: (_times(one, key), _good(one, key)) for key in nearness.ratios}
    notes = []
    for key, messages in nearness.messages.items():
        notes += [f"{key}: {message}" for message in messages[:MESSAGES]]
    if nearness.keyless:
        notes.append(f"{nearness.keyless} rows may attend to no key: they are blank, and left out of the comparison")
    if nearness.not_numbers:
        notes.append(f"{nearness.not_numbers} weights are not a number (NaN), as the recorded inputs make them")
    apart = "" if nearness.apart is None else f"{nearness.apart:.2g}"
    return LayerLine(name, part.kind, sizes, cells, apart, tuple(notes))


def _good(one: Seen, name: str) -> bool:
    return not one.nearness.messages.get(name)


def _times(one: Seen, name: str) -> str:
    return f"{one.nearness.ratios[name]:.2g}"


def _count(some: Sequence[Seen], parts: Sequence[Seen]) -> str:
    few, total = (len({one.part.layer for one in these}) for these in (some, parts))
    if total == 1:
        return "the one layer"
    return f"all {total} layers" if few == total else f"{few} of {total} layers"
