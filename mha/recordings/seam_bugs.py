"""Bugs of recorded calls: of sinks, which stand there as one more key, and of rows of lowest numbers.

They join the zoo when such a recording is diagnosed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from conformance.zoo.bug import Bug, DoesNotApply
from mha.recordings.recording import Recording
from mha_core import AttentionInputs
from mha_core.reference import forward
from mha_core.reference.state import State


def has_sinks(inputs: AttentionInputs) -> bool:
    """Return whether the last key represents attention sinks (`mha_core.seam`): key and value are 0, its bias not."""
    bias = inputs.mask.bias
    if bias is None or not inputs.keys.shape[-2]:
        return False
    return not inputs.keys[..., -1, :].any() and not inputs.values[..., -1, :].any() and bool(np.any(bias[..., -1]))


def _without_sinks(state: State) -> NDArray:
    _check(state)
    allowed = np.array(forward.allowed(state))
    allowed[..., -1] = False
    return allowed


def _sinks_of(order: str) -> Bug:
    """The bug that reads the sinks of heads in another order, or of one head for all."""
    sentence = {
        "first": "The sink of the first head counts for all heads.",
        "reversed": "Sinks are read in reverse.",
        "next": "Each head has the sink of the next head.",
        "last": "Each head has the sink of the head before.",
    }

    def scores(state: State) -> NDArray:
        _check(state)
        found = np.array(forward.scores(state))
        own = found[..., -1]
        found[..., -1] = {
            "first": own[:, :1],
            "reversed": own[:, ::-1],
            "next": np.roll(own, -1, axis=1),
            "last": np.roll(own, 1, axis=1),
        }[order]
        return found

    return Bug(f"sinks-{order}", sentence[order], "scores", "Give each head its own sink.", forward={"scores": scores})


def _sinks_capped(state: State) -> NDArray:
    _check(state)
    cap = state.config.softcap
    if cap is None:
        raise DoesNotApply("without a softcap")
    found = np.array(forward.scores(state))
    found[..., -1] = cap * np.tanh(found[..., -1] / cap)
    return found


def _sinks_scaled(state: State) -> NDArray:
    _check(state)
    found = np.array(forward.scores(state))
    found[..., -1] *= state.config.softmax_scale
    return found


def _check(state: State) -> None:
    if not has_sinks(state.inputs):
        raise DoesNotApply("without sinks")


SEAM_BUGS = (
    Bug(
        "sinks-dropped",
        "The sinks are left out of the softmax's denominator.",
        "weights",
        "Add exp(sink - maximum) of each head to the sum of exponentials.",
        forward={"allowed": _without_sinks},
    ),
    _sinks_of("first"),
    _sinks_of("reversed"),
    _sinks_of("next"),
    _sinks_of("last"),
    Bug(
        "sinks-capped",
        "The softcap bounds the sinks too.",
        "scores",
        "Cap the scores of keys alone; a sink stands as it is.",
        forward={"scores": _sinks_capped},
    ),
    Bug(
        "sinks-scaled",
        "The sinks are multiplied by the scale of the scores.",
        "scores",
        "A sink stands as it is: scale queries @ keys^T alone.",
        forward={"scores": _sinks_scaled},
    ),
)
"""The bugs of sinks."""


SWALLOWING = -65504.0
"""The lowest number of float16: a bias as low as this stands for an exclusion in every dtype."""


def _rows_swallowed(inputs: AttentionInputs, allowed: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Bool (B, H, Lq, 1): rows in which every key that counts has the lowest number."""
    bias = inputs.mask.bias
    if bias is None:
        return np.zeros((*allowed.shape[:3], 1), bool)
    low = np.broadcast_to(bias <= SWALLOWING, allowed.shape)
    found: NDArray[np.bool_] = (low | ~allowed).all(axis=-1, keepdims=True) & allowed.any(axis=-1, keepdims=True)
    return found


def _lowest_is_nan(state: State) -> NDArray:
    swallowed = _rows_swallowed(state.inputs, state["allowed"])
    if not swallowed.any():
        raise DoesNotApply("without a row of lowest numbers alone")
    return np.where(swallowed, np.nan, forward.weights(state))


LOWEST_BUGS = (
    Bug(
        "lowest-row-nan",
        "A row without an allowed key is NaN: the lowest number, which it has at each key, is read as -inf.",
        "weights",
        "Add the lowest number as it is, or give such a row weights of 0: ask the mask for it.",
        forward={"weights": _lowest_is_nan},
    ),
)
"""Bugs of rows in which a mask excludes every key by a number."""


def bugs_of_seam(recording: Recording) -> tuple[Bug, ...]:
    """Return the bugs of calls with sinks, which the zoo does not have; () if no call of a recording has sinks."""
    return SEAM_BUGS if any(has_sinks(call.inputs) for call in recording.calls) else ()


def bugs_of_lowest(recording: Recording) -> tuple[Bug, ...]:
    """Return the bugs that show in rows whose bias is the dtype's lowest number; () if there are no such rows."""
    biases = [call.inputs.mask.bias for call in recording.calls]
    return LOWEST_BUGS if any(bias is not None and (bias <= SWALLOWING).any() for bias in biases) else ()
