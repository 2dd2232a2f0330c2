"""Infer: search the hypotheses, judge the best ones and the neighbours of those that fit, and report the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mha.infer.around import around
from mha.infer.evidence import Fit, Judge
from mha.infer.families import RAREST
from mha.infer.hypotheses.biases import key_bias
from mha.infer.hypotheses.candidates import Candidates, Slice
from mha.infer.hypotheses.hypothesis import Hypothesis
from mha.infer.observed import Observed
from mha.infer.sample import LITTLE_NOISE, Sample, early_rows, furthest
from mha.infer.search import CHEAP, ROWS, Search
from mha.infer.settings import with_turns_and_norms
from mha_core import AttentionConfig, SpecError
from mha_core.config import PROJECTIONS, check_size
from mha_core.parts.query_key_norm import NORMS
from mha_core.weights import Weights, check_weights

REFINED_ROWS, REFINED_KEYS = 24, 256
"""Rows and keys of the larger sample by which the best hypotheses of the sketch are ranked again."""

WORTH_JUDGING = 0.1
"""Misfit on that sample up to which a hypothesis is compared with the whole record, within the bound."""

ALIKE = 30.0
"""How many times the least misfit another one may be and still be judged."""

MOST_JUDGED = 40
"""Most hypotheses that are compared with the whole record, and as many again among the neighbours of the best.

Where more come close, the record tells next to nothing.
"""


ORDINARY, TRIED, SETTING_ROWS, FIRST_ROWS = 2, 12, 96, 12
"""The last tier whose readings are tried with settings that no array shows, how many of each, and by how many rows:
all in all, and of those by which forms of rotary positions and norms are chosen.
"""


@dataclass(frozen=True, eq=False)
class Inference:
    """The result of `infer`: which readings of the arrays give the recorded output.

    Attributes:
        fits: every hypothesis within the bound, best first; no two of them compute one function.
        closest: the best hypothesis, fitting or not; None if nothing could be compared.
        searched: how many hypotheses were considered.
        exhausted: whether all of them were, up to the last tier begun; False if time ran out.
        unjudged: more that come as close and were not judged, because the record tells next to nothing.
        key_bias: the most plausible key bias, and why if it has no influence on the output.
        candidates, observed: the readings of the arrays, and the record.
        seconds: how long it took.
    """

    fits: tuple[Fit, ...]
    closest: Fit | None
    searched: int
    exhausted: bool
    unjudged: tuple[Hypothesis, ...]
    key_bias: tuple[Slice | None, str]
    candidates: Candidates = field(repr=False)
    observed: Observed = field(repr=False)
    seconds: float

    @property
    def more(self) -> int:
        """How many more may fit that were not judged."""
        return len(self.unjudged)

    @property
    def verdict(self) -> str:
        """How many mappings fit: "unique", "ambiguous" or "none"."""
        return "none" if not self.fits else "unique" if len(self.fits) == 1 and not self.more else "ambiguous"

    @property
    def hypothesis(self) -> Hypothesis:
        """The mapping, with the key bias. Raises SpecError unless it is unique."""
        if self.verdict != "unique":
            raise SpecError(f"the mapping must be unique to be used. It is {self.verdict}; the report says why.")
        found = self.fits[0].hypothesis
        return found if found.key_bias_acts else replace(found, bk=self.key_bias[0])

    def weights(self) -> tuple[AttentionConfig, Weights]:
        """Config and canonical weights, in the dtypes that the arrays have (bfloat16 as float32); none is changed.

        Raises:
            SpecError: the mapping is not unique.
        """
        hypothesis = self.hypothesis
        config, arrays = hypothesis.canonical()
        parts = dict(zip(PROJECTIONS, zip(hypothesis.weights, hypothesis.biases, strict=True), strict=True))
        found = {}
        for name, array in arrays.items():
            projection, kind = name.split(".")
            norms = dict(zip(NORMS, hypothesis.norms, strict=False))
            part = norms[projection] if projection in norms else parts[projection][kind == "bias"]
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
    """Find which arrays are the weights of the attention layer that was recorded.

    Args:
        arrays: name -> array; names mean nothing, and there may be arrays of other layers among them.
        recorded: one call of the layer, by the names of observed.NAMES: `queries`, `output`; `keys` and `values`
            if they differ from that; `valid_lens`, `allowed`, `bias`, `causal`, `query_offset` if there was a mask.
        num_heads: H, if it is known.
        time_limit: seconds after which no further hypotheses are considered.
        progress: is told, in words, what is being done.

    Raises:
        SpecError: the record or the arrays can't be read, or no arrays of fitting sizes are there.

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
    if num_heads is not None:
        num_heads = check_size("num_heads", num_heads)
    widths = {x.shape[-1] for x in (observed.queries, observed.keys, observed.values, observed.output)}
    candidates = Candidates.of(arrays, widths)
    search = Search(candidates, observed, num_heads, started + time_limit)
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
    if not shortlist.settled and not search.timed_out and len(rows) == ROWS:
        search = Search(candidates, observed, num_heads, search.deadline, rows=rows, scaled=True)
        searched += _with_settings(search, shortlist, progress) if search.sample.varies else 0
    if not searched and not search.timed_out:
        given = "" if num_heads is None else f" with num_heads={num_heads}"
        raise SpecError(f"no arrays have shapes of queries, keys, values and output together{given}")
    if shortlist.fitting:
        progress("looking at what is similar to the hypothesis that fits")
        neighbours = list(around(shortlist.best.hypothesis, search.families, candidates, observed, num_heads))
        searched += len(neighbours)
        shortlist.most += MOST_JUDGED  # the neighbours tell most about what the record leaves open
        shortlist.add(neighbours)
    return Inference(
        fits=tuple(shortlist.fitting),
        closest=shortlist.best if shortlist.judged else None,
        searched=searched,
        exhausted=not search.timed_out,
        unjudged=tuple(shortlist.unjudged) if shortlist.fitting else (),
        key_bias=_key_bias(shortlist.best.hypothesis, candidates) if shortlist.fitting else (None, ""),
        candidates=candidates,
        observed=observed,
        seconds=time.monotonic() - started,
    )


def _key_bias(found: Hypothesis, candidates: Candidates) -> tuple[Slice | None, str]:
    return (found.bk, "") if found.key_bias_acts else key_bias(found, candidates)


def _with_settings(search: Search, shortlist: _Shortlist, progress: Callable[[str], None]) -> int:
    """Add readings with settings that no array shows to the shortlist; returns how many readings were ranked for it."""
    searched, early = 0, search.sample
    sample = Sample.of(search.observed, _many_rows(search.observed), LITTLE_NOISE)
    first = Sample.of(search.observed, early_rows(search.observed, FIRST_ROWS), LITTLE_NOISE)
    for tier in range(ORDINARY + 1):
        progress(f"tier {tier} of {ORDINARY}: with settings that no array shows")
        ranking = search.run(tier, lambda hypotheses: False)
        searched += ranking.searched
        ranked = sorted(
            ((early.misfit(h, search.candidates, scaled=True), i, h) for i, h in enumerate(ranking.ranked())),
            key=lambda one: one[:2],
        )
        for _, _, hypothesis in ranked[:TRIED]:
            if time.monotonic() > search.deadline:
                search.timed_out = True
            proposed = with_turns_and_norms(hypothesis, first, sample, search.candidates)
            if search.timed_out or shortlist.settles(proposed):
                return searched
    return searched


class _Shortlist:
    """Ranks hypotheses on a larger sample, and compares those that come close with the whole record."""

    def __init__(self, candidates: Candidates, observed: Observed) -> None:
        self.judge = Judge(candidates, observed)
        self.sample = Sample.of(observed, _refined_rows(observed))
        self.judged: list[Fit] = []
        self.most = MOST_JUDGED
        self.unjudged: list[Hypothesis] = []
        self.least = np.inf
        self._seen: set[bytes] = set()
        self._functions: set[bytes] = set()

    @property
    def best(self) -> Fit:
        return min(self.judged, key=lambda fit: (not fit.fits, not fit.constant, fit.ratio))

    @property
    def settled(self) -> bool:
        """Whether a hypothesis fits, or would fit with biases that are not among the arrays."""
        return any(fit.fits or fit.constant for fit in self.judged)

    @property
    def fitting(self) -> list[Fit]:
        return sorted((fit for fit in self.judged if fit.fits), key=lambda fit: fit.ratio)

    def settles(self, hypotheses: Iterable[Hypothesis]) -> bool:
        """Add these hypotheses, and return whether the list is settled then."""
        self.add(hypotheses)
        return self.settled

    def add(self, hypotheses: Iterable[Hypothesis]) -> None:
        """Rank these hypotheses and judge the close ones; functions that were judged before are left out."""
        misfits = ((self.sample.misfit(h, self.judge.candidates), i, h) for i, h in enumerate(hypotheses))
        ranked = sorted(misfits, key=lambda one: one[:2])
        if not ranked:
            return
        self.least = min(self.least, ranked[0][0])
        worth = [(m, h) for m, _, h in ranked if m <= min(WORTH_JUDGING, max(ALIKE * self.least, 1e-9))]
        if not worth and not self.judged:
            worth = [(ranked[0][0], ranked[0][2])]
        for _, hypothesis in worth:
            key = hypothesis.function()
            if key in self._seen:
                continue
            self._seen.add(key)
            if len(self.judged) >= self.most:
                self.unjudged.append(hypothesis)
                continue
            for fit in self.judge.fits(hypothesis):
                function = fit.hypothesis.function()
                if function not in self._functions:
                    self._functions.add(function)
                    self.judged.append(fit)


def _refined_rows(observed: Observed) -> list[tuple[int, int]]:
    return furthest(observed, _rows_of_few_items(observed), REFINED_ROWS)


def _many_rows(observed: Observed) -> list[tuple[int, int]]:
    rows = _rows_of_few_items(observed)
    return rows[:: -(-len(rows) // SETTING_ROWS)]


def _rows_of_few_items(observed: Observed) -> list[tuple[int, int]]:
    rows = observed.usable_rows
    keys: dict[int, int] = {}
    for item, _, count in rows:
        keys[item] = max(keys.get(item, 0), count)
    chosen: list[int] = []
    for item in sorted(keys, key=lambda item: keys[item]):
        if chosen and sum(keys[one] for one in (*chosen, item)) > REFINED_KEYS:
            break
        chosen.append(item)
    return [(b, i) for b, i, _ in rows if b in chosen]
