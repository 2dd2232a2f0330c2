"""The wrong parts of a module that are written otherwise: a line is inside in one model, beside them in the other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from mha.substitution.calls import CallJudgement
from mha.substitution.parts.activations import Beside

Instead = Literal["left out", "its original's", "active"]
"""What stands in place of what a port's part gave: what the original's part gives on what its module gives it; or on
what the port's part was given; or the port's with the activation that only its original has."""

Run = Callable[[Mapping[int, Instead]], Sequence[CallJudgement] | None]
"""Every call of a module with the port's outputs in place of those of its parts, but for some; None if it can't run."""


class Division(NamedTuple):
    """A finding: which of a module's wrong submodules are right together with the code around them.

    Such a submodule differs from its original, but the code around it compensates that, for example by adding its bias.

    Attributes:
        found: the worst call's comparison, in which the port's outputs of all submodules are used; None if a run fails.
        spared: the same, with some submodules' outputs from the original; None if that makes no wrong array right.
        parts: positions of the submodules that are right together with the code around them.
        beside: position of a submodule -> name of an activation that one model applies inside it, the other outside.
    """

    found: CallJudgement | None
    spared: CallJudgement | None = None
    parts: tuple[int, ...] = ()
    beside: Mapping[int, str] = {}


def divided(run: Run, wrong: Sequence[int], activations: Mapping[int, Beside]) -> Division:
    """Return which of the submodules `wrong` are right together with the code around them, as a Division.

    The original's module runs with the port's output of a submodule, then with the original's. If the second run agrees
    with the port in the same arrays as the first, and in more, the port's code around the submodule compensates for it.

    Args:
        run: a function: {position of a submodule: what replaces the port's output} -> comparisons of the module's
            calls, or None if it can't be run.
        wrong: positions of the submodules whose outputs differ from their originals'.
        activations: position of a submodule that differs from its original by an activation -> that activation.
    """
    found = run({})
    if found is None or _all_equal(found):
        return Division(_worst(found))
    for left in (*([one] for one in wrong), wrong):
        other = run(dict.fromkeys(left, "left out"))
        if other is not None and _all_equal(other):
            return Division(_worst(found), _worst(other), tuple(left))
    instead: dict[int, Instead] = {}
    parts, beside, best = [], {}, found
    for part in wrong:
        known = activations.get(part)
        ways: list[Instead] = ["left out", "its original's"]
        ways += ["active"] if known is not None and known.active is not None else []
        for how in ways:
            other = run({**instead, part: how})
            if other is None or not _mends(best, other):
                continue
            instead[part], best = how, other
            if how != "active" or (known is not None and known.equal):
                parts.append(part)
            break
        else:
            if known is None or not known.equal:
                continue
            other = run({**instead, part: "its original's"})
            if other is not None and _is_wrong_either_way(best, other):
                instead[part], best = "its original's", other
                parts.append(part)
                beside[part] = known.name
    return Division(_worst(found), _worst(best) if instead else None, tuple(parts), beside)


def _worst(calls: Sequence[CallJudgement] | None) -> CallJudgement | None:
    return None if calls is None else max(calls, key=lambda one: one.worst[1].ratio)


def _all_equal(calls: Sequence[CallJudgement]) -> bool:
    return all(one.worst[1].equal for one in calls)


def _both(before: Sequence[CallJudgement], after: Sequence[CallJudgement]) -> list[tuple[bool, bool, bool]]:
    """Of each array that both judged: whether it is right before, right after, and whether it is judged otherwise."""
    found = []
    for one, other in zip(before, after, strict=True):
        for place in one.arrays.keys() & other.arrays.keys():
            was, is_now = one.arrays[place], other.arrays[place]
            moved = (was.expected, was.ratio) != (is_now.expected, is_now.ratio)
            found.append((was.equal, is_now.equal, moved))
    return found


def _mends(before: Sequence[CallJudgement], after: Sequence[CallJudgement]) -> bool:
    """Whether something wrong is right, and nothing right is wrong."""
    changes = [(was, is_now) for was, is_now, _ in _both(before, after)]
    return (False, True) in changes and (True, False) not in changes


def _is_wrong_either_way(before: Sequence[CallJudgement], after: Sequence[CallJudgement]) -> bool:
    """Whether something that depends on what was exchanged is wrong with both, and nothing is right before."""
    moved = [(was, is_now) for was, is_now, changed in _both(before, after) if changed]
    return (False, False) in moved and not any(was for was, _ in moved)
