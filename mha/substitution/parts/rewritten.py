"""Wrong parts of a layer that are written otherwise together: which of them is wrong is not known, one of them is.

A norm whose scale stands in the projections behind it, heads in another order, values without their bias: each of such
parts differs from its original, and the others make up for that. If one of them is wrong, they do so no longer, and
every one is wrong by itself. So the module around them all is named in their place.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from mha.recordings.modules.numbers import is_constant, numbers_of, order_of
from mha.recordings.modules.recording import Parameter
from mha.substitution.allowance import FACTOR
from mha.substitution.orders import ROLES
from mha.substitution.parts.runs import Parts
from mha.substitution.reports.report import ModuleResult
from mha_core.dtypes import round_to

RESCALED = "what it gives is its original's with another scale and shift for each channel; see what follows"

ROWS = 4
"""Rows from which a scale and a shift of each channel can be told from another fault."""

VAGUE = "in another order"
"""How the words of orders end that a port may have chosen on purpose, in each of several parts."""


class Rewritten:
    """A search for submodules that were judged wrong, but may only divide the computation differently.

    `parts`: both models, with a verdict on every module.
    """

    def __init__(self, parts: Parts) -> None:
        self.parts, self.results = parts, dict(parts.results)
        self._differing: dict[int, set[str]] = {}
        self.others = [one for one in parts.results if self._has_others(one)]

    def verdicts(self) -> dict[int, ModuleResult]:
        """Return position -> new verdict, for the submodules that were found and the modules around them."""
        found = {}
        for one in [one for one in self.others if self._is_bare(one) and self._is_rescaled(one)]:
            found[one] = replace(self.results[one], status="divided otherwise", reason=RESCALED)
            self.results[one] = found[one]
            self.others.remove(one)
        found |= self._behind_norms()
        layers: dict[str, list[int]] = defaultdict(list)
        for one in sorted(self.others):
            layers[_layer(self.results[one].original or "")].append(one)
        for each in layers.values():
            some = [one for one in each if self._is_rewritten(one, each) or self._may_be_mended(one, each)]
            partners = [one for one in each if any(self._meets(one, other) for other in some)]
            around = self._around([*some, *partners]) if len({*some, *partners}) > 1 else None
            if around is not None:
                certain = [one for one in some if self._is_scale(one) and not self._is_rescaled(one)]
                found |= self._of_group([one for one in some if one not in certain], around)
        return found

    def _behind_norms(self) -> dict[int, ModuleResult]:
        """The verdicts on modules with wrong lines, of which parts without an original read a wrong norm.

        What the norm has otherwise may stand in these.
        """
        found = {}
        for norm in filter(self._is_scale, self.others):
            names = {self.parts.modules[one].name for one in self._readers(norm)}
            for one, result in self.results.items():
                if result.status == "wrong" and result.own_lines and not names.isdisjoint(result.unpaired):
                    which = self.parts.modules[norm].name
                    reason = f"parts of it have no original, and may make up for {which}; mend {which} first"
                    found[one] = replace(result, status="not judged", reason=reason)
        return found

    def _of_group(self, group: Sequence[int], around: int) -> dict[int, ModuleResult]:
        """The verdicts on parts of which one or more are wrong, and on the module around them."""
        name = self.parts.modules[around].name or "the model"
        beside = [
            one
            for one in (around, *self.parts.inside[around])
            if self.results[one].status == "wrong" and one not in group
        ]
        reason = f"it and other parts of {name} are written otherwise than their originals, and one or more are wrong"
        if beside:
            which = self.parts.modules[beside[0]].name or "the model"
            reason = f"it and other parts of {name} are written otherwise than their originals; mend {which} first"
        found = {one: replace(self.results[one], status="not judged", reason=reason) for one in group}
        for one in (one for one in group if self.results[one].parameters == "reordered"):
            order = f"; it has the original's numbers in another order: {self.results[one].order}"
            found[one] = replace(found[one], reason=f"{reason}{order}")
        if not beside:
            names = tuple(self.parts.modules[one].name for one in group)
            found[around] = replace(self.results[around], status="wrong", among=names)
        return found

    def _has_others(self, port: int) -> bool:
        """Return whether a part is wrong, and has numbers of its own, or lacks some of its original's."""
        found = self.results[port]
        known = bool(found.parameters_of) or (found.order and not found.order.endswith(VAGUE) and "has" in found.order)
        if found.status != "wrong" or found.own_lines or self.parts.pairs.original_of(port) is None or known:
            return False
        return found.parameters not in ("", "same") or self._is_bare(port)

    def _is_bare(self, port: int) -> bool:
        """Return whether a part has no numbers, or zeros and ones, where its original has others."""
        original = self.parts.pairs.original_of(port)
        own = [] if original is None else [*self.parts.pairs.originals[original].each]
        theirs = self.parts.modules[port].each
        return any(not is_constant(one) for one in own) and all(is_constant(one) for one in theirs)

    def _has_scale(self, port: int) -> bool:
        """Return whether a part is paired, and its original's parameters are vectors."""
        original = self.parts.pairs.original_of(port)
        own = {} if original is None else self.parts.own.modules[original].parameters
        return bool(own) and self._is_scale(port)

    def _is_scale(self, port: int) -> bool:
        """Return whether a part's parameters are vectors in both models, or it has none."""
        original = self.parts.pairs.original_of(port)
        assert original is not None
        both = (self.parts.own.modules[original].parameters, self.parts.recording.modules[port].parameters)
        return all(len(one.shape) < 2 for each in both for one in each.values())

    def _is_rescaled(self, port: int) -> bool:
        """Return whether what a part gives is its original's with another scale and shift for each channel."""
        for call in self.parts.ready[port][0]:
            gave = call.gave_at()
            for place, exact in call.exact.items():
                if place not in gave or gave[place].shape != exact.shape or exact.size < ROWS * exact.shape[-1]:
                    return False
                own, theirs = (array.reshape(-1, exact.shape[-1]).astype(np.float64) for array in (exact, gave[place]))
                means = own.mean(0), theirs.mean(0)
                centred = own - means[0], theirs - means[1]
                with any_numbers:
                    factor = np.square(centred[1]).sum(0) / (centred[0] * centred[1]).sum(0)
                    meant = centred[1] / factor + means[0]
                if not call.ratio_of({place: meant.reshape(exact.shape)}) <= FACTOR:
                    return False
        return True

    def _is_rewritten(self, port: int, beside: Sequence[int]) -> bool:
        """Return whether a part seems to be written otherwise on purpose.

        The same part of another layer is; or each layer has it with other numbers; or a norm in the same layer has
        lost its own, or this one has, and others have other ones; or a norm and all that read it have other ones.
        """
        like = [one for one in self.results if one != port and self._key(one) == self._key(port)]
        if any(self.results[one].status == "divided otherwise" for one in like):
            return True
        each = like and all(one in self.others or self._is_open(one) for one in like)
        return len(beside) > 1 and (bool(each) or any(map(self._is_bare, beside)) or self._is_folded(port, beside))

    def _is_folded(self, port: int, beside: Sequence[int]) -> bool:
        """Return whether a part is a norm that is read by others in `beside` alone, or one of these."""
        for norm in filter(self._is_scale, beside):
            readers = self._readers(norm)
            if port in (norm, *readers) and readers and readers <= {*beside}:
                return True
        return False

    def _may_be_mended(self, port: int, beside: Sequence[int]) -> bool:
        """Return whether other parts in `beside`, or a norm, may make up for all that a part has otherwise.

        A norm that the part reads, and that is written otherwise, may for all. Else another matrix is made up for by
        one, and the bias that goes with it; another bias by one that is not given the same.
        """
        own, found = self.otherwise(port), set[str]()
        spared = [one for one, result in self.results.items() if result.status == "divided otherwise"]
        if any(port in self._readers(one) for one in spared if self._has_scale(one)):
            return not self._is_scale(port)
        for other in (one for one in beside if self._meets(port, one)):
            theirs = self.otherwise(other)
            both = "matrix" in own & theirs
            alike = not both and self._is_given(port) & self._is_given(other)
            found |= own if both else theirs - {"bias"} if alike else theirs
        return bool(own) and own <= found

    def _meets(self, port: int, other: int) -> bool:
        """Return whether two parts are projections directly inside one module."""
        within = [self.parts.modules[one].within[:1] for one in (port, other)]
        return port != other and within[0] == within[1] and not (self._is_scale(port) or self._is_scale(other))

    def _is_given(self, port: int) -> set[str]:
        """Return the names of the arrays that a part is given."""
        calls = self.parts.recording.calls
        return {at.name for one in self.parts.calls[port] for at in calls[one].given if at.floating}

    def otherwise(self, port: int) -> set[str]:
        """Return which of "matrix" and "bias" of a submodule differ from the original's in numbers or their order."""
        if port in self._differing:
            return self._differing[port]
        original = self.parts.pairs.original_of(port)
        if original is None:
            return set()
        own, native, dtype = self.parts.own.modules[original], self.parts.own.native, self.parts.recording.dtype
        held = native.parameters_of(own.held)
        left = {name: round_to(native.numbers_in(held[name]), dtype) for name in own.parameters}
        found = self._differing[port] = set()
        for name, parameter in self.parts.recording.modules[port].parameters.items():
            same = next((one for one, array in left.items() if _is_same(array, parameter)), None)
            if same is None:
                found.add(_role(name, parameter.shape))
            else:
                del left[same]
        found |= {_role(name, array.shape) for name, array in left.items() if array.any()}
        return found

    def _readers(self, port: int) -> set[int]:
        """Return the modules with parameters, and no others inside, that are given what a module gives."""
        calls = self.parts.recording.calls
        gave = {at.name for one in self.parts.calls[port] for at in calls[one].gave or ()}
        given = {call.module for call in calls if not gave.isdisjoint(at.name for at in call.given)}
        return {one for one in given if self.parts.modules[one].numbers.size and not self.parts.inside[one]}

    def _is_open(self, port: int) -> bool:
        """Return whether a part has other parameters, and is not known to be wrong."""
        found = self.results[port]
        return found.status == "not judged" and found.parameters not in ("", "same")

    def _key(self, port: int) -> tuple[str, str]:
        return _in_any_layer(self.parts.modules[port].name), _in_any_layer(self.results[port].original or "")

    def _around(self, group: Sequence[int]) -> int | None:
        """The innermost module around all parts that was judged; None where it is right with its parts."""
        shared = set.intersection(*({*self.parts.modules[one].within} for one in group)) if group else set()
        found = next((one for one in self.parts.modules[group[0]].within if one in shared), None)
        while found is not None and found in shared and not self.parts.is_judged(found):
            found = next((one for one in self.parts.modules[found].within), None)
        return found if found is not None and self.results[found].status in ("through its parts", "wrong") else None


def _is_same(array: NDArray, parameter: Parameter) -> bool:
    """Return whether a recorded parameter is an array, or a matrix its transpose, whatever its shape."""
    if numbers_of(array) != parameter.numbers:
        return False
    ways = (array, array.T) if array.ndim == 2 else (array,)
    return parameter.order is not None and parameter.order.sequence in [
        order_of(one.reshape(parameter.shape)).sequence for one in ways
    ]


def _role(name: str, shape: Sequence[int]) -> str:
    """Return what a projection's parameter is: in some classes, a bias has an axis of heads as well."""
    return "bias" if len(shape) < 2 or re.split(r"[./]", name)[-1] in ROLES[1] else "matrix"


def _layer(name: str) -> str:
    """The name of the layer in which a module stands: up to the first number in it."""
    found = re.match(r".*?[0-9]+", name)
    return found[0] if found else ""


def _in_any_layer(name: str) -> str:
    """A name without the number of its layer."""
    return re.sub(r"[0-9]+", "", name, count=1)
