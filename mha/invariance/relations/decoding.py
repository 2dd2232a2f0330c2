"""Decoding: the whole at once gives what the prompt and its continuation give, with the model's own cache."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mha.invariance.caches import Cache
from mha.invariance.given import Given, joined
from mha.invariance.relations.row import Known, Pair, Relation, worst
from mha.invariance.trial import Trial
from mha_core import SpecError

Bounds = Sequence[tuple[int, int]]


def _why_not(known: Known) -> str | None:
    if isinstance(known.cache, str):
        return known.cache
    if not known.can_be_causal and known.cache.step is None:
        return "it is not causal, so what stands earlier depends on what comes later"
    return None


def _cache(known: Known) -> Cache:
    assert isinstance(known.cache, Cache)
    return known.cache


def _whole(trial: Trial, known: Known, *, again: bool = False) -> Given:
    """Return what one causal call gives of all positions: the first of a model, or once more."""
    cache, ask = _cache(known), trial.call if again else trial.once
    if known.live.hooks is None and cache.step is not None and not known.can_be_causal:
        return ask(trial.x()).out
    more = dict(known.causally(trial.size.batch, 0, trial.size.length))
    if cache.start is not None and not cache.past and cache.step is None:
        return cache.feed(trial, trial.x(), cache.first(trial), 0, more)[0].out
    return ask(trial.x(), more).out


def _parts(trial: Trial, known: Known, bounds: Bounds, *, other: bool = False) -> Given:
    """Return what the calls of parts give, each from the state that the last one left; of `other` content or not."""
    cache = _cache(known)
    state = cache.first(trial)
    found = []
    for start, stop in bounds:
        own = known.causally(trial.size.batch, start, stop) if cache.step is None else {}
        x = trial.other(trial.x(start, stop), 0) if other else trial.x(start, stop)
        answer, state = cache.feed(trial, x, state, start, own)
        found.append(answer.out)
    return joined(found, trial.template.axes[1])


def _steps(trial: Trial, known: Known) -> Pair:
    whole = _whole(trial, known)
    return Pair(whole, _parts(trial, known, [(at, at + 1) for at in range(trial.size.length)]))


def _prompt(trial: Trial, known: Known) -> Pair:
    whole, length = _whole(trial, known), trial.size.length
    prompt = max(1, (length + 1) // 2)
    return Pair(whole, _parts(trial, known, [(0, prompt), *((at, at + 1) for at in range(prompt, length))]))


def _chunks(trial: Trial, known: Known) -> Pair:
    whole, length, chunk = _whole(trial, known), trial.size.length, trial.size.chunk
    return Pair(whole, _parts(trial, known, [(at, min(at + chunk, length)) for at in range(0, length, chunk)]))


def _why_not_padded(known: Known) -> str | None:
    reason = _why_not(known)
    if reason is not None:
        return reason
    if not known.causal or _cache(known).step is not None:
        return "a mask of padding beside what makes the call causal is not put together here"
    if "cache_params" in _cache(known).past:
        return "its state is no cache of keys, so steps take no mask of those before"
    if not any(one.form == "keys" for one in known.masks):
        return "it has no mask of keys (B, L)"
    return None


def _padded(trial: Trial, known: Known) -> Pair:
    cache, axis = _cache(known), trial.template.axes[1]
    mask = next(one for one in known.masks if one.form == "keys")
    batch, length = trial.size.batch, trial.size.length
    prompt = max(2, length // 2)
    padding = np.array([min((length // 3, 1, 0)[item % 3], prompt - 1) for item in range(batch)])
    real = np.arange(length) >= padding[:, None]

    def of(stop: int) -> dict[str, Any]:
        return {mask.name: mask.of(np.broadcast_to(real[:, None, :stop], (batch, 1, stop)))}

    whole = trial.once(trial.x(), of(length)).out
    state, found = cache.first(trial), []
    for start, stop in [(0, prompt), *((at, at + 1) for at in range(prompt, length))]:
        answer, state = cache.feed(trial, trial.x(start, stop), state, start, of(stop))
        found.append(answer.out)
    return Pair(whole, joined(found, axis), real)


def _again(trial: Trial, known: Known) -> Pair:
    """A sequence in chunks and steps, another one, and the first again; and the whole after all that."""
    length = trial.size.length
    ends = [0, *(one for start in range(0, length, 4) for one in (start + 3, start + 4) if one < length), length]
    bounds = list(pairwise(ends))
    whole = _whole(trial, known)

    def parts() -> Pair:
        first = _parts(trial, known, bounds)
        _parts(trial, known, bounds, other=True)
        return Pair(first, _parts(trial, known, bounds))

    return worst(trial, known, parts, lambda: Pair(whole, _whole(trial, known, again=True)))


def _why_not_full(known: Known) -> str | None:
    reason = _why_not(known)
    if reason is not None:
        return reason
    if _cache(known).begin is None or "=" in _cache(known).said.removesuffix("=True"):
        return "its cache has no size that is said when it is made"
    return None


def _full(trial: Trial, known: Known) -> Pair:
    """A cache for a position fewer than there are: refused, or right."""
    cache, length = _cache(known), trial.size.length
    whole = _whole(trial, known)
    large = trial.size
    trial.size = type(large)(large.batch, length - 1, large.chunk)
    state = cache.first(trial)
    trial.size = large
    found: list[Given] = []
    for at in range(length):
        try:
            answer, state = cache.feed(trial, trial.x(at, at + 1), state, at)
        except SpecError:
            raise
        except (Exception, SystemExit):
            if at < length - 1:
                raise
            return Pair(whole.part(trial.template.axes[1], None, at), joined(found, trial.template.axes[1]))
        found.append(answer.out)
    return Pair(whole, joined(found, trial.template.axes[1]))


ROWS = (
    Relation(
        "decoding-steps",
        "decoding",
        "Single steps with the cache give what the whole sequence gives.",
        _steps,
        _why_not,
    ),
    Relation(
        "decoding-prompt",
        "decoding",
        "A prompt, then single steps with its cache, give what the whole gives.",
        _prompt,
        _why_not,
        length=3,
    ),
    *(
        Relation(
            f"decoding-chunks-{chunk}",
            "decoding",
            f"Chunks of {chunk} with the cache give what the whole gives.",
            _chunks,
            _why_not,
            chunk=chunk,
            length=chunk + 1,
        )
        for chunk in (2, 3, 5)
    ),
    Relation(
        "decoding-padded",
        "decoding",
        "A prompt padded on the left, then steps with its cache and the mask, give what the whole gives.",
        _padded,
        _why_not_padded,
        length=4,
    ),
    Relation(
        "decoding-again",
        "decoding",
        "A sequence decoded after another gives what it gave before, and so does the whole.",
        _again,
        _why_not,
    ),
    Relation(
        "decoding-full",
        "decoding",
        "A cache that is full refuses the next token, or gives what the whole gives.",
        _full,
        _why_not_full,
        length=3,
    ),
)
"""The relations of decoding."""
