"""A diagnosis in words: its causes, how sure they are, and what shows them; on one screen, or whole."""

import re
from dataclasses import dataclass, replace
from typing import Any

from mha_core.errors import fitted, listed, wrapped

ROWS = 12  # most rows of a diagnosis on one screen, of 80 columns
READINGS = 2  # most readings of one fault that are said, and most of which the ids are
MEASURED = "measured"  # in place of the id of a bug that is not on file
DETAIL = " In detail: "  # what stands in a sentence between the fault and how it is made, which is said last
SAID_BEFORE = re.compile(r"(: [^:]*?\.)( Or \(no call told them apart\): [^:]*)\1")  # the end of two readings
LEGEND = {
    **{"B": "batch size", "L": "length", "Lq": "query length", "Lk": "key length", "Lp": "past length"},
    "Do": "output width",
    **{"H": "heads", "G": "key/value heads", "d": "width of a head", "dv": "width of a value head"},
    "p": "dropout rate",
}
DROPOUT = "dropout of the attention weights"  # in place of "heads' outputs", which show it first
FIRST = "First wrong step"  # what a cause begins with of which the step alone is known
MADE = {  # stage -> what is meant, and how it is made
    "queries": "queries (projected, and split into heads)",
    "keys": "keys (projected, split into heads, and joined to past ones)",
    "values": "values (projected, split into heads, and joined to past ones)",
    "scores": "scores (queries @ keys^T, scaled, plus the bias)",
    "weights": "attention weights (softmax of the scores that the mask allows)",
    "heads": "heads' outputs (attention weights @ values)",
    "output": "output (heads joined, and projected)",
}


@dataclass(frozen=True)
class Cause:
    """A cause of a difference between a subject (a tested layer) and the reference.

    Attributes:
        stage: the first wrong stage; several, joined by "or", where the bugs can't be told apart.
        what: what is wrong, in a sentence.
        change: what to change; "" where that is not known.
        bugs: the ids, in this project's list, of the bugs that are this cause; several where they can't be told apart.
        is_common: whether this mistake is common in public code, and another cause in the same Brief is rare there.
        label: "Cause" if it explains all differences, "Likely cause" if most; "" if only `stage` is known.
        where: the stages that it changes, in words, if these are several of queries, keys and values; else "".
    """

    stage: str
    what: str
    change: str = ""
    bugs: tuple[str, ...] = ()
    is_common: bool = False
    label: str = ""
    where: str = ""

    @property
    def line(self) -> str:
        """Return the whole cause in one line.

        >>> Cause("scores", "They are doubled.", "Halve them.", ("scores-doubled",)).line
        'scores: They are doubled. Change: Halve them. (scores-doubled)'
        """
        return " ".join(self.lines())

    def lines(self, number: int = 0) -> list[str]:
        """Return the cause in lines: what is wrong, what to change, details. `number` (0: none) goes into the label."""
        lead = "" if self.change.startswith("Next: ") else "Change: "  # advice, and no change
        on_file = 0 < len(self.bugs) <= READINGS and MEASURED not in " ".join(self.bugs)
        ids = f" ({' or '.join(self.bugs)})" if on_file else ""
        label = re.sub("(?<=ause)", f" {number}", self.label, count=1) if number else self.label
        stage = self.where * bool(label) or " or ".join(
            MADE.get(one, one).partition(" (")[0] for one in self.stage.split(" or ")
        )
        is_dropout = self.stage == "heads" and re.search("ropout|keep( /|-mask)", self.what + self.change)
        stage = DROPOUT if is_dropout else stage
        what, _, detail = SAID_BEFORE.sub(r"\1\2.", self.what).partition(DETAIL)
        is_said = not label and what.startswith((FIRST, f"{self.stage} "))
        said = what if is_said else f"{f'{label}, at the {stage}' if label else stage}: {what}"
        found = [said, f"{lead}{self.change}" * bool(self.change and not self.is_common)]
        found = [*filter(None, [*found, f"{DETAIL.strip()} {detail}" * bool(detail)])]
        return [*found[:-1], f"{found[-1]}{ids}"]


@dataclass(frozen=True)
class Brief:
    """A diagnosis of one subject (a tested layer) in words.

    Attributes:
        subject, dtype: the subject's name, and its dtype.
        status: 0: nothing differs; 1: it differs; 2: it could not be judged.
        extent: a line that says in how many cases the subject differs.
        sure: a sentence on how sure the causes are; "" for none.
        causes: the causes; if none is known, a single one that names the first wrong stage.
        seen: lines that show what is wrong.
        more: further lines, such as an example and the cases that were not judged.
        details: lines shown only in the long form (-v).
        is_answer_first: whether `extent` stands before the causes: True if only calls outside the cases are wrong.
    """

    subject: str
    dtype: str
    status: int
    extent: str = ""
    sure: str = ""
    causes: tuple[Cause, ...] = ()
    seen: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    is_answer_first: bool = False

    @property
    def lines(self) -> list[str]:
        """Return the causes in lines: a single cause in several lines, or several causes in one line each."""
        if len(self.causes) == 1:
            return self.causes[0].lines()
        named = [one for one in self.causes if one.label]
        numbers = {id(one): number for number, one in enumerate(named, 1) if len(named) > 1}
        return [" ".join(one.lines(numbers.get(id(one), 0))) for one in self.causes]

    @property
    def said(self) -> list[str]:
        """Return lines: the causes, how sure they are, and what shows them."""
        return [*self.lines, *_symbols(self.lines), *filter(None, [self.sure]), *self.seen]

    @property
    def text(self) -> str:
        """Return the whole text. The causes, if any, come first, unless `is_answer_first`."""
        last = self.causes and not self.is_answer_first
        said = [*self.said, self.extent] if last else [self.extent, *self.said]
        return "\n".join(filter(None, [*said, *self.more, *self.details]))

    def rows(self, width: int = 80, most: int = ROWS, *, head: bool = True) -> list[str]:
        """Return the text in rows of the terminal.

        Args:
            width: the number of columns.
            most: the maximum number of rows. Causes that do not fit are left out, and counted.
            head: whether `extent` and `more` are included, for a text without other context, as in `mha diagnose`.
        """
        indent = "  " * bool(self.causes)
        extent = [row for line in [self.extent] * head for row in wrapped(line, width, indent)]
        blocks = [wrapped(line, width, "  ") for line in self.lines]
        symbols, sure = (
            [row for line in some for row in wrapped(line, width, "  ")]
            for some in (_symbols(self.lines), filter(None, [self.sure]))
        )
        room, shorter = most - len(extent) - len(sure), self
        for last in reversed(range(1, len(self.causes))):  # what to change is left out before a cause is
            if sum(map(len, blocks)) > room:
                changed = [*shorter.causes]
                changed[last] = replace(changed[last], change="")
                shorter = replace(shorter, causes=tuple(changed))
                fewer = [wrapped(line, width, "  ") for line in shorter.lines]
                blocks = fewer if sum(map(len, fewer)) <= room else blocks
        if len(blocks) > 1 and len(self.causes) > 1 and len(blocks[0]) >= room:  # whole or not at all
            shorter = replace(shorter, causes=(replace(self.causes[0], change=""), *shorter.causes[1:]))
            blocks[0] = wrapped(shorter.lines[0], width, "  ")
        flag = "--details" if head else "-v"
        causes = fitted(blocks, room, lambda count: self._left_out(count, flag, width))
        fits = sum(map(len, (extent, *blocks, symbols, sure))) <= most
        rows, after = [*causes, *symbols * fits, *sure], extent
        if not self.causes or self.is_answer_first:
            rows, after = [*extent, *rows], []
        for lines in (self.seen, self.more if head else ()):
            for line in lines:
                added = [line] if line.startswith("rerun: ") else wrapped(line, width, "  ")  # which is copied
                rows += added if len(rows) + len(added) + len(after) <= most or not self.causes else []
            rows, after = [*rows, *after], []
        return rows

    def _left_out(self, count: int, flag: str, width: int) -> str:
        """Return the row about the last causes, which are left out, with their ids where these fit."""
        ids = listed([" or ".join(one.bugs) for one in self.causes[-count:] if one.bugs], READINGS)
        rows = [f"... and {count} more{some}: add {flag}" for some in (f" ({ids})" * bool(ids), "")]
        return next((row for row in rows if len(row) <= width), rows[-1])

    def to_dict(self) -> dict[str, Any]:
        """Return the Brief as a dict of JSON values."""
        names = ("subject", "dtype", "text", "sure")
        keys = ("stage", "what", "change")
        causes = [{**{key: getattr(one, key) for key in keys}, "bugs": list(one.bugs)} for one in self.causes]
        return {**{name: getattr(self, name) for name in names}, "causes": causes}


def _symbols(lines: list[str]) -> list[str]:
    """Return a line on the symbols of the formulas in these lines; none where there are no formulas."""
    used = set(re.findall(r"(?<![\w.'-])(?!Do not)[A-Za-z]+(?![\w'])", " ".join(lines)))
    named = [f"{name}: {words}" for name, words in LEGEND.items() if name in used]
    return [f"({', '.join(named)})"] if named else []
