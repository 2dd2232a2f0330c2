"""Two recordings of attention layers, compared call by call in the order of the original's.

Each call is first judged by itself: its outputs must be the answer to its own inputs, mask and weights. Then the two
calls of a pair are compared. docs/recordings.md says what counts as a difference.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from conformance.judging.distance import worst
from mha.projections.said import causal_otherwise
from mha.recordings.modules.diagnosed import NOT_RECORDED
from mha.recordings.origins import WeightIndex
from mha.recordings.recording import Recording
from mha.recordings.replay import matching
from mha.substitution.recorded.arrays import Allowance, apart
from mha.substitution.recorded.call import FIELDS, ComparedCall, calls_part, moves, own_differences
from mha.substitution.recorded.ends import Before, compare_behind, compare_ends, unjudged
from mha.substitution.recorded.masks import FINITE
from mha.substitution.recorded.pairs import Pairing, pair_calls
from mha.substitution.recorded.weights import layer_differences
from mha.substitution.reports.report import PARTS, Difference, ModuleResult, Status, WhereReport
from mha.undetectable_bugs.find import undetectable_bugs


def recordings_apart(
    original: Recording,
    port: Recording,
    *,
    pairs: Mapping[str, str] | None = None,
    patterns: Sequence[str] = ("*",),
    unseen: bool = True,
    before: Before | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> WhereReport:
    """Return a report that compares the recorded attention calls of a port with those of its original.

    Args:
        original, port: recordings of the same calls.
        pairs: name of a layer of the original -> name of the port's, for pairs that `pair_calls` would not find.
        patterns: names of the calls to report, in either model; wildcards work.
        unseen: whether to report known bugs that these calls can't show, if no difference is found.
        before: a record to which this function adds what later comparisons need. Default: a new one.
        progress: called with a text on the current step.

    Raises:
        SpecError: no call has a name of `patterns`, or `pairs` has a name that no layer has.

    >>> import numpy as np
    >>> from mha.recordings.recording import RecordedCall, RecordedLayer
    >>> from mha_core import AttentionConfig, AttentionInputs, AttentionMask, init_weights, reference
    >>> config = AttentionConfig(6, 2)
    >>> layer = RecordedLayer("encoder.0", "mine.Attention", "float64", config, init_weights(config, seed=0))
    >>> x = np.random.default_rng(1).normal(size=(2, 5, 6))
    >>> def recorded(mask):
    ...     inputs = AttentionInputs(x, x, x, mask)
    ...     output = reference.run(config, layer.weights, inputs).output
    ...     return Recording((layer,), (RecordedCall(0, inputs, {"output": output}),))
    >>> original, port = recorded(AttentionMask(valid_lens=np.array([3, 5]))), recorded(AttentionMask())
    >>> recordings_apart(original, original).equal
    True
    >>> call, difference = recordings_apart(original, port).first
    >>> call.name, difference.part
    ('encoder.0', 'mask')
    """
    chosen = matching((*original.names, *port.names), patterns)
    pairing = pair_calls(original, port, pairs or {})
    walk = _Walk(original, port, pairing, before or Before())
    results = []
    for position, partner in pairing.pairs:
        progress(f"comparing {port.names[partner]}")
        results.append(walk.compare(position, partner))
        if (behind := compare_behind(original, port, (position, partner), walk.before)) is not None:
            results.append(behind)
    results = [one for one in results if {one.name, one.original} & chosen]
    ends = compare_ends(original, port, pairing, walk.before)
    left = pairing.left(original, port, chosen)
    dtypes = dict.fromkeys((original.layer_of(a).dtype, port.layer_of(b).dtype) for a, b in pairing.pairs)
    report = WhereReport(
        (*results, *ends),
        (*(name for names in left.values() for name in names), *walk.before.alone),
        port.layers[0].dtype,
        port.versions,
        {original.layer_of(a).name or "layer": port.layer_of(b).name or "layer" for a, b in pairing.pairs},
        original="recording",
        notes=(
            *_unread(original, port),
            *pairing.notes(left),
            *_dtypes(dtypes),
            *walk.before.notes,
            *unjudged(original, port, ends),
        ),
    )
    names = {one.name for one in results}
    found = undetectable_bugs(port, names, progress=progress) if unseen and report.equal else None
    return replace(report, undetectable=found)


def _unread(original: Recording, port: Recording) -> Iterator[str]:
    """Yield a sentence for each model of which attention modules were not recorded, and why."""
    for recording, whose in ((original, "original"), (port, "port")):
        if recording.coverage is not None and recording.coverage.unread:
            why = "; or ".join(dict.fromkeys(NOT_RECORDED[one.why] for one in recording.coverage.unread))
            yield f"Of the {whose}: {recording.coverage.line}: {why}."


def _dtypes(pairs: Mapping[tuple[str, str], None]) -> Iterator[str]:
    """Yield a sentence for each pair of dtypes that are not the same."""
    for original, port in pairs:
        if original != port:
            yield f"The port computes in {port}, the original in {original}; equal are weights that are after rounding."


GUESSED = "whether it is causal was guessed, and its output does not confirm that: masks were not compared"
"""Remark on a call of the port. `causal=` of `mha.Projections` says it."""

CAUSES = {"mask": "mask", "config": "layer", "weights": "layer", "inputs": "inputs", "past": "inputs"}
"""Part of a call in which two differ -> what of it is put into the original, to see what that does."""


class _Walk:
    """Compares the pairs in their order; `before` is what earlier pairs leave for later ones."""

    def __init__(self, original: Recording, port: Recording, pairing: Pairing, before: Before) -> None:
        self.original, self.port, self.pairing, self.before = original, port, pairing, before
        self.index = WeightIndex(original.layers)
        self._layers = cache(layer_differences)

    def compare(self, position: int, partner: int) -> ModuleResult:
        """Compare one call of the original with one of the port, by their positions."""
        before = self.before
        a, b = _side(self.original, position), _side(self.port, partner)
        found = calls_part(a, b, Allowance.between(a.dtype, b.dtype, before.carried))
        before.rows = found.rows
        if FINITE in found.notes:  # a bias of -1e9 would make the bounds useless: both get the mask that excludes more
            fewer = a if a.wanted.where.sum() <= b.wanted.where.sum() else b
            a, b = (one if one is fewer else one.with_mask_of(fewer) for one in (a, b))
        layers = self.original.layer_of(position), self.port.layer_of(partner)
        layer, layer_notes = self._layers(*layers, self.index)
        own, own_notes, ratio = own_differences(a, b, found.rows)
        if own and causal_otherwise(self.port.calls[partner].assumed):
            found.found = [one for one in found.found if one.part != "mask"]
            found.notes.append(GUESSED)
        notes = [*([] if before.parted else found.notes), *layer_notes, *own_notes]
        differences = [
            replace(one, follows=True)
            if before.parted and one.part in ("inputs", "past") and one.name != "shapes"
            else self._placed(one, position, partner)
            for one in found.found
        ]
        differences = sorted([*differences, *layer, *own], key=lambda one: PARTS.index(one.part))
        if found.rows is None or a.output.shape != b.output.shape:
            before.parted = True
        else:
            rows = found.rows[:, :, None]
            alike = FIELDS.keys() - {CAUSES.get(one.part) for one in differences}
            drift = moves(a, b, rows, alike)
            slack = a.wanted.allowed_error["output"] + b.wanted.allowed_error["output"]
            slack = slack if drift is None else slack + drift
            outputs = worst(a.output, b.output.astype(np.float64), slack, rows)
            moved = {part: moves(a, b, rows, (part,)) for part in FIELDS.keys() - alike}
            largest = {part: float(by.max(initial=0.0)) for part, by in moved.items() if by is not None}
            effects = [largest.get(CAUSES.get(one.part, "")) for one in differences]
            differences = [
                one if effect is None else replace(one, moves=effect, shows=effect > outputs.allowed)
                for one, effect in zip(differences, effects, strict=True)
            ]
            before.parted |= "inputs" not in alike or outputs.ratio > 1.0
            if not before.parted:
                before.carried = max(before.carried, found.drift, apart(a.output, b.output, rows).mean)
        wrong = [one for one in differences if not one.follows]
        status: Status = "wrong" if wrong else "caused upstream" if differences else "equal"
        return ModuleResult(
            b.name,
            layers[1].kind,
            0,
            a.name,
            self.pairing.how,
            status,
            allowance="derived",
            bound=ratio,
            notes=tuple(notes),
            parameters="other" if any(one.part == "weights" for one in layer) else "same",
            differences=tuple(differences),
            original_kind=layers[0].kind,
        )

    def _placed(self, one: Difference, position: int, partner: int) -> Difference:
        """The first difference in inputs with words on where to look; any other as it is."""
        if one.part != "inputs" or one.name == "shapes":
            return one
        last, skipped = self.pairing.stands_before(self.original, self.port, (position, partner))
        if skipped:
            where = f"nothing was compared at attention that may stand before it ({skipped}): look there first"
        elif last is None:
            where = "and it is the first call: look before it"
        else:
            name = self.port.names[last[1]]
            where = f"{name}'s outputs agree{self.before.up_to(name)}: look between them"
        return replace(one, message=f"{where}. Its {one.message}")


def _side(recording: Recording, position: int) -> ComparedCall:
    return ComparedCall.of(recording.names[position], recording.layer_of(position).dtype, recording.problems[position])
