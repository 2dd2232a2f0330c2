"""Explain: find the bug, or pair of bugs, that gives the recorded outputs where they differ from the definition."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Case
from conformance.diagnosis.diagnose import Diagnosis
from conformance.diagnosis.diagnose import diagnose as find_bugs
from conformance.diagnosis.hypotheses import Hypothesis
from conformance.judging.expected import Expected, expected
from conformance.kinds.change import Setting
from conformance.kinds.oddities import factors, sums_of
from conformance.measure.readings import fills
from conformance.measure.search import Located
from conformance.runner import run_case
from conformance.subjects.items import take_items
from conformance.zoo.bug import Bug
from conformance.zoo.registry import all_bugs
from mha.projections.said import causal_otherwise, read_otherwise
from mha.recordings.function_bugs import LOWEST_BUG, SEAM_BUGS, SWALLOWING, bugs_of_functions, has_sinks
from mha.recordings.meant import Meant, meant_by
from mha.recordings.origins import DIAGNOSED, WeightIndex, what_it_is
from mha.recordings.packing_bugs import packing_bugs
from mha.recordings.recording import NAMED, RecordedCall, Recording
from mha.recordings.replay import RecordedSubject, judge_recording, selected
from mha_core import Rotary, RotaryInputs, SpecError, Trace
from mha_core.call.masks import padding_keys
from mha_core.call.rotary import Tables
from mha_core.errors import listed
from mha_core.parts.rotary import base_in, in_words, positions_in
from mha_core.reference.forward import PROJECTED


def explain(
    recording: Recording, *, patterns: Sequence[str] = ("*",), progress: Callable[[str], None] = lambda what: None
) -> list[Diagnosis]:
    """Return a Diagnosis for each dtype in a recording: bugs that explain how its outputs differ from the reference.

    Known bugs are tried, and wrong ways to read packed weights. A bug explains the recording if the reference with that
    bug gives the recorded output in every call of the dtype. Of a large batch only two items are compared: the one with
    the largest error, and its neighbour.
    """
    recording = _two_items_each(recording)
    known = selected(recording, patterns)
    found = []
    for dtype in recording.dtypes:
        ids = [case.id for case in recording.cases(dtype) if case.id in known]
        if ids:
            found.append(_searched(recording, dtype, ids, _bugs_for(recording), progress)[0])
    return found


def _bugs_for(recording: Recording) -> tuple[Bug, ...]:
    """The bugs that are tried on a recording: where a key stands for sinks, no other that is of a key at the end."""
    own = SEAM_BUGS if any(has_sinks(call.inputs) for call in recording.calls) else ()
    biases = (call.inputs.mask.bias for call in recording.calls)
    lowest = [LOWEST_BUG] if any(bias is not None and (bias <= SWALLOWING).any() for bias in biases) else []
    zoo = [bug for bug in all_bugs() if not own or not bug.id.startswith("block-")]
    return (*own, *lowest, *zoo, *bugs_of_functions(recording), *packing_bugs())


Otherwise = Callable[[str], str]
"""What returns the words of an assumption with its opposite, or "" if the words are of something else."""

INVERTED = frozenset(("mask-inverted", "mask-inverted-added", "mask-inverted-filled", "allowed-inverted"))
"""Bugs on file that read a mask the wrong way round."""


def _searched(
    recording: Recording, dtype: str, ids: Collection[str], bugs: Sequence[Bug], progress: Callable[[str], None]
) -> tuple[Diagnosis, Otherwise | None]:
    """The diagnosis of some calls, and which assumption it has otherwise than the recording, if any.

    Where nobody said how a layer reads its mask, or whether it is causal, and no reading gives what it gave, the other
    reading is as good, and what it makes of the layer is said if that takes less bugs.
    """

    def diagnosed(of: Recording) -> Diagnosis:
        cases = [case for case in of.cases(dtype) if case.id in ids]
        problems = [problem for name, problem in zip(of.names, of.problems, strict=True) if name in ids]
        search = partial(find_bugs, RecordedSubject(of, dtype), cases, progress=progress)
        found = search(bugs=bugs)
        pads = (padding_keys(one.inputs.mask, one.inputs.check(one.config)).any() for one in problems)
        if found.failing and _fewest(found) > 1 and any(pads):
            second = search(bugs=[_with_padding(bug) for bug in bugs])
            found = second if _fewest(second) < _fewest(found) else found
        if found.failing and not (found.explanations or found.partly or found.first_step):
            read = (_read(expected(case, Precision.of(dtype)), dtype) for case in cases if case.id in found.failing)
            return replace(found, located=next(filter(None, read), None))
        return found

    found = diagnosed(recording)
    each = [one.bugs for one in found.explanations]
    inverted = [any(bug.id in INVERTED for bug in some) for some in each]
    others: list[Otherwise] = [read_otherwise] if each and all(inverted) else []
    others += [causal_otherwise] if found.failing else []
    for otherwise in others if _fewest(found) > 1 else ():
        if any(
            otherwise(call.assumed) for call, name in zip(recording.calls, recording.names, strict=True) if name in ids
        ):
            second = diagnosed(_taken_otherwise(recording, otherwise))
            if _fewest(second) < _fewest(found):
                return second, otherwise
    return found, None


def _read(wanted: Expected, dtype: str) -> Located | None:
    """The first wrong step of a recorded output, by heads read through out_proj and weights read through values.

    The result is None if the arrays do not tell the heads, or these say nothing.
    """
    problem, right = wanted.problem, wanted.trace.arrays()
    config, weights, sizes, output = problem.config, problem.weights, problem.sizes, problem.recorded.get("output")
    if output is None or not config.projections or sizes.past_len or output.shape != right["output"].shape:
        return None
    matrix, near = weights["out_proj.weight"].T, 1e-8 if dtype == "float64" else 1e-3
    whole = output - weights.get("out_proj.bias", 0.0)
    read = whole @ np.linalg.pinv(matrix)
    if matrix.shape[0] > matrix.shape[1] or (np.abs(read @ matrix - whole) > near * np.abs(whole).max()).any():
        return None
    heads = read.reshape(*read.shape[:2], config.num_heads, -1).swapaxes(1, 2)
    values = problem.inputs.values @ weights["v_proj.weight"].T + weights.get("v_proj.bias", 0.0)
    values = values.reshape(*values.shape[:2], config.num_kv_heads, -1).swapaxes(1, 2)
    shares = heads @ np.linalg.pinv(np.repeat(values, config.num_heads // config.num_kv_heads, axis=1))
    allowed = np.broadcast_to(problem.allowed(), shares.shape)
    said, stage = [*factors(heads, right["heads"], near)], "heads"
    if not said and sizes.key_len <= config.value_head_dim:
        filled = fills([(shares, np.where(allowed, right["scores"], 0.0), allowed, Setting.of(problem))], near)
        said, stage = [*sums_of(shares, allowed, near), *(bug.sentence for bug in filled)][:1], "weights"
    lines = tuple(f"  {one.format('read back through out_proj')}" for one in said)
    return Located(stage, problem, lines) if lines else None


def _fewest(found: Diagnosis) -> float:
    """The least number of bugs that explain the calls; infinity if none do."""
    return min((len(one.bugs) for one in found.explanations), default=np.inf)


@cache
def _with_padding(bug: Bug) -> Bug:
    """The bug in a layer that leaves padded rows as they are, as most do; the definition's sets them to 0."""
    as_it_is = {"padding": lambda state: np.zeros((state.sizes.batch, state.sizes.key_len), bool)}
    return bug if "padding" in bug.forward or not bug.forward else replace(bug, forward={**as_it_is, **bug.forward})


def _taken_otherwise(recording: Recording, otherwise: Otherwise) -> Recording:
    """The recording with the opposite of an assumption, in the calls where it is assumed."""
    calls = []
    for call in recording.calls:
        mask = call.inputs.mask
        if assumed := otherwise(call.assumed):
            if otherwise is causal_otherwise:
                mask = replace(mask, causal=not mask.causal)
            elif mask.allowed is not None:
                mask = replace(mask, allowed=~np.asarray(mask.allowed, dtype=bool))
            call = replace(call, inputs=replace(call.inputs, mask=mask), assumed=assumed)
        calls.append(call)
    return replace(recording, calls=tuple(calls))


MOST = 4
"""Most layers that all bugs are tried on, of those that differ each in its own way."""

MOST_IN_VAIN = 2
"""The number of them that nothing explains after which no further layer is searched: that takes the longest."""


@dataclass(frozen=True)
class LayersExplained:
    """An explanation of wrong outputs, layer by layer, in the calls of one dtype.

    Attributes:
        found: groups of layers with the same bugs, each as (names, diagnosis of their calls). A layer without an
            explanation is a group of its own. If no layer is wrong, one group has all.
        right: the names of right layers, if others are wrong.
        after_nan: the names of layers whose only errors are NaN in batch items whose inputs had NaN; not judged.
        beyond: name of a wrong layer -> a wildcard pattern that matches its calls, such as "attn#*". These layers were
            not searched for bugs, because the limit of searches (MOST, MOST_IN_VAIN) was reached.
        otherwise: name of a layer -> a function that returns a sentence on it. The numbers of these layers contradict
            an assumption: the meaning of the masks, or whether the layer is causal.
        by_weights: names of layers that are wrong with the original's weights, but right with their own.
    """

    found: tuple[tuple[tuple[str, ...], Diagnosis], ...]
    right: tuple[str, ...] = ()
    after_nan: tuple[str, ...] = ()
    beyond: Mapping[str, str] = field(default_factory=dict)
    otherwise: Mapping[str, Otherwise] = field(default_factory=dict)
    by_weights: tuple[str, ...] = ()


def explain_layers(
    recording: Recording, *, patterns: Sequence[str] = ("*",), progress: Callable[[str], None] = lambda what: None
) -> list[LayersExplained]:
    """Return a LayersExplained (which bugs explain which layers) for each dtype in a recording.

    Bugs that explain an earlier layer are tried first. Further bugs are searched only if the first ones fail.
    """
    recording = _two_items_each(recording)
    known = selected(recording, patterns)
    name_of = {name: recording.layer_of(position).name for position, name in enumerate(recording.names)}
    found = []
    for dtype in recording.dtypes:
        calls: dict[str, list[Case]] = {}
        for case in recording.cases(dtype):
            if case.id in known:
                calls.setdefault(name_of[case.id], []).append(case)
        if calls:
            found.append(_by_layer(recording, dtype, calls, progress))
    return found


def _by_layer(
    recording: Recording, dtype: str, calls: dict[str, list[Case]], progress: Callable[[str], None]
) -> LayersExplained:
    turned: dict[str, Otherwise | None] = {}

    def searched(names: Sequence[str], bugs: Sequence[Bug]) -> Diagnosis:
        found, otherwise = _searched(
            recording, dtype, {case.id for name in names for case in calls[name]}, bugs, progress
        )
        turned.update(dict.fromkeys(names, otherwise))
        return found

    subject = RecordedSubject(recording, dtype)

    zoo = _bugs_for(recording)
    wrong = [name for name, own in calls.items() if any(run_case(case, subject).status != "equal" for case in own)]
    after_nan = tuple(name for name in wrong if all(_is_after_nan(recording, dtype, case) for case in calls[name]))
    wrong = [name for name in wrong if name not in after_nan]
    if not after_nan and (not wrong or len(calls) == 1):
        alone = ((tuple(calls), searched(tuple(calls), zoo)),)
        return LayersExplained(alone, otherwise={name: turn for name, turn in turned.items() if turn})
    right = tuple(name for name in calls if name not in (*wrong, *after_nan))
    groups: list[tuple[tuple[str, ...], Diagnosis]] = []
    while wrong and len(groups) < MOST and sum(not one.explanations for _, one in groups) < MOST_IN_VAIN:
        names, found = wrong[:1], searched(wrong[:1], zoo)
        shared = found.explanations
        for name in wrong[1:]:
            if both := _shared(shared, searched([name], _bugs_of(shared)).explanations) if shared else ():
                names, shared = [*names, name], both
        groups.append((tuple(names), searched(names, _bugs_of(shared)) if names[1:] else found))
        wrong = [name for name in wrong if name not in names]
    ids = {name: [case.id for case in calls[name]] for name in wrong}
    beyond = {name: own[0] if len(own) == 1 else f"{own[0].rpartition('#')[0]}#*" for name, own in ids.items()}
    otherwise = {name: turn for names, _ in groups for name in names if (turn := turned[name])}
    return LayersExplained(tuple(groups), right, after_nan, beyond, otherwise)


def _is_after_nan(recording: Recording, dtype: str, case: Case) -> bool:
    """Whether a call is right but for NaN, in items in which an earlier call gave NaN and this one was given it."""
    position = recording.names.index(case.id)
    wanted = expected(case, Precision.of(dtype))
    inputs, recorded = wanted.problem.inputs, wanted.problem.recorded
    spread = np.zeros(len(inputs.queries), bool)
    for before in recording.calls[:position]:
        if len(before.outputs["output"]) == len(spread):
            spread |= _has_nan(before.outputs["output"])
    given = [inputs.queries, inputs.keys, inputs.values, inputs.past_keys, inputs.past_values]
    spread &= np.any([_has_nan(array) for array in given if array is not None], axis=0)
    stages: dict[str, Any] = {}
    for name, array in recorded.items():
        after = np.isnan(array) & spread.reshape(-1, *(1,) * (array.ndim - 1))
        stages[name] = np.where(after, getattr(wanted.trace, name), array).astype(array.dtype)
    return bool(spread.any()) and not wanted.judge(Trace(**stages), dtype)[1]


def _has_nan(array: NDArray) -> NDArray[np.bool_]:
    """Bool (B,): the items with a NaN."""
    found: NDArray[np.bool_] = np.isnan(array).reshape(len(array), -1).any(axis=1)
    return found


def _bugs_of(hypotheses: Sequence[Hypothesis]) -> tuple[Bug, ...]:
    return tuple(dict.fromkeys(bug for one in hypotheses for bug in one.bugs))


def _shared(hypotheses: Sequence[Hypothesis], others: Sequence[Hypothesis]) -> tuple[Hypothesis, ...]:
    """The hypotheses whose bugs are also those of one of the others."""
    theirs = [set(other.bugs) for other in others]
    return tuple(one for one in hypotheses if set(one.bugs) in theirs)


def of_weights_alone(found: Sequence[LayersExplained], held: Recording) -> list[LayersExplained]:
    """Return `found` without the explanations that the layers' own weights rule out.

    If a layer is right with its own weights, only bugs in projections can explain its outputs. Two of these bugs
    are alike in layers without biases of q, k and v: a wrong order in a packed array, and exchanged weights. Of these
    two only exchanged weights are kept.

    Args:
        found: explanations of the calls, judged by the original's weights.
        held: the recording with its layers' own weights.
    """
    layer_of = {name: held.layer_of(position) for position, name in enumerate(held.names)}
    off = {layer_of[one.case].name for one in judge_recording(held) if one.status != "equal"}
    biases = [f"{name}.bias" for name in ("q_proj", "k_proj", "v_proj")]
    biased = {
        one.name for one in held.layers if any(np.any(one.weights[name]) for name in biases if name in one.weights)
    }

    def without(names: Sequence[str], diagnosis: Diagnosis) -> Diagnosis:
        told = diagnosis.explanations
        if not off.isdisjoint(names) or not diagnosis.failing:
            return diagnosis
        told = tuple(one for one in told if all(bug.steps <= PROJECTED_STEPS for bug in one.bugs)) or told
        held_ids = {bug.id for one in told for bug in one.bugs} if biased.isdisjoint(names) else set()
        same = {BUT_FOR_BIASES[id] for id in held_ids & BUT_FOR_BIASES.keys()}
        return replace(diagnosis, explanations=tuple(one for one in told if same.isdisjoint(x.id for x in one.bugs)))

    return [
        replace(
            one,
            found=tuple((names, without(names, each)) for names, each in one.found),
            by_weights=tuple(name for names, each in one.found if each.failing for name in names if name not in off),
        )
        for one in found
    ]


BUT_FOR_BIASES = {"q-k-weights-exchanged": "packed-order-kqv", "k-v-weights-exchanged": "packed-order-qvk"}
"""A bug on file that exchanges weights -> the packing that exchanges weights and biases."""

PROJECTED_STEPS = frozenset(step for _, step in PROJECTED.values())
"""The steps of the reference that hold the layer's weights."""


SMALL = 100_000
"""Elements of an output below which the whole batch is used."""


def _two_items_each(recording: Recording) -> Recording:
    """The recording with at most two batch items in each call that has a large output: the worst one and another."""
    worst = {result.case: result.mismatches[0].index for result in judge_recording(recording) if result.mismatches}
    calls = []
    for name, call in zip(recording.names, recording.calls, strict=True):
        batch = call.inputs.queries.shape[0]
        if batch > 2 and call.outputs["output"].size > SMALL:
            first = (worst.get(name) or (0,))[0]
            items = np.array([first, (first + 1) % batch])
            outputs = {name: array[items] for name, array in call.outputs.items()}
            call = replace(call, inputs=take_items(call.inputs, items), outputs=outputs)
        calls.append(call)
    return replace(recording, calls=tuple(calls))


def intended(
    recording: Recording, path: str | os.PathLike[str], original: Recording | Meant | None = None
) -> tuple[Recording, list[str]]:
    """Return (a copy of the recording with the weights of a file, lines on where these differ from the recorded ones).

    Args:
        recording: calls of one or more ported layers.
        path: a file of weights, or a recording of the original. Layers are matched by name or, if the names differ,
            by order.
        original: the result of `meant_by` for that file. None: the file is read here.

    Raises:
        SpecError: the file holds neither weights nor a recording, or its layers are not those of `recording`.
    """
    names = list(dict.fromkeys(layer.name for layer in recording.layers))
    original = meant_by(path, recording) if original is None else original
    theirs = (
        original.layers if isinstance(original, Meant) else {x.name: (x.config, x.weights) for x in original.layers}
    )
    if not set(names) <= set(theirs):
        if len(names) != len(theirs):
            of_one = f" `mha convert {path} --moved --prefix NAME --to canonical --out FILE` makes a file of one."
            raise SpecError(
                f"{path} must have the layers that were recorded, or as many. It has "
                f"{listed([repr(name) for name in theirs], NAMED)}; recorded were "
                f"{listed([repr(name) for name in names], NAMED)}.{of_one * (names == [''])}"
            )
        theirs = dict(zip(names, theirs.values(), strict=True))
    meant = recording.with_weights({name: theirs[name] for name in names})
    meant, lines = (meant, []) if isinstance(original, Recording) else _by_angles(meant, str(path))
    holding: dict[str, dict[str, None]] = {}
    index = WeightIndex(meant.layers)
    for held, right in zip(recording.layers, meant.layers, strict=True):
        both = right.weights.keys() & held.weights.keys()
        other = [name for name in right.weights if name in both]
        other = [name for name in other if not np.array_equal(right.weights[name], held.weights[name])]
        other += sorted(right.weights.keys() ^ held.weights.keys())
        every = {name for name in right.weights if name.endswith("_proj.weight")} <= set(other)
        more = " (all of its matrices: is it a file of this model, in this state of training?)" * every
        what = f"other weights than {path}: {', '.join(other)}{more}" if other else f"the weights of {path}"
        if isinstance(original, Meant):  # recordings are compared by themselves
            pairs = {name: (right.weights[name], held.weights[name]) for name in other if name in both}
            origins = {name: what_it_is(name, *pair, right, index, held.held_in) for name, pair in pairs.items()}
            known = [f"{name} {words}" for name, words in origins.items() if not words.startswith("differs in ")]
            what += f". {'; '.join(known)}".replace(DIAGNOSED, "") if known else ""
        holding.setdefault(what, {})[held.name or "The layer"] = None
    for what, who in holding.items():
        lines.append(f"{listed(tuple(who), NAMED)} {'holds' if len(who) == 1 else 'hold'} {what}.")
    return meant, [*lines, *([original.doubt] if isinstance(original, Meant) and original.doubt else [])]


def _by_angles(recording: Recording, path: str) -> tuple[Recording, list[str]]:
    """The recording with positions in place of tables that turn otherwise than its layers' settings say.

    Tables are what a call was given: a layer that was given those of another base follows the definition.

    Args:
        recording: whose layers have the settings of the layer that was ported.
        path: the file with these, for messages.

    Returns:
        The recording, and a line for each layer whose tables are others, or can't be compared.

    Raises:
        SpecError: tables that neither the settings nor any base without a rule gives.
    """
    calls, lines = [], dict[str, None]()
    for call in recording.calls:
        layer = recording.layers[call.layer]
        settings, given = layer.config.rotary, call.inputs.rotary
        if settings is None or given is None or not given.has_tables:
            calls.append(call)
            continue
        name, made = layer.name or "The layer", given.tables()
        if _positions(made, settings, call) is not None:
            calls.append(call)
            continue
        base = base_in(made.queries, settings)
        other = None if base is None else replace(settings, base=base, rule=None)
        found = None if other is None else _positions(made, other, call)
        if other is not None and found is not None:
            lines[f"{name} turns by {in_words(other)}; {path} says {in_words(settings)}."] = None
            calls.append(replace(call, inputs=replace(call.inputs, rotary=RotaryInputs(*found))))
            continue
        if settings != settings.layout:
            raise SpecError(f"{name} turns by angles that {in_words(settings)} of {path} give at no position")
        # Settings by default may be those of a file that does not know them.
        lines[f"{name} turns by angles that {path} does not say, so they are not compared."] = None
        calls.append(call)
    return replace(recording, calls=tuple(calls)), list(lines)


def _positions(made: Tables, settings: Rotary, call: RecordedCall) -> tuple[NDArray[np.int64], ...] | None:
    """The positions of queries and new keys at which the settings make these tables; None if at none."""
    past = call.inputs.past_keys
    key_len = call.inputs.keys.shape[1] + (0 if past is None else past.shape[2])
    found = [positions_in(table, settings, key_len) for table in (made.queries, made.keys)]
    batch = len(call.inputs.queries)
    whole = [np.broadcast_to(one, (batch, one.shape[-1])) for one in found if one is not None]
    return tuple(whole) if len(whole) == 2 else None
