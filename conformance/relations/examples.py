"""The relations, each with examples that it is tried on: a first problem, changed ones, and what must agree.

A relation is a function that draws an example from a random generator, for a dtype. A "bitwise" relation
must hold to the last bit, because both runs apply equal operations to equal numbers; a "bounded" one
changes the order of a sum, so both runs may differ by the sum of their error bounds.

Items and heads in another order, or alone, repeat the same operations on the same numbers, and yet are
not bitwise on CPUs with vector units: where a matrix or a row starts in memory decides which part of it a
kernel takes in whole vectors. Of 40 examples per dtype, torch gave other bits in up to 3 (its bmm, at odd
sizes), and TensorFlow in up to 2 (its softmax, and its matmul of a batch of one); MXNet in none, JAX in
none of 8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import Precision
from conformance.cases.case import Rng
from conformance.cases.problem import Problem
from conformance.judging.expected import answer
from conformance.subjects.items import take_items
from mha_core import AttentionConfig, AttentionInputs, AttentionMask
from mha_core.heads import merge_heads, split_heads
from mha_core.weights import Weights

HUGE = {"float16": 1e3}
"""Dtype -> the large number for masked places, where 1e30 is beyond its range."""


@dataclass(frozen=True, eq=False)
class Instance:
    """One drawn example of a relation. Heads are (B, H, Lq, dv).

    Attributes:
        problem: the first problem.
        changed: the problems that are run next.
        wanted: maps the heads of `problem` to the array that both sides must have.
        given: maps the heads of all changed problems to that array. Both maps are linear, so they map bounds too.
        known: the right heads of `problem`, where these are known without a second run.
    """

    problem: Problem
    changed: tuple[Problem, ...] = ()
    wanted: Callable[[NDArray], NDArray] = lambda heads: heads
    given: Callable[[list[NDArray]], NDArray] = lambda heads: heads[0]
    known: NDArray | None = None


Kind = Literal["bitwise", "bounded"]
Draw = Callable[[Rng, str], Instance]


@dataclass(frozen=True)
class Relation:
    """One relation: its name, its statement in words, and a function that draws an example for a dtype."""

    id: str
    sentence: str
    kind: Kind
    draw: Draw


RELATIONS: list[Relation] = []
"""Every relation; its id is the name of its function."""


def _relation(kind: Kind, sentence: str) -> Callable[[Draw], Draw]:
    def listed(draw: Draw) -> Draw:
        RELATIONS.append(Relation(draw.__name__.replace("_", "-"), sentence, kind, draw))
        return draw

    return listed


def attention_alone(num_heads: int, head_dim: int, value_head_dim: int) -> tuple[AttentionConfig, Weights]:
    """A layer whose projections change nothing: identity matrices, no biases."""
    width, value_width = num_heads * head_dim, num_heads * value_head_dim
    config = AttentionConfig(
        width, num_heads, value_head_dim=value_head_dim, value_dim=value_width, output_dim=value_width
    )
    same, same_values = np.eye(width), np.eye(value_width)
    names = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight")
    return config, dict(zip(names, (same, same, same_values, same_values), strict=True))


def _draw(rng: Rng, *, masked: bool = True, key_len: int | None = None) -> Problem:
    """A random problem of three items, the first with large inputs; mask and bias have shape (B, H, Lq, Lk)."""
    batch, heads, query_len = 3, int(rng.integers(2, 4)), int(rng.integers(3, 7))
    key_len = int(rng.integers(4, 10)) if key_len is None else key_len
    head_dim, value_head_dim = int(rng.integers(2, 14)), int(rng.integers(2, 14))
    config, weights = attention_alone(heads, head_dim, value_head_dim)
    queries = rng.normal(size=(batch, query_len, config.query_dim))
    queries[0] *= 30.0  # so that a maximum over more than a row leaves the others nothing
    mask = AttentionMask()
    if masked:
        shape = (batch, heads, query_len, key_len)
        lens = rng.integers(1, key_len + 1, size=(batch, 1, 1, 1))
        lens[int(rng.integers(1, batch))] = 0  # an item without a key
        mask = AttentionMask(
            allowed=(rng.random(shape) < 0.8) & (np.arange(key_len) < lens), bias=rng.normal(size=shape)
        )
    keys = rng.normal(size=(batch, key_len, config.key_dim))
    values = rng.normal(size=(batch, key_len, config.value_dim))
    return Problem(config, weights, AttentionInputs(queries, keys, values, mask))


def _mapped(problem: Problem, function: Callable[[NDArray], NDArray]) -> AttentionMask:
    """The mask with a function applied to its arrays (B, H, Lq, Lk)."""
    return problem.inputs.mask.map_arrays(lambda _, array: function(array))


@_relation("bitwise", "the same run twice gives the same")
def rerun(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    return Instance(problem, (problem,))


def _masked_keys(rng: Rng, fill: Callable[[tuple[int, ...]], NDArray]) -> Instance:
    """In each item some keys are excluded by -inf in the bias alone, so that they are not padding."""
    problem = _draw(rng)
    inputs = problem.inputs
    closed = rng.random((3, inputs.keys.shape[1])) < 0.4
    closed[:, 1] = True
    bias = np.where(closed[:, None, None], -np.inf, inputs.mask.bias)
    problem = problem.with_inputs(mask=replace(inputs.mask, bias=bias))
    keys = np.where(closed[..., None], fill(inputs.keys.shape), inputs.keys)
    values = np.where(closed[..., None], fill(inputs.values.shape), inputs.values)
    return Instance(problem, (problem.with_inputs(keys=keys, values=values),))


@_relation("bitwise", "other numbers in excluded keys and values change nothing")
def masked_keys_random(rng: Rng, dtype: str) -> Instance:
    return _masked_keys(rng, lambda shape: rng.normal(size=shape))


@_relation("bitwise", "1e30 in excluded keys and values changes nothing")
def masked_keys_huge(rng: Rng, dtype: str) -> Instance:
    return _masked_keys(rng, lambda shape: np.full(shape, HUGE.get(dtype, 1e30)))


def _items(rng: Rng, chosen: NDArray) -> Instance:
    problem = _draw(rng)
    changed = replace(problem, inputs=take_items(problem.inputs, chosen))
    return Instance(problem, (changed,), wanted=lambda heads: heads[chosen])


@_relation("bounded", "batch items in another order give the same, in that order")
def batch_permuted(rng: Rng, dtype: str) -> Instance:
    return _items(rng, np.array([2, 0, 1]))


@_relation("bounded", "one batch item alone gives what it gives among others")
def item_alone(rng: Rng, dtype: str) -> Instance:
    return _items(rng, rng.integers(3, size=1))


def _heads(rng: Rng, choose: Callable[[int], NDArray]) -> Instance:
    problem = _draw(rng)
    inputs, config = problem.inputs, problem.config
    chosen = choose(config.num_heads)
    arrays: dict[str, Any] = {
        name: merge_heads(split_heads(getattr(inputs, name), config.num_heads)[:, chosen])
        for name in ("queries", "keys", "values")
    }
    mask = _mapped(problem, lambda array: array[:, chosen])
    config, weights = attention_alone(len(chosen), config.head_dim, config.value_head_dim)
    changed = Problem(config, weights, replace(inputs, **arrays, mask=mask))
    return Instance(problem, (changed,), wanted=lambda heads: heads[:, chosen])


@_relation("bounded", "heads in another order give the same, in that order")
def heads_permuted(rng: Rng, dtype: str) -> Instance:
    return _heads(rng, lambda num_heads: np.roll(np.arange(num_heads), 1))


@_relation("bounded", "one head alone gives what it gives among others")
def head_alone(rng: Rng, dtype: str) -> Instance:
    return _heads(rng, lambda num_heads: rng.integers(num_heads, size=1))


def _values_times(rng: Rng, factor: float) -> Instance:
    problem = _draw(rng)
    return Instance(
        problem, (problem.with_inputs(values=problem.inputs.values * factor),), lambda heads: heads * factor
    )


@_relation("bitwise", "values times 2^10 give the output times 2^10")
def values_times_1024(rng: Rng, dtype: str) -> Instance:
    return _values_times(rng, 1024.0)


@_relation("bitwise", "negated values give the negated output")
def values_negated(rng: Rng, dtype: str) -> Instance:
    return _values_times(rng, -1.0)


@_relation("bitwise", "queries doubled and keys halved change nothing")
def queries_doubled(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    inputs = problem.inputs
    return Instance(problem, (problem.with_inputs(queries=2.0 * inputs.queries, keys=inputs.keys / 2.0),))


@_relation("bitwise", "a query with one open key gives that key's value")
def one_open_key(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    batch, heads, query_len, key_len = problem.allowed().shape
    chosen = rng.integers(key_len, size=(batch, heads, query_len))
    problem = problem.with_inputs(mask=AttentionMask(allowed=np.arange(key_len) == chosen[..., None]))
    rows = split_heads(problem.rounded(dtype).inputs.values, heads)
    return Instance(problem, known=np.take_along_axis(rows, chosen[..., None], axis=2).astype(np.float64))


@_relation("bitwise", "with Lk = 1, every query gives the one value")
def one_key(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng, masked=False, key_len=1)
    rows = split_heads(problem.rounded(dtype).inputs.values, problem.config.num_heads)
    query_len = problem.inputs.queries.shape[1]
    return Instance(problem, known=np.repeat(rows, query_len, axis=2).astype(np.float64))


@_relation("bitwise", "under a causal mask, later tokens change nothing before them")
def causal_prefix(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng, masked=False).with_inputs(mask=AttentionMask(causal=True))
    inputs = problem.inputs
    prefix = int(rng.integers(1, min(inputs.queries.shape[1], inputs.keys.shape[1])))
    changed = {}
    for name in ("queries", "keys", "values"):
        changed[name] = getattr(inputs, name).copy()
        changed[name][:, prefix:] = rng.normal(size=changed[name][:, prefix:].shape)
    return Instance(
        problem,
        (problem.with_inputs(**changed),),
        lambda heads: heads[:, :, :prefix],
        lambda all_: all_[0][:, :, :prefix],
    )


def _keys_taken(problem: Problem, chosen: NDArray) -> Problem:
    """The problem with these keys, in this order."""
    inputs = problem.inputs
    mask = _mapped(problem, lambda array: array[..., chosen])
    return problem.with_inputs(keys=inputs.keys[:, chosen], values=inputs.values[:, chosen], mask=mask)


@_relation("bounded", "keys in another order, with their values and masks, change nothing")
def keys_permuted(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    return Instance(problem, (_keys_taken(problem, rng.permutation(problem.inputs.keys.shape[1])),))


@_relation("bounded", "every key twice changes nothing")
def keys_duplicated(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    return Instance(problem, (_keys_taken(problem, np.repeat(np.arange(problem.inputs.keys.shape[1]), 2)),))


@_relation("bounded", "a constant added to a row of scores changes nothing")
def scores_shifted(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    bias = problem.inputs.mask.bias
    shift = 16.0 * rng.normal(size=(*bias.shape[:-1], 1))
    return Instance(problem, (problem.with_inputs(mask=replace(problem.inputs.mask, bias=bias + shift)),))


@_relation("bounded", "one query alone gives what it gives among others")
def query_alone(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    row = slice(-1, None)
    mask = _mapped(problem, lambda array: array[:, :, row])
    changed = problem.with_inputs(queries=problem.inputs.queries[:, row], mask=mask)
    return Instance(problem, (changed,), lambda heads: heads[:, :, row])


@_relation("bounded", "where all values are equal, every query with a key gives that value")
def constant_values(rng: Rng, dtype: str) -> Instance:
    problem = _draw(rng)
    values = problem.inputs.values[:, :1].repeat(problem.inputs.values.shape[1], axis=1)
    problem = problem.with_inputs(values=values)
    row = split_heads(problem.rounded(dtype).inputs.values[:, :1], problem.config.num_heads)  # (B, H, 1, dv)
    return Instance(problem, known=np.where(problem.allowed().any(axis=-1, keepdims=True), row, 0.0))


@_relation("bounded", "two parts of the keys, weighed by their sums of exponentials, give the whole")
def chunks_merged(rng: Rng, dtype: str) -> Instance:
    """Chunks of keys, each weighted by its share of the sum of exponentials from the reference's scores."""
    problem = _draw(rng).rounded(dtype)
    key_len = problem.inputs.keys.shape[1]
    cut = int(rng.integers(1, key_len))
    chunks = [np.arange(cut), np.arange(cut, key_len)]
    weights = answer(problem, Precision.of("float64")).trace.weights
    shares = [weights[..., chunk].sum(axis=-1, keepdims=True) for chunk in chunks]  # type: ignore[index]  # it is there
    return Instance(
        problem,
        tuple(_keys_taken(problem, chunk) for chunk in chunks),
        given=lambda heads: shares[0] * heads[0] + shares[1] * heads[1],
    )
