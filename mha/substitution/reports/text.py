"""A WhereReport in words: the wrong modules first, then the tree, then a last line."""

import re
from collections.abc import Iterator
from dataclasses import replace
from math import isinf

from mha.recordings.modules.diagnosed import OTHERWISE
from mha.substitution.allowance import FACTOR, number, times_rounding
from mha.substitution.pairing.pairs import plain_kind
from mha.substitution.recorded.ends import BEHIND
from mha.substitution.reports.report import Difference, ModuleResult, WhereReport
from mha_core.errors import listed, shown

COLUMNS, WIDEST = 80, 40
"""Columns of a row of the tree, and those of them that a name may take."""

SHOWN = 12
"""Most names that a line lists, the JSON has them all; and most rows of a tree that nobody asked for."""


def findings(report: WhereReport) -> Iterator[str]:
    """Yield a paragraph on each group of modules with the same mistake, then lines on what was not judged."""
    if report.original == "recording":
        yield from _of_recordings(report)
        yield from report.notes
        return
    for one, *others in wrong_alike(report):
        lines = report.diagnosed.get(one.name, "").splitlines()
        if others:
            lines = [line for line in lines if not line.startswith(f"And {len(others)} more alike: ")]
            names = _some(tuple(_name(each.name) for each in others))
            lines.append(f"So {'is' if len(others) == 1 else 'are'} {len(others)} more: {names}.")
        held = [lines.pop(0)] if lines and OTHERWISE in lines[0] else []  # which says what its parameters are
        plain = replace(one, parameters="") if held and one.parameters == "unseen" else one
        told, *rest = finding(plain, around_of(report, one)).split("\n  ")
        yield "\n  ".join([told, *held, *rest, *lines])
    yield from unjudged(report)


def wrong_alike(report: WhereReport) -> list[list[ModuleResult]]:
    """Return groups of modules that are wrong in the same way; their names differ only in the first number."""
    found: list[list[ModuleResult]] = []
    latest: dict[tuple[object, ...], list[ModuleResult]] = {}
    for one in report.results:
        if one.name not in report.wrong:
            continue
        names = (one.name, one.original, one.place, one.parameters_of)
        alike = (re.sub(r"\d+", "0", name or "", count=1) for name in names)  # of layers, not of norms in one
        key = (*alike, one.kind, one.parameters, one.order, one.own_lines, one.wrong_backward)
        if key not in latest or one.name in report.diagnosed:  # what is said of its attention is its own
            latest[key] = []
            found.append(latest[key])
        latest[key].append(one)
    return found


def unjudged(report: WhereReport) -> Iterator[str]:
    """Yield lines on the parts of a port that were not judged, and further notes."""
    if report.is_no_port:
        yield NO_PORT
        yield from report.notes
        return
    open_: dict[str, list[ModuleResult]] = {}
    for one in report.results:
        if one.status == "not judged" and one.ratio is not None and report.original == "model":
            open_.setdefault(re.sub(r"\d+", "0", one.reason), []).append(one)
    for one, *others in open_.values():
        alike = f" (and {len(others)} alike)" if others else ""
        yield f"Whether {_name(one.name)}{alike} is right is not known yet: {one.reason}."
    if report.equal:
        if report.uncovered:
            yield f"Judged by the model alone, which is equal: {_some(report.uncovered)}."
        yield from report.notes
        return
    paired = [one for one in report.results if one.name in report.uncovered and one.original is not None]
    if paired:
        each = listed([f"{_name(one.name)} ({_original(one)})" for one in paired], 4)
        yield f"Not judged, and with parameters of their own: {each}. The originals, in brackets, get other arrays."
    if alone := tuple(name for name in report.uncovered if name not in {one.name for one in paired}):
        yield (
            f"Not judged, and with parameters of their own: {_some(alone)}. No module of the original "
            "is known to be theirs: name the pairs in a file (--map)."
        )
    yield from report.notes


NO_PORT = (
    "Is this its port? No module in it has the parameters of one of the original's, nor could be judged by one. If it "
    "is, name the pairs in a file (--map)."
)


def tree(report: WhereReport) -> Iterator[str]:
    """Yield a row for each module: its name (indented by depth), its verdict, its ratio, and the original's module.

    Long names are cut in the middle; a reason that is too long for the row has a row of its own.
    """
    width = min(WIDEST, max(2 * one.depth + len(_own(one)) for one in report.results))
    for one in report.results:
        ratio = one.bound if one.ratio is None else one.ratio
        verdict = one.status if ratio is None else f"{one.status} {shown_ratio(ratio)} {one.allowance}"
        if one.causes:
            verdict = f"{one.status} in {', '.join(dict.fromkeys(each.part for each in one.causes))}"
        indent = "  " * min(one.depth, WIDEST // 4)
        row = f"{indent + shown(_own(one), WIDEST - len(indent)):{width}} {verdict}"
        if one.original is not None and one.original != one.name:
            row += f"  {shown(_name(one.original), WIDEST)} ({one.how})"
        reason = f"  {one.reason}" if one.reason else ""
        if one.padding:
            reason += f"  but for {one.padding} rows of padding, on which no other depends, or of queries without a key"
        if one.uncompared:
            reason += f"  not compared: {_some(one.uncompared)}"
        if one is report.results[0] and one.status == "equal" and one.notes and report.original == "model":
            reason += f"  {'; '.join(one.notes)}"
        if one.backward is not None:
            row += f"  backward {one.backward.status}"
            row += "" if one.backward.ratio is None else f" {shown_ratio(one.backward.ratio)}"
        row = row.rstrip()
        below = f"\n{indent}    " if len(row) + len(reason) > COLUMNS else "  "
        yield f"{row}{below}{reason[2:]}" if reason else row


def unseen(report: WhereReport, *, whole: bool = True) -> Iterator[str]:
    """Yield a line on each bug that these inputs can't show; for 16-bit dtypes, also on the smallest visible mistake.

    `whole`: True to name the bugs; False to count them.
    """
    if report.dtype in ("float16", "bfloat16") and any(one.rounding for one in report.results):
        least = sorted((FACTOR * one.rounding, _name(one.name)) for one in report.results if one.rounding)
        yield (
            f"Recorded in {report.dtype}: a fault that moves what a module gives by less than {least[0][0]:.1%} "
            f"({least[0][1]}) to {least[-1][0]:.1%} ({least[-1][1]}) of its size can't be seen. Record in float32."
        )
    if report.undetectable is not None:
        yield from report.undetectable.text(whole=whole).splitlines()
    bugs = dict.fromkeys(one.bug for one in report.unseen)
    if bugs and not whole:
        many = f"{len(bugs)} bug{'s' * (len(bugs) != 1)}"
        yield f"These inputs would not have shown {many} of modules (--unseen lists them)."
        return
    if bugs:
        yield "These inputs would not have shown:"
    for bug in bugs:
        yield f"  {bug}, in {_some(tuple(_name(one.module) for one in report.unseen if one.bug == bug))}"


def last_line(report: WhereReport) -> str:
    """Return a sentence with the verdict, and how many modules were judged."""
    if report.original == "recording":
        return _last_of_recordings(report)
    judged = len(report.judged)
    what = f"{judged} of {len(report.results)} modules were judged"
    if report.wrong:
        groups = [(_name(one.name), len(others)) for one, *others in wrong_alike(report)]
        each = tuple(f"{name} and {more} alike" if more else name for name, more in groups)
        return f"Wrong: {_some(each)}. {what}, the others are equal, or wrong through these."
    if report.uncovered and not report.equal:
        return f"{what}; none is wrong, but not all that have parameters were judged."
    if left := report.results[0].uncompared:
        return f"{what}; none is wrong, but of what the model gives, this was not compared: {_some(left)}."
    if not report.equal:
        return f"{what}; none is wrong, but the model itself was not: what stands between its modules may be wrong."
    return f"Equal: {what}, and none is further from the original in float64 than its allowance."


def around_of(report: WhereReport, one: ModuleResult) -> str | None:
    """Return the name of the innermost module around `one` whose own code is wrong; None if there is none."""
    wrong = [other.name for other in report.results if other.status == "wrong" and other.own_lines]
    outer = [name for name in wrong if not name or one.name.startswith((f"{name}.", f"{name}/"))]
    return max((name for name in outer if name != one.name), key=len, default=None)


def finding(one: ModuleResult, around: str | None = None) -> str:
    """Return a text on one wrong module: its error, the place of the error, and the original's module.

    `around`: name of a wrong module that contains this one, so that either may be to blame; None if there is none.
    """
    if one.wrong_backward:
        return _backward(one)
    if one.causes:
        return "\n".join(_difference(one, each, [one.name]) for each in one.causes)
    where = f"{one.place} " if one.place else ""
    if one.place.startswith("the mask"):
        own = f"{_name(one.name)} ({one.kind}) is wrong in its own lines"
        return "\n  ".join([f"{own}: {one.place} excludes other keys ({one.got:g} entries).", *one.notes])
    what = "by itself"
    if one.among and not one.own_lines:
        what = (
            f"in one or more of its parts {_some(one.among)}: they are written otherwise than their originals, and "
            "should make up for one another"
        )
    elif one.own_lines:
        starts = tuple(f"{name}{dot}" for name in one.unpaired for dot in "./")
        outer = tuple(name for name in one.unpaired if not name.startswith(starts))
        others = f", or in those of {_some(outer)}, which have no original" if outer else ""
        made_up = f", or in {_some(one.among)}, for which these may make up" if one.among else ""
        what = f"in its own lines{others} (errors of its parts are taken out){made_up}"
    unless = "" if around is None else f", unless what differs stands in lines of {_name(around)} in the other model"
    parameters = {
        "same": f" Its parameters are the original's, so what it computes is wrong{unless}.",
        "reordered": f" Its parameters have the original's numbers in another order: {one.order}.",
        "unseen": " Its parameters have the original's numbers; whether in the order that is meant is not known: a "
        "matrix may be transposed.",
        "other": f" Its parameters are those of {one.parameters_of}."
        if one.parameters_of
        else f" Its parameters are not the original's{one.order and ': '}{one.order}.",
        "": "",
    }[one.parameters if not (one.own_lines or one.among) else ""]
    notes = "".join(f"\n  {note}" for note in (*one.notes, *(f"not compared: {name}" for name in one.uncompared)))
    whose = f"It has no original; it is seen by {one.how}."
    if one.original is not None:
        whose = f"Its original is {_original(one)}, found by: {one.how}."
    far = [times_rounding(one.ratio or 0.0)]
    if one.bound is not None and one.bound > 1.0:
        measured = (one.ratio or 0.0) > FACTOR * one.bound * 1.01  # else it is what the bound makes of it
        far = [*far[: int(measured)], f"{number(one.bound)} times the bound on rounding"]
    return (
        f"{_name(one.name)} ({one.kind}) is wrong {what}: {', '.join(far)}, worst at "
        f"{where}{list(one.index)}: got {one.got:.9g}, expected {one.expected:.9g}.{parameters}"
        f"\n  {whose}{notes}"
    )


def _original(one: ModuleResult) -> str:
    """Its original's module, with the class of that where it is called otherwise."""
    return f"{_name(one.original or '')}{'' if _same_kind(one) else f' ({one.original_kind})'}"


def _same_kind(one: ModuleResult) -> bool:
    """Whether both classes are called alike, such as LlamaRMSNorm and RMSNorm."""
    own, theirs = plain_kind(one.kind), plain_kind(one.original_kind)
    return own.endswith(theirs) or theirs.endswith(own)


def _of_recordings(report: WhereReport) -> Iterator[str]:
    """Yield the differences of two recordings, each once for all calls that have it; then their consequences."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in report.results:
        for each in one.causes:
            alike.setdefault((each.part, each.message), []).append(one.name)
    for one in report.results:
        said: dict[tuple[object, ...], tuple[Difference, list[str]]] = {}
        for each in one.causes:
            if names := alike.pop((each.part, each.message), []):
                key = (each.part, each.moves, each.shows, *names)
                first = said[key][0].message + "; " if key in said else ""
                said[key] = replace(each, message=first + each.message), names
        yield from (_difference(one, each, names) for each, names in said.values())
    following = [_name(one.name) for one in report.results if one.status == "caused upstream"]
    if following:
        yield f"{_some(tuple(following))}: given other inputs, caused upstream. Mend the first and look again."
    noted: dict[str, list[str]] = {}
    for one in report.results:
        for note in one.notes:
            noted.setdefault(note, []).append(_name(one.name))
    for note, names in noted.items():
        yield f"Note: {listed(names, 1)}: {note}."


def _difference(one: ModuleResult, each: Difference, names: list[str]) -> str:
    """Return one difference of two recorded calls in words; `names`: of all calls that have it."""
    name = listed(list(map(_name, names)), 1)
    moved = ""
    if each.moves is not None:
        what = {"inputs": "This", "past": "This", "mask": "The port's mask"}.get(each.part, "The port's layer")
        silent = "" if each.shows else ": these calls don't show it"
        moved = f" {what} alone moves the original's output by {'up to ' * each.shows}{number(each.moves)}{silent}."
    kind = one.kind if _same_kind(one) else f"{one.kind}; the original's {one.original_kind}"
    return f"{name} ({kind}) differs in {each.part}: {each.message}.{moved}"


def _last_of_recordings(report: WhereReport) -> str:
    calls = [one for one in report.results if one.status != "not judged"]
    divided = tuple(_name(one.name) for one in calls if one.status == "divided otherwise")
    count = len(calls) - len(divided) * report.equal
    many = f"{count} pair{'s' * (count != 1)}"
    if report.first is not None:
        one, each = report.first
        name = f" ({each.name})" if each.name else ""
        left = f" Not compared: {_some(report.uncovered)}." if report.uncovered else ""
        return f"Wrong: {_name(one.name)} is the first of {many} to differ, in {each.part}{name}.{left}"
    if report.uncovered:
        return f"Open: {many} agree, and {_some(report.uncovered)} has no partner."
    behind = "".join(f" {note}" for note in report.notes if BEHIND in note)
    up_to = " of projections" if behind else ""
    behind += f" Divided otherwise, and right with the lines around: {_some(divided)}." if divided else ""
    return f"Equal: {many} agree, in inputs, masks, settings, weights and outputs{up_to}.{behind}"


def _backward(one: ModuleResult) -> str:
    back = one.backward
    assert back is not None
    left = f"\n  Not compared: {_some(back.left)}." if back.left else ""
    return (
        f"{_name(one.name)} ({one.kind}) is wrong backward, and right forward: {times_rounding(back.ratio or 0.0)}, "
        f"worst at {back.place} {list(back.index)}: got {back.got:.9g}, expected {back.expected:.9g}."
        f"\n  Its original is {_original(one)}, found by: {one.how}.{left}"
    )


def _own(one: ModuleResult) -> str:
    """The module's name, shorter where it stands in others."""
    return _name(one.name) if one.depth < 2 else one.name.replace("/", ".").rpartition(".")[2]


def _name(name: str) -> str:
    return name or "the model"


def shown_ratio(ratio: float) -> str:
    """Return the ratio as a text; infinity is "beyond rounding"."""
    return "beyond rounding" if isinf(ratio) else number(ratio)


def _some(names: tuple[str, ...]) -> str:
    return listed(names, SHOWN)
