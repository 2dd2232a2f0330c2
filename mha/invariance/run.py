"""`mha.invariants`: ask a layer or a model for the same number two ways."""

import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformance.bounds.precision import UNIT_ROUNDOFF
from conformance.deviations.known import load
from conformance.subjects.in_time import TookTooLong, in_time
from mha.invariance.allowance import Allowance, Apart, apart, measure
from mha.invariance.caches import Cache, find_cache
from mha.invariance.given import Given, literal
from mha.invariance.inputs import find
from mha.invariance.live import Live, named_as
from mha.invariance.masks import MOVED, NAMES, find_masks
from mha.invariance.relations import decoding, hiding, implementations, returned, state
from mha.invariance.relations.row import Known, Pair, Relation, check_same_shape, smallest
from mha.invariance.report import Report, Result
from mha.invariance.trial import CantBeAsked, Size, Template, Trial
from mha_core import SpecError
from mha_core.errors import one_line

LIMIT = 60.0
"""Seconds for one relation."""

BRIEF = Size(2, 5)
"""The size of the inputs of relations that need no more, such as those of state."""

Allowances = tuple[Allowance, Allowance]
"""Of the dtype in which relations are asked; and of the model's own, for those whose two ways round otherwise."""


def invariants(
    model: Any,
    inputs: Any = None,
    *,
    make: Callable[[], Any] | None = None,
    step: Callable[[Any, Any], Any] | None = None,
    causal: bool | None = None,
    pad: int | None = None,
    named: str | None = None,
    limit: float = LIMIT,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Return a report on whether a model contradicts itself: two ways to compute the same numbers must agree.

    One such pair is decoding with a cache, and a call with the whole sequence.

    Args:
        model: a layer or a model of PyTorch, Keras, Flax (a linen module must be bound to its variables) or Gluon, or a
            function of arrays.
        inputs: the model's arguments, by name or in order; the first one has shape (batch, length, ...).
            Default: inputs that are made from the model's signature and config.
        make: a function without arguments that made the model, for the code that is printed.
        step: a function `step(tokens, state)` that returns (output, state); the first state is None.
        causal: whether the model is causal. Default: judged by its attributes and its outputs.
        pad: the token id to use in padding. Default: any.
        named: MODULE:NAME of `model`, for the code that is printed.
        limit: seconds for one relation.
        progress: called with the relation that is being tested.

    Raises:
        SpecError: no call of the model works.

    >>> def total(x):
    ...     return np.cumsum(x, axis=1)
    >>> invariants(total, np.arange(24.0).reshape(2, 3, 4)).holds
    True
    """
    if not 0.0 < limit <= 1e6:
        raise SpecError(f"limit must be a positive number of seconds, at most 1e6. Got {limit!r}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a model says of how it is asked here is not the user's
        known, notes, allowances = _look(Live(model, make), inputs, step, causal, pad, limit, progress)
        rows = table(known)
        if known.random:
            why = "two calls of it differ"
            rows = [one if one.id == "random-twice" else replace(one, why_not=lambda known: why) for one in rows]
        results = []
        for relation in rows:
            progress(relation.id)
            results.append(_asked(relation, known, allowances, named, limit))
    return Report(named_as(model), known.live.framework, results, allowances[0], notes)


def table(known: Known) -> list[Relation]:
    """Return all relations to test on a model. Those on masks, or bool options, are repeated for each such argument."""
    own = [*(hiding.ones_rows(known) or [hiding.MASK_ONES]), *hiding.idle_rows(known)]
    rows = [*decoding.ROWS, *hiding.ROWS, *own, *returned.returned_rows(known), *state.ROWS]
    return [*rows, *implementations.ROWS, *state.SECOND]


def _look(
    live: Live, inputs: Any, step: Any, causal: bool | None, pad: int | None, limit: float,
    progress: Callable[[str], None],
) -> tuple[Known, list[str], Allowances]:  # fmt: skip
    """What is found of a model before it is asked."""
    notes = []
    if live.framework == "torch" and live.hooks is not None and bool(live.asked.training):
        live.asked.eval()
        notes.append("it was in training: asked in eval()")

    def look() -> tuple[Known, Allowances]:
        own, template = find(live, inputs)
        if own.framework == "keras":
            own = Live(own.model, own.make)  # the first call has built it
        if _is_random(own, template):
            unit = 2.0 * UNIT_ROUNDOFF[own.dtype]
            rough = Allowance(own.dtype, unit)
            return Known(own, template, cache="", random=True), (rough, rough)
        masks = tuple(find_masks(own.fresh(), template))
        does = is_causal(influence(own, template)) if causal is None else causal
        # What is said to be causal may be so by an argument alone.
        flag, idle = find_flag(own, template) if causal or not does else (None, None)
        notes.extend([f"not causal with {idle}=True either"] * (idle is not None))
        cache = find_cache(own, template, step)
        says = causal is None and (says_causal(own) or (not flag and _has_cache(cache, own)))
        known = Known(own, template, masks, (does or says) and not flag, flag, cache, pad)
        by = "what it does" if does else "its class, config or cache"
        how = "said to be causal" if causal else f"taken for causal by {by}"
        notes.append(how if known.causal else f"causal by {flag}" if flag else "not causal")
        allowance = measure(own, template, "float64")
        return known, (allowance, allowance if allowance.dtype == own.dtype else measure(own, template))

    progress("looking at its call")
    try:
        known, allowances = in_time(look, 5.0 * limit)
    except TookTooLong as error:
        raise SpecError(f"{named_as(live.model)} can't be asked: {error}") from error
    if known.random:
        return known, ["random"], allowances
    notes += [f"mask: {one.name} ({one.form})" for one in known.masks]
    if isinstance(known.cache, Cache):
        notes.append(f"cache: {known.cache.said}")
    return known, notes, allowances


def _is_random(live: Live, template: Template) -> bool:
    """Return whether two calls of one model and a call of a copy each give something else."""
    first, found = live.fresh(), list[Any]()
    rough = Allowance(live.dtype, 2.0 * UNIT_ROUNDOFF[live.dtype])
    for own in (first, first, live.fresh()):
        with own.running(live.dtype) as run:
            trial = Trial(own, run, template, template.whole, live.dtype)
            found.append(trial.call(trial.x()).out.array)
        if len(found) > 1 and apart(found[0], found[1], rough).ratio <= 1.0:
            break
    if not any(np.isfinite(array).any() for array in found):
        raise SpecError(f"{named_as(live.model)} can't be asked: every number of its outputs is NaN or infinite")
    return len(found) > 2 and all(apart(*two, rough).ratio > 1.0 for two in combinations(found, 2))


def _has_cache(cache: Cache | str, live: Live) -> bool:
    """Whether a model whose call takes no mask of its own goes on from a cache, which only causal ones can."""
    return (
        isinstance(cache, Cache)
        and cache.step is None
        and live.config is None
        and not any(one in live.signature for one in ("mask", "attn_mask", "allowed", "causal", "is_causal"))
    )


def _asked(relation: Relation, known: Known, allowances: Allowances, named: str | None, limit: float) -> Result:
    """Ask one relation, and look for the smallest inputs if it is broken."""
    begun, allowance = time.monotonic(), allowances[relation.rounds]

    def result(status: Any, reason: str = "", **more: Any) -> Result:
        took = time.monotonic() - begun
        return Result(relation.id, relation.group, relation.sentence, status, reason, seconds=took, **more)

    if (reason := relation.why_not(known)) is not None:
        given = [name for name in NAMES if isinstance(known.template.fixed.get(name), Given)]
        if reason.startswith(("it has no mask", "it has no argument that hides")):
            reason = reason if known.masks else "it has no mask argument"  # one reason for all
            reason += f" besides {', '.join(given)}, which the inputs give" if given else ""
        return result("not asked", reason)
    whole = known.template.whole
    size = Size(whole.batch, whole.length, relation.chunk)
    if size.length < relation.length or size.batch < relation.batch:
        what = f"inputs of {size.length} positions and {size.batch} items are too small"
        return result("not asked", f"{what}: it takes {relation.length} and {relation.batch}")

    def ask() -> tuple[Apart, Size]:
        small = Size(min(BRIEF.batch, whole.batch), min(BRIEF.length, whole.length)) if relation.brief else size
        if relation.odd and whole.length % 2 == 0 and whole.length > relation.length:
            small = Size(whole.batch, whole.length - 1)
        if small.length < whole.length:
            with suppress(Exception):  # an input that can't be cut, or a model of one length
                off, _ = _measure(relation, known, allowance, small, named)
                return off, small
        return _measure(relation, known, allowance, size, named, known.kept)[0], size

    try:
        off, size = in_time(ask, limit)
        within = in_time
        if relation.threads and off.ratio <= 1.0:  # it has just ended in time
            off, size = ask()
            within = _here
    except TookTooLong:
        return result("not asked", f"it took over {limit:g} s")
    except CantBeAsked as error:
        return result("not asked", str(error))
    except (Exception, SystemExit) as error:  # whatever the model raises
        return result("not asked", f"it raises {one_line(error)}")
    if off.ratio <= 1.0:
        return result("holds", apart=off, size=size)
    shown, code, again = size, "", off
    for smaller in [*smallest(relation, size), size]:
        try:
            left = max(limit - (time.monotonic() - begun), 1.0)
            again, text = within(partial(_measure, relation, known, allowance, smaller, named), left)
        except (Exception, SystemExit):
            again = off
            continue
        if again.ratio > 1.0:
            off, shown, code = again, smaller, text
            break
    if again.ratio <= 1.0:  # beside answers of other trials alone
        return result("holds", apart=again, size=size)
    deviation = known_deviation(relation, known)
    status = "broken" if deviation is None else "known"
    return result(status, deviation or "", apart=off, size=shown, code=code)


def _here(work: Callable[[], Any], seconds: float) -> Any:
    """Do the work in this thread, as `in_time` does it in another."""
    return work()


def _measure(
    relation: Relation, known: Known, allowance: Allowance, size: Size, named: str | None, kept: Any = None
) -> tuple[Apart, str]:
    """Return how far the two ways are apart, and the code of their calls (whole if no earlier answers are `kept`)."""
    own_step = isinstance(known.cache, Cache) and callable(known.cache.step)
    live = known.live if own_step and relation.group == "decoding" else known.live.fresh()
    known = replace(known, live=known.live)
    with np.errstate(all="ignore"), live.running(allowance.dtype) as run:
        trial = Trial(live, run, known.template, size, allowance.dtype, kept)
        pair = relation.ask(trial, known)
    check_same_shape(pair)
    found = apart(*pair.numbers(known.template.axes), allowance)
    return found, _code(live, trial, pair, known, named)


def _code(live: Live, trial: Trial, pair: Pair, known: Known, named: str | None) -> str:
    made = [f"{name} = {text}" for name, text in known.template.made.items()]
    first, second = pair.first.text, pair.second.text
    off = f"abs({first} - {second})"
    if pair.counted is not None:
        off += f"[{literal(pair.counted if known.template.axes[0] == 0 else pair.counted.T).text}]"
    step = known.cache.step if isinstance(known.cache, Cache) else None
    name = getattr(step, "__qualname__", "")
    asked = name.isidentifier() and any("step(" in line for line in trial.lines)
    steps = [f"from {step.__module__} import {name} as step"] if asked else []
    factory = "make" if named is None else named.partition(":")[2]
    if factory != "make" and any(" = make()" in line for line in trial.lines):
        steps.append(f"make = {factory}")
    return "\n".join([*live.header(trial.dtype, named), *steps, *made, *trial.lines, f"print({off}.max())"])


KNOWN = {
    "implementation-fast-padded": ("torch.nn", "torch-encoder-fast-path-zeros-padding"),
    "implementation-eager-padded": ("transformers", "transformers-eager-empty-row"),
    "decoding-full": ("flax.nnx", "nnx-mha-full-cache-overwrites"),
}
"""Relation -> the package whose classes break it so, and the id of the deviation."""


def known_deviation(relation: Relation, known: Known) -> str | None:
    """Return the id of the known deviation by which this model's package breaks a relation; None if there is none."""
    package, id = KNOWN.get(relation.id, ("", ""))
    own = f"{type(known.live.asked).__module__}."
    if not id or not own.startswith(f"{package}."):
        return None
    entry = next(one for one in load().entries if one.id == id)
    return None if entry.why_not_here() else id


# Whether a model is causal: what it says, and what later tokens do to earlier outputs.


FLAGS = ("is_causal", "causal", "use_causal_mask")
"""Arguments that make a call causal."""

LONGEST = 6
"""Positions of the call that is asked."""


def says_causal(live: Live) -> bool:
    """Return whether the config, the class or an attribute says that the model is causal."""
    config, model = live.config, live.asked
    if config is not None:
        known = getattr(config, "is_decoder", False) and not getattr(config, "is_encoder_decoder", False)
        return bool(known) or type(model).__name__.endswith("ForCausalLM")
    own = [getattr(model, name, None) for name in ("causal", "is_causal")]
    return any(one is True for one in own)


def influence(live: Live, template: Template, more: dict[str, Any] | None = None) -> NDArray:
    """Return (L, L): [i, j] is (change of output i if input j changes) / (largest output). `more`: more arguments."""
    whole = template.whole
    size = Size(min(2, whole.batch), min(LONGEST, whole.length))
    try:
        return _influence(live, template, more, size)
    except CantBeAsked:  # an input that can't be cut
        return _influence(live, template, more, whole)


def _influence(live: Live, template: Template, more: dict[str, Any] | None, size: Size) -> NDArray:
    found = np.zeros((size.length, size.length))
    own = live.fresh()
    with own.running(live.dtype) as run:
        trial = Trial(own, run, template, size, live.dtype)
        x = trial.x()
        plain = _by_position(trial.call(x, more).out.array, template)
        largest = float(np.abs(plain[np.isfinite(plain)]).max(initial=1e-30))
        for at in range(size.length):
            moved = _by_position(trial.call(trial.other(x, at, at + 1), more).out.array, template)
            with np.errstate(all="ignore"):
                off = np.nan_to_num(np.abs(moved - plain), nan=0.0).reshape(size.length, -1).max(1)
            found[:, at] = off / largest
    return found


def _by_position(array: NDArray, template: Template) -> NDArray:
    return np.moveaxis(array, template.axes[1], 0)


def is_causal(found: NDArray) -> bool:
    """Return whether `found` (from `influence`) is causal: under half of the entries above its diagonal are nonzero.

    >>> is_causal(np.tri(4)), is_causal(np.ones((4, 4)))
    (True, False)
    >>> leak = np.tri(4); leak[0, 3] = 1.0
    >>> is_causal(leak)
    True
    """
    moved = found > MOVED
    before = np.triu(np.ones_like(moved), 1)
    if not moved[before].any():
        return True
    return bool(moved[before].mean() < 0.5 and moved[before.T].mean() > moved[before].mean() + 0.3)


def find_flag(live: Live, template: Template) -> tuple[str | None, str | None]:
    """Return (argument that makes calls causal, argument that should but does not): two names, each may be None."""
    idle = None
    for name in FLAGS:
        if name in live.signature and name not in template.fixed:
            try:
                found = influence(live, template, {name: True})
            except (Exception, SystemExit):  # it wants a mask beside it, say
                continue
            if is_causal(found):
                return name, None
            idle = name
    return None, idle
