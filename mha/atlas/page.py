"""The page of an atlas: its JSON as text, in short lists that a phone shows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mha.atlas.run import CANNOT, FOLLOWS, PARTS
from mha_core.errors import listed, shown

SHOWN, LONGEST = 6, 90
"""Most vectors of a line; most letters of an exception."""

Json = Mapping[str, Any]


def answered(cells: Sequence[Json]) -> int:
    """Return how many cells have an answer."""
    return sum(cell["status"] != CANNOT for cell in cells)


HEAD = """# Where engines part

Many programs compute attention, and they agree until a call is unusual. Here each is asked the same small questions,
and judged by the [vectors](vectors.md) that it can take. Every line is from a run on a CPU: {ran} engines,
{answered} of {asked} questions answered; for the others an engine has no argument. `mha atlas` writes this page
([how](#run-it)). Layers of other packages have [their own](atlas-layers.md).

"The definition" is [this project's](definition.md). To part from it is no fault where an engine's own page says so.

## Question by question
"""


def page(found: Json, head: str = HEAD, foot: str = "") -> str:
    """Return a result of `mha.atlas.run.whole` as Markdown between `head` and `foot` (default: a note on rerunning)."""
    return "\n".join(_lines(found, head, foot or RUN)).rstrip("\n") + "\n"


def _lines(found: Json, head: str, foot: str) -> Iterator[str]:
    ran = [one for one in found["engines"] if not one["why"]]
    cells = [cell for one in ran for cell in one["cells"]]
    yield head.format(ran=len(ran), answered=answered(cells), asked=len(cells))
    for about in dict.fromkeys(one["about"] for one in found["questions"]):
        yield f"### {about}\n"
        for question in found["questions"]:
            if question["about"] == about:
                yield from _question(question, ran)
    yield "## One by one\n"
    for one in found["engines"]:
        yield from _engine(one, found["questions"])
    yield foot


def _question(question: Json, ran: Sequence[Json]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in ran:
        for cell in one["cells"]:
            if cell["question"] == question["id"]:
                how = "" if cell["status"] == CANNOT else _how(cell["how"])
                groups.setdefault((cell["status"], how), []).append(one["id"])
    yield f"`{question['id']}` {question['text']}\n"
    for status in (FOLLOWS, PARTS):
        for (own, how), ids in groups.items():
            if own == status:
                yield f"- {'**as the definition**' if status == FOLLOWS else how}: {', '.join(ids)}"
    if left := groups.get((CANNOT, "")):
        rest = "all" if len(left) == len(ran) else f"{len(left)} other{'s' * (len(left) > 1)}"
        yield f"- can't be asked: {rest}"
    yield ""


def _how(how: str) -> str:
    return f"`{shown(how, LONGEST).replace('`', '')}`" if how.startswith("raises ") else how


def _engine(one: Json, questions: Sequence[Json]) -> Iterator[str]:
    yield f"### {one['id']}\n\n`{one['call']}`\n"
    if one["why"]:
        yield f"Not asked: {one['why']}\n"
        return
    versions = [f"{name} {version}" for name, version in one["versions"].items()]
    yield f"- {', '.join([*versions, 'Python ' + one['python']])}, on {one['date']}"
    for dtype, judged in one["vectors"].items():
        yield f"- {dtype}: {_judged(judged)}"
    cells = {cell["question"]: cell for cell in one["cells"]}
    parts = [f"{id}: {_how(cell['how'])}" for id, cell in cells.items() if cell["status"] == PARTS]
    yield f"- parts: {'; '.join(parts) or 'nowhere'}"
    left = [id for id, cell in cells.items() if cell["status"] == CANNOT]
    yield f"- follows: {len(cells) - len(parts) - len(left)} of {len(cells)}"
    yield f"- can't be asked: {', '.join(left) or 'none'}\n"


def _judged(judged: Json) -> str:
    differ, raised, equal = judged["differ"], judged["raised"], judged["equal"]
    if not differ and not equal:
        return "refused" if raised else "none that it can be asked"
    said = f"{equal} of {equal + len(differ) + len(raised)} vectors equal"
    if judged["gradients"]:
        said += f", {judged['gradients']} with gradients"
    little = f" ({judged['little']} by little)" if judged["little"] else ""
    for word, ids in ((f"differ{little}", differ), ("raise", raised)):
        if ids:
            said += f"; {len(ids)} {word}: {listed([id.split('-', 1)[1].rsplit('-', 1)[0] for id in ids], SHOWN)}"
    return said


RUN = """## Run it

```sh
pip install '.[onnxruntime]'
mha atlas 'ort-*'                               # these, on the screen
mha atlas --json atlas.json --page atlas.md     # all that are installed
mha atlas --python mlx=mlx/bin/python mlx       # in an environment of its own, which has mha-parity too
mha atlas --diff docs/_data/atlas.json 'ort-*'  # what is another since
mha atlas mine:attend                           # a function of your own of arrays: attend(q, k, v, *, mask=None)
```

Each engine has an extra, which it names where it is missing. It runs in a process of its own: one that hangs, prints or
ends its process costs a line. A new engine is a function of some ten lines in `mha/atlas/engines/`, whose arguments say
what it can be asked, and a table in `mha/atlas/engines.toml`. A new question is a function in
`mha/atlas/questions.py`: the call, and what its answers are called.

Vectors are judged as [there](vectors.md#the-rule): heads, in the engine's dtypes. Past keys are put before new ones,
and masks of several sources are given combined. "By little": off by at most 1e-6 of the largest
number in float64, 1e-3 in float32, 0.05 in float16 and 0.2 in bfloat16, as where it is computed in a narrower dtype.
"""
