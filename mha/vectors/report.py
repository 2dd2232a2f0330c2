"""What was found of a folder of answers, on one screen: the answer first, then why, then what was not answered."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conformance.diagnosis.brief import brief
from conformance.diagnosis.diagnose import Diagnosis
from mha.vectors.judge import Judgement, Verdict
from mha_core.errors import listed, wrapped

SHOWN, WIDTH, ROWS = 3, 80, 11
"""Most ids of a line; columns; most rows of the first diagnosis, with others in two each."""


def lines(found: Judgement, rows: Sequence[Mapping[str, Any]], *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines about a Judgement for the screen. `rows`: the manifest's rows, one for each test vector."""
    differ, broken, left = found.of("differs"), found.of("refused"), found.of("not answered")
    counts = [f"{len(found.of('equal'))} equal", f"{len(differ)} differ", f"{len(broken)} are refused"]
    yield f"{', '.join(counts[: 3 if broken else 2])}; {len(left)} not answered"
    for number, one in enumerate(found.diagnoses):
        yield from _diagnosed(one, ROWS if number == 0 else 2, found)
    for verdict in broken[: None if verbose else SHOWN]:
        yield f"Refused: {verdict.message}"
    if len(broken) > SHOWN and not verbose:
        yield f"... and {len(broken) - SHOWN} more that are refused: add -v"
    if found.strangers:
        yield f"Files that answer no vector: {listed(found.strangers, SHOWN)}"
    if left:
        yield from wrapped(_left(found, rows), WIDTH, "  ")
    if verbose:
        yield from map(_verdict, found.verdicts)
    elif differ:
        yield "Every vector, with its numbers: add -v"


def _diagnosed(one: Diagnosis, most: int, found: Judgement) -> Iterator[str]:
    """What explains the answers of one dtype that differ, and an example."""
    own = [each for each in found.of("differs") if each.dtype == one.dtype]
    answered = [each for each in found.of("differs", "equal") if each.dtype == one.dtype]
    told = (*one.explanations, *one.partly)
    best = next((each for each in told if each.bugs), None)
    said = f"{one.dtype}: {len(own)} of {len(answered)} differ"
    if best is not None:
        said += f"; {best.name} explains {best.failing} of {best.of_failing}"
    yield from wrapped(said, WIDTH, "  ")
    if most > 2:
        yield from brief(one).rows(WIDTH, most, head=False)
        example = next((each for each in own if each.id.startswith(f"{one.case}-")), own[0])
        yield from wrapped(f"{example.id}: {example.message}", WIDTH, "  ")
        yield from wrapped(f"Differ: {listed([each.id for each in own], SHOWN)}", WIDTH, "  ")


def _left(found: Judgement, rows: Sequence[Mapping[str, Any]]) -> str:
    """What was not answered: dtypes, forms and features that no answer has."""
    answered = {one.id for one in found.verdicts if one.status != "not answered"}
    words = {row["id"]: [row["dtype"], row["form"], *row["features"]] for row in rows}
    asked = {word for id in answered for word in words[id]}
    never = Counter(
        word
        for id, own in words.items()
        if id not in answered
        for word in own
        if word not in asked and not word.endswith("_dim")
    )
    some = f", nothing with {', '.join(f'{word} ({count})' for word, count in never.most_common(8))}" if never else ""
    return f"Not answered: {len(words) - len(answered)} of {len(words)}{some}"


def _verdict(one: Verdict) -> str:
    ratio = "" if one.ratio is None else f"  {one.ratio:.2g} of what is allowed ({', '.join(one.judged)})"
    return f"{one.status:12}  {one.id}{ratio}" + (f": {one.message}" if one.message else "")
