"""Bugs of attention functions inside models, found from recorded inputs and outputs, and tried beside the zoo's.

The zoo's bugs of masks are of a layer with arguments `causal` and `window`. A model gives its attention function one
mask for these and for padding: here they are read off that array, `allowed`. A wrong scale is read off the weights.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from conformance.cases.problem import Problem
from conformance.zoo.bug import Bug, DoesNotApply, Steps, Table
from mha.recordings.recording import Recording
from mha_core import AttentionConfig, AttentionInputs
from mha_core.dtypes import round_to
from mha_core.reference import forward
from mha_core.reference import pipeline as reference
from mha_core.reference.state import State, Step

Change = Callable[[NDArray, int, NDArray], NDArray]
"""(allowed (B, H, Lq, Lk) without sinks, length of the past, offsets of keys from a query's own) -> other allowed."""


def _allowed_by(change: Change) -> Steps:
    """The step that changes which keys are allowed; sinks stay."""

    def step(state: State) -> NDArray:
        right = np.array(forward.allowed(state))
        keys = right.shape[3] - has_sinks(state.inputs)
        own = keys - right.shape[2]
        offsets = np.arange(keys) - own - np.arange(right.shape[2])[:, None]
        if state.inputs.mask.allowed is None or own < 0:
            raise DoesNotApply("without a mask that is handed over whole")
        found = np.array(right)
        found[..., :keys] = change(right[..., :keys], own, offsets)
        return found

    return {"allowed": step}


def _of_item(order: str) -> Change:
    def change(allowed: NDArray, own: int, offsets: NDArray) -> NDArray:
        if len(allowed) < 2 or (order == "reversed" and len(allowed) == 2):
            raise DoesNotApply("with so few batch items")
        return allowed[::-1] if order == "reversed" else np.roll(allowed, {"next": -1, "last": 1}[order], axis=0)

    return change


def _but_the_only(allowed: NDArray, without: NDArray) -> NDArray:
    """The keys without some, but in rows that have no others: there a finite number that is added changes nothing."""
    left: NDArray = allowed & ~without
    return np.where(left.any(axis=-1, keepdims=True), left, allowed)


def _check_causal(allowed: NDArray, offsets: NDArray) -> None:
    if (allowed & (offsets > 0)).any():
        raise DoesNotApply("without a causal mask")


def _without_own(allowed: NDArray, own: int, offsets: NDArray) -> NDArray:
    _check_causal(allowed, offsets)
    return _but_the_only(allowed, np.broadcast_to(offsets == 0, allowed.shape))


def _one_ahead(allowed: NDArray, own: int, offsets: NDArray) -> NDArray:
    _check_causal(allowed, offsets)
    return np.concatenate([allowed[:, :, 1:], allowed[:, :, -1:]], axis=2)


def _without_newest(allowed: NDArray, own: int, offsets: NDArray) -> NDArray:
    """A decoding step alone is changed."""
    return _but_the_only(allowed, np.broadcast_to(offsets == 0, allowed.shape)) if own else allowed


def _window(allowed: NDArray, offsets: NDArray) -> int:
    """How far back a window of a mask reaches. Raises DoesNotApply for a mask without one."""
    seen = np.where(allowed, offsets, 0).min(initial=0)
    beyond = offsets < seen
    if not beyond.any() or seen == 0 or not (allowed & (offsets == seen)).any():
        raise DoesNotApply("without a window")
    return int(seen)


def _wider(allowed: NDArray, own: int, offsets: NDArray) -> NDArray:
    there = allowed.any(axis=2, keepdims=True)  # padding, to which nobody attends, stays out
    return allowed | ((offsets == _window(allowed, offsets) - 1) & there)


def _narrower(allowed: NDArray, own: int, offsets: NDArray) -> NDArray:
    return _but_the_only(allowed, np.broadcast_to(offsets == _window(allowed, offsets), allowed.shape))


def _uncapped(state: State) -> float:
    if state.config.softcap is None or state.inputs.mask.allowed is None:
        raise DoesNotApply("without a softcap and a mask")
    return state.config.softcap


def _mask_capped(state: State) -> NDArray:
    cap = _uncapped(state)
    return np.where(forward.allowed(state), forward.scores(state), -cap)


def _all_allowed(state: State) -> NDArray:
    _uncapped(state)
    return np.ones_like(forward.allowed(state))


_of_items = Table("weights", "Give each batch item the mask of its own.")
_window_of = Table("weights", "A window of w keys holds a query's own and the w - 1 before it.")
_row = Table("weights", "Let query i see keys 0 to i, its own too.")

MASK_BUGS = (
    _of_items(
        "mask-of-next-item", "Each batch item has the mask of the next batch item.", _allowed_by(_of_item("next"))
    ),
    _of_items("mask-of-last-item", "Each batch item has the mask of the one before.", _allowed_by(_of_item("last"))),
    _of_items("mask-of-items-reversed", "Batch items have masks in reversed order.", _allowed_by(_of_item("reversed"))),
    _row("whole-mask-without-diagonal", "A causal query does not see its own place.", _allowed_by(_without_own)),
    _row(
        "whole-mask-one-ahead",
        "A causal query has the mask of the next one: it sees one place ahead.",
        _allowed_by(_one_ahead),
        fix="Let query i see keys 0 to i alone.",
    ),
    _row(
        "newest-key-unseen",
        "A query that has a past in a cache does not see the newest key, its own.",
        _allowed_by(_without_newest),
        fix="Let the query of a decoding step see all keys, the newest too.",
    ),
    _window_of("whole-mask-window-wider", "The window reaches one place too far back.", _allowed_by(_wider)),
    _window_of(
        "whole-mask-window-narrower",
        "The window reaches one place less far back than it should.",
        _allowed_by(_narrower),
    ),
    _row(
        "softcap-after-mask",
        "The softcap bounds the mask too: excluded keys have a score of -softcap, and weights.",
        {"allowed": _all_allowed, "scores": _mask_capped},
        stage="scores",
        fix="Cap the scores first, and add the mask to what is capped.",
    ),
)
"""Bugs of masks that are handed over whole."""


def _softmax_between(state: State) -> NDArray:
    """A softmax that is given scores in bfloat16 and gives weights in it, and computes in float32 itself."""

    def narrow(array: NDArray) -> NDArray:
        with np.errstate(over="ignore"):
            return round_to(array, "bfloat16").astype(np.float64)

    return narrow(forward.softmax(narrow(state["scores"]), state["allowed"]))


SOFTMAX_BUG = Bug(
    "softmax-between-bfloat16",
    "The softmax is given scores in bfloat16, and gives weights in it.",
    "weights",
    "Leave scores and weights in the dtype of the inputs, or a wider one.",
    forward={"weights": _softmax_between},
)
"""What PyTorch's softmax does with scores in bfloat16; the zoo's has its exponentials and their sum in it too."""

LEAST_WEIGHT = 1e-5
"""Smaller weights tell little of their score."""

FITS = 1e-4
"""How far, relatively, scores may be from the straight line whose slope is a scale."""


def _scale_in(problem: Problem) -> float | None:
    """The number by which a call multiplied its scores, as its weights tell; None if they tell none."""
    weights = problem.recorded.get("weights")
    if weights is None or problem.config.softcap is not None or problem.inputs.dropout_keep is not None:
        return None
    state = reference.run_state(problem.config, problem.weights, problem.inputs)
    counted = state["allowed"] & (weights > LEAST_WEIGHT)
    products, bias = state["unscaled"], state["scores"] - state["capped"]
    logits = np.where(counted, np.log(np.where(counted, weights, 1.0)) - bias, 0.0)
    number = np.maximum(counted.sum(axis=-1, keepdims=True), 1)
    x, y = (
        np.where(counted, array - np.where(counted, array, 0.0).sum(axis=-1, keepdims=True) / number, 0.0)
        for array in (products, logits)
    )
    if not np.isfinite(x).all() or not np.isfinite(y).all() or not x.any():
        return None
    found = float((x * y).sum() / (x * x).sum())
    return found if found > 0 and np.abs(y - found * x).max() <= FITS * np.abs(y).max() else None


def _plain(scale: float) -> tuple[float, str]:
    """The scale, and in words: as 1 / sqrt(n) where it is that as far as weights can tell."""
    number = round(scale**-2)
    if 0 < number < MOST_CHANNELS and abs(number**-0.5 - scale) <= FITS * scale:
        return number**-0.5, f"1 / sqrt({number})"
    return scale, f"{scale:.6g}"


MOST_CHANNELS = 4096
"""The largest number of channels of which a scale is told."""


def _known(config: AttentionConfig) -> tuple[float, ...]:
    """The scales that the zoo's bugs give; and the right one."""
    own, plain = config.softmax_scale, config.head_dim**-0.5
    return own, 1.0, own**2, plain, own * plain, 1 / config.head_dim, config.embed_dim**-0.5


def _scaled_by(scale: float) -> Callable[[State], NDArray]:
    return lambda state: np.asarray(state["unscaled"] * scale)


def _scale_bugs(recording: Recording) -> tuple[Bug, ...]:
    found: dict[str, float] = {}
    for problem in recording.problems:
        scale = _scale_in(problem)
        if scale is None or any(abs(scale - one) <= FITS * one for one in _known(problem.config)):
            continue
        value, words = _plain(scale)
        found.setdefault(words, value)
    return tuple(
        Bug(
            "scale-other",
            f"The scale of the scores is {words}, which is not the layer's.",
            "scores",
            "Multiply queries @ keys^T by the layer's scale.",
            forward={"similarity": _scaled_by(value)},
        )
        for words, value in list(found.items())[:MOST_SCALES]
    )


MOST_SCALES = 4
"""Most scales that are tried."""


def bugs_of_functions(recording: Recording) -> tuple[Bug, ...]:
    """Return the known bugs of attention functions (such as SDPA) that the inputs of a recording could show."""
    masks = any(call.inputs.mask.allowed is not None for call in recording.calls)
    return (*(MASK_BUGS if masks else ()), SOFTMAX_BUG, *_scale_bugs(recording))


# Sinks, and rows of lowest numbers -----------------------------------------------------------------------


def has_sinks(inputs: AttentionInputs) -> bool:
    """Return whether a call has attention sinks: a last key position with a bias, and zeros as key and value."""
    bias = inputs.mask.bias
    if bias is None or not inputs.keys.shape[-2]:
        return False
    return not inputs.keys[..., -1, :].any() and not inputs.values[..., -1, :].any() and bool(np.any(bias[..., -1]))


def _without_sinks(state: State) -> NDArray:
    _check_sinks(state)
    allowed = np.array(forward.allowed(state))
    allowed[..., -1] = False
    return allowed


def _sinks(change: Callable[[State, NDArray], NDArray]) -> Mapping[str, Step]:
    """The scores with `change(state, sinks (B, H, Lq))` in place of the sinks."""

    def scores(state: State) -> NDArray:
        _check_sinks(state)
        found = np.array(forward.scores(state))
        found[..., -1] = change(state, found[..., -1])
        return found

    return {"scores": scores}


def _capped(state: State, sinks: NDArray) -> NDArray:
    cap = state.config.softcap
    if cap is None:
        raise DoesNotApply("without a softcap")
    return cap * np.tanh(sinks / cap)


def _check_sinks(state: State) -> None:
    if not has_sinks(state.inputs):
        raise DoesNotApply("without sinks")


_sink = Table("scores", "Give each head its own sink.")

SEAM_BUGS = (
    _sink(
        "sinks-dropped",
        "The sinks are left out of the softmax's denominator.",
        {"allowed": _without_sinks},
        stage="weights",
        fix="Add exp(sink - maximum) of each head to the sum of exponentials.",
    ),
    _sink("sinks-first", "The sink of the first head counts for all heads.", _sinks(lambda s, own: own[:, :1])),
    _sink("sinks-reversed", "Sinks are read in reverse.", _sinks(lambda s, own: own[:, ::-1])),
    _sink("sinks-next", "Each head has the sink of the next head.", _sinks(lambda s, own: np.roll(own, -1, axis=1))),
    _sink("sinks-last", "Each head has the sink of the head before.", _sinks(lambda s, own: np.roll(own, 1, axis=1))),
    _sink(
        "sinks-capped",
        "The softcap bounds the sinks too.",
        _sinks(_capped),
        fix="Cap the scores of keys alone; a sink stands as it is.",
    ),
    _sink(
        "sinks-scaled",
        "The sinks are multiplied by the scale of the scores.",
        _sinks(lambda s, own: own * s.config.softmax_scale),
        fix="A sink stands as it is: scale queries @ keys^T alone.",
    ),
)
"""The bugs of sinks."""


SWALLOWING = -65504.0
"""The lowest number of float16: a bias as low as this stands for an exclusion in every dtype."""


def _rows_swallowed(inputs: AttentionInputs, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Bool (B, H, Lq, 1): rows in which every key that counts has the lowest number."""
    bias = 0.0 if inputs.mask.bias is None else inputs.mask.bias
    low = np.broadcast_to(np.asarray(bias) <= SWALLOWING, allowed.shape)
    found: NDArray[np.bool_] = (low | ~allowed).all(axis=-1, keepdims=True) & allowed.any(axis=-1, keepdims=True)
    return found


def _lowest_is_nan(state: State) -> NDArray:
    swallowed = _rows_swallowed(state.inputs, state["allowed"])
    if not swallowed.any():
        raise DoesNotApply("without a row of lowest numbers alone")
    return np.where(swallowed, np.nan, forward.weights(state))


LOWEST_BUG = Bug(
    "lowest-row-nan",
    "A row without an allowed key is NaN: the lowest number, which it has at each key, is read as -inf.",
    "weights",
    "Add the lowest number as it is, or give such a row weights of 0: ask the mask for it.",
    forward={"weights": _lowest_is_nan},
)
"""A bug of rows in which a mask excludes every key by a number."""
