"""Sentences on what attention weights depend on, told by calls without a mask that differ in one thing."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.kinds.oddities import (
    CHOSEN,
    GATED,
    MOST,
    NEAR,
    OF_OTHERS,
    OF_SEVERAL,
    follow,
    is_of_several,
    mix_of,
    near,
)
from mha_core import AttentionMask
from mha_core.errors import listed

Read = Callable[[Problem], NDArray | None]
"""A function: call -> the weights (B, H, Lq, Lk) that are measured in it; None if they can't be."""

Told = tuple[str, str]
"""A sentence on what is seen, and words on where to look."""

POSITIONS, DISTANCE = "the positions of query and key", "the distance from query to key"
QUERIES, KEYS, HEADS, ORDER = "other queries", "other keys", "the parameters of other heads", "their order"
LOOK = {  # what weights depend on -> where code does that
    QUERIES: "what mixes queries: a mean, a norm or a convolution over the length, a softmax over another axis",
    KEYS: "what mixes the keys or the scores of one row: a mean, a norm, a convolution or a sum over the keys",
    HEADS: "what mixes heads: a matrix over heads, the split into heads, or a norm or scale of a whole weight",
}
# Of a drawing of the keys that have a weight, by whether a mask is given.
DRAWN = {True: "the code that makes and applies the mask", False: "what leaves keys out: a top-k, a window, blocks"}
UP_TO_WEIGHTS = ("queries", "keys", "scores", "weights")


def logs(weights: NDArray, there: NDArray) -> NDArray:
    """Return log(weights) where `there` is true, minus the row's mean over these elements; 0 elsewhere."""
    found = np.where(there, np.log(np.where(there, np.maximum(weights, 1e-300), 1.0)), 0.0)
    mean = found.sum(axis=-1, keepdims=True) / np.maximum(there.sum(axis=-1, keepdims=True), 1)
    return np.where(there, found - mean, 0.0)


def scores_of(weights: NDArray | None) -> NDArray | None:
    """Return log(weights) minus each row's mean; None if `weights` is None or has a number that is not above 0."""
    if weights is None or not (weights > 0.0).all():
        return None
    return logs(weights, np.ones(weights.shape, bool))


def changed(problem: Problem, **inputs: Any) -> Problem:
    return replace(problem, inputs=replace(problem.inputs, **inputs))


def more_than_both(read: Read, problem: Problem) -> list[str]:
    """Return phrases: what else an attention weight depends on, besides its query, its key and its row's sum."""
    queries, keys = problem.inputs.queries, problem.inputs.keys
    weights = read(problem)
    if weights is None or min(weights.shape[2:]) < 3:
        return []
    found = []
    other = read(changed(problem, queries=with_other(queries, 1)))  # what comes before and after it may read it
    if other is not None and not near(np.delete(other, 1, axis=2), np.delete(weights, 1, axis=2)):
        found.append(QUERIES)
    other = read(changed(problem, keys=with_other(keys, 1)))
    some = [scores_of(None if one is None else np.delete(one, 1, axis=3)) for one in (weights, other)]
    if some[0] is not None and some[1] is not None and not near(some[1], some[0]):
        found.append(KEYS)
    turned = read(changed(problem, queries=queries[:, ::-1])), read(changed(problem, keys=keys[:, ::-1]))
    back = [None if one is None else np.flip(one, axis) for axis, one in zip((2, 3), turned, strict=True)]
    is_ordered = any(one is not None and not near(one, weights) for one in back)
    if is_ordered and not found:
        found.append(DISTANCE if _is_of_distance(read, problem) else POSITIONS)
    elif is_ordered:
        found.append(ORDER)
    other = read(_other_head(problem))
    if other is not None and not near(other[:, :-1], weights[:, :-1]):
        found.append(HEADS)
    return found


def with_other(x: NDArray, place: int) -> NDArray:
    """Return a copy of `x` (B, L, width) with other numbers at the position `place` (modulo L)."""
    return np.where(np.arange(x.shape[1])[:, None] == place % x.shape[1], 1.0 - x, x)


def _other_head(problem: Problem) -> Problem:
    """Return the call of the layer with other queries in its last head alone."""
    name, d = "q_proj.weight", problem.config.head_dim
    if name not in problem.weights:
        return problem
    matrix = np.array(problem.weights[name])
    matrix[-d:] *= -0.5
    return replace(problem, weights={**problem.weights, name: matrix})


def _is_of_distance(read: Read, problem: Problem) -> bool:
    """Return whether equal queries and equal keys have scores that the distance between them alone tells."""
    given = {name: getattr(problem.inputs, name) for name in ("queries", "keys")}
    alike = {name: 0.0 * array + array[:, -1:] for name, array in given.items()}
    scores = scores_of(read(changed(problem, **alike)))
    return scores is not None and not near(scores, 0.0 * scores, 1.0) and _are_steps_alike(scores)


def _are_steps_alike(scores: NDArray) -> bool:
    """Return whether scores (B, H, Lq, Lk), but for a number of each row, are those of the distance alone."""
    steps = np.diff(scores, axis=-1)
    return near(steps[:, :, 1:, 1:], steps[:, :, :-1, :-1])


def of_dependence(read: Read, problem: Problem, right: NDArray, stage: str) -> Iterator[Told]:
    """Yield pairs (a sentence, what to look at) on wrong attention weights of a call without a mask and biases.

    Args:
        read: call -> its attention weights.
        problem: the call.
        right: its right weights.
        stage: the first wrong stage: "queries", "keys", "scores" or "weights".
    """
    weights = read(problem)
    if weights is None or near(weights, right):
        return
    if stage == "weights":
        if (shares := mix_of(weights, right)) is not None and is_of_several(shares):
            yield MIXED
        elif picked(weights, right) is not None:
            yield PICKED
        elif kept := of_largest(weights, right):
            yield kept
        elif own := _of_own(read, problem):
            yield own
        elif found := more_than_both(read, problem):
            names = _and([f"{one} (which change the ratio of two weights)" if one == KEYS else one for one in found])
            what = f"The weights of a row depend not on its scores alone, but on {names} too."
            yield what, _look(found, "factors and windows that depend on positions, and the order of the keys")
        elif times := _of_sums(weights, right):
            yield times
        elif follow(weights, right):
            sums = weights.sum(axis=-1)
            divided = [_DIVIDED[bool(sums.max() <= 1.0 + NEAR)]] * bool((np.abs(sums - 1.0) > NEAR).any())
            looks = ["what stands in the softmax for exp", *[_TOP] * bool((weights <= LEAST).any()), *divided]
            yield "Larger scores have larger weights, but other ones than softmax gives.", "; ".join(looks)
        return
    inputs = problem.inputs
    zero = changed(problem, queries=0.0 * inputs.queries)
    of_zero, scores = scores_of(read(zero)), scores_of(weights)
    right_scores = logs(right, right > 0.0)
    is_product = problem.config.score != "additive"  # whose scores differ from key to key without a query too
    if is_product and of_zero is not None and not near(of_zero, 0.0 * of_zero, 1.0):
        seen = "with queries that are all 0 and no biases, the weights of a query still differ from key to key"
        if scores is None or not near(scores, right_scores + of_zero):
            yield (
                f"{seen.capitalize()}: scores are more than products of queries and keys.",
                f"{_ADDED} scores, and how they are made of queries and keys",
            )
            return
        if (other := scores_of(read(changed(zero, keys=1.0 - inputs.keys)))) is not None and near(other, of_zero):
            what = "the distance from query to key" if _are_steps_alike(of_zero) else "positions"
            seen = f"Something is added to the scores that depends on {what} alone, and not on queries and keys."
            yield seen, f"{_ADDED} scores"
            return
        to = "queries" if stage == "queries" else "scores"
        same = ", the same for every query" if near(of_zero, 0.0 * of_zero + of_zero[:, :, :1]) else ""
        found = more_than_both(read, zero)
        these = [*["the key"] * (to == "scores" and other is not None), *found]
        on = f" What is added depends on {_and(these)}." if these else ""
        look = "what is added (a bias or a learned vector) to the" if same and not on else _ADDED
        yield f"Something is added to the {to}{same}: {seen}.{on}", f"{look} {to}"
    elif scores is not None and (shares := mix_of(scores, right_scores)) is not None and is_of_several(shares):
        is_mix = (np.abs(shares) > NEAR).sum() > len(shares)
        said = f"the right scores {OF_SEVERAL}" if is_mix else "those of other heads."
        look = (
            "what mixes heads before the softmax, such as a matrix"
            if is_mix
            else "which heads of queries and keys meet"
        )
        yield f"The scores of each head are {said}", look
    elif found := more_than_both(read, problem):
        none = " It is no bias by position, as ALiBi's: with queries that are all 0 the weights are right." * (
            {POSITIONS, DISTANCE} >= {*found}
        )
        what = f"The score of a query and a key depends on {_and(found)} too.{none}"
        yield what, _look(found, _ROTARY[problem.config.rotary is None])
    elif scores is not None:
        yield _of_both(read, problem, scores, right_scores, "keys" if stage == "keys" else "queries")


def picked(weights: NDArray, right: NDArray) -> NDArray | None:
    """Return bool (B, H, Lq): queries with wrong weights. Return None unless each of these weighs all keys equally."""
    off = np.abs(weights - right).max(axis=-1) > NEAR
    some_of_a_head = (off.any(axis=2) & ~off.all(axis=2)).any()
    return off if some_of_a_head and (np.ptp(weights, axis=-1) <= NEAR)[off].all() else None


OF_SUMS = "are the right weights times one number"


def _of_sums(weights: NDArray, right: NDArray) -> Told | None:
    """Return what is seen of weights that are the right ones times a number of each head or query; None if not."""
    sums = weights.sum(axis=-1, keepdims=True)
    if not near(weights, sums * right):
        return None
    each = "head" if near(sums, 0.0 * sums + sums[:1, :, :1]) else "query"
    said = f"The weights of each {each} {OF_SUMS}, {sums.min():.4g} to {sums.max():.4g}."
    looks = {
        "query": f"{_DIVIDED[bool(sums.max() <= 1.0 + NEAR)]}, or a gate of each query",
        "head": "a factor of each head, of weights or outputs",
    }
    return said, looks[each]


LARGEST = "Each query attends to the keys of its largest scores alone"
LEAST = 1e-9  # weights up to which there is none


def of_largest(weights: NDArray, right: NDArray) -> Told | None:
    """Return what is seen where a row has the weights of its largest scores alone; None if it is not so."""
    let_in, counts = weights > LEAST, (weights > LEAST).sum(axis=-1)
    least, most = np.where(let_in, right, np.inf).min(axis=-1), np.where(let_in, 0.0, right).max(axis=-1)
    if let_in.all() or not let_in.any(axis=-1).all() or (most > least).any() or most.max() <= NEAR:
        return None
    few, many, keys = int(counts.min()), int(counts.max()), weights.shape[-1]
    some, by = (f"{few}", "a top-k") if few == many else (f"{few} to {many}", "a top-p or a threshold")
    return f"{LARGEST}, {some} of {keys} keys: as by {by}.", f"what leaves out small scores or weights: {by}"


def _of_own(read: Read, problem: Problem) -> Told | None:
    """Return what is seen of weights that queries make with other queries; None if they do not."""
    without = changed(problem, keys=0.0 * problem.inputs.keys)
    both = [read(one) for one in (without, changed(without, queries=with_other(problem.inputs.queries, 1)))]
    rows = [np.delete(one, 1, axis=2) for one in both if one is not None]
    if len(rows) < 2 or near(rows[0], rows[1]):
        return None
    seen = "With keys that are all 0, the weights of a query still depend on other queries: as of queries @ queries^T."
    of_keys = read(changed(problem, queries=0.0 * problem.inputs.queries))
    if of_keys is not None and not near(of_keys, of_keys[:, :, :1]):
        seen += " With queries that are all 0 they differ too, from query to query: as of keys @ keys^T."
    return (
        seen,
        "which arrays are multiplied for the scores (queries with keys, and no others), and what is added",
    )


GATE = "what multiplies the heads' outputs: a gate or a norm"
ROUTE = "what leaves out heads of some queries: a choice of heads (routing), or dropout of heads"
_TOP = "a top-k or a threshold"
_DIVIDED = {  # whether no row sums to more than 1 -> what to look at
    True: "what each row is divided by, beside its own sum (a sink, an added 1)",
    False: "what each row is divided by, in place of its own sum",
}
MIX = "what mixes heads after the softmax, such as a matrix or a mean over heads"
PICKED: Told = (
    "Some queries give all keys the same weight; the weights of the others are right.",
    "code that picks queries (top-k, sparse attention), and what it gives the rest",
)
MIXED: Told = f"The weights of each head are the right weights {OF_SEVERAL}", MIX


SHARP = (LARGEST, MIXED[0])  # what says more than which keys have a weight


def is_whole(told: Told | None) -> bool:
    """Return whether what is seen of weights says also what their rows sum to."""
    return told is not None and (told == MIXED or OF_SUMS in told[0])


def look_of(line: str, stage: str) -> str:
    """Return what to look at where an output is odd as a line of `oddities` says; "" for nothing in particular."""
    if (stage == "values" and line.endswith(OF_SEVERAL)) or line.startswith(OF_OTHERS):
        return "which head of values each head reads, and what mixes heads of values"
    return next((look for end, look in {OF_SEVERAL: MIX, GATED: GATE, CHOSEN: ROUTE}.items() if line.endswith(end)), "")


_ROTARY = {
    False: "rotary positions (angles, pairs of channels, position numbers) and factors that depend on positions",
    True: "for rotary positions (RoPE), which this config does not have, and for a factor that depends on positions",
}
_ADDED = "what is added (a bias, a position, a learned vector) to the"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _look(found: list[str], of_positions: str) -> str:
    return "; ".join(dict.fromkeys(LOOK.get(one, of_positions) for one in found[:2] if one != ORDER))


def _of_both(read: Read, problem: Problem, scores: NDArray, right: NDArray, name: str) -> Told:
    """Return how scores that depend on nothing but a query and a key are made of the queries, or of the keys."""
    size = np.square(right).sum(axis=-1, keepdims=True)
    factor = (scores * right).sum(axis=-1, keepdims=True) / np.where(size > 0.0, size, 1.0)
    if near(scores, factor * right):
        each = "head" if near(factor, 0.0 * factor + factor[:1, :, :1]) else "query"
        what = f"one number, {factor.min():.4g} to {factor.max():.4g} by {each}"
        same = "" if each == "head" else ", whatever its position"
        return (
            f"The scores of each {each} are the right ones times {what}{same}.",
            f"what scales a {each}: a temperature, a gate or a norm",
        )
    rows = getattr(problem.inputs, name)
    twice, total = (scores_of(read(changed(problem, **{name: one}))) for one in (2.0 * rows, rows + rows[:, ::-1]))
    if twice is not None and near(twice, scores):
        return (
            f"{name.capitalize()} that are twice as large have the same scores.",
            f"whether there is a norm of the {name}",
        )
    back = np.flip(scores, 3 if name == "keys" else 2)
    if total is not None and near(total, scores + back):
        return (
            f"The scores are linear in the {name}, each made of its query and key alone, as by a wrong matrix.",
            f"the {name}' projection: its weight's layout, order of rows and factors, and the split into heads",
        )
    return (
        f"The scores are not linear in the {name}: those of {name[0]}1 + {name[0]}2 are not those of each, added up.",
        f"what bends, bounds or gates {name} or scores (relu, tanh, a clip, rounding)",
    )


def of_mixed_values(read: Read, output: Read, problem: Problem, right: NDArray) -> tuple[str, str, str] | None:
    """Return (first wrong step, what is seen, what to look at), in words, if a layer mixes values along the length.

    In calls of equal scores, the weights of such a layer seem to be w @ c, where w (Lq, Lk) are the right weights. The
    matrix c (Lk, Lk) is the same for several masks that are tried. Return None if no c fits, if c mixes no keys, or if
    each row of c sums to 1 and has the same shares of other keys (as where weights are smoothed).

    Args:
        read: call -> its attention weights.
        output: call -> its output.
        problem: a call without a mask and biases, to which the masks are added.
        right: its right weights.
    """
    keys = problem.inputs.keys
    count = keys.shape[1]
    lower, zero = np.tri(count, dtype=bool), np.zeros((len(keys), count, problem.config.query_dim))
    shares = np.eye(count)
    for mask in (shares > 0.0, lower, lower.T):  # each key alone first
        weights = read(changed(problem, queries=zero, mask=AttentionMask(allowed=mask)))
        shares = shares if weights is None or mask.sum() > count else weights[0, 0]
        if weights is None or not near(weights, mask / mask.sum(axis=1, keepdims=True) @ shares):
            return None
    own, middle = read(problem), count // 2  # whose value no other query may attend to
    apart = changed(problem, queries=zero, mask=AttentionMask(allowed=np.eye(count, dtype=bool)))
    outputs = [output(one) for one in (apart, changed(apart, values=with_other(problem.inputs.values, middle)))]
    rows = [np.delete(one, middle, axis=1) for one in outputs if one is not None]
    if len(rows) < len(outputs) or near(rows[0], rows[1]):
        return None  # a wrong matrix mixes channels, by which keys are told apart
    others = np.where(np.eye(count, dtype=bool), np.nan, shares)  # the same for every query where weights are smoothed
    is_smooth = near(shares.sum(axis=1), np.ones(count)) and near(np.nanmin(others, axis=0), np.nanmax(others, axis=0))
    if own is None or not is_of_several(shares) or is_smooth:
        return None
    if np.linalg.cond(shares) > 1.0 / NEAR:  # whatever the mask is, the weights are the same
        return None
    last, alone = enumerate(shares[-1]), near(own @ np.linalg.inv(shares), right)
    some = listed([f"{share:.3g} of the value of key {key}" for key, share in last if abs(share) > NEAR], MOST)
    seen = f"A query that may attend to key {count - 1} alone gets {some}: values are mixed along the length."
    look = "values along the length, such as a convolution or a shift"
    if alone:
        return "values", seen, f"what mixes {look}"
    mixed = ["queries"] * (QUERIES in more_than_both(read, problem)) + ["keys"]
    wrong = f"The weights are wrong as well, as where {_and(mixed)} are mixed so too."
    return mixed[0], f"{seen} {wrong}", f"what mixes {', '.join(mixed)} and {look}"


def of_no_values(output: Read, problem: Problem) -> Told:
    """Return (a sentence, what to look at) for a call with values and biases of 0 whose output is not 0."""
    own, inputs = output(problem), problem.inputs
    new = {name: output(changed(problem, **{name: 1.0 - getattr(inputs, name)})) for name in ("queries", "keys")}
    names = [name for name, other in new.items() if own is not None and other is not None and not near(other, own)]
    on = f"It depends on the {_and(names)}" if names else "It depends on neither queries nor keys"
    one_more = "one more key than is given, with a value that is not 0, gives such an output"
    why = {"keys": f": {one_more}", "queries": ", as where queries are added"}
    seen = "The output is not 0 in a call with values and biases that are all 0."
    like = next((words for name, words in why.items() if name in names), ", as a bias")
    added = "what is added to the heads or to the output"
    look = {"keys": "whether there are more keys than are given (learned ones, a sink)", "queries": f"{added}: queries"}
    return f"{seen} {on}{like}.", next((words for name, words in look.items() if name in names), f"{added}: a bias")


def of_size(output: Read, problem: Problem, stage: str) -> Iterator[Told]:
    """Yield (a sentence, what to look at) if the output is not linear in the values, in a call without biases.

    Args:
        output: call -> the output, or None.
        problem: the call.
        stage: the first wrong stage.
    """
    if stage in UP_TO_WEIGHTS:
        return
    values = problem.inputs.values
    back = values[:, ::-1]
    outputs = [output(changed(problem, values=one)) for one in (values, 2.0 * values, back, values + back)]
    one, two, other, both = (np.asarray(0.0 if found is None else found) for found in outputs)
    if one.any() and near(two, one):
        yield "Values that are twice as large give the same output.", f"whether there is a norm of the {stage}"
    elif one.any() and not near(two, 2.0 * one):
        what = "Values that are twice as large, without biases, do not give an output twice as large."
        yield what, f"what bends, bounds, norms or gates the {stage}"
    elif one.any() and other.any() and not near(both, one + other):
        what = "Without biases, the output of values v1 + v2 is not that of v1 plus that of v2."
        yield what, f"what rounds, bends or bounds the {stage}"
