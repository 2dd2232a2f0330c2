"""Compare the calls of an original and of its port, and find the first difference.

    mha.compare("original.safetensors", "port.safetensors").findings

Each call is first judged by itself: its outputs must be the answer to its own inputs, mask and weights. Then the two
calls of a pair are compared. docs/compare.md says what counts as a difference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from conformance.subjects.items import items_of
from conformance.subjects.subject import Subject
from mha.comparison.arrays import PARTS, Allowance, apart
from mha.comparison.call import FIELDS, CallDifferences, ComparedCall, calls_part, moves, outputs_apart, own_differences
from mha.comparison.comparison import Comparison, Pair
from mha.comparison.ends import Before, check_also, compare_ends, unjudged
from mha.comparison.live import answered
from mha.comparison.masks import FINITE
from mha.comparison.pairs import pair_calls, unpaired_lines
from mha.comparison.text import findings, other_dtypes
from mha.comparison.weights import WeightIndex, layer_differences
from mha.recordings.recording import Recording
from mha.recordings.replay import matching
from mha.undetectable_bugs.find import undetectable_bugs

MOST_ITEMS = 64
"""Items of a batch up to which another order of them is looked for."""


def compare(
    original: Recording | str | os.PathLike[str],
    port: Recording | str | os.PathLike[str] | Callable[[str], Subject],
    *,
    by: str | None = None,
    patterns: Sequence[str] = ("*",),
    also: Sequence[str] = (),
    unseen: bool = False,
    progress: Callable[[str], None] = lambda what: None,
) -> Comparison:
    """Find the first difference between a port and its original.

    Args:
        original: a recording, or its file.
        port: another one of the same calls; or a function from a dtype to a subject, which is given the original's
            config, weights and inputs (its own weights, if it has `own_weights`: see docs/compare.md).
        by: how calls are paired: "name" or "order". Default: by name if the layers have common ones.
        patterns: names of calls of either side; wildcards work. The others are not reported.
        also: names of modules of which both recordings must hold what they gave (see `mha.capture`).
        unseen: whether to find out which bugs of the zoo the port's calls would not have shown.
        progress: is told what is being done.

    Raises:
        SpecError: a file is no recording, no call has such a name, pairing is impossible, or what `also` names lacks.
        FileNotFoundError: there is no such file.

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
    >>> compare(original, original).equal
    True
    >>> pair, difference = compare(original, port).first
    >>> pair.original, difference.part
    ('encoder.0', 'mask')
    """
    first = _loaded(original)
    failed: dict[str, str] = {}
    if isinstance(port, (Recording, str, os.PathLike)):
        second = _loaded(port)
        check_also((first, second), also)
        chosen = matching((*first.names, *second.names), patterns)
    else:
        chosen = matching(first.names, patterns)
        calls = zip(first.names, first.calls, strict=True)
        first = replace(first, calls=tuple(call for name, call in calls if name in chosen))
        second, failed = answered(first, port, progress)
        if not second.calls:
            return Comparison("name", (), (), (), (), failed)
        by = "name"
    pairing = pair_calls(first, second, by)
    walk = _Walk(first, second)
    pairs = []
    for position, partner in pairing.pairs:
        progress(f"comparing {first.names[position]}")
        pairs.append(walk.compare(position, partner))
    pairs = [pair for pair in pairs if {pair.original, pair.port} & chosen]
    ends = compare_ends(first, second, walk.before)
    return Comparison(
        by=pairing.by,
        pairs=tuple(pairs),
        unpaired=tuple(unpaired_lines(first, second, pairing, chosen - failed.keys())),
        notes=(*_read(first, second), *pairing.notes, *other_dtypes(pairs), *walk.notes),
        findings=tuple(findings(pairs)),
        failed=failed,
        ends=tuple(ends),
        unjudged=() if callable(port) else tuple(unjudged(first, second, ends)),
        unseen=undetectable_bugs(second, {one.port for one in pairs}, progress=progress) if unseen and pairs else None,
    )


def _loaded(source: Recording | str | os.PathLike[str]) -> Recording:
    return source if isinstance(source, Recording) else Recording.load(source)


def _read(original: Recording, port: Recording) -> Iterator[str]:
    """One line for each model of which attention modules were not recorded."""
    for recording, whose in ((original, "original"), (port, "port")):
        if recording.coverage is not None and recording.coverage.unread:
            yield f"Of the {whose}: {recording.coverage.line}."


CAUSES = {"mask": "mask", "config": "layer", "weights": "layer", "inputs": "inputs", "past": "inputs"}
"""Part of a call in which two differ -> what of it is put into the original, to see what that does."""


class _Walk:
    """Compares the pairs in their order.

    Attributes:
        before: what earlier pairs leave for later ones.
        notes: remarks about both recordings.
    """

    def __init__(self, original: Recording, port: Recording) -> None:
        self.original, self.port = original, port
        self.index = WeightIndex(original.layers)
        self.before = Before()
        self.notes: list[str] = []
        self._begun = False
        self._layers = cache(layer_differences)

    def compare(self, position: int, partner: int) -> Pair:
        """Compare one call of the original with one of the port, by their positions."""
        before = self.before
        a, b = self._side(self.original, position), self._side(self.port, partner, before.order)
        allowance = Allowance.between(a.dtype, b.dtype, before.carried)
        found = calls_part(a, b, allowance)
        if not self._begun and found.inputs is not None and any(one.part == "inputs" for one in found.found):
            order = _item_order(a, b, allowance)
            if order is not None:
                b = self._side(self.port, partner, order)
                before.order, found = order, calls_part(a, b, allowance)
                self.notes.append(f"The port's batch has another order: its items {order.tolist()} are the original's.")
        self._begun, before.rows = True, found.rows
        if FINITE in found.notes:  # a bias of -1e9 would make the bounds useless: both get the mask that excludes more
            fewer = a if a.wanted.where.sum() <= b.wanted.where.sum() else b
            a, b = (one if one is fewer else one.with_mask_of(fewer) for one in (a, b))
        layers = self.original.layer_of(position), self.port.layer_of(partner)
        layer, layer_notes = self._layers(*layers, self.index)
        own, own_notes, ratios = own_differences(a, b, found.rows)
        differences = [
            replace(one, follows=before.parted and one.part in ("inputs", "past") and one.name != "shapes")
            for one in found.found
        ]
        pair = Pair(
            a.name,
            b.name,
            (a.dtype, b.dtype),
            tuple(sorted([*differences, *layer, *own], key=lambda one: PARTS.index(one.part))),
            (*([] if before.parted else found.notes), *layer_notes, *own_notes),
            found.inputs,
            ratios,
        )
        return self._with_outputs(pair, a, b, found)

    def _with_outputs(self, pair: Pair, a: ComparedCall, b: ComparedCall, found: CallDifferences) -> Pair:
        """The pair with the distance of its outputs, and each difference with its effect on the original's output."""
        before = self.before
        if found.rows is None or a.output.shape != b.output.shape:
            before.parted = True
            return pair
        rows = found.rows[:, :, None]
        alike = FIELDS.keys() - {CAUSES.get(one.part) for one in pair.differences}
        outputs = outputs_apart(a, b, rows, moves(a, b, rows, alike))
        moved = {part: moves(a, b, rows, (part,)) for part in FIELDS.keys() - alike}
        largest = {part: None if by is None else float(by.max(initial=0.0)) for part, by in moved.items()}
        differences = tuple(replace(one, moves=largest.get(CAUSES.get(one.part, ""))) for one in pair.differences)
        before.parted |= "inputs" not in alike or outputs.ratio > 1.0
        if not before.parted:
            before.carried = max(before.carried, found.drift, apart(a.output, b.output, rows).mean)
        return replace(pair, differences=differences, distance=outputs.error, allowed=outputs.allowed)

    def _side(self, recording: Recording, position: int, order: NDArray[np.intp] | None = None) -> ComparedCall:
        problem = recording.problems[position]
        if order is not None and len(order) == problem.sizes.batch:
            problem = items_of(problem, order)
        return ComparedCall.of(recording.names[position], recording.layer_of(position).dtype, problem)


def _item_order(a: ComparedCall, b: ComparedCall, allowance: Allowance) -> NDArray[np.intp] | None:
    """The order of the port's batch items that gives the original's; None if it is the same, or there is none."""
    one, other = a.problem.inputs.queries, b.problem.inputs.queries
    if not 1 < len(one) <= MOST_ITEMS:
        return None
    rows = a.wanted.where.any(axis=(1, 3))
    order: list[int] = []
    for item in range(len(one)):
        counts = np.broadcast_to(rows[item][..., None], one[item].shape)
        left = (i for i in range(len(other)) if i not in order)
        order += [next((i for i in left if allowance.ratio(apart(one[item], other[i], counts)) <= 1.0), len(other))]
    if sorted(order) != list(range(len(one))) or order == sorted(order):
        return None
    return np.array(order)
