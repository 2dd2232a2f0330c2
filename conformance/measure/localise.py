"""Localise: the first wrong step of a subject that no bug explains.

The first row of problems that differs says the stage where its name does. Otherwise what is read in closed form says
it, of values with one key, and of weights that unit vectors as values show; the earlier of the two counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.measure.call import PlacedCall
from conformance.measure.designs import changed
from conformance.measure.evidence import Evidence
from conformance.measure.faults import TROUBLE
from conformance.measure.places import PLACES
from conformance.measure.readings import drawn
from conformance.measure.search import Measured
from conformance.measure.solve import logs, solved, weights_of
from conformance.zoo.variants import Variants
from mha_core import STAGES, AttentionMask

NEAR = 1e-6
"""Relative differences up to which what is read is equal."""


@dataclass(frozen=True)
class Located:
    """The first wrong step.

    Attributes:
        stage: the stage at which it shows first.
        problem: one in which this was seen.
        seen: lines about what was read there.
    """

    stage: str
    problem: Problem
    seen: tuple[str, ...] = ()


def localise(measured: Measured) -> Located | None:
    """Return the first wrong step of a subject that no model explains; None if that can't be told."""
    first = measured.first
    if first is None or not measured.behaviour.is_function:
        return None
    if measured.behaviour.shared is not None:
        return Located(measured.behaviour.shared, first.differing[0])
    evidence = Evidence(measured.asker, Variants())
    problem = first.differing[0]
    if first.probe.gradients:
        return Located(first.probe.stage, problem, tuple(_first_gradient(evidence, problem)))
    if first.probe.stage:
        seen = next((lines for one in first.differing if (lines := drawn(evidence, one))), [])
        return Located(first.probe.stage, problem, tuple(seen))
    read = {"value-bias": _of_values, "one-key": _of_values, "scores": _of_scores}
    found = []
    for outcome in measured.outcomes:
        if outcome.differing and (outcome is first or outcome.probe.id in read):
            way = read.get(outcome.probe.id, _of_past if outcome.probe.id == "past-values" else _of_call)
            stage = next((stage for one in outcome.differing if (stage := _told(way, evidence, one))), None)
            if stage:
                seen = drawn(evidence, outcome.differing[0]) if stage == "weights" else []
                found.append(Located(stage, outcome.differing[0], tuple(seen)))
    # Factors of values or heads are what other weights sum to, where these are wrong; what bends them bends such sums,
    # and weights are not read through another output projection at all.
    bent = any(one.stage in ("values", "heads") for one in found)
    found = [one for one in found if one.stage == "output"] or found
    told = [one for one in found if not one.stage.startswith(FACTOR) and not (bent and one.stage == "weights")]
    told = told or [replace(one, stage=one.stage.removeprefix(FACTOR)) for one in found]
    return min(told, key=lambda one: STAGES.index(one.stage), default=None)


FACTOR = "a factor of "

Reading = Callable[[Evidence, Problem], str | None]


def _told(way: Reading, evidence: Evidence, problem: Problem) -> str | None:
    try:
        with any_numbers:
            return way(evidence, problem)
    except (*TROUBLE, np.linalg.LinAlgError):
        return None  # numbers that can't be read tell nothing


def _near(array: NDArray, other: NDArray) -> bool:
    return bool(np.allclose(array, other, rtol=0.0, atol=NEAR * float(np.abs(other).max(initial=1e-300))))


def _of_values(evidence: Evidence, problem: Problem) -> str | None:
    """Return where a call with one key goes wrong: heads that no output projection contradicts, or values."""
    read = solved(evidence, problem, PLACES["heads"])
    if read is None or not np.isfinite(read[0]).all():
        return "output"
    heads, own = read
    ratio = heads / own
    each = np.median(ratio, axis=-1, keepdims=True)
    if _near(heads, each * own):  # each is a multiple of the right one
        if np.ptp(each, axis=2).max() > NEAR:
            return "weights"
        return f"{FACTOR}{'values' if np.ptp(each) <= NEAR else 'heads'}"
    groups = problem.config.num_kv_heads
    of_group = heads.reshape(heads.shape[0], groups, -1, *heads.shape[2:])
    alike = _near(of_group, np.broadcast_to(of_group[:, :, :1, :1], of_group.shape))
    return "values" if alike else "heads"


def _of_scores(evidence: Evidence, problem: Problem) -> str | None:
    """Return where a call without a mask goes wrong, from its weights up to what they sum to.

    Scores of another queries or keys are products of d channels; a factor is the scores'; weights that follow the
    right scores, or mix the right weights of heads, are another softmax's.
    """
    weights, call = weights_of(evidence, problem), PlacedCall(evidence, problem, PLACES["weights"])
    if weights is None or call.own is None or not np.isfinite(weights).all():
        return None
    own, d = call.own, problem.config.head_dim
    sums = weights.sum(axis=-1, keepdims=True)
    if (weights[own > NEAR] <= 0.0).any() or np.ptp(sums) > NEAR:
        return "weights"
    measured, expected = logs(weights, own > 0.0), logs(own, own > 0.0)
    if _near(measured, expected):
        return None  # what differs is after the weights
    factor = (measured * expected).sum(axis=(2, 3)) / np.square(expected).sum(axis=(2, 3))
    if _near(measured, factor[..., None, None] * expected):
        return "scores"
    if _are_mixed(measured, expected):
        return "scores"
    if min(weights.shape[2:]) > d + 2 and _rank(measured) <= d:
        queries, keys = call.state["queries"], call.state.heads_of("keys")
        keys = keys - keys.mean(axis=2, keepdims=True)
        if _is_product(measured, keys) or not _is_product(measured.swapaxes(2, 3), queries):
            return "queries"
        return "keys" if _are_of_groups(measured.swapaxes(2, 3), queries, problem.config.num_kv_heads) else "scores"
    if _are_mixed(weights, own):
        return "weights"
    if _follow(measured, expected):
        return "scores" if _takes_bias_as_it_is(evidence, problem, measured) else "weights"
    return "scores" if min(weights.shape[2:]) > d + 2 else None


def _takes_bias_as_it_is(evidence: Evidence, problem: Problem, measured: NDArray) -> bool:
    """Return whether a bias is added to the log weights: then what bends the scores stands before it."""
    bias = np.random.default_rng(0).normal(size=measured.shape)
    weights = weights_of(evidence, changed(problem, mask=AttentionMask(bias=bias)))
    if weights is None or not (weights > 0.0).all():
        return False
    return _near(logs(weights, weights > 0.0), logs(np.exp(measured + bias), weights > 0.0))


def _rank(arrays: NDArray) -> int:
    sizes = np.linalg.svd(arrays, compute_uv=False)
    return int((sizes > NEAR * sizes[..., :1]).sum(axis=-1).max())


def _is_product(array: NDArray, factor: NDArray) -> bool:
    """Return whether (.., Lq, Lk) is x @ factor^T for some x, with factor (.., Lk, d)."""
    found = array @ np.linalg.pinv(factor.swapaxes(2, 3))
    return _near(found @ factor.swapaxes(2, 3), array)


def _are_of_groups(array: NDArray, queries: NDArray, groups: int) -> bool:
    """Return whether the keys that scores (.., Lk, Lq) are made of are the same for all heads of a group."""
    read = array @ np.linalg.pinv(queries.swapaxes(2, 3))
    each = read.reshape(read.shape[0], groups, -1, *read.shape[2:])
    return _near(each, np.broadcast_to(each[:, :, :1], each.shape))


def _are_mixed(array: NDArray, heads: NDArray) -> bool:
    """Return whether each head of an array is a sum of the right heads times numbers."""
    count = heads.shape[1]
    x, y = (one.swapaxes(0, 1).reshape(count, -1) for one in (heads, array))
    if count < 2 or x.shape[1] < 2 * count:
        return False
    return _near(np.linalg.lstsq(x.T, y.T, rcond=None)[0].T @ x, y)


def _follow(measured: NDArray, expected: NDArray) -> bool:
    """Return whether the keys of every row stand in the order of their right scores."""
    order = np.argsort(expected, axis=-1)
    return bool((np.diff(np.take_along_axis(measured, order, -1), axis=-1) >= -NEAR).all())


def _of_call(evidence: Evidence, problem: Problem) -> str | None:
    """Return the latest place whose array gives the answer, also that of other output projections and values."""
    if not problem.config.projections:
        return None
    output = evidence.asker.output(problem)
    empty = ~np.asarray(PlacedCall(evidence, problem, PLACES["weights"]).state["allowed"]).any(axis=(1, 3))
    if empty.any():
        return "output" if output is not None and not np.asarray(output)[empty].any() else "weights"
    if solved(evidence, problem, PLACES["heads"]) is None:
        return "output"
    read = solved(evidence, problem, PLACES["kept_weights"])
    if read is None or not np.isfinite(read[0]).all():
        return "values" if solved(evidence, problem, PLACES["values"]) is not None else "heads"
    weights, own = read
    if (weights[own > NEAR] <= NEAR).any() or not _near(weights.sum(axis=-1), own.sum(axis=-1)):
        return "weights"
    for stage in ("queries", "keys"):
        if problem.sizes.key_len > problem.config.head_dim and solved(evidence, problem, PLACES[stage]) is not None:
            return stage
    return "scores"


def _of_past(evidence: Evidence, problem: Problem) -> str | None:
    """Return where a call goes wrong in which each query has one key, of a past or a new one."""
    read = solved(evidence, problem, PLACES["kept_weights"])
    lost = read is not None and not _near(read[0].sum(axis=-1), read[1].sum(axis=-1))
    return "weights" if lost else "values"


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
