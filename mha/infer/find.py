"""The finder of a recorded layer's weights: search the hypotheses, and judge the best ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.infer.arrays import Candidates, Slice
from mha.infer.evidence import Fit, Judge, key_bias
from mha.infer.hypothesis import Hypothesis
from mha.infer.observed import Observed
from mha.infer.readings import RAREST
from mha.infer.sample import Sample, cheap_rows, early_rows, vary
from mha.infer.search import CHEAP, Search
from mha_core import AttentionConfig, Rotary, SpecError
from mha_core.config import PROJECTIONS, check_size
from mha_core.weights import Weights, check_weights

ROWS = 3
"""Query rows of the sketch by which every hypothesis is ranked."""

REFINED_ROWS, REFINED_KEYS = 24, 256
"""Rows and keys of the larger sample by which the best hypotheses of the sketch are ranked again."""

WORTH_JUDGING, ALIKE = 0.1, 30.0
"""Misfit on that sample up to which a hypothesis is compared with the whole record; and how many times the least misfit
it may have."""

MOST_JUDGED = 40
"""Most hypotheses that are compared with the whole record. Where more come close, it tells next to nothing."""

ORDINARY, TRIED, FIRST_ROWS = 2, 12, 12
"""The last tier whose readings are tried with rotary positions, how many of each, and the rows that choose the form."""


@dataclass(frozen=True, eq=False)
class Inference:
    """A result of `infer`: the hypotheses (which array is which weight) that give the recorded output.

    Attributes:
        fits: every hypothesis within the bound, best first. No two of them compute the same function.
        closest: the best hypothesis, fitting or not; None if nothing could be compared.
        searched: how many hypotheses were considered.
        exhausted: whether the search came to its end; False if time ran out.
        more: how many further hypotheses the search found likely, but did not judge, since judgements are limited.
        key_bias: (the likeliest key bias or None, the reason in words or ""). The output may not depend on this bias.
        candidates, observed: the possible matrices and biases, and the recorded call.
        seconds: how long it took.
    """

    fits: tuple[Fit, ...]
    closest: Fit | None
    searched: int
    exhausted: bool
    more: int
    key_bias: tuple[Slice | None, str]
    candidates: Candidates = field(repr=False)
    observed: Observed = field(repr=False)
    seconds: float

    @property
    def verdict(self) -> str:
        """Return "unique", "ambiguous" or "none": whether one, several or no hypotheses fit."""
        return "none" if not self.fits else "unique" if len(self.fits) == 1 and not self.more else "ambiguous"

    @property
    def hypothesis(self) -> Hypothesis:
        """Return the only hypothesis that fits, with the likeliest key bias. SpecError unless `verdict` is "unique"."""
        if self.verdict != "unique":
            raise SpecError(f"the mapping must be unique to be used. It is {self.verdict}; the report says why.")
        found = self.fits[0].hypothesis
        return found if found.key_bias_acts else replace(found, bk=self.key_bias[0])

    def weights(self) -> tuple[AttentionConfig, Weights]:
        """Return config and canonical weights, in the dtypes that the arrays have (bfloat16 as float32).

        Raises:
            SpecError: `verdict` is not "unique".
        """
        hypothesis = self.hypothesis
        config, arrays = hypothesis.canonical()
        parts = dict(zip(PROJECTIONS, zip(hypothesis.weights, hypothesis.biases, strict=True), strict=True))
        found = {}
        for name, array in arrays.items():
            projection, kind = name.split(".")
            part = parts[projection][kind == "bias"]
            assert part is not None
            found[name] = array.astype(part.source.dtype)
        return config, check_weights(config, found)


def infer(
    arrays: Mapping[str, NDArray],
    recorded: Mapping[str, Any] | Observed,
    *,
    num_heads: int | None = None,
    time_limit: float = 60.0,
    progress: Callable[[str], None] = lambda line: None,
) -> Inference:
    """Return an Inference: which arrays are the weights of the attention layer that was recorded.

    Args:
        arrays: name -> array. The names are not interpreted, and there may be arrays of other layers among them.
        recorded: one call of the layer, with keys from observed.NAMES: "queries" and "output"; "keys" and "values" if
            they differ from the queries; "valid_lens", "allowed", "bias", "causal", "query_offset" if there was a mask.
        num_heads: the number of heads H, if it is known.
        time_limit: seconds after which no further hypotheses are considered.
        progress: called with a line on what is being done.

    Raises:
        SpecError: the record or the arrays can't be read, all rows of the recorded output are equal, or there are no
            arrays of fitting sizes.

    >>> from mha_core import AttentionConfig, AttentionInputs, init_weights, reference
    >>> config = AttentionConfig(6, 2)
    >>> weights = init_weights(config, seed=0)
    >>> x = np.random.default_rng(1).normal(size=(2, 5, 6))
    >>> output = reference.run(config, weights, AttentionInputs(x, x, x)).output
    >>> names = dict(zip("badc", weights, strict=True))
    >>> found = infer({new: weights[old] for new, old in names.items()}, {"queries": x, "output": output})
    >>> found.verdict, found.hypothesis.q.source.names, found.hypothesis.heads
    ('unique', ('b',), 2)
    """
    started = time.monotonic()
    observed = recorded if isinstance(recorded, Observed) else Observed.of(recorded)
    if not observed.usable_rows:
        raise SpecError("a record needs a query with a key that it may attend to. Got none under its mask.")
    rows = cheap_rows(observed, ROWS, 0)
    if not vary(observed, rows):
        raise SpecError("a record needs two query rows of different outputs: record more queries, or several items.")
    num_heads = None if num_heads is None else check_size("num_heads", num_heads)
    widths = {x.shape[-1] for x in (observed.queries, observed.keys, observed.values, observed.output)}
    candidates = Candidates.of(arrays, widths)
    search = Search(candidates, observed, rows, num_heads, started + time_limit)
    shortlist = _Shortlist(candidates, observed)
    searched = 0
    for tier in range(RAREST + 1):
        if shortlist.settled and search.cost(tier) > CHEAP:
            break
        progress(f"tier {tier} of {RAREST}: {'ordinary' if not tier else 'rarer'} ways to read the arrays")
        ranking = search.run(tier, shortlist.settles)
        searched += ranking.searched
        shortlist.add(ranking.ranked())
        if search.timed_out:
            break
    rows = early_rows(observed, ROWS)
    if not shortlist.settled and not search.timed_out and len(rows) == ROWS and vary(observed, rows):
        search = Search(candidates, observed, rows, num_heads, search.deadline)
        searched += _with_rotary(search, shortlist, progress)
    if not searched and not search.timed_out:
        given = "" if num_heads is None else f" with num_heads={num_heads}"
        shapes = f"queries are {observed.queries.shape}, the output is {observed.output.shape}"
        raise SpecError(f"no arrays have shapes of queries, keys, values and output together{given}: the {shapes}")
    best = shortlist.best if shortlist.judged else None
    bias: tuple[Slice | None, str] = (None, "")
    if best is not None and shortlist.fitting:
        bias = (best.hypothesis.bk, "") if best.hypothesis.key_bias_acts else key_bias(best.hypothesis, candidates)
    more = shortlist.unjudged if shortlist.fitting else 0
    seconds = time.monotonic() - started
    return Inference(
        tuple(shortlist.fitting), best, searched, not search.timed_out, more, bias, candidates, observed, seconds
    )


def _with_rotary(search: Search, shortlist: _Shortlist, progress: Callable[[str], None]) -> int:
    """Add readings with rotary positions to the shortlist; returns how many readings were ranked for it."""
    searched = 0
    early = Sample.of(search.observed, early_rows(search.observed, FIRST_ROWS))
    for tier in range(ORDINARY + 1):
        progress(f"tier {tier} of {ORDINARY}: with rotary positions")
        ranking = search.run(tier, lambda hypotheses: False)
        searched += ranking.searched
        for hypothesis in sorted(ranking.ranked(), key=search.sample.misfit)[:TRIED]:
            search.timed_out |= time.monotonic() > search.deadline
            proposed = with_rotary(hypothesis, early, shortlist.sample, search.candidates)
            if search.timed_out or shortlist.settles(proposed):
                return searched
    return searched


class _Shortlist:
    """Ranks hypotheses on a larger sample, and compares those that come close with the whole record."""

    def __init__(self, candidates: Candidates, observed: Observed) -> None:
        self.judge = Judge(candidates, observed)
        self.sample = Sample.of(observed, cheap_rows(observed, REFINED_ROWS, REFINED_KEYS))
        self.judged: list[Fit] = []
        self.unjudged, self.least = 0, np.inf
        self._seen: set[bytes] = set()
        self._functions: set[bytes] = set()

    @property
    def best(self) -> Fit:
        """Return the hypothesis that comes closest."""
        return min(self.judged, key=lambda fit: fit.ratio)

    @property
    def settled(self) -> bool:
        """True if a hypothesis fits."""
        return any(fit.fits for fit in self.judged)

    @property
    def fitting(self) -> list[Fit]:
        """Return the hypotheses that fit, the best first."""
        return sorted((fit for fit in self.judged if fit.fits), key=lambda fit: fit.ratio)

    def settles(self, hypotheses: Iterable[Hypothesis]) -> bool:
        """Add these hypotheses, and return True if the list is settled then."""
        self.add(hypotheses)
        return self.settled

    def add(self, hypotheses: Iterable[Hypothesis]) -> None:
        """Rank these hypotheses and judge the close ones; functions that were judged before are left out."""
        ranked = sorted(((self.sample.misfit(h), i, h) for i, h in enumerate(hypotheses)), key=lambda one: one[:2])
        if not ranked:
            return
        self.least = min(self.least, ranked[0][0])
        worth = [h for m, _, h in ranked if m <= min(WORTH_JUDGING, max(ALIKE * self.least, 1e-9))]
        for hypothesis in worth or ([] if self.judged else [ranked[0][2]]):
            key = hypothesis.function()
            if key in self._seen:
                continue
            self._seen.add(key)
            if len(self.judged) >= MOST_JUDGED:
                self.unjudged += 1
                continue
            for fit in self.judge.fits(hypothesis):
                function = fit.hypothesis.function()
                if function not in self._functions:
                    self._functions.add(function)
                    self.judged.append(fit)


# Rotary positions, which no array shows.
#
# The search ranks readings of the arrays without them, by rows of the first positions, which turn least. Where none
# fits, the closest readings are tried with each form of rotary positions, and with the bases that models have.


BASES = (1e4, 1e5, 1.3e5, 1.5e5, 1.6e5, 2.5e5, 5e5, 1e6, 2e6, 5e6, 8e6, 1e7)
"""Bases of rotary positions that models have."""

FORMS = tuple(product((1, 2, 4), (False, True)))
"""(which part of a head's channels turn, as its divisor; True for interleaved pairs)."""

CLOSER = 0.5
"""A form is proposed if it brings the outputs of a sample this many times as near, or nearer."""

NEAREST = 3
"""How many of the forms that come closest are tried with every base."""

NEAR = 30.0
"""How many times the least misfit another base may have and still be proposed to the judge."""


def with_rotary(found: Hypothesis, early: Sample, sample: Sample, candidates: Candidates) -> Iterator[Hypothesis]:
    """Yield `found` with rotary positions: once for each form (which channels are a pair) and base with a small misfit.

    Args:
        found: a hypothesis without rotary positions.
        early: queries at the first positions, where the base hardly matters, to choose the form by.
        sample: more queries, to choose the base by.
        candidates: the arrays to try as key bias, which has no effect on the output without rotary positions.
    """
    d = found.head_dim
    keys = (None, *candidates.biases(found.k)) if found.bq is not None else (None,)
    shapes = [
        replace(found, rotary=Rotary(width=d // part, interleaved=interleaved, base=base), bk=bias)
        for part, interleaved in FORMS
        if d % (2 * part) == 0 and (d > 2 * part or not interleaved)  # one pair is the same in both
        for bias in keys
        for base in (BASES[0], BASES[-5])
    ]
    shapes = sorted((one for one in shapes if one.is_readable()), key=early.misfit)
    forms = {(one.rotary and one.rotary.layout, one.bk): one for one in reversed(shapes)}  # one base of each
    nearest = sorted(forms.values(), key=early.misfit)[:NEAREST]
    tried = [
        (sample.misfit(one), one)
        for shape in nearest
        for base in BASES
        for one in (replace(shape, rotary=replace(shape.rotary, base=base) if shape.rotary else None),)
    ]
    limit = min(NEAR * min((misfit for misfit, _ in tried), default=0.0), CLOSER * sample.misfit(found))
    yield from (one for misfit, one in tried if misfit < limit)
