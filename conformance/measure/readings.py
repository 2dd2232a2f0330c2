"""Readings: what the sum of a row, the weight of an excluded key, and the keys with a weight say, in closed form.

sum of a row            sum_j w_j = S / (S + c)     c is added to S, the sum of the exponentials
an excluded key e       log w_e - log w_a = c - s_a or c + s_e - s_a for each allowed a
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.cases.problem import Problem
from conformance.kinds.change import MASKING, Setting
from conformance.kinds.dependence import UP_TO_WEIGHTS, Told, is_whole, look_of, of_dependence, of_no_values, of_size
from conformance.kinds.expressions import Expression, expressions_of
from conformance.kinds.oddities import IN_PART, ITEMS, NEAR, TOLERANCE, factors, facts, marks, place_of, size, sums_of
from conformance.kinds.places import PLACES
from conformance.kinds.shapes import exponentials, filled, with_sum, without_sum
from conformance.measure.changes import by_head, table_of_heads
from conformance.measure.designs import NO_BIASES, changed, generic
from conformance.measure.evidence import Evidence, PlacedCall
from conformance.measure.probes import Probe
from conformance.measure.problems import SMALL, of_layer, scored
from conformance.measure.solve import solved, weights_of
from conformance.subjects.items import items_of
from conformance.zoo.bug import Bug
from mha_core import AttentionConfig, AttentionMask
from mha_core.reference.state import State

LITTLE, ROUNDOFFS = 1e-9, 32.0
"""Weights up to which there is none, and roundoffs in what is read."""


def readings(evidence: Evidence, probe: Probe) -> Iterator[Bug]:
    """Yield bugs read from the subject's attention weights: wrong scores at excluded keys, or wrong sums of rows."""
    configs = evidence.asker.configs
    if probe.stage == "weights":
        yield from fills(_all_weighed(evidence, map(EXCLUDING, configs)), evidence.asker.unit)
    elif not probe.stage:
        yield from _sums(_all_weighed(evidence, [*map(PLAIN, configs), *MANY(evidence.asker)]))


EXCLUDING = lru_cache(maxsize=64)(partial(generic, weights=NO_BIASES, mask=AttentionMask(causal=True)))
PLAIN = lru_cache(maxsize=64)(partial(generic, weights=NO_BIASES))
MANY = of_layer(partial(generic, weights=NO_BIASES), *SMALL)
"""Calls in which excluded keys are read, and sums of rows: of each layer, and of one of many heads."""


Weighed = tuple[NDArray, NDArray, NDArray, Setting]
"""The weights read in one call, the model's scores and allowed keys, each (B, H, Lq, Lk), and the call."""


def _all_weighed(evidence: Evidence, problems: Iterable[Problem]) -> list[Weighed]:
    answered = (one for one in problems if evidence.asker.output(one) is not None)
    return [call for problem in answered if (call := _weighed(evidence, problem)) is not None]


def _weighed(evidence: Evidence, problem: Problem) -> Weighed | None:
    call = PlacedCall(evidence, problem, PLACES["weights"])
    if call.own is None or not call.own.size or problem.inputs.dropout_keep is not None:
        return None
    weights = weights_of(evidence, problem)
    if weights is None or not np.isfinite(weights).all():
        return None
    return weights, call.state["scores"], np.broadcast_to(call.state["allowed"], weights.shape), Setting.of(problem)


def _same(numbers: NDArray, tolerance: float = TOLERANCE) -> float | None:
    """Return the number that all of them are; None if they are none, or not the same."""
    found = numbers[np.isfinite(numbers)]
    if len(found) < len(numbers) or not len(found) or np.ptp(found) > tolerance * max(1.0, np.abs(found).max()):
        return None
    return float(np.median(found))


def _sums(calls: Sequence[Weighed]) -> Iterator[Bug]:
    """Yield what is added to the sum of the exponentials, of the scores as they are or less the highest of the row."""
    with any_numbers:
        factors = [(_same((w / np.exp(s))[a]), setting) for w, s, a, setting in calls]
    if calls and all(number is not None for number, _ in factors):
        for one in expressions_of([(number or 0.0, setting) for number, setting in factors], unit=LITTLE / 1e3):
            yield without_sum(one.words, one.slug, _at(one))
    for less_highest in (False, True) if calls else ():
        with any_numbers:
            added = [(_added(w, s, a, less_highest), setting) for w, s, a, setting in calls]
        if any(np.abs(array).max() <= TOLERANCE for array, _ in added):
            continue
        numbers = [(_same(array.ravel()), setting) for array, setting in added]
        if all(number is not None for number, _ in numbers):
            for one in expressions_of([(number or 0.0, setting) for number, setting in numbers], unit=LITTLE / 1e3):
                yield with_sum(one.words, one.slug, _at(one), less_highest)
        elif table := table_of_heads(
            [[_same(array[:, h].ravel()) for h in range(array.shape[1])] for array, _ in added]
        ):
            words = f"a number of each head ({', '.join(f'{number:.6g}' for number in table)})"
            yield with_sum(words, "of-each-head", partial(_of_heads, table), less_highest)


def _at(one: Expression) -> Callable[[State], float]:
    return lambda state: one.at(Setting.of(state))


def _of_heads(table: Sequence[float], state: State) -> NDArray:
    return by_head(table, state["scores"].shape[1])[:, None, None]


def _added(weights: NDArray, scores: NDArray, allowed: NDArray, less_highest: bool) -> NDArray:
    """Return (B, H, Lq): c of S / (S + c), which is what the weights of a row sum to."""
    given, unit = exponentials(scores, allowed)
    total, found = given.sum(axis=-1), weights.sum(axis=-1)
    return np.asarray(total * (1.0 - found) / found / (1.0 if less_highest else unit[..., 0]))


def fills(calls: Sequence[Weighed], unit: float) -> Iterator[Bug]:
    """Yield bugs that set the scores of excluded keys to a number, or add a number to these scores.

    The number is inferred from the attention weights in `calls`, whose relative error is `unit`.
    """
    least = min((w[~a].min(initial=1.0) for w, _, a, _ in calls), default=1.0)
    error = max(LITTLE, ROUNDOFFS * unit / max(least, LITTLE))  # of logarithms
    for added in (False, True) if calls else ():
        numbers = []
        for weights, scores, allowed, setting in calls:
            with any_numbers:
                logs = np.where(weights > LITTLE, np.log(weights), np.nan)
                known = allowed & ~np.isnan(logs - scores)
                sums = np.where(known, logs - scores, 0.0).sum(axis=-1, keepdims=True)
                of_row = sums / known.sum(axis=-1, keepdims=True)  # np.nanmean warns of a row that has none
                read = logs - of_row - (scores if added else 0.0)
            numbers.append((_same(np.broadcast_to(read, weights.shape)[~allowed], max(TOLERANCE, error)), setting))
        if all(number is not None for number, _ in numbers):
            for one in expressions_of([(n or 0.0, setting) for n, setting in numbers], unit=error / 1e3)[:2]:
                yield filled(one.words, one.slug, _at(one), added)


LONGEST, ROWS = 12, 2  # most keys of a drawing, and most queries from either end of it


def drawn(evidence: Evidence, problem: Problem) -> list[str]:
    """Return lines that draw, for each wrong query of one head, the keys that it attends to and those it may attend to.

    "#" is a key with a weight, "." one without. Return [] if no query is wrong.
    """
    found = _weighed(evidence, problem)
    if found is None or not 1 < problem.sizes.key_len <= LONGEST:
        return []
    weights, _, allowed, _ = found
    let_in = np.abs(weights) > LITTLE
    different = (let_in != allowed).any(axis=(2, 3))
    if not different.any():
        return []
    item, head = map(int, np.argwhere(different)[0])
    rows = enumerate(zip(let_in[item, head], allowed[item, head], strict=True))
    drawing = [
        f"    query {i}:  {marks(own)}   right: {marks(right)}" for i, (own, right) in rows if (own != right).any()
    ]
    others = ((words, changed(problem, mask=replace(problem.inputs.mask, **how))) for words, how in AS_IF.items())
    made = ((words, evidence.asker.wanted(one).trace.arrays()["weights"]) for words, one in others)
    as_if = [words for words, other in made if np.allclose(other, weights, rtol=0.0, atol=NEAR)]
    as_of = [f", as is right for item {b}" for b, x in enumerate(allowed) if not (x[head] ^ let_in[item, head]).any()]
    said = "".join([*(f", as if {words} given" for words in as_if), *as_of][:1])
    cached = ", all scores equal" * (not problem.inputs.queries.any())
    cached += f", keys 0 to {problem.sizes.past_len - 1} from the cache" * bool(problem.sizes.past_len)
    shares = [] if problem.inputs.queries.any() else [row[row > LITTLE] for row in weights[item, head]]
    soft = [
        f", and yet weights such as {', '.join(f'{one:.3g}' for one in row)}"
        for row in shares
        if row.size and np.ptp(row) > NEAR
    ]
    where = f"{place_of(different, problem.inputs.mask)}{cached}{said}{''.join(soft[:1])}"
    return [f"  Queries that attend to wrong keys (#: a key with a weight); {where}:", *drawing]


_NONE = {"query_offset": 0, "causal": False, **dict.fromkeys(("window", "valid_lens", "allowed", "bias"))}
AS_IF: dict[str, Any] = {f"{name} were not": {name: none} for name, none in _NONE.items()}
AS_IF["causal were"] = {"causal": True}


def fact(evidence: Evidence, problem: Problem, stage: str) -> tuple[list[str], str]:
    """Return (lines on what is odd in the answer, such as a row that sums to 2; what to look at), or ([], "")."""
    output, right = evidence.asker.output(problem), evidence.asker.wanted(problem).trace.output
    found = _weighed(evidence, problem) if stage == "weights" else None
    if output is None or right is None or output.shape != right.shape or not output.size:
        return [], ""
    if unmoved := next(_unmoved(evidence, problem), None):
        return [f"  {unmoved[0]}"], unmoved[1]
    if not (np.any(right) or problem.inputs.values.any()):
        some, look = of_no_values(evidence.asker.output, problem)
        return [f"  {some}"], look
    with any_numbers:
        wrong = ~(np.abs(output - right) <= evidence.allowed(right))
    dependent = next(dependence(evidence, problem.config, stage), None)
    odd = () if found is None or is_whole(dependent) else sums_of(found[0], found[2])
    heads = solved(evidence, problem, PLACES["heads"]) if problem.sizes.key_len == 1 else None
    times = () if heads is None or is_whole(dependent) else factors(*heads, of_weights=stage == "weights")
    masked = bool(Setting.of(problem).has & MASKING)
    said = (*facts(output, np.asarray(right), wrong, masked=masked), *times, *odd)[:1]
    said = tuple(one for one in said if dependent is None or not one.endswith(IN_PART))
    bent = next(of_size(evidence.asker.output, PLAIN(problem.config), stage), None)
    told = [bent] if bent else [*((one, look_of(one, stage)) for one in said), *filter(None, [dependent])]
    told = [*size(output, right, stage), *told]
    told = told or [(NO_HEADS, "")] * (stage == "output" and problem.sizes.key_len == 1 and heads is None)
    alone = "of a call with one key" if problem.sizes.key_len == 1 else "of the first wrong call"
    return [f"  {line.format(alone)}" for line, _ in told], next((look for _, look in told if look), "")


def dependence(evidence: Evidence, config: AttentionConfig, stage: str) -> Iterator[Told]:
    """Yield (a sentence, what to look at) on what attention weights depend on, in a call without a mask and biases."""
    if stage not in UP_TO_WEIGHTS or evidence.asker.slow:
        return
    call = scored(config, *SMALL)
    right = evidence.asker.wanted(call).trace.arrays()["weights"]
    if evidence.asker.fixed_weights is None and evidence.asker.output(call) is not None:
        with any_numbers:
            yield from of_dependence(partial(weights_of, evidence), call, right, stage)


def _unmoved(evidence: Evidence, problem: Problem) -> Iterator[Told]:
    """Yield a line on inputs that move the right output of a call and not the subject's, or that of another item."""
    sizes = problem.sizes
    if sizes.key_len == 1:  # whose weight is 1: what its values are may cancel
        problem = generic(problem.config, batch=sizes.batch)
    elif not problem.inputs.queries.any():  # equal queries may be of no matter
        problem = generic(problem.config, batch=sizes.batch, query_len=sizes.query_len, key_len=sizes.key_len)
    new = {name: 1.0 - getattr(problem.inputs, name) for name in ("queries", "keys", "values")}
    moved = [moves(evidence, problem, changed(problem, **{name: new[name]})) for name in new]
    names = [name for name, one in zip(new, moved, strict=True) if one == (False, True)]
    if moves(evidence, problem, changed(problem, keys=new["keys"], values=new["values"])) == (False, True):
        yield f"Other keys and values give the same output{NO_ATTENTION}", "whether the heads reach the output at all"
    elif names == ["queries"] and moved[1] == (True, True):
        yield UNUSED, "which input the queries are projected from"
    elif names:
        which = " and ".join(names)
        yield f"Other {which} give the same output.", f"which input the {which} are made of, and whether they are used"
    if moves(evidence, problem, items_of(problem, np.array([0]))) == (True, False):
        yield ITEMS


NO_HEADS = "No outputs of heads were found that the output projection makes this output of."
NO_ATTENTION = ": no attention over them is computed."
UNUSED = (
    "Other queries give the same output, other keys do not: the weights are made of the keys, and not of the queries."
)


def moves(evidence: Evidence, problem: Problem, other: Problem) -> tuple[bool, bool]:
    """Return whether item 0 of the subject's output is another one in the other problem, and of the right output."""
    asker = evidence.asker
    owns = [asker.output(one) for one in (problem, other)]
    rights = [asker.wanted(one).trace.output for one in (problem, other)]
    if any(one is None for one in owns):
        return False, False
    pairs = ((np.asarray(a)[0], np.asarray(b)[0]) for a, b in (owns, rights))
    own, right = ((np.abs(a - b) > evidence.allowed(b)).any() for a, b in pairs)
    return bool(own), bool(right)
