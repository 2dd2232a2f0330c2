"""What a call leaves behind, what is asked to be returned, and which implementation answers: the output is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from mha.invariance.given import Given, Ref
from mha.invariance.live import Live
from mha.invariance.masks import Mask
from mha.invariance.relations.hiding import no_mask
from mha.invariance.relations.row import Known, Pair, Relation, worst
from mha.invariance.trial import Answer, Size, Trial
from mha_core import SpecError

# State


@contextmanager
def _beside(trial: Trial, live: Live, name: str) -> Iterator[Trial]:
    """Calls of another model beside those of this one."""
    with live.running(trial.dtype) as run:
        other = Trial(live, run, trial.template, trial.size, trial.dtype)
        other.name, other.lines = name, trial.lines
        yield other


def _copied(trial: Trial, known: Known, name: str = "other") -> AbstractContextManager[Trial | None]:
    """Another one like the model, which no call has touched; None where that can't be had."""
    live = known.live.fresh()
    if live is known.live:
        return nullcontext()
    trial.lines.insert(0, f"import copy; {name} = copy.deepcopy(model)")  # before any call
    return _beside(trial, live, name)


def _made_again(trial: Trial, known: Known) -> AbstractContextManager[Trial]:
    """Another one, which is made anew."""
    trial.lines.append(f"second = {known.live.made_again(trial.dtype)}")
    return _beside(trial, known.live.another(), "second")


def _after(other: Callable[[Trial, Known], Any]) -> Callable[[Trial, Known], Pair]:
    """A call, something else, and the call again; and the call of another model after something else alone."""

    def ask(trial: Trial, known: Known) -> Pair:
        with _copied(trial, known) as beside:
            first = trial.call(trial.x()).out

            def after(one: Trial) -> Pair:
                other(one, known)
                return Pair(first, one.call(one.x()).out)

            return worst(trial, known, *(partial(after, one) for one in (trial, beside) if one is not None))

    return ask


def _at_size(trial: Trial, size: Size) -> Answer:
    own, trial.size = trial.size, size
    try:
        return trial.call(trial.x())
    finally:
        trial.size = own


def _after_longer(trial: Trial, known: Known) -> Pair:
    """The call of a fresh model, and of one that had a longer call before."""
    whole = known.template.whole
    size = Size(trial.size.batch, min(trial.size.length, whole.length - 1))
    with _copied(trial, known) as beside:
        first = _at_size(beside or trial, size).out
        _at_size(trial, whole)
        return Pair(first, _at_size(trial, size).out)


def _after_shorter(trial: Trial, known: Known) -> Pair:
    """A long call of a fresh model, and of one that had short calls before: of one item, and of all."""
    short = Size(trial.size.batch, max(1, trial.size.length // 2))
    with _copied(trial, known) as beside:
        assert beside is not None
        beside.kept = trial.kept
        first = beside.once(beside.x()).out
        if not any(trial._uncut(Size(1, short.length))):
            _at_size(trial, Size(1, short.length))
        _at_size(trial, short)
        return Pair(first, trial.call(trial.x()).out)


def _hides(trial: Trial, mask: Mask, start: int, stop: int | None = None) -> dict[str, Any]:
    """The argument that hides the keys from a position to another."""
    allowed = np.ones((trial.size.batch, trial.size.length, trial.size.length), bool)
    allowed[:, :, start:stop] = False
    return {mask.name: mask.of(allowed)}


def _masked(trial: Trial, known: Known) -> None:
    for mask in known.masks:
        trial.call(trial.x(), _hides(trial, mask, trial.size.length // 2))


def _after_masked(trial: Trial, known: Known) -> Pair:
    """A call without a mask, and one with each, after calls with another mask."""

    def again(mask: Mask) -> Pair:
        more = _hides(trial, mask, trial.size.length - 1)
        with _copied(trial, known, "fresh") as fresh:
            first = (fresh or trial).call(trial.x(), more).out
            return Pair(first, trial.call(trial.x(), more).out)

    return worst(trial, known, lambda: _after(_masked)(trial, known), *(partial(again, one) for one in known.masks))


def _other_dtype(trial: Trial, known: Known) -> None:
    other = "float32" if trial.dtype == "float64" else "float64"
    trial.lines.append(f"# the next call in {other}")
    with trial.live.running(other, cast=True) as run:
        again = Trial(trial.live, run, trial.template, trial.size, other)
        again.name, again.lines = trial.name, trial.lines
        again.call(again.x())
    trial.lines.append(f"# in {trial.dtype} again")


def _training(trial: Trial, known: Known) -> None:
    model = trial.live.asked
    trial.lines += [f"{trial.name}.train()", f"{trial.name}.eval()"]
    model.train()
    model.eval()


def _content(trial: Trial, known: Known) -> None:
    trial.call(trial.other(trial.x(), 0))


def _why_not_training(known: Known) -> str | None:
    model = known.live.asked
    own = known.live.hooks is not None and callable(getattr(model, "train", None))
    return None if own and callable(getattr(model, "eval", None)) else "it has no train() and eval()"


def _why_not_copied(known: Known) -> str | None:
    return "no second one can be had" if known.live.fresh() is known.live else None


def _two(trial: Trial, known: Known) -> Pair:
    """One, and a second one, copied and made anew, with other content between its calls."""
    first = trial.call(trial.x()).out
    with _copied(trial, known) as beside:
        if beside is not None:
            _content(beside, known)
    if known.live.can_make:
        with _made_again(trial, known) as second:
            _content(second, known)
    return Pair(first, trial.call(trial.x()).out)


def _why_not_made(known: Known) -> str | None:
    if not known.live.can_make:
        return "nothing makes a second one"
    return None if hasattr(known.live.asked, "load_state_dict") else "only PyTorch's are given another's parameters"


def _made(trial: Trial, known: Known) -> Pair:
    """One, and a second one that was made anew, with its parameters."""
    with _made_again(trial, known) as second:
        trial.lines.append("second.load_state_dict(model.state_dict())")
        second.live.asked.load_state_dict(trial.live.asked.state_dict())
        return Pair(trial.call(trial.x()).out, second.call(second.x()).out)


def _thread(trial: Trial, known: Known) -> Pair:
    first = trial.call(trial.x()).out
    found: list[Any] = []

    def work() -> None:
        try:
            with trial.live.running(trial.dtype) as run:
                other = Trial(trial.live, run, trial.template, trial.size, trial.dtype)
                other.lines = trial.lines
                found.append(other.call(other.x()).out)
        except BaseException as error:  # it belongs to who waits
            found.append(error)

    thread = threading.Thread(target=work, name="mha-second", daemon=True)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise SpecError(f"from a second thread it raises {type(found[0]).__name__}: {found[0]}")
    name, _, call = trial.lines.pop().partition(" = ")
    trial.lines += [
        "from concurrent.futures import ThreadPoolExecutor",
        f"{name} = ThreadPoolExecutor().submit(lambda: {call}).result()",
    ]
    return Pair(first, found[0])


def _unchanged(trial: Trial, known: Known) -> Pair:
    """Return what a call was given, before and after: its first argument, and each mask."""
    masks = (partial(_given, trial, one.name, _hides(trial, one, 1, 2)) for one in known.masks)
    return worst(trial, known, partial(_given, trial, next(iter(trial.x())), {}), *masks)


def _given(trial: Trial, name: str, more: Mapping[str, Given]) -> Pair:
    """One argument of a call before it and after."""
    x = {**trial.x(), **more}
    native = trial.live._as_native({name: x[name]}, trial.dtype)[name]
    before = trial.live.array(native)
    number = sum(line.startswith("given") for line in trial.lines) + 1
    trial.lines.append(f"given{number} = t({x[name].text}); before{number} = n(given{number}) * 1.0")
    trial.ask({**x, **trial.beside(trial.x(), more), name: Ref(native, f"given{number}")})
    after = trial.live.array(native)
    assert before is not None
    assert after is not None
    first = Given(before.astype(np.float64), f"before{number}")
    return Pair(first, Given(after.astype(np.float64), f"n(given{number}) * 1.0"))


ROWS = (
    Relation(
        "random-twice",
        "state",
        "A second call gives the same.",
        lambda trial, known: Pair(trial.call(trial.x()).out, trial.call(trial.x()).out),
        length=1,
        brief=True,
    ),
    Relation(
        "state-content",
        "state",
        "A call gives the same after one with other content.",
        _after(_content),
        brief=True,
    ),
    Relation("state-longer", "state", "A call gives the same after a longer one.", _after_longer),
    Relation(
        "state-shorter",
        "state",
        "A call after a shorter one gives what it gives first.",
        _after_shorter,
        _why_not_copied,
    ),
    Relation(
        "state-masked",
        "state",
        "A call gives the same after one with another mask.",
        _after_masked,
        no_mask,
        brief=True,
    ),
    Relation(
        "state-dtype",
        "state",
        "A call gives the same after one in another dtype.",
        _after(_other_dtype),
        lambda known: None if known.live.native is not None else "a function has no dtype of its own",
        brief=True,
    ),
    Relation(
        "state-training",
        "state",
        "A call gives the same after train() and eval().",
        _after(_training),
        _why_not_training,
        brief=True,
    ),
    Relation("state-thread", "state", "A second thread gets the same.", _thread, brief=True, threads=True),
    Relation("state-inputs", "state", "A call does not change what it is given.", _unchanged, length=1, brief=True),
)
"""The relations of state."""


SECOND = (
    Relation(
        "state-instances",
        "state",
        "A call gives the same after one of a second instance.",
        _two,
        lambda known: None if known.live.can_make else _why_not_copied(known),
        brief=True,
    ),
    Relation(
        "state-made",
        "state",
        "A second one that is made gives, with the first one's parameters, what the first gives.",
        _made,
        _why_not_made,
        brief=True,
    ),
)
"""Those of a second instance, which come last: it may change what the first gives from then on."""
