"""Which module is blamed for a fault: a part, the lines of one without an original, or what reads a mask."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from mha.recordings.modules.numbers import is_constant
from mha.recordings.modules.recording import ModuleRecording
from mha.substitution.calls import CallJudgement
from mha.substitution.mutants.unseen import Unseen
from mha.substitution.orders import ROUNDED
from mha.substitution.original import Original
from mha.substitution.pairing.pairs import Pairs
from mha.substitution.parts.elsewhere import Elsewhere
from mha.substitution.parts.otherwise import Instead
from mha.substitution.parts.packed import Packed, packed_in
from mha.substitution.parts.rewritten import Rewritten
from mha.substitution.parts.runs import RIGHT, Calls, Parts, Ready
from mha.substitution.reports.report import ModuleResult, Status
from mha_core.errors import listed

ABOUT = ("name", "kind", "depth", "original", "original_kind", "how", "parameters", "parameters_of", "order")
"""The fields of a ModuleResult that say which module it is, and whose parameters it has."""


KNOWN = ("", "same")
"""Words for parameters of which there are none, or that are the original's."""


class Blame(Parts):
    """A subclass of `Parts` that blames modules for errors. A module's "lines" are its code outside its submodules.

    Attributes:
        in_lines: position of a module with wrong lines -> the comparison of its worst call. For this comparison, the
            port's outputs replaced those of the original's submodules.
        unseen: bugs that the judged calls could not show.
        spared: positions of submodules that are not blamed, because others compensate their differences.
        explained: position of a module whose errors follow from wrong submodules -> the second verdict (Elsewhere).
    """

    def __init__(
        self, own: Original, recording: ModuleRecording, pairs: Pairs, progress: Callable[[str], None]
    ) -> None:
        super().__init__(own, recording, pairs, progress)
        self.unseen: list[Unseen] = []
        self.spared: set[int] = set()
        self.in_lines: dict[int, CallJudgement] = {}
        self.explained: dict[int, Elsewhere] = {}

    def in_lines_of_parts(self, port: int, found: ModuleResult) -> ModuleResult:
        """Return the final verdict on a module. `found`: the verdict so far, which says that its own code is wrong.

        In `found`, the code of submodules without an original counts as the module's own. If such submodules cause the
        error, they get verdicts too, and the module's verdict becomes "through its parts".
        """
        if port not in self.in_lines or len(self.ready[port][0]) != 1:
            return found
        unjudged = self.outermost_inside(port, judged=False)
        leaves = [one for one in unjudged if self.modules[one].numbers.size and not self.inside[one]]
        packed = packed_in(self, port, leaves)
        if packed:
            inner = self.outermost_inside(port, judged=True)
            judged = self.with_parts(inner, *self.ready[port], others=[one.part for one in packed])
            some = any(not one.equal for each in packed for one in each.leaves.values())
            if some and judged is not None and all(each.worst[1].equal for each in judged):
                self.blame_packed(packed, found)
                return replace(found, status="through its parts", own_lines=False, unpaired=())
        else:
            judged = None
        makers = self.makers(port, self.in_lines[port])
        if not makers:
            return found
        known = {leaf for each in packed for leaf in each.leaves} if judged is not None else set()
        for one in makers:
            module = self.modules[one]
            unjudged = [other for other in self.outermost_inside(one, judged=False) if other not in known]
            unpaired = (self.modules[other].name for other in unjudged)
            self.results[one] = replace(
                found,
                name=module.name,
                kind=module.kind,
                depth=len(module.within),
                original=None,
                original_kind="",
                how=f"what {module.name} gives, or gives to its parts, in {found.name or 'the model'}",
                parameters="",
                order="",
                parameters_of="",
                unpaired=tuple(unpaired),
                uncompared=(),
            )
        return replace(found, status="through its parts", own_lines=False, unpaired=())

    def blame_packed(self, packed: Sequence[Packed], around: ModuleResult) -> None:
        """Add verdicts on projections that the original packs into one, such as q, k, v, inside the module `around`."""
        for one in packed:
            own = self.own.modules[one.original]
            for leaf, judged in one.leaves.items():
                module = self.modules[leaf]
                about = {"name": module.name, "kind": module.kind, "depth": len(module.within), "original": own.name}
                about |= {"original_kind": own.kind, "how": f"a part of it, in {around.name or 'the model'}"}
                status: Status = "equal" if judged.equal else "wrong"
                call = CallJudgement({(): judged})
                self.results[leaf] = filled(about, status, call, allowed=[call], own_lines=False, unpaired=())

    def divide(self, part: int, around: str, beside: str | None, right: bool, *, together: bool) -> None:
        """Change a submodule's verdict from "wrong" to "divided otherwise": right together with the code around it.

        Args:
            part: position of the submodule.
            around: the module around the submodule, in words.
            beside: the name of the activation that only the submodule or only its original applies; None if none.
            right: whether the module around gives right outputs with the submodule as it is.
            together: whether the module around needs several such submodules together to give right outputs.
        """
        reason = f"a line of it stands beside it in the other model: {around} is right with it"
        if not right:
            reason = f"a line of it stands beside it in the other model: what {around} makes of it is right"
        if beside is not None:
            reason = (
                f"it differs from its original by the activation ({beside}) alone; what {around} makes of it is wrong"
            )
        if together:
            reason = f"it and other parts of {around} are written otherwise: {around} is right with them"
        self.take_back(part, reason)

    def made_up_for(self, port: int, *, right: bool, lines: bool) -> list[int]:
        """Take back "wrong" from submodules whose differences are compensated elsewhere; return their positions.

        Args:
            port: position of the module around these submodules.
            right: whether the module's outputs are right.
            lines: whether the module's own code is wrong, or may be wrong.
        """
        wrong = [one for one in self.inside[port] if self.results[one].status == "wrong"]
        alike = all(self.results[one].parameters in KNOWN for one in wrong)
        if not wrong or len(self.ready[port][0]) != 1 or not (right or lines or (len(wrong) > 1 and not alike)):
            return []
        outer = [one for one in self.inside[port] if self.results[one].status == "through its parts"]
        elsewhere = Elsewhere(self, port, sorted((*wrong, *outer)), right=right)
        found = elsewhere.reasons()
        self._spare_lines(port, elsewhere)
        for one, reason in found.items():
            self.take_back(one, reason)
        self.spared |= {*found}
        for one in reversed(self.inside[port]) if found else ():
            if self.results[one].status == "through its parts" and all(
                self.results[other].status not in ("wrong", "through its parts") for other in self.inside[one]
            ):
                reason = "its parts are written otherwise than its original's; see these"
                self.results[one] = replace(self.results[one], status="divided otherwise", reason=reason)
        return list(found)

    def _spare_lines(self, port: int, found: Elsewhere) -> None:
        """Take back that the lines of a module are wrong, or of one in it, where its wrong parts explain all."""
        outer = {one for cause in found.causes for one in self.modules[cause].within if one in self.inside[port]}
        for one in outer:
            worst = self.in_lines.get(one)
            wrong = [] if worst is None else [place for place, each in worst.arrays.items() if not each.equal]
            if self.results[one].own_lines and wrong and found.are_explained(wrong):
                self.results[one] = replace(self.results[one], status="through its parts", own_lines=False, unpaired=())
        if found.causes:
            self.explained[port] = found

    def is_explained(self, port: int, alone: CallJudgement) -> bool:
        """Return whether wrong submodules explain all wrong arrays in `alone`, a comparison of a module's own code."""
        wrong = [place for place, each in alone.arrays.items() if not each.equal]
        return port in self.explained and self.explained[port].are_explained(wrong)

    def without(
        self, found: CallJudgement, spared: Sequence[int], inner: Sequence[int], ready: Ready, calls: Calls
    ) -> CallJudgement:
        """Return the one of three comparisons of a module's own code that has the fewest wrong arrays.

        The first is `found`. In the second, submodules in `spared` keep the original's outputs. The third also
        ignores inputs of submodules in `inner` that have wrong code or contain spared ones. Others: see `with_parts`.
        """
        left: dict[int, Instead] = dict.fromkeys(spared, "left out")
        wrong = [one for one in inner if self._in_own_lines(one) or not {*self.inside[one]}.isdisjoint(spared)]
        ways = [self.with_parts(inner, ready, calls, left, unasked=some) for some in ((), wrong)]
        others = [max(every, key=lambda one: one.worst[1].ratio) for every in ways if every is not None]
        return min([found, *others], key=lambda one: sum(not each.equal for each in one.arrays.values()))

    def _in_own_lines(self, port: int) -> bool:
        """Return whether a module, or one inside it, has wrong lines."""
        found = (self.results[one] for one in (port, *self.inside[port]))
        return any(one.status == "wrong" and one.own_lines for one in found)

    def leave_open(self) -> None:
        """Change "wrong" to "not judged" for modules that can only be judged when others are corrected.

        Such a module has one of these properties:
        - Its parameters differ from its original's, and wrong code around it may compensate the difference.
        - It is called after a wrong module, and has more outputs than its original.
        - It is called after a wrong module, and other code compensates the differences of a module of the same class.
        """
        wrong = {one for one, result in self.results.items() if result.status == "wrong"}
        otherwise = {
            (self.modules[one].kind, result.original_kind): one
            for one, result in self.results.items()
            if one in self.spared and result.parameters == "same"
        }
        found: dict[int, ModuleResult] = {}
        rewritten = Rewritten(self)

        def scaled(one: int, lines: int) -> bool:
            """Return whether a matrix of a part is another, which lines directly around it may make up for alone."""
            return lines == self.modules[one].within[0] and "matrix" in rewritten.otherwise(one)

        for one in sorted(wrong):
            result, outer = self.results[one], self.modules[one].within
            lines = next((each for each in outer if each in self.in_lines and self._wrong_lines(each, one)), None)
            like = otherwise.get((result.kind, result.original_kind))
            if lines is not None and self._is_other(one) and (self._has_partner(one, lines) or scaled(one, lines)):
                around = self.modules[lines].name or "the model"
                known = self._known_parameters(one)
                whose = f"its parameters have the numbers of the original's {listed(known, 3)}"
                reason = (
                    f"{whose if known else 'its parameters are others'}, and lines of {around}, which differ as well, "
                )
                reason += "may make up for what it gives otherwise" if known else "may make up for that"
                if self.results[lines].own_lines:
                    before = found.get(lines, self.results[lines])
                    found[lines] = replace(before, among=(*before.among, self.modules[one].name))
            elif like is not None and result.parameters == "same" and self._solid_before(one, wrong - found.keys()):
                reason = f"it is written as {self.modules[like].name} is, and stands behind what is wrong"
            elif result.own_lines and result.uncompared and self._solid_before(one, wrong - found.keys()):
                reason = "it gives more than its original, and stands behind what is wrong"
            else:
                continue
            found[one] = replace(result, status="not judged", reason=reason)
        self.results |= found
        self.results |= Rewritten(self).verdicts()

    def _known_parameters(self, port: int) -> list[str]:
        """Return the names of the original's parameters with a module's numbers; [] unless each of its own has one."""
        original = self.pairs.original_of(port)
        own = {} if original is None else self.own.modules[original].parameters
        numbers = {one.numbers for one in own.values()}
        name = "" if original is None else self.own.modules[original].name
        every = sorted(self.own.modules[0].parameters.items(), key=lambda item: not item[0].startswith(name))
        found = []
        for one in self.recording.modules[port].parameters.values():
            same = next((name for name, other in every if other.numbers == one.numbers), None)
            if same is None or not one.numbers.known or (is_constant(one.numbers) and one.numbers not in numbers):
                return []
            found.append(same)
        return found

    def _has_partner(self, part: int, around: int) -> bool:
        """Return whether a module around a part has another one with other parameters, or with some and no original."""
        beside = [one for one in self.inside[around] if one != part and self.modules[one].numbers.size]
        return any(self.results[one].original is None or self._is_other(one) for one in beside)

    def _is_other(self, port: int) -> bool:
        """Return whether a module is wrong, and has other parameters, or is a part of a projection and may have.

        Those that are the original's in fewer bits are none: nothing makes up for that.
        """
        packed, found = self.pairs.original_of(port) is None, self.results[port]
        if found.status != "wrong" or ROUNDED in found.order:
            return False
        return (packed and found.original is not None) or found.parameters not in KNOWN

    def _solid_before(self, part: int, wrong: Set[int]) -> bool:
        """Return whether a module that is called before a part, and not around it, has wrong lines or parameters."""
        others = (one for one in wrong if one < part and one not in self.modules[part].within)
        return any(self.results[one].own_lines or self.results[one].parameters not in KNOWN for one in others)

    def _wrong_lines(self, around: int, part: int) -> bool:
        """Return whether lines around a part are wrong: a module's, or those of one in it without an original."""
        makers = (one for one in self.inside[around] if self.results[one].original is None and one != part)
        return any(self.results[one].status == "wrong" for one in (around, *makers))

    def beside_masks(self, port: int, inner: Sequence[int], ready: Ready, calls: Calls) -> CallJudgement | None:
        """Return the worst comparison of a module with submodules that read masks with the opposite meaning of True.

        These submodules run the original's code on its masks. If the port's outputs replaced theirs, an inverted mask
        would not show. Return None if there is no such submodule, if one has wrong code, or if no error shows.
        """
        readers = {one for one in self.inside[port] if one in self.other_masks and self.results[one].status in RIGHT}
        parts: list[int] = []
        left = [*inner]
        while readers and left:
            one = left.pop()
            if readers.isdisjoint((one, *self.inside[one])):
                parts.append(one)
            elif self.results[one].status == "wrong":
                return None  # by its own lines, which would run here as well
            else:
                left += self.outermost_inside(one, judged=True)
        found = self.with_parts(sorted(parts), ready, calls) if readers else None
        if found is None:
            return None
        if any(one.other_masks for one in found):
            self.other_masks.add(port)
        worst = max(found, key=lambda one: one.worst[1].ratio)
        return None if worst.worst[1].equal else worst

    def blame_for_masks(self, port: int) -> bool:
        """Blame submodules of `port` that read True in masks with the wrong meaning; return whether there are any.

        A submodule judged alone may use either meaning of True. So `port` can be wrong although its own code and each
        submodule are right. Then a submodule is blamed if other modules of its class read masks as the original does.
        """
        found = False
        for one in self.inside[port]:
            kind = self.modules[one].kind
            like = [
                other
                for other, (ready, _) in self.ready.items()
                if self.modules[other].kind == kind and other not in self.other_masks | self.own_masks
                if self.results[other].status == "equal" and all(each.mask_places for each in ready)
            ]
            if one not in self.other_masks or not like or any(part in self.other_masks for part in self.inside[one]):
                continue
            ready = self.ready[one][0]
            for each in ready:
                each.read_masks_as_given()
            judged = [each.judge() for each in ready]
            worst = max(judged, key=lambda each: each.worst[1].ratio)
            if worst.worst[1].equal:
                continue
            worst.notes.append(f"it reads its mask the other way round than {self.modules[like[0]].name} does")
            before = self.results[one]
            about = {name: getattr(before, name) for name in ABOUT}
            inner = bool(self.outermost_inside(one, judged=True))
            self.results[one] = filled(about, "wrong", worst, allowed=judged, own_lines=inner, unpaired=())
            for around in self.modules[one].within[: self.modules[one].within.index(port)]:
                if self.results[around].status == "equal":
                    self.results[around] = replace(self.results[around], status="through its parts")
            found = True
        return found


def filled(
    about: Mapping[str, Any], status: Status, call: CallJudgement, allowed: Sequence[CallJudgement], **rest: Any
) -> ModuleResult:
    place, worst = call.worst
    bounds = [found.bound for one in allowed for found in one.arrays.values()]
    notes = [*call.notes, *call.layouts]
    notes += [
        f"{name} excludes other keys than the original's mask: {n} entries differ"
        for name, n in call.masks.items()
        if n
    ]
    notes += [f"the port does not give {'.'.join(one) or 'the output'}" for one in call.missing]
    if call.own:
        notes.append("as in the original's own run: " + ", ".join(".".join(one) for one in call.own))
    return ModuleResult(
        **about,
        status=status,
        ratio=worst.ratio,
        allowance="calibrated" if None in bounds else "derived",
        bound=max((one for one in bounds if one is not None), default=None),
        rounding=worst.rounding,
        place=".".join(place),
        index=worst.worst,
        got=worst.got,
        expected=worst.expected,
        notes=tuple(notes),
        padding=call.padding if status == "equal" else 0,
        uncompared=tuple(".".join(one) or "the output" for one in call.unmatched),
        **rest,
    )
