"""Localise: the first wrong step of a subject that no bug explains.

The first row of problems that differs says the stage where its name does. Otherwise it is read: the heads of calls with
one key, and the weights that unit vectors as values show, which count only where the output is linear in such values
and these weights give it. The earliest of what is read counts.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.kinds import isolating
from conformance.kinds.change import MASKING, MASKS, Setting
from conformance.kinds.dependence import DRAWN, KEYS, QUERIES, SHARP, logs, more_than_both, of_mixed_values, picked
from conformance.kinds.made import TROUBLE
from conformance.kinds.oddities import (
    NEAR,
    TIMES,
    are_alike,
    are_moved,
    follow,
    is_function,
    is_kept,
    is_product,
    mix_of,
    near,
    rank,
)
from conformance.kinds.places import PLACES
from conformance.measure.designs import NO_BIASES, changed, generic
from conformance.measure.evidence import Evidence, PlacedCall
from conformance.measure.problems import SMALL, scored
from conformance.measure.readings import ROWS, dependence, drawn, fact, moves
from conformance.measure.search import EXTREME, Located, Measured, features_of
from conformance.measure.solve import CODE, read_weights, solved, weights_of
from conformance.zoo.variants import Variants
from mha_core import STAGES

LONGEST, MOST_CASES = 16, 3  # most keys of a failing case that is read, and most of such cases


def localise(measured: Measured, failing: Iterable[Problem] = ()) -> Located | None:
    """Return the first wrong step of a subject whose errors no known bugs explain; None if it can't be found.

    Args:
        measured: the results of isolating problems (calls whose answers depend on few steps).
        failing: the problems of failing cases, which are used if all isolating problems are right.
    """
    first = measured.first
    evidence = Evidence(measured.asker, Variants())
    if not measured.behaviour.is_function or measured.behaviour.shared is not None:
        return None
    if first is None:
        return _of_cases(evidence, list(failing))
    problem = first.differing[0]
    if first.probe.gradients:
        return Located(first.probe.stage, problem, tuple(_first_gradient(evidence, problem)))
    asker, is_live = measured.asker, measured.asker.fixed_weights is not None
    for one in first.differing:
        if are_moved(np.asarray(asker.output(one)), asker.right(one, "output")):
            return Located("output", one, (MOVED,), "what sorts or gathers items, and whether it is undone")
    others = (changed(problem, **{name: 1.0 - getattr(problem.inputs, name)}) for name in ("queries", "keys", "values"))
    if [moves(evidence, problem, other) for other in others] == [(True, True), (False, True), (False, True)]:
        return _seen(evidence, "keys", first.differing)
    pair, can_read = generic(problem.config, batch=2, weights=NO_BIASES), problem.config.projections and not is_live
    of_several = can_read and all(one.sizes.batch > 1 for one in first.differing)
    if of_several and (stage := isolating.of_items(read_weights, asker.output, pair, asker.right(pair, "weights"))):
        return _seen(evidence, stage, first.differing)
    if first.probe.stage in ("", "weights") and not asker.slow and not is_live:
        call, read = scored(problem.config, *SMALL), partial(weights_of, evidence)
        if (mixed := of_mixed_values(read, asker.output, call, asker.right(call, "weights"))) is not None:
            return Located(mixed[0], call, (f"  {mixed[1]}",), mixed[2])
    if first.probe.stage:
        named, some = first.probe.stage, first.differing[:MOST_CASES]
        wrong = [(one, Setting.of(one).has) for row in measured.outcomes for one in row.differing]
        biased = [one for one, has in wrong if has & {*MASKS, "bias"} == {"bias"}]
        added = [one for one in biased if np.isfinite(one.inputs.mask.bias).all()]
        if named == "weights" and added and all("bias" in has for _, has in wrong):  # finite ones are of scores
            return _seen(evidence, "scores", added)
        given = [_told(_of_named, evidence, one) for one in some]
        if named == "weights":  # of the right keys, of which scores may be others
            given += [other for one in some if (other := _told(_of_scores, evidence, one)) in STAGES and other != named]
        return _seen(evidence, next(filter(None, given), named), first.differing)
    found: list[tuple[str, tuple[Problem, ...]]] = []
    differing = {row.probe.id: row.differing for row in measured.outcomes if row.differing}
    unread = {"query-bias"} if "scores" in differing else set()  # of scores that are wrong without it, it tells no more
    for id in (id for id in differing if id == first.probe.id or id in {*READ} - unread):
        way, problems = READ.get(id, _of_call), differing[id]
        if id.startswith("past"):
            way, problems = _of_past, differing.get("past", problems)
        found += islice(((stage, problems) for one in problems if (stage := _told(way, evidence, one))), 1)
    # A factor of values or of heads is what other weights sum to, where these are wrong; what bends values bends such
    # sums, and what the output's projection does not explain is wrong behind all of them.
    stages = [stage for stage, _ in found]
    of_scores = differing.get("scores", ())[:1]
    behind = "values" not in stages or not {"queries", "keys", "scores"} & {*stages}
    of_output = {f"{FACTOR}output", "output", "values"} & {*stages}
    is_gated = any(stage == "values" and problems[:1] == of_scores for stage, problems in found)
    differ = [isolating.sums_differ(asker.output, one, asker.right(one, "weights")) for one in of_scores if can_read]
    if differ == [False]:  # numbers that mix channels, by which keys are told apart, seem to be other weights
        found = [one for one in found if one[0] not in ("queries", "keys", "scores")] or found
    are_others = of_output and behind and not is_gated and any(differ)
    if are_others or (f"{FACTOR}values" in stages and "scores" in stages):  # one number in both
        said, _ = fact(evidence, of_scores[0], "queries")
        look = COMMON + ", or the order of heads" * all(one.config.num_heads > 1 for one in failing)
        also = f"  {'The output projection is' if 'output' in stages else 'Values are'} wrong as well."
        return Located("queries", of_scores[0], (*said, also), look)
    if f"{FACTOR}output" in stages:  # numbers in another order
        return _seen(evidence, "output", first.differing)
    found = [one for one in found if one[0] == "output"] or found
    dropped = {"weights", OTHER} if {"values", "heads"} & {*stages} else {"weights"} if GATED in stages else set()
    told = [one for one in found if not one[0].startswith(FACTOR) and one[0] not in dropped] or found
    told = [(stage.removeprefix(FACTOR).removeprefix("other "), problems) for stage, problems in told]
    best = min(told, key=lambda one: STAGES.index(one[0]), default=None)
    return None if best is None else _seen(evidence, *best)


FACTOR, OTHER = "a factor of ", "other weights"  # which are no sums of the right ones of a row, or of several heads
GATED = "other heads"  # each the right one times a number, as where weights have another sum
COMMON = "what all projections share: a norm, scale, rounding or layout of whole weights, or a norm behind them"
MOVED = "  The items' outputs are right, in another order of the items: as after a sort that is not undone."

Reading = Callable[[Evidence, Problem], str | None]


def _seen(evidence: Evidence, stage: str, problems: Sequence[Problem]) -> Located:
    """Return the stage with the keys that are let in, if these are others, or else a fact about an answer."""
    some = problems[: MOST_CASES if evidence.asker.slow else None] if stage == "weights" else ()
    drawings = [(one, lines) for one in some if (lines := drawn(evidence, one))]
    if not drawings:
        said, look = fact(evidence, problems[0], stage)
        if TIMES in "".join(said) and all(fact(evidence, one, stage)[0] == said for one in problems[1:]):
            said = [re.sub(" of (the first wrong call|a call with one key)", "", one) for one in said]
        return Located(stage, problems[0], tuple(said), look)
    # Of rows that are all alike two readings may be true: where most rows have keys of their own fewest are.
    problem, lines = max(drawings, key=lambda one: len({line.partition(":")[2] for line in one[1][1:]}))
    if (more := len(lines) - 1 - 2 * ROWS) > 0:
        lines = [*lines[: 1 + ROWS], f"    (and {more} more)", *lines[-ROWS:]]
    one, look = next(dependence(evidence, problem.config, stage), ("", DRAWN[bool(Setting.of(problem).has & MASKING)]))
    return Located(stage, problem, (f"  {one}",) if one.startswith(SHARP) else tuple(lines), look)


def _of_named(evidence: Evidence, problem: Problem) -> str | None:
    """Return where a call whose row names a stage is wrong without its mask, or without values; None if it is not."""
    asker, config, sizes = evidence.asker, problem.config, problem.sizes
    if not config.projections or asker.fixed_weights is not None:
        return None
    length = max(sizes.query_len, sizes.key_len, config.head_dim + 3)  # enough to solve for what is before weights
    few, given = 1 if sizes.query_len == 1 else length, problem.weights
    plain = generic(config, batch=sizes.batch, query_len=few, key_len=length, weights=given)
    is_plain = Setting.of(problem).has & {*MASKS, "bias"} and asker.output(plain) is not None
    wrong = plain if is_plain and not asker.is_right(plain) else problem
    biases = {name: array for name, array in generic(config).weights.items() if name == "out_proj.bias"}
    past = {"past_values": 0.0} if wrong.sizes.past_len else {}
    none = changed(wrong, {"v_proj.bias": 0.0, **biases}, values=0.0, **past)
    output, bare = asker.output(none), changed(none, {"out_proj.bias": 0.0})
    if output is not None and np.isfinite(output).all() and not asker.is_right(none):
        is_added = asker.output(bare) is not None and asker.is_right(bare)
        return "output" if is_added or solved(evidence, none, PLACES["heads"]) is None else "heads"
    return _of_call(evidence, plain) if wrong is plain else None


def _told(way: Reading, evidence: Evidence, problem: Problem) -> str | None:
    try:
        with any_numbers:
            return way(evidence, problem)
    except (*TROUBLE, np.linalg.LinAlgError):
        return None  # numbers that can't be read tell nothing


OF_FEATURES = {  # the stage of calls that go wrong only with some of these
    "scores": frozenset(("bias", "softcap", "scale", "dot", "additive")),
    "weights": frozenset(MASKS),
    "heads": frozenset(("dropout_keep",)),
    "keys": frozenset(("past",)),
}


def _of_cases(evidence: Evidence, failing: list[Problem]) -> Located | None:
    """Return where cases go wrong that have what no row of problems has: as one reads, or what all have."""
    plain = [one for one in failing if one.inputs.queries.ndim == 3 and EXTREME not in features_of(one)]
    small = sorted(plain, key=lambda one: (len(features_of(one)), one.sizes.key_len))
    for problem in (one for one in small[:MOST_CASES] if one.sizes.key_len <= LONGEST):
        if stage := _told(_of_call, evidence, problem):
            return _seen(evidence, stage, [problem])
    common = frozenset.intersection(*(Setting.of(one).has for one in failing)) if failing else frozenset()
    stage = next((stage for stage, names in OF_FEATURES.items() if common & names), None)
    return None if stage is None else _seen(evidence, stage, small or failing)


def _of_values(evidence: Evidence, problem: Problem) -> str | None:
    """Return where a call with one key goes wrong: heads that no output projection contradicts, or values."""
    read = solved(evidence, problem, PLACES["heads"])
    if read is None or not np.isfinite(read[0]).all():
        return "output"
    heads, own = read
    is_of_values = _are_of_groups(heads, problem, (2, 3))
    none = _heads_of(evidence, changed(problem, {"v_proj.bias": 0.0}, values=0.0))
    # What heads have without any value is another key's, which weighs it, if other keys make it another.
    if none is not None and np.any(np.abs(none) > NEAR):
        return "values" if is_of_values else "heads" if _is_of_queries(evidence, problem, heads) else "keys"
    ratio = np.median(heads / own, axis=-1, keepdims=True)
    if near(heads, ratio * own):  # each is a multiple of the right one
        twice = _heads_of(evidence, changed(problem, {"v_proj.bias": 2.0}, values=2.0))
        if twice is not None and not near(twice, 2.0 * heads):
            return "heads"  # weights know nothing of values
        if not are_alike(ratio, (2,)):
            return GATED if _is_of_queries(evidence, problem, heads) else "weights"
        return f"{FACTOR}{'values' if np.ptp(ratio) <= NEAR else 'heads'}"
    way, few = partial(_heads_of, evidence), partial(generic, problem.config, query_len=1, weights=NO_BIASES)
    if not is_of_values and near(np.sort(heads, axis=None), np.sort(own, axis=None)):
        return f"{FACTOR}output"
    if isolating.are_mixed(way, few(key_len=problem.config.num_heads)):
        return "output"
    return "values" if is_of_values and isolating.are_summed(way, few(key_len=1)) else "heads"


def _heads_of(evidence: Evidence, problem: Problem) -> NDArray | None:
    found = solved(evidence, problem, PLACES["heads"])
    return None if found is None or np.isnan(found[0]).any() else found[0]


def _is_of_queries(evidence: Evidence, problem: Problem, heads: NDArray) -> bool:
    """Return whether heads stay as they are with other keys, so that no weight made them what they are."""
    other = _heads_of(evidence, changed(problem, keys=-1.0))
    return other is not None and near(other, heads)


def _of_call(evidence: Evidence, problem: Problem) -> str | None:
    """Return where any call goes wrong: before its weights where those that are read give the answer, else after."""
    call, output = PlacedCall(evidence, problem, PLACES["kept_weights"]), evidence.asker.output(problem)
    weights = weights_of(evidence, problem)
    if call.own is None or output is None:
        return None
    empty = ~np.asarray(call.state["allowed"]).any(axis=(1, 3))
    if empty.any() and not near(output[empty], evidence.asker.right(problem, "output")[empty]):
        return "weights" if output[empty].any() else "output"
    if weights is not None and np.isfinite(weights).all():
        gives = near(call.given(weights[None])[0], output)
        if not near(weights, call.own) and (gives or _is_linear(evidence, problem, weights)):
            stage = _of_weights(evidence, problem, weights, call.own)
            if gives and stage is None:
                return f"{FACTOR}heads"
            if gives or stage not in (None, "weights"):
                return stage
    if solved(evidence, problem, PLACES["heads"]) is None:
        return "output" if problem.config.projections else "heads"
    told = (
        not problem.inputs.queries.any() or call.own[0, :, :, 0].size > problem.config.num_kv_heads * call.own.shape[3]
    )
    return "values" if told and solved(evidence, problem, PLACES["values"]) is not None else "heads"


def _of_scores(evidence: Evidence, problem: Problem) -> str | None:
    """Return where a call goes wrong from its weights up to what they sum to; None if what differs is after these."""
    weights, own = weights_of(evidence, problem), PlacedCall(evidence, problem, PLACES["kept_weights"]).own
    if weights is None or own is None or not _is_linear(evidence, problem, weights):
        return None
    stage = _of_weights(evidence, problem, weights, own)
    sums, right = (x.sum(axis=-1, keepdims=True) for x in (weights, own))
    if stage != "weights" or weights.min() < -NEAR or near(weights * right, own * sums):
        return stage
    return OTHER if mix_of(weights, own) is None else stage


def _is_linear(evidence: Evidence, problem: Problem, weights: NDArray) -> bool:
    """Return whether unit vectors twice as long show the same weights: else these are no weights."""
    if evidence.asker.fixed_weights is not None:
        return bool(np.isfinite(weights).all())
    twice = read_weights(evidence.asker.output, problem, 2.0 * CODE)
    return twice is not None and near(twice, weights)


def _of_weights(evidence: Evidence, problem: Problem, weights: NDArray, own: NDArray) -> str | None:
    """Return where weights go wrong.

    Scores of other queries or keys are products of d channels; a factor is the scores'; weights that follow the right
    scores, that other keys or other queries change, or that mix the right weights of heads, are another softmax's.
    """
    call, d, there = PlacedCall(evidence, problem, PLACES["weights"]), problem.config.head_dim, own > 0.0
    sums, right = weights.sum(axis=-1, keepdims=True), own.sum(axis=-1, keepdims=True)
    times = np.where(there, weights, 1.0) / np.where(there, own, 1.0)
    shared = min(problem.config.num_heads // problem.config.num_kv_heads, problem.sizes.query_len)
    is_told = problem.inputs.queries.any() and there.all() and shared > 1  # else scores may be such
    if is_told and _are_of_groups(times, problem, (2, 3)) and np.ptp(times) > NEAR:
        return "values"  # each times a number, for all queries and all heads that share it
    if (weights[own > NEAR] <= 0.0).any() or np.abs(weights[~there]).max(initial=0.0) > NEAR:
        return "weights"
    ratio = sums / np.where(right > 0.0, right, np.nan)
    if np.nanmax(ratio) - np.nanmin(ratio) > NEAR:
        return "weights"
    measured, expected = logs(weights, there), logs(own, there)
    off = np.abs(measured - expected).max(axis=-1, initial=0.0) > NEAR
    if not off.any():
        return None  # what differs is after the weights
    if not there.all() and not off.all() and are_alike(off * 1.0, (0, 1)) and np.abs(measured[off]).max() <= NEAR:
        return "queries"  # of which some are 0: all heads weigh the allowed keys alike
    scale = np.square(expected).sum(axis=(2, 3))
    factor = (measured * expected).sum(axis=(2, 3)) / np.where(scale > 0.0, scale, 1.0)
    if near(measured, factor[..., None, None] * expected) or mix_of(measured, expected) is not None:
        return "scores"
    is_full = bool(there.all())
    rows = picked(weights, own) if is_full else None
    if rows is not None and (not are_alike(rows * 1.0, (0, 1)) or _others(evidence, problem)):
        return "weights"  # the others of a head are right: no projection of queries does that
    if is_full and weights.shape[3] > d + 2 and rank(measured) <= d:
        queries, keys = call.state["queries"], call.state.heads_of("keys")
        keys = keys - keys.mean(axis=2, keepdims=True)
        if is_product(measured, keys):
            if KEYS not in _others(evidence, problem):
                return "queries"
            ratio = measured @ np.linalg.pinv(keys.swapaxes(2, 3)) / queries
            return "keys" if _are_of_groups(ratio, problem, (2, 3)) else "scores"
        if weights.shape[2] > d + 2 and not is_product(measured.swapaxes(2, 3), queries):
            other = weights_of(evidence, changed(problem, queries=-0.5, keys=-0.7))
            return "scores" if other is not None and near(other, weights) else "queries"
        if weights.shape[2] > d + 2:
            read = measured.swapaxes(2, 3) @ np.linalg.pinv(queries.swapaxes(2, 3))
            return "keys" if _are_of_groups(read, problem, (2,)) else "scores"
    if is_full and not problem.inputs.queries.any() and solved(evidence, problem, PLACES["queries"]) is not None:
        return "queries" if weights.shape[3] > d else "scores"
    if mix_of(weights, own) is not None:
        return "weights"
    is_bent = is_full and is_function(measured, np.asarray(call.state["scores"]))
    if is_bent and is_kept(measured, expected):  # clamped
        return "scores"
    is_after = is_bent or follow(measured, expected) or (is_full and _others(evidence, problem))
    is_before = isolating.takes_bias(partial(weights_of, evidence), problem, measured) if is_after else True
    return "scores" if is_before else "weights"


def _others(evidence: Evidence, problem: Problem) -> set[str]:
    """Return which others the weight of a query and a key depends on: other queries, other keys, or none."""
    return {QUERIES, KEYS} & {*more_than_both(partial(weights_of, evidence), problem)}


def _are_of_groups(array: NDArray, problem: Problem, axes: tuple[int, ...]) -> bool:
    """Return whether (B, H, ..) is the same along axes of (B, G, H / G, ..), such as 2 for all heads of a group."""
    return are_alike(array.reshape(len(array), problem.config.num_kv_heads, -1, *array.shape[2:]), axes)


def _of_past(evidence: Evidence, problem: Problem) -> str | None:
    """Return where a call with a past goes wrong: keys that are left out, or another past of values, or of keys."""
    config, own = problem.config, PlacedCall(evidence, problem, PLACES["kept_weights"]).own
    weights = weights_of(evidence, problem)
    if config.num_heads > config.num_kv_heads and solved(evidence, problem, PLACES["values"]) is not None:
        return "values"
    if weights is None or own is None or not np.isfinite(weights).all():
        return None
    left = np.where(weights > NEAR, own, 0.0)
    total = left.sum(axis=-1, keepdims=True)
    if near(weights, left / np.where(total > 0.0, total, 1.0)):
        return "values" if near(weights, own) else "weights"
    told = near(weights.sum(axis=-1), own.sum(axis=-1)) and _of_weights(evidence, problem, weights, own)
    return told if told in ("queries", "scores") else "keys"


def _first_gradient(evidence: Evidence, problem: Problem) -> list[str]:
    """Return which gradients differ, from the output backwards."""
    trace, wanted = evidence.asker.ask(problem), evidence.asker.wanted(problem)
    gradients = (trace.gradients if trace is not None else None) or {}
    wrong = [name for name, array in gradients.items() if not wanted.allows(f"gradients.{name}", array, "float64")]
    order = ("out_proj", "values", "v_proj", "bias", "queries", "q_proj", "keys", "k_proj")
    wrong.sort(key=lambda name: next((i for i, part in enumerate(order) if name.startswith(part)), len(order)))
    right = [name for name in gradients if name not in wrong]
    said = f"  The first gradient that differs, from the output back, is that of {wrong[0]}" if wrong else ""
    return [f"{said}; those of {', '.join(right)} are right."] if wrong and right else [f"{said}."] * bool(wrong)


READ: dict[str, Reading] = {  # the rows that are read also where they are not the first that differs: how
    "no-values": _of_values,
    "value-bias": _of_values,
    "one-key": _of_values,
    "scores": _of_scores,
    "query-bias": _of_scores,
}
