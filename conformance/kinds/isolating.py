"""Calls that tell a fault of one step from those of others: where values and heads are mixed, and what a bias meets."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.kinds.dependence import Read, changed, logs, scores_of, with_other
from conformance.kinds.oddities import NEAR, mix_of, near
from mha_core import AttentionMask


def sums_differ(output: Read, problem: Problem, right: NDArray) -> bool | None:
    """Return whether the sums of the heads' weights have other ratios than those of `right`; None if nothing tells.

    Args:
        output: call -> the output, or None.
        problem: a call without a mask and biases, of a layer with projections.
        right: its right weights.
    """
    config, count = problem.config, problem.sizes.key_len
    matrices = {
        "v_proj.weight": np.eye(1, config.value_dim).repeat(config.num_kv_heads * config.value_head_dim, axis=0),
        "out_proj.weight": np.ones((config.output_dim, config.num_heads * config.value_head_dim)),
    }
    of_ones = replace(problem, weights={**problem.weights, **matrices})
    unit = np.eye(1, config.value_dim) + 0.0 * problem.inputs.values
    values = [unit * one[:, None] for one in (np.ones(count), *np.eye(count))]
    equal = changed(of_ones, queries=0.0 * problem.inputs.queries)  # where what values have by position is seen alone
    outputs = [output(changed(call, values=one)) for call in (of_ones, equal) for one in values]
    if any(one is None for one in outputs):
        return None
    whole = np.stack([np.asarray(one) for one in outputs], axis=-1)  # (B, Lq, output channels, 2 * (1 + keys))
    found = whole[:, :, int(np.nan_to_num(np.abs(whole[..., 0]).sum(axis=(0, 1))).argmax())]
    shares, by_position = found[..., 1 : 1 + count], found[..., 2 + count :]
    if not near(shares.sum(axis=-1), found[..., 0]):
        return None
    of_heads = mix_of(shares[:, None].repeat(config.num_heads, axis=1), right)  # as by a wrong output matrix
    with np.errstate(divide="ignore", invalid="ignore"):  # a key that no call weighs has no ratio, and is alike nothing
        ratios = [x / x.sum(axis=-1, keepdims=True) for x in (shares, shares / by_position)]
    return of_heads is None and not any(near(one, right.mean(axis=1)) for one in ratios)


def takes_bias(read: Read, problem: Problem, scores: NDArray) -> bool:
    """Return whether a bias is added to the log weights `scores`: then what bends them stands before it."""
    bias = np.random.default_rng(0).normal(size=scores.shape)
    other = scores_of(read(changed(problem, mask=AttentionMask(bias=bias))))
    return other is not None and near(other, logs(np.exp(scores + bias), np.ones(bias.shape, bool)))


def of_items(
    read: Callable[[Read, Problem], NDArray | None], output: Read, problem: Problem, right: NDArray
) -> str | None:
    """Return where an item gets values of other items: what mixes values or heads of items, or what weighs them.

    Args:
        read: (call -> the output, or None), a call -> the weights (B, H, Lq, Lk) that are measured in it.
        output: call -> the output, or None.
        problem: a call of several items.
        right: its right weights.
    """
    items = np.arange(problem.sizes.batch)[:, None, None]

    def of_one(item: int, call: Problem) -> NDArray | None:
        return output(changed(call, values=np.where(items == item, call.inputs.values, 0.0)))

    given = [read(partial(of_one, item), problem) for item in range(len(items))]
    found = np.array([one for one in given if one is not None and np.isfinite(one).all()])  # (item of values, B, ..)
    if len(found) < len(items) or np.abs(found[~np.eye(len(items), dtype=bool)]).max() <= NEAR:
        return None
    shares = found.sum(axis=(2, 3, 4), keepdims=True) / right[0].sum()
    some = {"values": right, "heads": right[:, None]}
    return next((stage for stage, one in some.items() if near(found, shares * one)), "weights")


def are_mixed(read: Read, problem: Problem) -> bool:
    """Return whether the value of a key that one head alone sees changes others, in a call whose heads see one each.

    Args:
        read: call -> the heads (B, H, Lq, dv) that are measured in it; None if they can't be.
        problem: a call with as many keys as heads and no mask.
    """
    keys = np.arange(problem.sizes.key_len)
    call = changed(problem, mask=AttentionMask(allowed=(keys == keys[:, None])[:, None]))
    first, *others = (
        read(one) for one in (call, *(changed(call, values=with_other(call.inputs.values, key)) for key in keys))
    )
    if first is None:
        return False
    told = ((key, other) for key, other in enumerate(others) if other is not None)
    return any(not near(np.delete(other, key, axis=1), np.delete(first, key, axis=1)) for key, other in told)


def are_summed(read: Read, problem: Problem) -> bool:
    """Return whether heads of a value and five 0, of equal keys, are a sixth of its, or change with their order.

    `read` is as in `are_mixed`; `problem` is a call with one key.
    """
    inputs = problem.inputs
    some = np.concatenate([inputs.values, *[0.0 * inputs.values] * 5], axis=1)
    both = [changed(problem, keys=inputs.keys.repeat(6, axis=1), values=values) for values in (some, some[:, ::-1])]
    heads, first, last = (read(one) for one in (problem, *both))
    if heads is None or first is None or last is None:
        return True
    return not near(first, last) or near(first, heads / 6.0)
