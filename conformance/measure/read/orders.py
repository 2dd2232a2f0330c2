"""Which order an axis has, read off: slices of the measured array are compared with those of the expected one.

A factor, a monotone function or another axis' order may be on top of it:

    exact   m[i] = e[j]            scaled   m[i] parallel to e[j]
    ranked  rank(m)[i] = rank(e)[j]         subset   every number of m[i] but 0 is one of e[j]
    alike   of all e[j], m[i] correlates best with this one

And which matrix mixes an axis: m[i] = sum_j M[i, j] e[j], as in attention with talking heads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.measure.grammar.orders import Indices, Order, SizedRule, exchange, order_change, table_of
from conformance.measure.grammar.profiles import LONGEST_TABLE
from conformance.measure.grammar.sample import Change, Sample, Setting, long_axes, of_each
from conformance.zoo.bug import DoesNotApply

ALIKE = 0.5
"""The least correlation of slices that are alike."""

Match = tuple[Sample, NDArray[np.bool_], NDArray[np.bool_]]
"""A sample, which expected slice each measured one equals (n, n), and which of them are 0 (n,)."""


def orders_read(samples: Sequence[Sample], how: str = "exact", *, by_rule: bool = True) -> Iterator[Change]:
    """The orders of one axis by which slices match in every sample; the caller verifies.

    Args:
        samples: at least one differs.
        how: what two slices must have in common: "exact", "scaled", "ranked", "alike" or "subset".
        by_rule: rules for every length; else the orders as they were read, which hold at the lengths seen alone.
    """
    axes = samples[0].axes
    for position in range(len(axes)):
        axis = position - len(axes)
        found = of_each(_matched(sample, axis, how) for sample in samples)
        # Nothing to be read where every slice matches every other, or one matches none.
        if found is None or all(bool(np.diagonal(same).all()) for _, same, _ in found):
            continue
        if by_rule:
            for order in {order.words: order for order in _agreeing(found)}.values():
                yield order_change(axes[position], axis, order)
        elif (table := _as_seen(found)) is not None:
            yield order_change(axes[position], axis, table)


def _matched(sample: Sample, axis: int, how: str) -> Match | None:
    """The slices that match; None if one matches none."""
    same, zero = _matches(sample, axis, how)
    return (sample, same, zero) if (same.any(axis=1) | zero).all() else None


def _matches(sample: Sample, axis: int, how: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    measured, expected = sample.measured, sample.expected
    if how == "ranked":
        measured, expected = _ranks(measured), _ranks(expected)
    n = measured.shape[axis]
    m = np.moveaxis(measured, axis, 0).reshape(n, -1)
    e = np.moveaxis(expected, axis, 0).reshape(n, -1)
    m_known, e_known = ~np.isnan(m), ~np.isnan(e)
    zero = (~m_known | (np.abs(m) <= sample.tolerance)).all(axis=1)
    if how == "alike":
        return _alike(m, e), zero
    if how == "subset":
        return _subset(m, e, sample.tolerance), zero
    if how != "scaled":
        tolerance = 0.5 if how == "ranked" else sample.tolerance
        with any_numbers:
            off = np.abs(m[:, None] - e[None]) > tolerance
        return ~off.any(axis=2), zero
    m, e = np.where(m_known, m, 0.0), np.where(e_known, e, 0.0)
    with any_numbers:
        ratio = (m @ e.T) / (m_known @ (e * e).T)
        off = np.abs(m[:, None] - ratio[:, :, None] * e[None]) > sample.tolerance
    off &= m_known[:, None] & e_known[None]
    # A slice of one number is parallel to every other, and 0 to all: neither tells an index.
    return ~off.any(axis=2) & np.isfinite(ratio) & (e_known.sum(axis=1) > 1), zero


def _subset(m: NDArray, e: NDArray, tolerance: float) -> NDArray[np.bool_]:
    """(n, n): whether all numbers of a row of m, but 0, are among those of a row of e."""
    found = np.ones((len(m), len(e)), bool)
    given = np.where(np.isnan(m), 0.0, m)
    for j, row in enumerate(e):
        ordered = np.sort(np.append(row[~np.isnan(row)], (0.0, 0.0)))
        place = np.clip(np.searchsorted(ordered, given), 1, len(ordered) - 1)
        off = np.minimum(np.abs(ordered[place] - given), np.abs(ordered[place - 1] - given))
        found[:, j] = (off <= tolerance).all(axis=1)
    return found


def _alike(m: NDArray, e: NDArray) -> NDArray[np.bool_]:
    """(n, n): for each row of m the rows of e with which it correlates best."""
    if m.shape[1] < 3:
        return np.eye(len(m), dtype=bool)

    def centred(x: NDArray) -> NDArray:
        x = np.where(np.isnan(x), 0.0, x)
        x = x - x.mean(axis=1, keepdims=True)
        return x / np.maximum(np.sqrt((x * x).sum(axis=1, keepdims=True)), 1e-300)

    correlation = np.abs(centred(m) @ centred(e).T)
    return (correlation > correlation.max(axis=1, keepdims=True) - 1e-9) & (correlation > ALIKE)


def _ranks(array: NDArray) -> NDArray:
    """Each element's place among all of the array, NaN where it is one."""
    flat = array.ravel()
    ranks = np.empty(flat.shape)
    ranks[np.argsort(flat, kind="stable")] = np.arange(flat.size)
    return np.where(np.isnan(array), np.nan, ranks.reshape(array.shape))


def _agreeing(found: Sequence[Match]) -> Iterator[Order]:
    """The rules that every sample agrees with."""
    first = max(found, key=lambda match: match[1].shape[0] if not np.diagonal(match[1]).all() else 0)
    orders, table = table_of(first[1].shape[0], first[0].setting)
    agree = ((table >= 0) & first[1][np.arange(table.shape[1]), table]) | ((table < 0) & first[2])
    for index in np.flatnonzero(agree.all(axis=1)):
        if all(_agrees(orders[index].rule, match) for match in found if match is not first):
            yield orders[index]
    yield from _exchanges(found)


def _agrees(rule: SizedRule, match: Match) -> bool:
    sample, same, zero = match
    n = len(zero)
    try:
        order = np.asarray(rule(n, sample.setting), np.int64)
    except DoesNotApply:
        return not sample.differs
    if len(order) != n or order.max(initial=0) >= n:
        return False
    return bool(np.where(order >= 0, same[np.arange(n), order], zero).all())


def _exchanges(found: Sequence[Match]) -> Iterator[Order]:
    """Two indices exchanged, or one that reads another: counted from the start or from the end."""
    for sample, same, _ in found:
        n = len(same)
        moved = [int(index) for index in np.flatnonzero(~np.diagonal(same))]
        if n < 3 or not 0 < len(moved) <= 2 or not sample.differs:
            continue
        both = len(moved) == 2
        if both and not (same[moved[0], moved[1]] and same[moved[1], moved[0]]):
            return
        for b in moved[1:] if both else map(int, np.flatnonzero(same[moved[0]])):
            for first, second in ((moved[0] - i * n, b - j * n) for i in (0, 1) for j in (0, 1)):
                order = exchange(first, second, both=both)
                if all(_agrees(order.rule, match) for match in found):
                    yield order
        return


def _as_seen(found: Sequence[Match]) -> Order | None:
    """The order as it was read, for the lengths at which it was; None if it is not the same at one length."""
    table: dict[int, Indices] = {}
    for _, same, zero in found:
        n = len(zero)
        unique = same.sum(axis=1) == 1
        kept = np.where(zero, -1, np.where(np.diagonal(same), np.arange(n), -2))
        read = np.where(unique, same.argmax(axis=1), kept)
        if (read == -2).any() or (n in table and (table[n] != read).any()):
            return None
        table[n] = read
    moved = [order for order in table.values() if (order != range(len(order))).any()]
    seen = "; ".join(", ".join(map(str, order)) for order in moved)

    def rule(n: int, setting: Setting) -> Indices:
        if n not in table:
            raise DoesNotApply(f"the order was not read at length {n}")
        return table[n]

    slug = f"order-{seen.replace('; ', '/').replace(', ', '-')}"
    return Order(slug, f"in the order {seen} (seen at these lengths alone)", rule)


# Matrices -----------------------------------------------------------------------------------------------


def matrix_changes(samples: Sequence[Sample]) -> Iterator[Change]:
    """M x along an axis, with the M that was read: its first rows and columns for fewer places, and none for more."""
    for position, name in long_axes(samples):
        axis = position - len(samples[0].axes)
        read = [found for sample in samples if (found := _matrix(sample, axis)) is not None]
        if not read:
            continue
        matrix = max(read, key=len)
        parts = (np.allclose(one, matrix[: len(one), : len(one)], rtol=0.0, atol=1e-7 * np.ptp(matrix)) for one in read)
        if len(matrix) <= LONGEST_TABLE and all(parts):
            row = ", ".join(f"{value:.6g}" for value in matrix[0])
            words = f"mixed along the {name} axis by a matrix {matrix.shape}, of which the first row is {row}"
            slug = f"{name}-matrix-{row}-{zlib.crc32(matrix.round(6).tobytes()):08x}".replace(", ", "-")
            yield Change(slug, words, partial(_times_matrix, matrix, axis))


def _matrix(sample: Sample, axis: int) -> NDArray | None:
    """M of m = M x along an axis, by least squares; None where x does not tell all of it."""
    x, y = (np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) for array in (sample.expected, sample.measured))
    told = np.isfinite(x).all(axis=0) & np.isfinite(y).all(axis=0)
    x, y = x[:, told], y[:, told]
    if x.shape[1] < 2 * len(x) or np.linalg.matrix_rank(x) < len(x):
        return None
    found: NDArray = np.linalg.lstsq(x.T, y.T, rcond=None)[0].T
    return found if np.abs(found @ x - y).max() <= sample.tolerance else None


def _times_matrix(matrix: NDArray, axis: int, x: NDArray, axes: tuple[str, ...], setting: Setting) -> NDArray:
    n = x.shape[axis]
    if n > len(matrix):
        raise DoesNotApply(f"the numbers of index {n - 1} were not read")
    return np.moveaxis(np.tensordot(matrix[:n, :n], x, axes=(1, axis)), 0, axis)
