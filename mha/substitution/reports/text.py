"""A WhereReport in words: the wrong modules first, then the tree, then a last line."""

from __future__ import annotations

from collections.abc import Iterator
from math import isinf

from mha.substitution.allowance import FACTOR, number, times_rounding
from mha.substitution.reports.report import Backward, ModuleResult, WhereReport
from mha_core.errors import listed

SHOWN = 12
"""Most names that a line lists; the JSON has them all."""


def findings(report: WhereReport) -> Iterator[str]:
    """What is wrong, one module a paragraph, and what was not judged."""
    for one in report.results:
        if one.name in report.wrong:
            told = report.diagnosed.get(one.name, "").splitlines()
            yield "\n  ".join([finding(one), *told])
    if report.uncovered:
        yield (
            f"Not judged, and with parameters of their own: {_some(report.uncovered)}. No module of the original "
            "is known to be theirs: name the pairs in a file (--map)."
        )


def tree(report: WhereReport) -> Iterator[str]:
    """One line a module: its place, its verdict, its ratio, and the original's module."""
    width = min(60, max(2 * one.depth + len(_own(one)) for one in report.results))
    for one in report.results:
        verdict = one.status if one.ratio is None else f"{one.status} {shown_ratio(one.ratio)} {one.allowance}"
        names = "" if one.original is None or one.original == one.name else f"  {_name(one.original)} ({one.how})"
        reason = f"  {one.reason}" if one.reason else ""
        if one.padding:
            reason += f"  but for {one.padding} rows of padding, on which no other depends, or of queries without a key"
        if one.uncompared:
            reason += f"  not compared: {_some(one.uncompared)}"
        if one is report.results[0] and one.status == "equal" and one.notes:
            reason += f"  {'; '.join(one.notes)}"
        yield f"{'  ' * one.depth + _own(one):{width}} {verdict}{names}{_in_tree(one.backward)}{reason}".rstrip()


def unseen(report: WhereReport) -> Iterator[str]:
    """What these inputs would not have shown, a bug a line; and how small a fault 16-bit numbers show."""
    if report.dtype in ("float16", "bfloat16") and any(one.rounding for one in report.results):
        least = sorted((FACTOR * one.rounding, _name(one.name)) for one in report.results if one.rounding)
        yield (
            f"Recorded in {report.dtype}: a fault that moves what a module gives by less than {least[0][0]:.1%} "
            f"({least[0][1]}) to {least[-1][0]:.1%} ({least[-1][1]}) of its size can't be seen. Record in float32."
        )
    bugs = dict.fromkeys(one.bug for one in report.unseen)
    if bugs:
        yield "These inputs would not have shown:"
    for bug in bugs:
        yield f"  {bug}, in {_some(tuple(_name(one.module) for one in report.unseen if one.bug == bug))}"


def last_line(report: WhereReport) -> str:
    """How many modules were judged, and the verdict."""
    judged = len(report.judged)
    what = f"{judged} of {len(report.results)} modules were judged"
    if report.wrong:
        return f"Wrong: {_some(tuple(map(_name, report.wrong)))}. {what}, the others are equal, or wrong through these."
    if report.uncovered:
        return f"{what}; none is wrong, but not all that have parameters were judged."
    if left := report.results[0].uncompared:
        return f"{what}; none is wrong, but of what the model gives, this was not compared: {_some(left)}."
    if not report.equal:
        return f"{what}; none is wrong, but the model itself was not: what stands between its modules may be wrong."
    return f"Equal: {what}, and none is further from the original in float64 than its allowance."


def finding(one: ModuleResult) -> str:
    """One wrong module: how far it is off, where, and which module of the original says so."""
    if one.wrong_backward:
        return _backward(one)
    where = f"{one.place} " if one.place else ""
    if one.place.startswith("the mask"):
        own = f"{_name(one.name)} ({one.kind}) is wrong in its own lines"
        return f"{own}: {one.place} excludes other keys ({one.got:g} entries)."
    what = "by itself"
    if one.own_lines:
        others = f", or in those of {_some(one.unpaired)}, which have no original" if one.unpaired else ""
        what = f"in its own lines{others} (errors of its parts are taken out)"
    parameters = {
        "same": " Its parameters are the original's, so what it computes is wrong.",
        "other": f" Its parameters are those of {one.parameters_of}."
        if one.parameters_of
        else " Its parameters are not the original's.",
        "": "",
    }[one.parameters if not one.own_lines else ""]
    notes = "".join(f"\n  {note}" for note in (*one.notes, *(f"not compared: {name}" for name in one.uncompared)))
    far = [times_rounding(one.ratio or 0.0)]
    if one.bound is not None and one.bound > 1.0:
        measured = (one.ratio or 0.0) > FACTOR * one.bound * 1.01  # else it is what the bound makes of it
        far = [*far[: int(measured)], f"{number(one.bound)} times the bound on rounding"]
    return (
        f"{_name(one.name)} ({one.kind}) is wrong {what}: {', '.join(far)}, worst at "
        f"{where}{list(one.index)}: got {one.got:.9g}, expected {one.expected:.9g}.{parameters}"
        f"\n  Its original is {_name(one.original or '')}, found by: {one.how}.{notes}"
    )


def _backward(one: ModuleResult) -> str:
    back = one.backward
    assert back is not None
    left = f"\n  Not compared: {_some(back.left)}." if back.left else ""
    return (
        f"{_name(one.name)} ({one.kind}) is wrong backward, and right forward: {times_rounding(back.ratio or 0.0)}, "
        f"worst at {back.place} {list(back.index)}: got {back.got:.9g}, expected {back.expected:.9g}."
        f"\n  Its original is {_name(one.original or '')}, found by: {one.how}.{left}"
    )


def _in_tree(back: Backward | None) -> str:
    if back is None:
        return ""
    return f"  backward {back.status}" + ("" if back.ratio is None else f" {shown_ratio(back.ratio)}")


def _own(one: ModuleResult) -> str:
    """The module's name, shorter where it stands in others."""
    return _name(one.name) if one.depth < 2 else one.name.replace("/", ".").rpartition(".")[2]


def _name(name: str) -> str:
    return name or "the model"


def shown_ratio(ratio: float) -> str:
    """A ratio in the tree, where infinity is a word."""
    return "beyond rounding" if isinf(ratio) else number(ratio)


def _some(names: tuple[str, ...]) -> str:
    return listed(names, SHOWN)
