"""What a call leaves behind, what is asked to be returned, and which implementation answers: the output is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from mha.invariance.given import Given
from mha.invariance.relations.row import Known, Pair, Relation
from mha.invariance.trial import Answer, Size, Trial
from mha_core import SpecError

# State


def _second(trial: Trial, known: Known) -> Pair:
    return Pair(trial.call(trial.x()).out, trial.call(trial.x()).out)


def _between(other: Callable[[Trial, Known], Any]) -> Callable[[Trial, Known], Pair]:
    """A call, something else, and the call again."""

    def ask(trial: Trial, known: Known) -> Pair:
        first = trial.once(trial.x()).out
        other(trial, known)
        return Pair(first, trial.call(trial.x()).out)

    return ask


def _at_size(trial: Trial, size: Size) -> Answer:
    own, trial.size = trial.size, size
    try:
        return trial.call(trial.x())
    finally:
        trial.size = own


def _longer(trial: Trial, known: Known) -> None:
    _at_size(trial, known.template.whole)


def _after_longer(trial: Trial, known: Known) -> Pair:
    """The call of a fresh model, and of one that had a longer call before."""
    size = Size(trial.size.batch, min(trial.size.length, known.template.whole.length - 1))
    first = _at_size(trial, size).out
    _longer(trial, known)
    return Pair(first, _at_size(trial, size).out)


def _fresh_longer(trial: Trial, known: Known) -> Pair:
    """A long call after a short one, against a long call of another, fresh model."""
    _at_size(trial, Size(trial.size.batch, max(1, trial.size.length // 2)))
    second = trial.call(trial.x()).out
    other = known.live.fresh()
    trial.lines.append("other = copy.deepcopy(model)  # as it was before the first call")
    with other.running(trial.dtype) as run:
        alone = Trial(other, run, trial.template, trial.size, trial.dtype)
        alone.name, alone.lines = "other", trial.lines
        return Pair(alone.call(alone.x()).out, second)


def _masked(trial: Trial, known: Known) -> None:
    mask = known.masks[0]
    length = trial.size.length
    allowed = np.ones((trial.size.batch, length, length), bool)
    allowed[:, :, length // 2 :] = False
    trial.call(trial.x(), {mask.name: mask.of(allowed)})


def _other_dtype(trial: Trial, known: Known) -> None:
    other = "float32" if trial.dtype == "float64" else "float64"
    trial.lines.append(f"# the next call in {other}")
    with trial.live.running(other, cast=True) as run:
        again = Trial(trial.live, run, trial.template, trial.size, other)
        again.lines = trial.lines
        again.call(again.x())
    trial.lines.append(f"# in {trial.dtype} again")


def _training(trial: Trial, known: Known) -> None:
    model = trial.live.asked
    trial.lines += ["model.train()", "model.eval()"]
    model.train()
    model.eval()


def _content(trial: Trial, known: Known) -> None:
    trial.call(trial.other(trial.x(), 0))


def _why_not_masked(known: Known) -> str | None:
    return None if known.masks else "it has no mask argument"


def _why_not_training(known: Known) -> str | None:
    model = known.live.asked
    own = known.live.hooks is not None and callable(getattr(model, "train", None))
    return None if own and callable(getattr(model, "eval", None)) else "it has no train() and eval()"


def _why_not_dtype(known: Known) -> str | None:
    return None if known.live.native is not None else "a function has no dtype of its own"


def _why_not_copied(known: Known) -> str | None:
    return "no second one can be had" if known.live.fresh() is known.live else None


def _two(trial: Trial, known: Known) -> Pair:
    """One, and a second one with other content between its calls."""
    first = trial.once(trial.x()).out
    other = known.live.fresh()
    trial.lines.append("other = copy.deepcopy(model)")
    with other.running(trial.dtype) as run:
        beside = Trial(other, run, trial.template, trial.size, trial.dtype)
        beside.name, beside.lines = "other", trial.lines
        beside.call(beside.other(beside.x(), 0))
    return Pair(first, trial.call(trial.x()).out)


def _thread(trial: Trial, known: Known) -> Pair:
    first = trial.once(trial.x()).out
    found: list[Any] = []

    def work() -> None:
        try:
            with trial.live.running(trial.dtype) as run:
                other = Trial(trial.live, run, trial.template, trial.size, trial.dtype)
                other.lines = trial.lines
                found.append(other.call(other.x()).out)
        except BaseException as error:  # it belongs to who waits
            found.append(error)

    trial.lines.append("# the next call from a second thread")
    thread = threading.Thread(target=work, name="mha-second", daemon=True)
    thread.start()
    thread.join()
    if isinstance(found[0], BaseException):
        raise SpecError(f"from a second thread it raises {type(found[0]).__name__}: {found[0]}")
    return Pair(first, found[0])


def _unchanged(trial: Trial, known: Known) -> Pair:
    """What a call was given, before and after."""
    x = trial.x()
    native = {name: trial.live._as_native({name: one}, trial.dtype)[name] for name, one in x.items()}
    name, one = next(iter(x.items()))
    before = trial.live.array(native[name])
    trial.lines.append(f"given = t({one.text}); before = n(given).copy()")
    args, kwargs = trial._ordered({**native, **trial.beside(x)})
    trial.lines.append("model(given)")
    trial.run(*args, **kwargs)
    after = trial.live.array(native[name])
    assert before is not None
    assert after is not None
    return Pair(Given(before.astype(np.float64), "before"), Given(after.astype(np.float64), "n(given)"))


ROWS = (
    Relation("random-twice", "state", "A second call gives the same.", _second, length=1, brief=True),
    Relation(
        "state-content",
        "state",
        "A call gives the same after one with other content.",
        _between(_content),
        brief=True,
    ),
    Relation("state-longer", "state", "A call gives the same after a longer one.", _after_longer),
    Relation(
        "state-shorter",
        "state",
        "A call after a shorter one gives what it gives first.",
        _fresh_longer,
        _why_not_copied,
    ),
    Relation(
        "state-masked",
        "state",
        "A call without a mask gives the same after one with a mask.",
        _between(_masked),
        _why_not_masked,
        brief=True,
    ),
    Relation(
        "state-dtype",
        "state",
        "A call gives the same after one in another dtype.",
        _between(_other_dtype),
        _why_not_dtype,
        brief=True,
    ),
    Relation(
        "state-training",
        "state",
        "A call gives the same after train() and eval().",
        _between(_training),
        _why_not_training,
        brief=True,
    ),
    Relation(
        "state-instances",
        "state",
        "A call gives the same after one of a second instance.",
        _two,
        _why_not_copied,
        brief=True,
    ),
    Relation("state-thread", "state", "A second thread gets the same.", _thread, brief=True),
    Relation("state-inputs", "state", "A call does not change what it is given.", _unchanged, length=1, brief=True),
)
"""The relations of state."""
