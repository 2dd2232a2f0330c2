"""Bugs of calls at the seam: what stands there as one more key, a sink, and is no key in the layer's code.

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
    """Whether the last key stands for sinks (`mha_core.seam`): it is 0 with its value, and has a bias of its own."""
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
    sentence = {"first": "The sink of the first head counts for all heads.", "reversed": "Sinks are read in reverse."}

    def scores(state: State) -> NDArray:
        _check(state)
        found = np.array(forward.scores(state))
        own = found[..., -1]
        found[..., -1] = own[:, ::-1] if order == "reversed" else own[:, :1]
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


def bugs_of_seam(recording: Recording) -> tuple[Bug, ...]:
    """The bugs that calls with sinks have beside the zoo's; none for a recording without such a call."""
    return SEAM_BUGS if any(has_sinks(call.inputs) for call in recording.calls) else ()
