"""Terms: exponentials that have a factor at some keys, in the sum too, read off the weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from conformance.any_numbers import any_numbers
from conformance.experiments.changes.expressions import Expression
from conformance.experiments.changes.rules.places import Flags, Place, Relation, places_seen, relations_seen
from conformance.experiments.changes.sample import Setting
from conformance.experiments.readings.softmax import Weighed, named

LEAST = 1e-5
"""Smaller weights, of which rounding leaves little, tell nothing."""

MOST = 6
"""Sets of keys that are proposed."""


@dataclass(frozen=True, eq=False)
class Terms:
    """A factor, and the keys whose exponentials have it: at a place along the keys, or in a relation to the query."""

    factor: Expression
    at: Place | Relation

    @property
    def slug(self) -> str:
        """For the id of a bug."""
        return f"terms-times-{self.factor.words.replace(' ', '')}-at-key-{self.at.slug}"

    @property
    def words(self) -> str:
        """What is done, as a sentence."""
        keys = self.at.said("key") if isinstance(self.at, Place) else self.at.words.format(a="query", b="key")
        return f"Exponentials, also those of the sum, are times {self.factor.words} at {keys}."

    def factors(self, query_len: int, key_len: int, setting: Setting) -> NDArray:
        """(Lq, Lk) or (Lk,): the factor of each exponential."""
        at = self.at
        flags = at.rule(key_len, setting) if isinstance(at, Place) else at.rule(query_len, key_len)
        return np.where(flags, self.factor.at(setting), 1.0)


def terms_at(samples: Sequence[Weighed]) -> Iterator[Terms]:
    r"""Each factor c at each set of keys K that gives all samples.

    .. math:: a'_{ij} = \frac{a_{ij}\, c^{[j \in K]}}{\sum_k a_{ik}\, c^{[k \in K]}}, \qquad
        \log \frac{a'_{ij}}{a_{ij}} - \log \frac{a'_{ik}}{a_{ik}} \in \{0, \pm \log c\}
    """
    numbers: list[tuple[float, Setting]] = []
    higher: list[tuple[Flags, Flags]] = []
    for one in samples:
        read = _two_values(one)
        if read is None:
            return
        size, flags, known = read
        higher.append((flags, known))
        if size:
            numbers.append((size, one.sample.setting))
    if not numbers:
        return
    # A factor at some keys is one over it at all the others: the rule that is found first says which.
    for sign, seen in ((1.0, higher), (-1.0, [(~flags & known, known) for flags, known in higher])):
        factors = named([(float(np.exp(sign * size)), setting) for size, setting in numbers], samples)
        for factor in factors[:1]:
            yield from (Terms(factor, at) for at in islice(_sets(samples, seen), MOST))


def _sets(samples: Sequence[Weighed], seen: Sequence[tuple[Flags, Flags]]) -> Iterator[Place | Relation]:
    along = [
        (*found, one.sample.setting)
        for one, (flags, known) in zip(samples, seen, strict=True)
        if (found := _of_all_rows(flags, known)) is not None
    ]
    yield from places_seen(along) if len(along) == len(samples) else relations_seen(seen)


def _of_all_rows(flags: Flags, known: Flags) -> tuple[Flags, Flags] | None:
    """(Lk,): the keys with the factor, if they are the same in all rows; and which are known."""
    found: Flags = (flags & known).any(axis=0)
    return (found, known.any(axis=0)) if not (known & (flags != found)).any() else None


def _two_values(one: Weighed) -> tuple[float, Flags, Flags] | None:
    """(log of the factor, (Lq, Lk) where it is, (Lq, Lk) where that is known); None if anything else changed."""
    right, measured = one.scored.weights, one.sample.measured
    with any_numbers:
        ratio = np.log(measured) - np.log(right)
    good = one.scored.allowed & one.counts & (right > LEAST) & (measured > LEAST)
    if not np.isfinite(ratio[good]).all() or (one.scored.allowed & one.counts & ~np.isfinite(measured)).any():
        return None
    least = np.where(good, ratio, np.inf).min(axis=-1, keepdims=True, initial=np.inf)
    above = np.where(good, ratio - np.where(np.isfinite(least), least, 0.0), 0.0)
    size, off = float(above.max(initial=0.0)), max(1e-8, 1e5 * one.sample.unit)
    if size <= off:
        nowhere = np.zeros(above.shape[-2:], bool)
        return 0.0, nowhere, nowhere
    if not (np.minimum(np.abs(above), np.abs(above - size)) <= off).all():
        return None
    flags = above > size / 2.0
    known = good & flags.any(axis=-1, keepdims=True)
    of_all: Flags = (flags & known).any(axis=(0, 1))
    return (size, of_all, known.any(axis=(0, 1))) if not (known & (flags != of_all)).any() else None
