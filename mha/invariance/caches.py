"""How a model decodes: what it is given to go on from, and where that is in what it gave; found by asking."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mha.coverage import kind_of
from mha.invariance.given import Given, Ref
from mha.invariance.live import Live
from mha.invariance.trial import Answer, Size, Template, Trial, path
from mha.recordings.modules.values import parts_of
from mha_core import SpecError
from mha_core.errors import one_line

PAST = (
    "past_key_values", "past_key_value", "layer_past", "past_kv", "past", "kv_cache", "cache", "kv", "state",
    "memory_state", "cache_params", "states", "hx",
)  # fmt: skip
"""Arguments that are what the calls before gave."""

PRESENT = ("present_key_values", "present_key_value", "present", "presents", "new_cache", "next_cache", "new_state")
"""Other names of it in what a call gives."""

ASKING = (
    "use_cache", "return_cache", "return_present", "return_past", "return_state", "return_kv", "need_cache",
    "output_cache",
)  # fmt: skip
"""Switches that have a call give it."""

STARTS = ("start_pos", "input_pos", "offset", "pos_offset", "start", "cache_position", "position_offset", "cur_pos")
"""Arguments that are the position of the first token, in models that keep their cache themselves or index one."""

MAKERS = ("init_cache", "new_cache", "make_cache", "empty_cache", "init_state", "initial_state", "create_cache")
"""Methods that make an empty one; they may take the batch and the length."""

RESETS = ("reset_cache", "clear_cache", "reset", "reset_state")
"""Methods that empty the cache that a model keeps itself."""


@dataclass(frozen=True)
class Cache:
    """A way to call a model step by step, with a state (such as a key-value cache) from one step to the next.

    Attributes:
        said: a description of this way, in words.
        past: names of the arguments that take the state; () if the model keeps the state itself.
        places: for each name in `past`, the key path of the new state in the output; () if states change in place.
        asks: name -> value of further arguments of each call.
        begin: a function: Trial -> the first state; None if the first call gets no state.
        start: name of the argument for the position of the first token; None if there is none.
        step: a function (tokens, state) -> (output, state), or the name of such a method. None means that the model
            is called with the arguments named above.
    """

    said: str
    past: tuple[str, ...] = ()
    places: tuple[tuple[str, ...], ...] = ()
    asks: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[[Trial], Any] | None = None
    start: str | None = None
    step: Any = None

    def first(self, trial: Trial) -> Any:
        """Return the state before any token."""
        return None if self.begin is None else self.begin(trial)

    def feed(
        self, trial: Trial, x: Mapping[str, Given], state: Any, at: int, more: Mapping[str, Any] | None = None
    ) -> tuple[Answer, Any]:
        """Return (output for the next tokens `x`, new state). `at`: position of `x`; `more`: further arguments."""
        if self.step is not None:
            main = next(iter(x.values()))
            own = isinstance(self.step, str)
            step = getattr(trial.live.asked, self.step) if own else self.step
            text = f"{trial.name}.{self.step}" if own else "step"
            answer = trial.ask({"tokens": main, "state": state}, by=_stepping(trial, step), text=text)
            return answer, Ref(answer.raw[1], f"{answer.text}[1]")
        asked = dict(self.asks)
        if self.start is not None:
            asked[self.start] = at
        if self.past and state is not None:
            asked |= dict(zip(self.past, state, strict=True))
        answer = trial.call(x, {**asked, **(more or {})})
        if not self.places:
            return answer, state
        return answer, [Ref(_at(answer.raw, one), f"{answer.text}{path(one, answer.raw)}") for one in self.places]


def _stepping(trial: Trial, step: Any) -> Callable[..., Any]:
    def run(tokens: Given, state: Any) -> Any:
        native = trial.live._as_native((tokens,), trial.dtype)
        given = step(*native, state.value if isinstance(state, Ref) else state)
        if not isinstance(given, tuple) or len(given) != 2:
            raise SpecError(f"step(tokens, state) must give (output, state). Got {kind_of(given)}.")
        return given

    return run


def _at(raw: Any, place: tuple[str, ...]) -> Any:
    for key in place:
        raw = dict(parts_of(raw) or [])[key] if parts_of(raw) is not None else getattr(raw, key)
    return raw


def find_cache(live: Live, template: Template, step: Any = None) -> Cache | str:
    """Return a Cache: how to call the model step by step; or, in words, why no way was found.

    Args:
        live, template: the model, and how it is called.
        step: the user's function (tokens, state) -> (output, state); None to search for a way.
    """
    if step is not None:
        return Cache("step(tokens, state)", step=step)
    reasons: list[str] = []
    for one in _candidates(live, template):
        try:
            found = _tried(live.fresh(), template, one)
        except (Exception, SystemExit) as error:  # another way, then
            reasons.append(f"{one.said}: {one_line(error)}")
        else:
            if found is not None:
                return found
    hint = "say how it goes on: step(tokens, state), --cache M:STEP"
    if reasons:
        return f"no way to decode works ({reasons[0]}); {hint}"
    return f"nothing in its call looks like a cache; {hint}"


def _candidates(live: Live, template: Template) -> Iterator[Cache]:
    names = [one for one in live.signature if one not in template.sequences]
    asks = {one: True for one in ASKING if one in names}
    pasts = [one for one in names if one in PAST]
    starts = [one for one in names if one in STARTS and not (live.config is not None and one == "cache_position")]
    if "past_keys" in names and "past_values" in names:
        yield Cache("past_keys, past_values", ("past_keys", "past_values"), (("?",), ("?",)), asks)
    if "decode" in names and hasattr(live.asked, "init_cache") and live.framework == "flax":
        yield Cache("init_cache and decode=True", asks={"decode": True}, begin=_init_flax)
    makers = [one for one in MAKERS if callable(getattr(live.asked, one, None))]
    for past in pasts:
        for start in [None, *starts]:
            if makers:
                for places in ((("?",),), ()):
                    yield Cache(f"{past} of {makers[0]}()", (past,), places, asks, _maker(makers[0]), start)
            if live.signature[past].default is not live.signature[past].empty or not makers:
                yield Cache(past, (past,), (("?",),), asks, start=start)
            for kind in (dict, list, *_classes(live)):
                said = f"{past}={_made(kind)}"
                yield Cache(said, (past,), (), asks, _empty(kind), start)
                if kind not in (dict, list):
                    yield Cache(said, (past,), (("?",),), asks, _empty(kind), start)
    if starts and not pasts:
        resets = [one for one in RESETS if callable(getattr(live.asked, one, None))]
        yield Cache(starts[0], asks=asks, start=starts[0], begin=_reset(resets[0]) if resets else None)
    step = getattr(live.asked, "step", None)
    if callable(step):
        yield Cache("step(tokens, state)", step="step")


def _init_flax(trial: Trial) -> Any:
    shape = next(iter(trial.x().values())).array.shape
    import jax.numpy as jnp

    trial.lines.append(f"model.init_cache({shape}, {trial.dtype!r})")
    trial.live.asked.init_cache(shape, jnp.dtype(trial.dtype))
    return None


def _maker(name: str) -> Callable[[Trial], Any]:
    def begin(trial: Trial) -> Any:
        make = getattr(trial.live.asked, name)
        reason: Exception = TypeError()
        for args in ((trial.size.batch, trial.size.length), (trial.size.batch,), ()):
            try:
                state = make(*args)
            except TypeError as error:
                reason = error
            else:
                trial.lines.append(f"state = {trial.name}.{name}({', '.join(map(str, args))})")
                return [Ref(state, "state")]
        raise SpecError(f"{name} can't be called: {one_line(reason)}")

    return begin


def _classes(live: Live) -> list[type]:
    """The classes of the model's own module that are named as caches, and made without arguments."""
    home = sys.modules.get(type(live.asked).__module__)
    if home is None or live.config is not None:
        return []
    own = [one for one in vars(home).values() if inspect.isclass(one) and one.__module__ == home.__name__]
    return [one for one in own if _is_cache(one)]


def _is_cache(kind: type) -> bool:
    if not any(word in kind.__name__.lower() for word in ("cache", "state", "memory")):
        return False
    try:
        kind()
    except Exception:  # it takes sizes
        return False
    return True


def _made(kind: type) -> str:
    return f"{kind()}" if kind in (dict, list) else f"{kind.__name__}()"


def _empty(kind: type) -> Callable[[Trial], Any]:
    def begin(trial: Trial) -> Any:
        if kind not in (dict, list):
            trial.lines.append(f"from {kind.__module__} import {kind.__name__}")
        trial.lines.append(f"state = {_made(kind)}")
        return [Ref(kind(), "state")]

    return begin


def _reset(name: str) -> Callable[[Trial], Any]:
    def begin(trial: Trial) -> Any:
        trial.lines.append(f"{trial.name}.{name}()")
        getattr(trial.live.asked, name)()
        return None

    return begin


def _tried(live: Live, template: Template, cache: Cache) -> Cache | None:
    """The cache with its places, if a prompt of 2 and a step run; None if nothing is handed on."""
    size = Size(min(2, template.whole.batch), min(4, template.whole.length))
    with live.running(live.dtype) as run:
        trial = Trial(live, run, template, size, live.dtype)
        state = cache.first(trial)
        if cache.places:
            looked = Cache(cache.said, cache.past, (), cache.asks, start=cache.start)
            answer, _ = looked.feed(trial, trial.x(0, 1), state, 0)
            places = _places(answer.raw, cache, template)
            if places is None:
                return None
            cache = Cache(cache.said, cache.past, places, cache.asks, cache.begin, cache.start)
            state = cache.first(trial)
        _, state = cache.feed(trial, trial.x(0, 1), state, 0)
        before = _filled(state)
        answer, state = cache.feed(trial, trial.x(1, 2), state, 1)
        if answer.out.array.shape[template.axes[1]] != 1:
            raise SpecError(f"a step of one token gives {answer.out.array.shape[template.axes[1]]} positions")
        if cache.past and not cache.places and not before:
            return None  # it did not write to what it was given
    return cache


def _filled(state: Any) -> bool:
    """Whether something stands in an object that was given empty."""
    return not isinstance(state, list) or any(
        bool(one.value) if isinstance(one.value, dict | list) else True for one in state
    )


def _places(raw: Any, cache: Cache, template: Template) -> tuple[tuple[str, ...], ...] | None:
    """Where the state is in what a call gave: by its name, else it is the last thing of a tuple."""
    parts = parts_of(raw)
    if parts is None:
        return None
    names = [name for name, value in parts if value is not None]
    if len(cache.past) == 2:
        if isinstance(raw, tuple) and len(raw) >= 3:
            return (names[-2],), (names[-1],)
        return None
    for name in (*cache.past, *PRESENT, *PAST):
        if name in names:
            return ((name,),)
    if isinstance(raw, tuple | list) and len(names) > 1 and (names[-1],) != template.main:
        return ((names[-1],),)
    return None
